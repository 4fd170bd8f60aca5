"""Claims: a statement, its published figure, ours with an interval, and what the test says (MEASURES 4.3).

The tests are small, exact and on arrays of seeds or counts: permutations are enumerated where they can be,
the smallest attainable p goes with every p, and too few seeds to reach the level is `not enough evidence`,
never a contradiction.  An *anchor* is a published figure beside ours under settings that differ: no test, so its
result is `compared`, and nothing else may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from causegrid.errors import InputError, unknown
from causegrid.evidence.effects import Floats, wilson
from causegrid.evidence.nulls import holm

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "not enough evidence"
RESULTS = (SUPPORTED, CONTRADICTED, UNDECIDED)
COMPARED = "compared"
ALLOWED = {"claim": RESULTS, "anchor": (COMPARED,)}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim over finished cells.  `published`, `measured`: figures or words; `cells`: the ids used.

    `kind`: `claim`, a test; `anchor`, figures beside each other, with the settings that differ as `why`.
    """

    id: str
    statement: str
    published: Any
    measured: Any
    low: float | None = None
    high: float | None = None
    result: str
    why: str
    cells: tuple[str, ...] = ()
    kind: str = "claim"

    def __post_init__(self) -> None:
        if self.kind not in ALLOWED:
            raise unknown(f"kind of claim {self.id!r}", self.kind, ALLOWED)
        if self.result not in ALLOWED[self.kind]:
            raise unknown(f"result of {self.kind} {self.id!r}", self.result, ALLOWED[self.kind])

    def record(self) -> dict[str, Any]:
        """As a plain dict (`cells` a list)."""
        return {**asdict(self), "cells": list(self.cells)}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An effect, its 95 % interval, two-sided p, the least p these data could give; Holm's of both if asked."""

    effect: float
    low: float
    high: float
    p: float
    p_min: float
    n: int
    p_holm: float | None = None
    p_min_holm: float | None = None  # were every test of the family at its least p


def interaction(
    a_x: ArrayLike, a_y: ArrayLike, b_x: ArrayLike, b_y: ArrayLike, *, n: int = 9999, seed: int = 0
) -> Comparison:
    """Is x - y different for a than for b?  Permutation test over seeds.

    Each argument holds one value per seed, as the depth centre of architecture a on task x; a's two, and b's
    two, are paired by seed.  The per-seed differences x - y are exchanged between a and b: all ways where
    there are at most `n`, else `n` random ones.  Effect: mean(a_x - a_y) - mean(b_x - b_y), Welch interval.
    Raises InputError for pairs of different length or fewer than 2 seeds.
    """
    return independent(_differences(a_x, a_y), _differences(b_x, b_y), n=n, seed=seed)


def independent(first: ArrayLike, second: ArrayLike, *, n: int = 9999, seed: int = 0) -> Comparison:
    """Do two unpaired sets of seeds or groups differ?  Permutation test of mean(first) - mean(second).

    All ways of dealing the values out where there are at most `n`, else `n` random ones; Welch interval.
    Raises InputError for fewer than 2 values on a side.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if min(a.size, b.size) < 2:
        raise InputError(f"a test of two sets needs at least 2 values in each, not {a.size} and {b.size}")
    result = stats.permutation_test(
        (a, b),
        _mean_difference,
        permutation_type="independent",
        vectorized=True,
        n_resamples=n,
        rng=np.random.default_rng(seed),
    )
    low, high = _welch(a, b)
    ways = math.comb(a.size + b.size, a.size)
    return Comparison(
        effect=float(a.mean() - b.mean()),
        low=low,
        high=high,
        p=float(result.pvalue),
        p_min=min(1.0, 2 / min(ways, n + 1)),
        n=a.size + b.size,
    )


def paired(first: ArrayLike, second: ArrayLike, *, n: int = 9999, seed: int = 0) -> Comparison:
    """Do paired seeds differ?  Sign-flip permutation test of mean(first - second), t interval.

    All 2^k sign patterns of k seeds where there are at most `n`, else `n` random ones.  Raises InputError for
    unequal lengths or fewer than 2 seeds.
    """
    difference = _differences(first, second)
    result = stats.permutation_test(
        (difference, np.zeros_like(difference)),
        _mean_difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=n,
        rng=np.random.default_rng(seed),
    )
    half = float(stats.t.ppf(0.975, difference.size - 1) * stats.sem(difference))
    mean = float(difference.mean())
    ways = 2**difference.size
    return Comparison(
        effect=mean,
        low=mean - half,
        high=mean + half,
        p=float(result.pvalue),
        p_min=min(1.0, 2 / min(ways, n + 1)),
        n=int(difference.size),
    )


def paired_family(pairs: Mapping[str, tuple[ArrayLike, ArrayLike]], **options: Any) -> dict[str, Comparison]:
    """`paired` for each name (task), Holm-corrected across them; `options` go to `paired`."""
    return corrected({name: paired(a, b, **options) for name, (a, b) in pairs.items()})


def corrected(tests: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """The tests of one family with Holm's p, and the least one they could have had."""
    adjusted = holm([t.p for t in tests.values()])
    least = holm([t.p_min for t in tests.values()])
    return {
        name: replace(t, p_holm=p, p_min_holm=m)
        for (name, t), p, m in zip(tests.items(), adjusted, least, strict=True)
    }


def seed_mean(
    values: ArrayLike, *, within: tuple[float, float] = (-np.inf, np.inf)
) -> tuple[float, float | None, float | None]:
    """(mean over seeds, low, high): t interval, cut at the ends of what a value can be (`within`; 0 and 1 for an
    accuracy); without one for a single value.  Raises InputError for none."""
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        raise InputError("a mean over seeds needs at least 1 value")
    mean = float(found.mean())
    if found.size < 2:
        return mean, None, None
    half = float(stats.t.ppf(0.975, found.size - 1) * stats.sem(found))
    return mean, max(mean - half, within[0]), min(mean + half, within[1])


def proportions(k_a: int, n_a: int, k_b: int, n_b: int) -> Comparison:
    """Is the share k_a of n_a different from k_b of n_b?  Fisher's exact test, Newcombe's 1998 interval.

    Raises InputError unless 0 <= k <= n and n >= 1 for both.
    """
    low_a, high_a = wilson(k_a, n_a)
    low_b, high_b = wilson(k_b, n_b)
    a, b = k_a / n_a, k_b / n_b
    total = k_a + k_b
    extremes = (max(0, total - n_b), min(n_a, total))
    return Comparison(
        effect=a - b,
        low=a - b - math.hypot(a - low_a, high_b - b),
        high=a - b + math.hypot(high_a - a, b - low_b),
        p=_fisher(k_a, n_a, k_b, n_b),
        p_min=min(_fisher(k, n_a, total - k, n_b) for k in extremes),
        n=n_a + n_b,
    )


def decide(test: Comparison, expected: int, *, level: float = 0.05) -> tuple[str, str]:
    """(result, why): does a test support an effect of sign `expected` (+1 or -1)?

    Significant that way: supported; the other way: contradicted; else not enough evidence.  Holm's p is used
    where there is one.  Test and interval are of different kinds (permutations and Student's t, Fisher and
    Newcombe): where the interval holds 0 beside a small p, few and unequal units make them disagree, and neither
    is taken.  Raises InputError for another `expected`.
    """
    if expected not in (1, -1):
        raise InputError(f"the expected sign must be 1 or -1, not {expected!r}")
    p = test.p if test.p_holm is None else test.p_holm
    least = test.p_min if test.p_min_holm is None else test.p_min_holm
    name = "p" if test.p_holm is None else "Holm p"
    interval = f"[{test.low:+.3g}, {test.high:+.3g}]"
    said = f"effect {test.effect:+.3g} {interval}, {name} {p:.2g}, least attainable {least:.2g}, n {test.n}"
    if p <= level and test.low <= 0 <= test.high:
        return UNDECIDED, f"{said}; the interval holds 0 beside that p"
    if p <= level:
        return (SUPPORTED if test.effect * expected > 0 else CONTRADICTED), said
    if least > level:
        return UNDECIDED, f"{said}; this many cannot give a p below {least:.2g}"
    return UNDECIDED, said


def _differences(first: ArrayLike, second: ArrayLike) -> Floats:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise InputError(
            f"paired values must be two lists of the same seeds, not shapes {a.shape} and {b.shape}"
        )
    if a.size < 2:
        raise InputError(f"a test over seeds needs at least 2 of them, not {a.size}")
    return a - b


def _mean_difference(first: Floats, second: Floats, axis: int = -1) -> Floats:
    return np.asarray(first.mean(axis=axis) - second.mean(axis=axis))


def _welch(first: Floats, second: Floats) -> tuple[float, float]:
    gap = float(first.mean() - second.mean())
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        return gap, gap
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)


def _fisher(k_a: int, n_a: int, k_b: int, n_b: int) -> float:
    return float(stats.fisher_exact([[k_a, n_a - k_a], [k_b, n_b - k_b]]).pvalue)
