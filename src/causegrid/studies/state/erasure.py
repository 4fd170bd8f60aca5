"""Erase what is read, or what varies most, see whether the task falls, and refit the probe (MEASURES 3.2).

For every layer and subspace (`fitted`): it is erased at the block output around the training mean; the task's
accuracy is measured with the erasure in force and held against `n_random` random subspaces of equal rank, which
all kinds of that rank share; a *fresh* probe is trained and tested on the erased activations.  Where the fresh
probe still reads the state, the erasure did not remove it and the test is void, whatever the task does.

Readings: `not readable` (the first probe was at its baseline already, *ours*), `candidate necessary`,
`readable, not used`, `test void`, `inconclusive`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from causegrid.errors import InputError
from causegrid.evidence.effects import bootstrap_mean
from causegrid.interventions.subspaces import random_basis
from causegrid.models.record import Model
from causegrid.signatures.activations import Activations, check_label, collect
from causegrid.signatures.probes import Probe
from causegrid.studies.state.fitted import KINDS, Rank, Subspace, chosen, fit_subspaces
from causegrid.studies.state.readings import Bench, bench, reading

__all__ = ["erasure_table", "reading"]

NUMBERS = (
    *("clean", "accuracy", "low", "high", "drop", "control_mean", "control_low", "control_high", "n_control"),
    *(
        "control_variance",
        "matched_accuracy",
        "probe",
        "probe_low",
        "refit",
        "refit_low",
        "refit_high",
        "refit_control",
        "baseline",
    ),
)


def erasure_table(
    model: Model,
    task: Any,
    *,
    activations: Activations | None = None,
    probes: Mapping[int, Probe] | None = None,
    subspaces: Mapping[int, Sequence[Subspace]] | None = None,
    label: str | None = None,
    length: int = 40,
    n_train: int = 400,
    n_test: int = 200,
    bases: Sequence[str] = KINDS,
    ranks: Sequence[Rank] = (1, 2, 4, "full"),
    n_random: int = 39,
    n_random_refits: int = 3,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """One row per layer (-1 = embedding output), kind of subspace and rank.

    `activations` (of `collect`), `probes` (of `fit_probes`, fitted for `directions`) and `subspaces` (of
    `fit_subspaces` with the same activations, these kinds and ranks or more) are made here when not given.
    `ranks`: 1 to the width, `full` = C - 1 for the C classes seen in training; probe directions beyond their row
    space are left out; INLP and LEACE have the rank they come to.
    Columns: `layer, label, length, basis, rank, full, iterations, removed` (INLP: row spaces erased, and whether
    it stopped because its fresh probe was at the best lookup table)`, variance` (removed, fraction)`, matched_variance,
    matched_mark` (the equal-rank principal components whose removed variance is nearest)`, clean, accuracy, low,
    high, drop` (task accuracy over all positions, interval over sequences)`, control_mean, control_low,
    control_high, n_control, control_variance` (fraction the random subspaces remove,
    mean)`, matched_accuracy, probe, probe_low, refit, refit_low, refit_high, refit_control`
    (mean of the random subspaces' fresh probes)`, baseline, beyond_control, reading`.  A subspace of rank 0 (INLP
    on a state that was never readable) has no controls.
    Raises InputError for kinds and ranks that do not exist, and a split of a single class.
    """
    if n_random < 1:
        raise InputError(f"n_random is {n_random}: at least 1 random subspace is needed")
    found = activations or collect(model, task, length=length, n_train=n_train, n_test=n_test, seed=seed)
    name = check_label(found.labels, label)
    at = bench(model, task, found, name, seed)
    asked: dict[str, Any] = {"label": name, "bases": bases, "ranks": ranks}
    fitted = chosen(
        subspaces or fit_subspaces(found, probes=probes, progress=progress, **asked), found, **asked
    )
    rows = []
    for i, layer in enumerate(found.layers):
        if fitted[layer]:
            rows += erased_layer(
                at, fitted[layer], n_random=n_random, n_random_refits=n_random_refits, seed=seed
            )
        if progress is not None:
            progress(i + 1, len(found.layers), f"erasing at length {found.length}")
    if not rows:
        raise InputError(
            f"no rank of {', '.join(map(str, ranks))} can be erased: the row space of every layer's probe is smaller"
        )
    return pd.DataFrame(rows).astype({"iterations": "Int64", "removed": "boolean"})


def erased_layer(
    at: Bench, subspaces: Sequence[Subspace], *, n_random: int, n_random_refits: int, seed: int
) -> list[dict[str, Any]]:
    """The rows of one layer's subspaces, measured on one bench; random subspaces are shared by rank."""
    layer, mean = subspaces[0].layer, subspaces[0].mean
    ranks = sorted({s.rank for s in subspaces} - {0})
    controls = {
        rank: [random_basis(at.model.d_model, rank, _seed(seed, layer, rank, k)) for k in range(n_random)]
        for rank in ranks
    }
    measured = at.behaviour(
        layer,
        [
            None,
            *(s.eraser for s in subspaces),
            *(s.matched for s in subspaces),
            *(q for rank in ranks for q in controls[rank]),
        ],
        mean,
    )  # (1 + 2 subspaces + ranks x n_random, sequences)
    n = len(subspaces)
    tasks = dict(zip(ranks, measured[1 + 2 * n :].mean(axis=1).reshape(-1, n_random), strict=True))
    refits = {
        rank: _mean([at.refit(layer, q, mean)[0] for q in controls[rank][:n_random_refits]]) for rank in ranks
    }
    shares = {rank: _removed(at.found.train.x[layer], controls[rank]) for rank in ranks}
    first, first_low = at.first(layer)
    clean = float(measured[0].mean())
    rows = []
    for i, s in enumerate(subspaces):
        own = measured[1 + i]
        accuracy, (low, high) = float(own.mean()), bootstrap_mean(own)
        control = tasks.get(s.rank, np.full(1, np.nan))
        refit, refit_low, refit_high = at.refit(layer, s.eraser, mean)
        rows.append(
            {
                **facts(s, at.label, at.found.length),
                "clean": clean,
                "accuracy": accuracy,
                "low": low,
                "high": high,
                "drop": clean - accuracy,
                "control_mean": float(control.mean()),
                "control_low": float(control.min()),
                "control_high": float(control.max()),
                "n_control": n_random if s.rank else 0,
                "control_variance": shares.get(s.rank, float("nan")),
                "matched_accuracy": float(measured[1 + n + i].mean())
                if s.matched is not None
                else float("nan"),
                "probe": first,
                "probe_low": first_low,
                "refit": refit,
                "refit_low": refit_low,
                "refit_high": refit_high,
                "refit_control": refits.get(s.rank, float("nan")),
                "baseline": at.baseline,
                "beyond_control": bool(s.rank and not control.min() <= accuracy <= control.max()),
                "reading": reading(
                    probe_low=first_low,
                    refit_low=refit_low,
                    refit_high=refit_high,
                    baseline=at.baseline,
                    clean=clean,
                    task_accuracy=accuracy,
                    task_low=low,
                    control_low=float(control.min()),
                ),
            }
        )
    return rows


def facts(s: Subspace, label: str, length: int) -> dict[str, Any]:
    """The columns of a subspace that need no measurement."""
    return {
        "layer": s.layer,
        "label": label,
        "length": length,
        "basis": s.kind,
        "rank": s.rank,
        "full": s.full,
        "iterations": s.iterations,
        "removed": s.removed,
        "variance": s.variance,
        "matched_variance": s.matched_variance,
        "matched_mark": s.matched_mark,
    }


def unmeasured(s: Subspace, label: str, length: int) -> dict[str, Any]:
    """A row without numbers, for a length that cannot be measured."""
    nothing = dict.fromkeys(NUMBERS, float("nan"))
    return {**facts(s, label, length), **nothing, "n_control": 0, "beyond_control": False, "reading": ""}


def _removed(x: Any, bases: Sequence[Tensor]) -> float:
    """Mean fraction of the variance of x (N, d) that bases (d, r) remove."""
    covariance = np.cov(x, rowvar=False, dtype=np.float64)
    total = float(np.trace(covariance))
    parts = [float(((covariance @ np.asarray(q)) * np.asarray(q)).sum()) for q in bases]
    return float(np.mean(parts)) / total if total > 0 and parts else float("nan")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _seed(seed: int, layer: int, rank: int, k: int) -> int:
    return int(np.random.SeedSequence([seed, layer + 1, rank, k]).generate_state(1)[0])
