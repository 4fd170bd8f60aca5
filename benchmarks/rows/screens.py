"""Attention screens against a plain forward of the same prompts, and how their memory grows with length.

A screen's cost is taking the query rows; scoring them is arithmetic on small arrays.  The plain forward is
the same module with its stock attention and logits at the last position only.  Eager attention with
`output_attentions` is what there is without this: it makes every L x L pattern, and its last rows are the
yardstick for ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import memory, timing
from benchmarks.bench import Curve, Result, Say, figure, row
from benchmarks.workload import tiny

TARGET, TOLERANCE = 1.15, 1e-5
LENGTHS = [256, 512, 1024, 2048]


def eager_rows(model: Any, tokens: Tensor) -> Tensor:
    """Last rows of eager attention's own weights: (n_layers, B, H, L)."""
    before = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            out = model.module(input_ids=tokens, use_cache=False, output_attentions=True, logits_to_keep=1)
    finally:
        model.module.set_attn_implementation(before)
    return torch.stack([weights[:, :, -1] for weights in out.attentions])


def growth(model: Any, lengths: Sequence[int], plain: Callable[[Tensor], Any], rows: Any) -> Curve:
    """Peak memory of one prompt by length: plain forward, with query rows, eager patterns."""
    generator = torch.Generator().manual_seed(0)
    calls = {
        "plain forward": plain,
        "with query rows": rows,
        "eager patterns": lambda t: eager_rows(model, t),
    }
    series: dict[str, list[float]] = {name: [] for name in calls}
    for length in lengths:
        tokens = torch.randint(0, model.n_tokens, (1, length), generator=generator)
        for name, call in calls.items():
            call(tokens)
            series[name].append(max(memory.peak(lambda c=call, t=tokens: c(t)), 0.01))
    return Curve(
        name="Memory of attention rows",
        x="tokens",
        xs=[float(n) for n in lengths],
        series=series,
        y="MiB above the model",
        exponent={name: timing.growth(lengths, values) for name, values in series.items()},
        note="one prompt; the allocator gives back in pages, so short prompts read a little low or high",
    )


@row("screens", title="Attention screens")
def run(quick: bool, say: Say) -> Sequence[Result]:
    """SmolLM2 and a small GPT-NeoX, one thread."""
    import causegrid as cg
    from causegrid.models.forward import logits
    from causegrid.sites.rows import query_rows

    sizes = dict(layers=6, heads=16, width=256, vocabulary=2000, n_groups=1)
    if quick:
        sizes = dict(layers=2, heads=4, width=32, vocabulary=97, n_groups=1)
    neox = tiny("gpt_neox", **sizes, n_prompts=4, length=12).model
    models = {"a small GPT-NeoX": (neox, (4, 12) if quick else (32, 64))}
    if not quick:
        models["SmolLM2"] = (cg.model("smollm2-135m"), (32, 14))
    results: list[Result] = []
    with timing.threads(1):
        for name, (model, shape) in models.items():
            generator = torch.Generator().manual_seed(0)
            tokens = torch.randint(0, model.n_tokens, shape, generator=generator)

            def plain(t: Tensor, m: Any = model) -> Tensor:
                return logits(m, t, last=True)

            def rows(t: Tensor, m: Any = model) -> Tensor:
                return query_rows(m, t)

            ours, other, eager = timing.interleaved(
                lambda t=tokens, f=rows: f(t),
                lambda t=tokens, f=plain: f(t),
                lambda t=tokens, m=model: eager_rows(m, t),
                rounds=2 if quick else 9,
            )
            off = float((query_rows(model, tokens) - eager_rows(model, tokens)).abs().max())
            note = (
                f"{shape[0]} x {shape[1]} tokens; eager took {np.median(eager / other):.2f} x a plain forward"
            )
            say(f"{name}: {np.median(ours / other):.3f} x; {note}")
            results.append(
                figure(
                    f"Attention rows of {name}",
                    "a plain forward of the same prompts",
                    "cost",
                    ours=ours,
                    other=other,
                    threads=1,
                    target=TARGET,
                    difference=off,
                    tolerance=TOLERANCE,
                    note=note + "; compared: the last rows of eager's weights",
                )
            )
        if not quick:
            long = tiny("gpt_neox", **sizes, n_prompts=1, length=LENGTHS[-1]).model
            results.append(
                growth(long, LENGTHS, lambda t: logits(long, t, last=True), lambda t: query_rows(long, t))
            )
        else:
            results.append(
                growth(neox, [6, 12], lambda t: logits(neox, t, last=True), lambda t: query_rows(neox, t))
            )
    return results
