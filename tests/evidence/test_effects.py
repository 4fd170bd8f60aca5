"""Effects: intervals, pairing, and the sizes of MEASURES 4."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from causegrid.errors import InputError
from causegrid.evidence.effects import (
    bootstrap_mean,
    chance,
    effect_interval,
    headroom,
    minimum_effect,
    paired_difference,
    removable,
    resamples,
    wilson,
)


def test_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(1).normal(2, 3, 120)
    low, high = bootstrap_mean(values, n=20000)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20000, method="percentile", rng=np.random.default_rng(5)
    ).confidence_interval
    assert low == pytest.approx(theirs.low, abs=0.03)
    assert high == pytest.approx(theirs.high, abs=0.03)


def test_bootstrap_level_widens() -> None:
    values = np.random.default_rng(1).normal(0, 1, 50)
    narrow, wide = bootstrap_mean(values, level=0.8), bootstrap_mean(values, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_bootstrap_is_deterministic_and_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).normal(0, 1, 30)
    whole = bootstrap_mean(values, n=500, seed=7)
    assert bootstrap_mean(values, n=500, seed=7) == whole
    assert bootstrap_mean(values, n=500, seed=8) != whole
    monkeypatch.setattr("causegrid.evidence.effects._CELLS", 30 * 100)
    assert len(list(resamples(30, n=500, seed=7))) == 5
    assert bootstrap_mean(values, n=500, seed=7) == pytest.approx(whole, abs=1e-12)


def test_bootstrap_edges() -> None:
    assert bootstrap_mean([0.3] * 7) == (0.3, 0.3)
    assert all(
        math.isnan(x) for x in (*bootstrap_mean([1.5]), *bootstrap_mean([1.5, np.nan]), *bootstrap_mean([]))
    )
    assert all(math.isnan(x) for x in bootstrap_mean([np.nan, np.nan]))
    values = [1.0, 2.0, 4.0]
    assert bootstrap_mean([1.0, np.nan, 2.0, 4.0]) == bootstrap_mean(values)
    with pytest.raises(InputError, match=r"shape \(2, 2\)"):
        bootstrap_mean([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(InputError, match="level 95"):
        bootstrap_mean(values, level=95)


@pytest.mark.parametrize("n", [2, 8, 64, 150])
@pytest.mark.parametrize("metric", ["top1", "restricted"])
def test_a_constant_accuracy_has_the_exact_interval(n: int, metric: str) -> None:
    unseen = proportion_confint(0, n, method="beta")[1]  # Clopper-Pearson: 0 of n did otherwise
    assert effect_interval([0.0] * n, metric) == pytest.approx((-unseen, unseen), abs=1e-9)
    assert effect_interval([-1.0] * n, metric) == pytest.approx((-1, unseen - 1), abs=1e-9)
    assert effect_interval([1.0] * n + [np.nan], metric) == pytest.approx((1 - unseen, 1), abs=1e-9)
    assert effect_interval([0.0] * n, "logit_diff") == bootstrap_mean([0.0] * n) == (0.0, 0.0)
    assert np.isnan(effect_interval([0.0], metric)).all()


def test_the_exact_interval_in_figures() -> None:
    assert effect_interval([0.0] * 64, "top1")[1] == pytest.approx(0.056, abs=5e-4)
    assert effect_interval([0.0] * 150, "top1")[1] == pytest.approx(0.024, abs=5e-4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=2, max_size=60))
def test_an_accuracys_interval_is_wide_enough_and_holds_the_bootstrap(values: list[float]) -> None:
    mean, unseen = np.mean(values), proportion_confint(0, len(values), method="beta")[1]
    low, high = effect_interval(values, "top1")
    inner = bootstrap_mean(values)
    assert -1 <= low <= inner[0] <= inner[1] <= high <= 1
    assert low <= max(-1, mean - unseen) + 1e-9 and high >= min(1, mean + unseen) - 1e-9
    assert low in (inner[0], -1.0) or low == pytest.approx(mean - unseen)


def test_bootstrap_covers_the_mean() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        low, high = bootstrap_mean(rng.normal(1, 1, 60), n=500)
        hits += low <= 1 <= high
    assert 0.89 <= hits / 300 <= 0.99


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-10, 10), min_size=2, max_size=20),
    st.floats(-5, 5),
)
def test_effects_are_paired(values: list[float], shift: float) -> None:
    base = np.array(values)
    moved = paired_difference(base + shift, base)
    assert moved.mean == pytest.approx(shift, abs=1e-9)
    assert moved.high - moved.low < 1e-9  # what both share cancels, however wide it spreads
    back = paired_difference(base, base[::-1])
    there = paired_difference(base[::-1], base)
    assert back.mean == pytest.approx(-there.mean, abs=1e-9)
    assert back.holds_zero == (back.low <= 0 <= back.high)


def test_paired_difference_needs_the_same_units() -> None:
    with pytest.raises(InputError, match="3 against 2"):
        paired_difference([1, 2, 3], [1, 2])
    assert paired_difference([1, np.nan, 5], [0, 1, np.nan]).n == 1


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (118, 500), (1, 1)])
def test_wilson_against_statsmodels(k: int, n: int) -> None:
    assert wilson(k, n) == pytest.approx(proportion_confint(k, n, method="wilson"), abs=1e-12)


def test_wilson_refuses() -> None:
    with pytest.raises(InputError, match="11 of 10"):
        wilson(11, 10)


def test_the_room_loads_no_torch() -> None:
    code = "import sys, causegrid.evidence, causegrid.evidence.claims; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes() -> None:
    assert chance("top1") == 0
    assert chance("restricted", answers=3, foils=1) == 0.75
    assert removable("top1", 0.8) == 0.8
    assert removable("restricted", 0.9, chance=0.5) == pytest.approx(0.4)
    assert removable("logit_diff", 3.0, chance=0.5) == 3.0
    assert removable("logit_diff", -1.0) == 0
    assert headroom("top1", 0.8) == pytest.approx(0.2)
    assert math.isinf(headroom("logit_diff", 5.0))
    assert minimum_effect("top1", 0.9) == pytest.approx(0.045)
    assert minimum_effect("top1", 0.2) == 0.02  # 5 % of 0.2 is 1 pp: at least 2 pp
    assert minimum_effect("logit_diff", 0.2) == pytest.approx(0.01)
    with pytest.raises(InputError, match=r"answer_rank.*allowed are"):
        minimum_effect("answer_rank", 1.0)
