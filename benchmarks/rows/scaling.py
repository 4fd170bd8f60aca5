"""How training, scans and probing grow: time and peak memory against size, with the exponent.

The scans go to 4,096 positions: their time and memory must be linear in length (exponent about 1) and
their values and gradients finite.  Everything on one thread, every size once per round, medians over
rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import memory, steps, timing
from benchmarks.bench import Curve, Equality, Result, Say, row

NAMES = {"transformer": "Transformer", "mamba": "Mamba", "mamba2": "Mamba-2", "lstm": "LSTM", "gru": "GRU"}


def curve(
    name: str, x: str, xs: Sequence[int], calls: dict[str, list[Callable[[], Any]]], rounds: int, note: str
) -> Curve:
    """Seconds of `calls[series][i]` at size `xs[i]`, all of them once per round."""
    flat = [call for series in calls.values() for call in series]
    taken = iter(timing.interleaved(*flat, rounds=rounds))
    seconds = {key: [float(np.median(next(taken))) for _ in series] for key, series in calls.items()}
    return Curve(
        name=name,
        x=x,
        xs=[float(v) for v in xs],
        series=seconds,
        y="seconds",
        exponent={key: timing.growth(xs, values) for key, values in seconds.items()},
        note=note,
    )


def scans(length: int, batch: int) -> dict[str, Callable[[], list[Tensor]]]:
    """Forward and backward of each scan at d 128, expansion 2: functions that give y and all gradients."""
    from causegrid.models.ops.scan import selective_scan
    from causegrid.models.ops.ssd import ssd

    rng = torch.Generator().manual_seed(length)
    channels, heads = 256, 8

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).requires_grad_()

    def steps_of(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=rng) * 0.1).requires_grad_()

    decay = -torch.arange(1.0, 17.0).repeat(channels, 1)
    one = [normal(batch, length, channels), steps_of(batch, length, channels), decay.requires_grad_()]
    one += [normal(batch, length, 16), normal(batch, length, 16), normal(channels)]
    two = [normal(batch, length, heads, 32), steps_of(batch, length, heads)]
    two += [-torch.arange(1.0, heads + 1).requires_grad_()]
    two += [normal(batch, length, 1, 64), normal(batch, length, 1, 64), normal(heads)]
    two = [v.detach().requires_grad_() for v in two]

    def both(scan: Callable[..., Tensor], given: list[Tensor]) -> Callable[[], list[Tensor]]:
        def call() -> list[Tensor]:
            y = scan(*given)
            return [y.detach(), *torch.autograd.grad(y.sum(), given)]

        return call

    return {"Mamba's scan": both(selective_scan, one), "Mamba-2's SSD": both(ssd, two)}


def _lengths(quick: bool, say: Say) -> list[Result]:
    lengths, batch = ((16, 32, 64), 2) if quick else ((64, 128, 256, 512, 1024, 2048, 4096), 4)
    made = {length: scans(length, batch) for length in lengths}
    names = list(made[lengths[0]])
    say("scans against length: time")
    note = f"Forward and backward, batch {batch}, d 128 (256 channels), one thread."
    results: list[Result] = [
        curve(
            "Scan time against length",
            "length (positions)",
            lengths,
            {name: [made[length][name] for length in lengths] for name in names},
            2 if quick else 5,
            note,
        )
    ]
    say("scans against length: memory")
    peaks = {name: [memory.peak(made[length][name]) for length in lengths] for name in names}
    results.append(
        Curve(
            name="Scan memory against length",
            x="length (positions)",
            xs=[float(v) for v in lengths],
            series=peaks,
            y="peak memory (MiB)",
            exponent={name: timing.growth(lengths, np.maximum(v, 1e-3)) for name, v in peaks.items()},
            note=note + " Peak above the inputs.",
        )
    )
    for name in names:
        bad = sum(int((~torch.isfinite(v)).sum()) for v in made[lengths[-1]][name]())
        results.append(
            Equality(
                name=f"{name} at length {lengths[-1]:,}: values that are not finite",
                against="none",
                difference=float(bad),
                tolerance=0.0,
            )
        )
    return results


def _batches(quick: bool, say: Say) -> list[Result]:
    sizes = dict(d_model=32, n_layers=1) if quick else {}
    families = {NAMES[f]: steps.build(f, **sizes).module for f in steps.FAMILIES}
    rows = (2, 4) if quick else (8, 16, 32, 64, 128)
    lengths = (4, 8) if quick else (10, 20, 40, 80, 160)

    def against(shapes: list[tuple[int, int]]) -> dict[str, list[Callable[[], Any]]]:
        return {
            name: [steps.training_step(module, *steps.batch(*shape)) for shape in shapes]
            for name, module in families.items()
        }

    rounds = 2 if quick else 5
    say("training steps against batch and length")
    fixed = (4, 8) if quick else (64, 40)
    return [
        curve(
            "Training step against batch size",
            "batch (sequences)",
            rows,
            against([(n, fixed[1]) for n in rows]),
            rounds,
            f"Sequences of {fixed[1]} tokens, one thread.",
        ),
        curve(
            "Training step against length",
            "length (tokens)",
            lengths,
            against([(fixed[0], n) for n in lengths]),
            rounds,
            f"Batches of {fixed[0]} sequences, one thread.",
        ),
    ]


def _probing(quick: bool, say: Say) -> list[Result]:
    import causegrid as cg

    task = cg.task("s3")
    counts = (20, 40) if quick else (100, 200, 400, 800)
    layers = (1, 2) if quick else (1, 2, 4, 8)
    length = 8 if quick else 40
    model = cg.model("gru", task=task, seed=0, n_layers=1 if quick else 4)
    deep = {n: cg.model("gru", task=task, seed=0, n_layers=n) for n in layers}

    def probing(model: Any, sequences: int) -> Callable[[], Any]:
        return lambda: cg.probe_profile(
            model, task, length=length, n_train=sequences, n_test=sequences // 2, untrained=False
        )

    say("probing against sequences and layers")
    what = f"All labels of S3 with their baselines at length {length}, one thread; "
    rounds = 1 if quick else 3
    return [
        curve(
            "Probing against number of sequences",
            "training sequences (half as many to test)",
            counts,
            {"all labels and baselines": [probing(model, n) for n in counts]},
            rounds,
            what + f"{model.n_layers} layers and the embedding output.",
        ),
        curve(
            "Probing against number of layers",
            "layers read (blocks and the embedding output)",
            [n + 1 for n in layers],
            {"all labels and baselines": [probing(deep[n], counts[1]) for n in layers]},
            rounds,
            what + f"{counts[1]} training sequences.",
        ),
    ]


@row("scaling", title="How training, scans and probing grow")
def run(quick: bool, say: Say) -> Sequence[Result]:
    """The scans to 4,096 positions, the training steps, the probes."""
    with timing.threads(1):
        return [*_lengths(quick, say), *_batches(quick, say), *_probing(quick, say)]
