"""Effects: a paired mean change, how sure we are of it, and how large one would have to be to matter.

An effect is `ablated - clean` per unit (prompt, sequence, seed), so harm is negative, and everything here
works on those per-unit differences: pairing is done by subtraction before anything is resampled.  Intervals
are percentile bootstraps over units (Efron 1979) with one fixed table of resampling counts per (units, n,
seed): the same units give the same interval everywhere, two groups on the same prompts are resampled alike.
Units without a value (NaN: a prompt without a foil has no margin) are left out, never counted as zero; one
unit has no interval.  A bootstrap cannot see what no unit of the sample did, so the interval of a change of an
accuracy is never narrower than the exact one of a sample in which nothing varied (`effect_interval`).
Sizes are those of MEASURES 4: removable part, headroom, minimum effect of interest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from causegrid.errors import InputError, unknown

Floats = NDArray[np.float64]

ACCURACIES = ("top1", "restricted")
METRICS = (*ACCURACIES, "logit_diff", "answer_prob")
_CELLS = 4_000_000  # counts kept at a time: 32 MB


@lru_cache(maxsize=4)
def _kept(units: int, n: int, seed: int) -> Floats:
    return next(_draw(units, n, seed, n))


def _draw(units: int, n: int, seed: int, chunk: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    even = np.full(units, 1.0 / units)
    for start in range(0, n, chunk):
        counts = rng.multinomial(units, even, size=min(chunk, n - start))
        yield counts.astype(np.float64)  # (chunk, units)


def resamples(units: int, *, n: int = 2000, seed: int = 0) -> Iterator[Floats]:
    """Chunks (rows, units) of bootstrap counts, `n` rows in all, each summing to `units`; deterministic.

    `counts @ values / units` are bootstrap means; a ratio of means takes two such products on one chunk.
    """
    if units < 1 or n < 1:
        raise InputError(f"a bootstrap needs at least 1 unit and 1 resample, not {units} and {n}")
    if units * n <= _CELLS:
        yield _kept(units, n, seed)
    else:
        yield from _draw(units, n, seed, max(1, _CELLS // units))


def _numbers(values: ArrayLike, what: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise InputError(f"{what} must be one value per unit (1 axis), not shape {array.shape}")
    return array


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level {level!r} must lie between 0 and 1, as in 0.95")


def bootstrap_mean(
    values: ArrayLike, *, n: int = 2000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """(low, high): percentile bootstrap interval of the mean of `values` (units,), NaN units left out.

    Fewer than 2 units left: (nan, nan).  Raises InputError when `values` has not one axis.
    """
    _check_level(level)
    array = _numbers(values, "values")
    array = array[~np.isnan(array)]
    if array.size < 2:
        return math.nan, math.nan
    if np.ptp(array) == 0:
        return float(array[0]), float(array[0])
    means = np.concatenate([counts @ array for counts in resamples(array.size, n=n, seed=seed)]) / array.size
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def expanded_level(units: int, *, level: float = 0.95) -> float:
    """The level at which a percentile bootstrap of a mean over `units` is as wide as Student's t says.

    A percentile bootstrap uses the normal's quantiles and a variance too small by (n - 1) / n; this asks it for
    the quantiles at +-sqrt(n / (n - 1)) t instead (Hesterberg 2015, "expanded percentile").
    """
    if units < 2:
        raise InputError(f"an interval needs at least 2 units, not {units}")
    t = stats.t.ppf((1 + level) / 2, units - 1)
    wide = 2 * stats.norm.cdf(math.sqrt(units / (units - 1)) * t) - 1
    return min(float(wide), math.nextafter(1.0, 0.0))  # the sample's own range, for two units


def effect_interval(
    values: ArrayLike,
    metric: str,
    *,
    n: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    expanded: bool = True,
) -> tuple[float, float]:
    """(low, high) of a mean effect on `metric`: `bootstrap_mean` of `values` (units,), accuracies widened.

    `expanded`: other metrics at `expanded_level`, without which a margin's interval holds its effect too rarely
    below some 30 prompts (docs/calibration.md).
    For `top1` and `restricted`, whose values are -1, 0 or 1 per unit, each end is at least 1 - a^(1 / units)
    from the mean, a = (1 - level) / 2, and within [-1, 1]: of a constant sample, the exact bound on the share
    of units that do otherwise (Clopper & Pearson 1934).  At 95 %, no change on 64 prompts: +-0.056.
    """
    array = _numbers(values, "values")
    array = array[~np.isnan(array)]
    narrow = metric in ACCURACIES or not expanded or array.size < 2
    wide = level if narrow else expanded_level(array.size, level=level)
    low, high = bootstrap_mean(values, n=n, seed=seed, level=wide)
    if metric not in ACCURACIES or math.isnan(low):
        return low, high
    mean, unseen = float(array.mean()), 1 - ((1 - level) / 2) ** (1 / array.size)
    return min(low, max(-1.0, mean - unseen)), max(high, min(1.0, mean + unseen))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean paired difference with its interval; `n` units had both values."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def holds_zero(self) -> bool:
        """Whether the interval contains 0; False for an unknown one."""
        return self.low <= 0 <= self.high


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    metric: str = "logit_diff",
    n: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Difference:
    """Mean of `first - second` over units (both (units,), same order), with `effect_interval` over units.

    Raises InputError when the two do not have the same length.
    """
    a, b = _numbers(first, "first"), _numbers(second, "second")
    if a.shape != b.shape:
        raise InputError(f"paired values must be of the same units: {a.size} against {b.size}")
    difference = a - b
    low, high = effect_interval(difference, metric, n=n, seed=seed, level=level)
    known = difference[~np.isnan(difference)]
    return Difference(
        mean=float(known.mean()) if known.size else math.nan, low=low, high=high, n=int(known.size)
    )


def wilson(successes: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """(low, high) of a proportion, `successes` of `n` (Wilson 1927: score interval, uncorrected).

    Raises InputError unless 0 <= successes <= n and n >= 1.
    """
    _check_level(level)
    if not (n >= 1 and 0 <= successes <= n):
        raise InputError(f"not a proportion: {successes} of {n}; need 0 <= successes <= n and n >= 1")
    z = float(stats.norm.ppf((1 + level) / 2))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def _known_metric(metric: str) -> None:
    if metric not in METRICS:
        raise unknown("metric with a removable part", metric, METRICS)


def chance(metric: str, *, answers: int = 1, foils: int = 1) -> float:
    """What guessing gives (MEASURES 4): answers / (answers + foils) for `restricted`, else 0."""
    _known_metric(metric)
    return answers / (answers + foils) if metric == "restricted" else 0.0


def removable(metric: str, baseline: float, *, chance: float = 0.0) -> float:
    """What an ablation can take away, >= 0: baseline - chance, or the baseline margin for `logit_diff`."""
    _known_metric(metric)
    return max(float(baseline) - (0.0 if metric == "logit_diff" else chance), 0.0)


def headroom(metric: str, baseline: float) -> float:
    """What an ablation can add: 1 - baseline, or inf (unbounded) for `logit_diff`."""
    _known_metric(metric)
    return math.inf if metric == "logit_diff" else max(1.0 - float(baseline), 0.0)


def minimum_effect(
    metric: str, baseline: float, *, chance: float = 0.0, share: float = 0.05, floor: float = 0.02
) -> float:
    """The smallest effect of interest (MEASURES 4): `share` of the removable part, accuracies >= `floor`."""
    least = share * removable(metric, baseline, chance=chance)
    return max(least, floor) if metric in ACCURACIES else least


def as_values(cell: Any) -> Floats:
    """The per-unit values a table cell holds (list, array, None) as floats; missing -> an empty array."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return np.empty(0)
    values: Sequence[float] = cell
    return np.asarray(values, dtype=np.float64)
