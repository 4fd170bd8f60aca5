"""Each family's training step against what the processor cannot do faster.

The floor is 6 x parameters x tokens floating point operations (two for each weight and token forward, four
backward) at the measured matrix product rate; for Mamba also the traffic its scan cannot avoid, at the
measured copy bandwidth: forward it reads x, dt, B, C and writes y; backward it reads those and y's
gradient and writes the gradients of the four.

Rates are measured in the same round as the step, over the model's own matrix shapes and 1024^3, and the
fastest counts.  The step's matrix products alone are timed beside it: what they take above the floor no
layer, loss or optimizer can win back.  A step is all of `causegrid.train`'s: forward, loss, backward, clipping, AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import machine, steps, timing
from benchmarks.bench import Note, Result, Say, figure, row

TARGETS = {"transformer": 2.0, "mamba2": 2.0, "mamba": 3.0, "lstm": 3.0, "gru": 3.0}
NAMES = {"transformer": "Transformer", "mamba": "Mamba", "mamba2": "Mamba-2", "lstm": "LSTM", "gru": "GRU"}
FLOAT = 4  # bytes


def products(n_params: int, tokens: int) -> float:
    """Floating point operations of a step's matrix products."""
    return 6.0 * n_params * tokens


def scan_bytes(config: Mapping[str, Any], tokens: int) -> float:
    """Bytes that Mamba's scans move at least, forward and backward, over all layers."""
    channels, n = config["expand"] * config["d_model"], config["n_state"]
    inputs = 2 * channels + 2 * n  # x, dt (E each), B, C (N each)
    forward = inputs + channels
    backward = inputs + channels + inputs
    return float((forward + backward) * FLOAT * tokens * config["n_layers"])


def shapes(model: Any, tokens: int) -> list[tuple[int, int, int]]:
    """The matrix products of the model's weights, (tokens, in, out), without those too thin to count."""
    found = {(tokens, p.shape[1], p.shape[0]) for p in model.module.parameters() if p.dim() == 2}
    return [machine.SQUARE, *sorted(s for s in found if min(s) >= 64)]


def bare_products(model: Any, tokens: int) -> Callable[[], None]:
    """The step's matrix products and nothing else: for each weight y = x W', gx = gy W, gW = gy' x."""
    layers = (m for m in model.module.modules() if isinstance(m, torch.nn.Linear | torch.nn.RNNBase))
    made = []
    for weight in (p for m in layers for p in m.parameters(recurse=False) if p.dim() == 2):
        width_out, width_in = weight.shape
        made.append((torch.randn(tokens, width_in), torch.randn(tokens, width_out), weight.detach()))

    def call() -> None:
        for x, gy, weight in made:
            torch.mm(x, weight.t())
            torch.mm(gy, weight)
            torch.mm(gy.t(), x)

    return call


@row("floors", title="Training steps against the machine's floor")
def run(quick: bool, say: Say) -> Sequence[Result]:
    """All five families at their natural sizes, on one thread and on two."""
    rounds, patience = (2, 0.01) if quick else (15, 0.06)
    sizes = dict(d_model=32, n_layers=1) if quick else {}
    tokens, labels = steps.batch(4, 8) if quick else steps.batch(64, 40)
    results: list[Result] = []
    # a second thread on a busy machine costs more than it tells: the quick mode leaves it out
    rates: dict[int, list[tuple[float, float]]] = {n: [] for n in ((1,) if quick else (1, 2))}
    for family in steps.FAMILIES:
        model = steps.build(family, **sizes)
        step = steps.training_step(model.module, tokens, labels)
        flops = products(model.n_params, tokens.numel())
        moved = scan_bytes(model.config, tokens.numel()) if family == "mamba" else 0.0
        bare = bare_products(model, tokens.numel())
        tried = shapes(model, tokens.numel())
        for threads in rates:
            floors, taken, alone = [], [], []
            with timing.threads(threads):
                timing.interleaved(step, bare, rounds=1, warmup=2)
                for _ in range(rounds):
                    rate = machine.sgemm(tried, seconds=patience)
                    speed = machine.copy_bandwidth(seconds=patience)
                    whole, products_s = timing.interleaved(step, bare, rounds=1, warmup=0)
                    taken.append(float(whole[0]))
                    alone.append(float(products_s[0]))
                    floors.append(flops / rate / 1e9 + moved / speed / 1e9)
                    rates[threads].append((rate, speed))
            found = figure(
                f"{NAMES[family]} training step",
                "floor: 6 x parameters x tokens / sgemm rate"
                + (" + scan traffic / copy bandwidth" if moved else ""),
                "cost",
                ours=taken,
                other=floors,
                threads=threads,
                target=TARGETS[family],
                note=f"{model.n_params:,} parameters, {tokens.shape[0]} x {tokens.shape[1]} tokens, "
                f"{flops / 1e9:.2f} GFLOP"
                + (f", {moved / 1e6:.0f} MB through the scans" if moved else "")
                + f". The bare matrix products of the step, one after another, take "
                f"{timing.ratio(alone, floors)[0]:.2f} x the floor here.",
            )
            say(f"{found.name}, {threads} thread(s): {found.ratio:.2f} x its floor")
            results.append(found)
    for threads, seen in rates.items():
        rate, speed = np.median(seen, axis=0)
        results.append(
            Note(
                title=f"Rates on {threads} thread{'s' * (threads > 1)}",
                text=f"matrix products {rate:.0f} GFLOP/s, copies {speed:.1f} GB/s (medians over all rounds "
                "of this table)",
            )
        )
    return results
