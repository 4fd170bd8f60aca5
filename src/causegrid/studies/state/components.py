"""What a state model still gets right when a component is removed: every kind, mode and layer (MEASURES 3.3).

All our families are causal, and every removal acts on positions from the left: it replaces weights, or a value
by a constant of its position.  So one forward at the longest length gives every shorter one: the sequences of
length l are the first l tokens of the longest ones.  `mean` is taken at the longest length, over validation
sequences, per position (the convolution's is one for all positions).
A layer's removal leaves the blocks below as they were, so they are not run again.

Beside every effect stands the noise floor of its metric: the same clean model in two batch layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, unknown
from causegrid.evidence.effects import bootstrap_mean, effect_interval
from causegrid.interventions.components import components
from causegrid.interventions.removal import Component, removed
from causegrid.models.forward import logits, token_ids
from causegrid.models.ops.denormals import flushed
from causegrid.models.record import Model
from causegrid.sites.capture import capture
from causegrid.sites.prefix import skip_blocks

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
COLUMNS = (
    *("kind", "mode", "layer", "layers", "length", "metric", "clean", "accuracy", "effect", "low", "high"),
    *("n", "n_fired", "noise", "flag"),
)


def _strict(right: Bools) -> Floats:
    every: Bools = np.all(right, axis=1)
    return every.astype(np.float64)


METRICS: dict[str, Callable[[Bools], Floats]] = {  # right or wrong (n, L) -> one value per sequence
    "token": lambda right: right.mean(axis=1),
    "strict": _strict,
    "last": lambda right: right[:, -1].astype(np.float64),
}


def components_table(
    model: Model,
    task: Any,
    *,
    kinds: Sequence[str] | None = None,
    lengths: Sequence[int] = (40, 60, 80, 100, 120),
    n: int = 200,
    seed: int = 0,
    n_reference: int = 128,
    batch: int = 64,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """One row per component kind, mode, layer (and all of them), length and metric, on `n` test sequences.

    `kinds`: of `interventions.components`; None = all this model has.  Sequences are those `behaviour` draws at
    the longest length.  `mean` is taken over `n_reference` validation sequences.

    Columns: `layer` (missing for all), `layers` (`L2` or `all`), `length, metric` (token, strict, last),
    `clean, accuracy` (with the component removed), `effect` = accuracy - clean with its paired bootstrap
    interval over sequences `low, high` (strict and last: never narrower than the exact one), `n` sequences,
    `n_fired` (layers x forwards), `noise` (mean change of a sequence's clean metric between two batch layouts),
    `flag`: `exactly zero` (no sequence changed), `within noise` (no larger than a noise above 0), or nothing.

    Raises InputError for a kind this model does not have, for no kinds or lengths, a length the model cannot
    take, or a task larger than the model.
    """
    chosen = require_parts(model, kinds)
    longest = _longest(model, task, lengths, n)
    data = task.sample(n, longest, seed=(seed, longest), split="test")
    ids = token_ids(model, data.tokens)
    labels = torch.from_numpy(np.ascontiguousarray(data.labels[task.label])).to(model.device)
    clean = _right(model, ids, labels, batch)
    other = _right(model, ids, labels, max(1, min(n, batch) // 2))
    means = _means(model, task, chosen, longest, n_reference, seed, batch)

    conditions = [
        (component, mode, layers)
        for component in chosen
        for mode in component.modes
        for layers in [*((layer,) for layer in component.layers), component.layers]
    ]
    right = np.zeros((len(conditions), n, longest), dtype=bool)
    fired = np.zeros(len(conditions), dtype=np.int64)
    starts = range(0, n, batch)
    for k, s in enumerate(starts):
        part, target = ids[s : s + batch], labels[s : s + batch]
        below = [f"L{layer}.resid_post" for layer in range(model.n_layers - 1)]
        stored = list(capture(model, part, below).values()) if below else []  # (B, L, d) each
        for i, (component, mode, layers) in enumerate(conditions):
            with ExitStack() as scope:
                scope.enter_context(flushed())  # a closed gate's state decays into them
                given = means.get(component.kind)
                log = scope.enter_context(removed(component, mode, layers, means=given))
                if min(layers) > 0:
                    scope.enter_context(skip_blocks(model, min(layers), stored[min(layers) - 1]))
                right[i, s : s + batch] = _hits(model, part, target)
            fired[i] += log.total
            if progress is not None:
                progress(k * len(conditions) + i + 1, len(starts) * len(conditions), "removing components")

    rows = []
    for (component, mode, layers), hits, count in zip(conditions, right, fired, strict=True):
        every = len(layers) == len(component.layers) and len(layers) > 1
        where = (
            {"layer": pd.NA, "layers": "all"} if every else {"layer": layers[0], "layers": f"L{layers[0]}"}
        )
        for length in dict.fromkeys(lengths):
            for metric in METRICS:
                row = _effect(metric, hits[:, :length], clean[:, :length], other[:, :length])
                rows.append(
                    {"kind": component.kind, "mode": mode, **where, "length": length, "metric": metric, **row}
                    | {"n": n, "n_fired": int(count)}
                )
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"layer": "Int64"})


def _effect(metric: str, hits: Bools, clean: Bools, other: Bools) -> dict[str, Any]:
    of = METRICS[metric]
    before, after = of(clean), of(hits)
    difference = after - before
    low, high = bootstrap_mean(difference) if metric == "token" else effect_interval(difference, "top1")
    noise = float(np.abs(of(other) - before).mean())
    effect = float(difference.mean())
    zero = not difference.any()
    return {
        "clean": float(before.mean()),
        "accuracy": float(after.mean()),
        "effect": effect,
        "low": low,
        "high": high,
        "noise": noise,
        "flag": "exactly zero" if zero else "within noise" if 0 < noise >= abs(effect) else "",
    }


def require_parts(model: Model, kinds: Sequence[str] | None) -> list[Component]:
    """The components of these kinds (None = all).  Raises InputError for one this model does not have."""
    has = components(model)
    for kind in kinds or ():
        if kind not in has:
            raise unknown("component", kind, has, hint=f"{model.name!r} is a {model.family}")
    chosen = [component for kind, component in has.items() if kinds is None or kind in kinds]
    if not chosen:
        raise InputError(f"no components of {model.name!r} to remove: it has {', '.join(has) or 'none'}")
    return chosen


def _longest(model: Model, task: Any, lengths: Sequence[int], n: int) -> int:
    if not lengths or min(lengths) < 1 or n < 2:
        raise InputError(
            f"lengths {list(lengths)} and n {n}: need at least one length >= 1 and two sequences"
        )
    if model.n_tokens < task.n_tokens or model.n_out < task.n_classes:
        raise InputError(
            f"model {model.name!r} has {model.n_tokens} tokens and {model.n_out} classes, task {task.name!r} "
            f"needs {task.n_tokens} and {task.n_classes}"
        )
    return max(lengths)


def _means(
    model: Model, task: Any, chosen: list[Component], length: int, n: int, seed: int, batch: int
) -> dict[str, dict[int, Tensor]]:
    """Kind -> layer -> mean over held-out reference sequences."""
    wanted = [c for c in chosen if c.means is not None and "mean" in c.modes]
    if not wanted:
        return {}
    tokens = torch.from_numpy(
        np.ascontiguousarray(task.sample(n, length, seed=(seed, length), split="val").tokens)
    )
    return {c.kind: c.means(tokens, batch) for c in wanted if c.means is not None}


def _hits(model: Model, tokens: Tensor, labels: Tensor) -> Bools:
    right: Bools = (logits(model, tokens).argmax(-1) == labels).cpu().numpy()  # (B, L)
    return right


def _right(model: Model, ids: Tensor, labels: Tensor, batch: int) -> Bools:
    parts = range(0, len(ids), batch)
    return np.concatenate([_hits(model, ids[s : s + batch], labels[s : s + batch]) for s in parts])
