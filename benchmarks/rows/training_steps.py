"""A training step of Mamba and Mamba-2 against transformers' classes: same sizes, same weights, same batch.

transformers' modules run their plain CPU path in training mode.  Our gradients are held against the
recurrence written as a loop over positions, in float64; our logits and loss against transformers' own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import machine, steps, timing
from benchmarks.bench import Equality, Figure, Result, Say, figure, row
from benchmarks.rows.floors import products

TARGETS = {"mamba": 40.0, "mamba2": 4.0}
NAMES = {"mamba": "Mamba", "mamba2": "Mamba-2"}


def pair(family: str, *, d_model: int, n_layers: int) -> tuple[nn.Module, nn.Module]:
    """(ours, transformers') with the same weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from causegrid.models.mamba import from_hf

    sizes: dict[str, Any] = dict(
        vocab_size=steps.CLASSES,
        hidden_size=d_model,
        num_hidden_layers=n_layers,
        expand=2,
        conv_kernel=4,
        tie_word_embeddings=False,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    if family == "mamba":
        sizes |= dict(state_size=16)
    else:
        # 64 positions a chunk, as ours: transformers' default of 256 pads 40 positions to 256
        sizes |= dict(state_size=64, head_dim=32, num_heads=2 * d_model // 32, n_groups=1, chunk_size=64)
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **sizes)
    theirs = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    mine = steps.build(family, d_model=d_model, n_layers=n_layers).module
    mine.load_state_dict(from_hf(theirs.state_dict()))
    return mine, theirs


def float64_loop(module: nn.Module) -> nn.Module:
    """The same weights in float64, with the recurrence as a loop over positions."""
    from causegrid.models.ops.scan import reference
    from causegrid.models.ops.ssd import ssd_steps

    slow = copy.deepcopy(module).double()
    swapped = 0
    for part in slow.modules():
        for name, loop in {"scan": reference, "ssd": ssd_steps}.items():
            if hasattr(part, name):
                setattr(part, name, loop)
                swapped += 1
    if not swapped:
        raise ValueError("no scan was found to put the loop in place of")
    return slow


@row("training_steps", title="Training steps against transformers")
def run(quick: bool, say: Say) -> Sequence[Result]:
    """Both families, on one thread and on two."""
    sizes = dict(d_model=32, n_layers=1) if quick else dict(d_model=128, n_layers=4)
    tokens, labels = steps.batch(4, 8) if quick else steps.batch(64, 40)
    results: list[Result] = []
    for family, name in NAMES.items():
        mine, theirs = pair(family, **sizes)
        say(f"{name}: gradients against the float64 loop")
        wanted = steps.gradients(float64_loop(mine), tokens, labels)
        off = steps.furthest(steps.gradients(mine, tokens, labels), wanted)
        against = f"transformers {type(theirs).__name__} on CPU, same sizes and weights"
        for threads in (1,) if quick else (1, 2):
            with timing.threads(threads):
                say(f"{name}: steps on {threads} thread{'s' * (threads > 1)}")
                ours_s, other_s = timing.interleaved(
                    steps.training_step(mine, tokens, labels),
                    steps.training_step(theirs, tokens, labels),
                    rounds=2 if quick else 5,
                )
                rate = machine.sgemm(seconds=0.01 if quick else 0.3)
            n_params = sum(p.numel() for p in mine.parameters())
            floor = products(n_params, tokens.numel()) / rate / 1e9
            most = float(np.median(other_s)) / floor
            results.append(
                figure(
                    f"{name} training step",
                    against,
                    "speedup",
                    ours=ours_s,
                    other=other_s,
                    threads=threads,
                    target=TARGETS[family],
                    note=f"The matrix products of the step alone take {1000 * floor:.0f} ms at this machine's rate "
                    f"({rate:.0f} GFLOP/s): no implementation can be more than {most:.0f} x faster here.",
                )
            )
        results.append(
            Equality(
                name=f"{name} gradients of a training step",
                against="a float64 loop over positions",
                difference=off,
                tolerance=1e-5,
                note="Each relative to the largest entry of its parameter's gradient.",
            )
        )
        results += _same(name, against, mine, theirs, tokens, labels)
    for found in results:
        if isinstance(found, Figure):
            say(f"{found.name}, {found.threads} thread(s): {found.ratio:.1f} x")
    return results


def _same(
    name: str, against: str, mine: nn.Module, theirs: nn.Module, tokens: torch.Tensor, labels: torch.Tensor
) -> list[Equality]:
    with torch.no_grad():
        loss, logits = steps.loss_of(mine, tokens, labels)
        their_loss, their_logits = steps.loss_of(theirs, tokens, labels)
    off = max(float((logits - their_logits).abs().max()), abs(float(loss - their_loss)))
    return [Equality(name=f"{name} logits and loss", against=against, difference=off, tolerance=1e-4)]
