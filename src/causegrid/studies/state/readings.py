"""What an erasure did, measured and read: the table of MEASURES 3.2.

A `Bench` is one model at one length: its activations, the test sequences behind them and the no-model baseline.
It answers two questions of any eraser: does the task still come out, and does a *fresh* probe, trained and
tested on the erased activations, still find the state.  Its solver starts from the first probe's scores:
the optimum is the same, and nearer.

A feature that the erasure left with less than a millionth of its spread, or that was constant before it, holds
rounding, and is made constant before the fresh probe sees it: the probe standardises its features, and would
blow the rounding up to size one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError
from causegrid.evidence.effects import bootstrap_mean
from causegrid.interventions.erasure import erased_behaviour
from causegrid.interventions.subspaces import Leace, erase_from
from causegrid.models.record import Model
from causegrid.signatures.activations import Activations
from causegrid.signatures.baselines import no_model_baselines
from causegrid.signatures.probes import Probe
from causegrid.signatures.standard import Floats32, Floats64, standardiser

MARGIN = 0.02  # "at baseline" and "holds": the interval lies within 2 percentage points (MEASURES 3.2)
ROUNDING = 1e-6
Eraser = Tensor | Leace | None  # a basis (d, r) to erase around the mean, LEACE's affine map, or nothing


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
    A model that does its task no better than the lookup tables cannot show by holding that it needs nothing.
    A task that did not fall is never `candidate necessary`, even where random subspaces raise it: a model below
    chance does better when it is disturbed.
    """
    if probe_low <= baseline + MARGIN:
        return "not readable"
    if refit_low > baseline + MARGIN:
        return "test void"
    if refit_high > baseline + MARGIN or clean <= baseline + MARGIN:
        return "inconclusive"
    if task_low >= clean - MARGIN:
        return "readable, not used"
    return "candidate necessary" if task_accuracy < min(control_low, clean) else "inconclusive"


def check_classes(found: Activations, label: str) -> None:
    """Raises InputError when the training or the test split holds a single class of `label`."""
    for split, rows in (("training", found.train), ("test", found.test)):
        seen = np.unique(rows.y[label])
        if len(seen) < 2:
            raise InputError(
                f"label {label!r} at length {found.length}: the {split} split has a single class ({seen[0]}), so "
                "there is nothing to probe or erase; take longer sequences, more of them, or another label"
            )


def erased_rows(x: Floats32, eraser: Eraser, mean: NDArray[Any]) -> Floats32:
    """Activations (N, d) after the erasure, float64 inside."""
    if eraser is None:
        return x
    if isinstance(eraser, Leace):
        return eraser(torch.from_numpy(x).double()).float().numpy()
    return erase_from(x.astype(np.float64), eraser, mean).astype(np.float32)


def spread(x: Floats32) -> Floats64:
    """Standard deviation of each feature of x (N, d), 0 for those that a probe takes for constant: (d,)."""
    scale = standardiser(x)[1].astype(np.float64)
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)


def steady(erased: Floats32, before: Floats64) -> Floats32:
    """Erased activations (N, d) with those features constant that were so, or have lost their spread."""
    gone = (before == 0) | (erased.std(axis=0, dtype=np.float64) <= ROUNDING * before)
    return np.where(gone, np.float32(0), erased) if gone.any() else erased


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """One model at one length; `tokens`, `states` (n, L): the test sequences behind `found.test`."""

    model: Model
    found: Activations
    label: str
    tokens: Any
    states: Any
    baseline: float
    kept: dict[int, tuple[Probe, Floats32, Floats64]] = field(default_factory=dict)

    def behaviour(self, layer: int, erasers: Sequence[Eraser], mean: NDArray[Any]) -> NDArray[np.float64]:
        """Task accuracy per erasure and sequence (n_erasers, n)."""
        where = f"L{layer}.resid_post"
        return erased_behaviour(self.model, self.tokens, self.states, where, erasers, mean)

    def clean(self, layer: int) -> tuple[Probe, Floats32, Floats64]:
        """The probe of the untouched activations, its scores (N, C), and their spread (d,), once per layer."""
        if layer not in self.kept:
            x = self.found.train.x[layer]
            probe = Probe().fit(x, self.found.train.y[self.label])
            self.kept[layer] = probe, probe.scores(x), spread(x)
        return self.kept[layer]

    def first(self, layer: int) -> tuple[float, float]:
        """Accuracy of the probe of the untouched activations, and the lower end of its interval."""
        test = self.found.test
        right = self.clean(layer)[0].predict(test.x[layer]) == test.y[self.label]
        return float(right.mean()), bootstrap_mean(test.per_sequence(right))[0]

    def refit(self, layer: int, eraser: Eraser, mean: NDArray[Any]) -> tuple[float, float, float]:
        """A fresh probe on erased activations: accuracy and interval over test sequences."""
        train, test = self.found.train, self.found.test
        _, scores, before = self.clean(layer)
        erased = steady(erased_rows(train.x[layer], eraser, mean), before)
        fresh = Probe().fit(erased, train.y[self.label], start=scores)  # a constant feature has weight 0
        held = erased_rows(test.x[layer], eraser, mean)
        right = fresh.predict(held) == test.y[self.label]
        return float(right.mean()), *bootstrap_mean(test.per_sequence(right))


def bench(model: Model, task: Any, found: Activations, label: str, seed: int) -> Bench:
    """The bench of activations collected with this seed.  Raises InputError for a split of a single class."""
    check_classes(found, label)
    sample = task.sample(found.test.n_sequences, found.length, seed=seed, split="test")
    return Bench(
        model=model,
        found=found,
        label=label,
        tokens=sample.tokens,
        states=sample.labels[label],
        baseline=max(no_model_baselines(found, label).values()),
    )
