"""Erase what the probe reads, see whether the task falls, and refit the probe (MEASURES 3.2).

For every layer and rank: the leading probe directions are erased at the block output around the training
mean; the task's accuracy is measured with the erasure in force and held against `n_random` random subspaces
of equal rank; a *fresh* probe is trained and tested on the erased activations.  Where the fresh probe still
reads the state, the erasure did not remove it and the test is void, whatever the task does.

Readings: `not readable` (the first probe was at its baseline already, *ours*), `candidate necessary`,
`readable, not used`, `test void`, `inconclusive`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from causegrid.errors import InputError
from causegrid.evidence.effects import bootstrap_mean
from causegrid.interventions.erasure import erased_behaviour
from causegrid.interventions.subspaces import (
    erase_from,
    matched_principal,
    probe_directions,
    random_basis,
    removed_variance,
)
from causegrid.models.record import Model
from causegrid.signatures.activations import Activations, collect, fit_probes
from causegrid.signatures.baselines import no_model_baselines
from causegrid.signatures.probes import Probe

MARGIN = 0.02  # "at baseline" and "holds": the interval lies within 2 percentage points (MEASURES 3.2)


def reading(
    *,
    probe_low: float,
    refit_low: float,
    refit_high: float,
    baseline: float,
    clean: float,
    task_accuracy: float,
    task_low: float,
    control_low: float,
) -> str:
    """The reading of one erasure from its numbers (all fractions): the table of MEASURES 3.2.

    `probe_low`: lower end of the first probe's interval; `refit_*`: the fresh probe's interval; `baseline`:
    the best no-model baseline; `control_low`: the lowest task accuracy of the random subspaces.
    """
    if probe_low <= baseline + MARGIN:
        return "not readable"
    if refit_low > baseline + MARGIN:
        return "test void"
    if refit_high > baseline + MARGIN:
        return "inconclusive"
    if task_low >= clean - MARGIN:
        return "readable, not used"
    return "candidate necessary" if task_accuracy < control_low else "inconclusive"


def erasure_table(
    model: Model,
    task: Any,
    *,
    activations: Activations | None = None,
    probes: Mapping[int, Probe] | None = None,
    label: str | None = None,
    length: int = 40,
    n_train: int = 400,
    n_test: int = 200,
    ranks: Sequence[int | str] = (1, 2, 4, "full"),
    n_random: int = 39,
    n_random_refits: int = 3,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """One row per layer (-1 = embedding output) and rank.

    `activations` (of `collect`) and `probes` (of `fit_probes`, fitted for
    `directions`) are made here when not given.  `ranks`:
    leading probe directions, `full` = the whole row space (C - 1); ranks above it are left out.
    Raises InputError when none is left.
    Columns: `layer, label, length, basis, rank, full, variance` (removed, fraction)`, clean, accuracy, low, high,
    drop` (task accuracy over all positions, interval over sequences)`, control_mean, control_low,
    control_high, n_control, matched_variance, matched_accuracy, matched_mark` (the equal-rank principal components
    whose removed variance is nearest)`, probe, probe_low, refit, refit_low, refit_high, refit_control` (mean of the
    random subspaces' fresh probes)`, baseline, beyond_control, reading`.
    """
    found = activations or collect(model, task, length=length, n_train=n_train, n_test=n_test, seed=seed)
    label = label or next(iter(found.labels))
    first = probes or fit_probes(found, label, directions=True)
    base = max(no_model_baselines(found, label).values())
    sample = task.sample(found.test.n_sequences, found.length, seed=seed, split="test")
    full = found.labels[label] - 1
    asked = {full if r == "full" else int(r) for r in ranks}
    wanted = sorted(asked & set(range(1, full + 1)))
    if not wanted:
        raise InputError(
            f"no rank of {', '.join(map(str, ranks))} can be erased: label {label!r} has {full + 1} classes, so its "
            f"probe has ranks 1 to {full}"
        )
    rows = []
    for i, layer in enumerate(found.layers):
        x, x_test = found.train.x[layer], found.test.x[layer]
        mean = x.mean(axis=0)
        right = first[layer].predict(x_test) == found.test.y[label]
        probe_low, _ = bootstrap_mean(found.test.per_sequence(right))
        for rank in wanted:
            basis = probe_directions(first[layer].weight, rank)
            matched = matched_principal(x, basis)
            controls = [
                random_basis(model.d_model, rank, _seed(seed, layer, rank, k)) for k in range(n_random)
            ]
            per_sequence = erased_behaviour(
                model,
                sample.tokens,
                sample.labels[label],
                f"L{layer}.resid_post",
                [None, basis, matched.basis, *controls],
                mean,
            )  # (3 + n_random, sequences)
            means = per_sequence.mean(axis=1)
            clean, accuracy, control = float(means[0]), float(means[1]), means[3:]
            low, high = bootstrap_mean(per_sequence[1])
            refit, refit_low, refit_high = _refit(found, label, layer, basis, mean)
            refit_control = [_refit(found, label, layer, q, mean)[0] for q in controls[:n_random_refits]]
            rows.append(
                {
                    "layer": layer,
                    "label": label,
                    "length": found.length,
                    "basis": "probe",
                    "rank": rank,
                    "full": rank == full,
                    "variance": removed_variance(x, basis),
                    "clean": clean,
                    "accuracy": accuracy,
                    "low": low,
                    "high": high,
                    "drop": clean - accuracy,
                    "control_mean": float(control.mean()),
                    "control_low": float(control.min()),
                    "control_high": float(control.max()),
                    "n_control": n_random,
                    "matched_variance": matched.removed,
                    "matched_accuracy": float(means[2]),
                    "matched_mark": matched.mark,
                    "probe": float(right.mean()),
                    "probe_low": probe_low,
                    "refit": refit,
                    "refit_low": refit_low,
                    "refit_high": refit_high,
                    "refit_control": float(np.mean(refit_control)),
                    "baseline": base,
                    "beyond_control": bool(not control.min() <= accuracy <= control.max()),
                    "reading": reading(
                        probe_low=probe_low,
                        refit_low=refit_low,
                        refit_high=refit_high,
                        baseline=base,
                        clean=clean,
                        task_accuracy=accuracy,
                        task_low=low,
                        control_low=float(control.min()),
                    ),
                }
            )
        if progress is not None:
            progress(i + 1, len(found.layers), f"erasing at length {found.length}")
    return pd.DataFrame(rows)


def _refit(found: Activations, label: str, layer: int, basis: Any, mean: Any) -> tuple[float, float, float]:
    """A fresh probe on erased activations: accuracy and interval over test sequences."""
    train, test = found.train, found.test
    fresh = Probe().fit(erase_from(train.x[layer], basis, mean), train.y[label])
    right = fresh.predict(erase_from(test.x[layer], basis, mean)) == test.y[label]
    return float(right.mean()), *bootstrap_mean(test.per_sequence(right))


def _seed(seed: int, layer: int, rank: int, k: int) -> int:
    return int(np.random.SeedSequence([seed, layer + 1, rank, k]).generate_state(1)[0])
