"""Claims: the small exact tests against enumeration by hand, and the record."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from causegrid.errors import InputError
from causegrid.evidence.claims import (
    Claim,
    decide,
    independent,
    interaction,
    paired,
    paired_family,
    proportions,
    seed_mean,
)

MAMBA = ([0.9, 0.8, 0.85, 0.8], [0.2, 0.3, 0.25, 0.2])
TRANSFORMER = ([0.3, 0.2, 0.3, 0.1], [0.3, 0.25, 0.2, 0.15])


def by_enumeration(first: np.ndarray, second: np.ndarray) -> float:
    everything = np.concatenate([first, second])
    seen = first.mean() - second.mean()
    gaps = []
    for chosen in combinations(range(len(everything)), len(first)):
        rest = [i for i in range(len(everything)) if i not in chosen]
        gaps.append(everything[list(chosen)].mean() - everything[rest].mean())
    gaps_ = np.array(gaps)
    return min(1.0, 2 * min((gaps_ >= seen - 1e-12).mean(), (gaps_ <= seen + 1e-12).mean()))


def test_interaction_enumerates() -> None:
    first, second = np.subtract(*MAMBA), np.subtract(*TRANSFORMER)
    test = interaction(*MAMBA, *TRANSFORMER)
    assert test.effect == pytest.approx(first.mean() - second.mean())
    assert test.p == pytest.approx(by_enumeration(first, second)) == pytest.approx(2 / 70)
    assert test.p_min == pytest.approx(2 / 70)
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert (test.low, test.high) == pytest.approx((welch.low, welch.high))
    assert interaction(*MAMBA, *MAMBA).p == 1


def test_independent_enumerates() -> None:
    first, second = np.array([3.0, 4.0, 5.0]), np.array([1.0, 2.0, 2.5, 3.5])
    test = independent(first, second)
    assert test.p == pytest.approx(by_enumeration(first, second))
    assert (test.effect, test.n, test.p_min) == (pytest.approx(1.75), 7, pytest.approx(2 / 35))
    with pytest.raises(InputError, match="not 1 and 4"):
        independent(first[:1], second)


def test_interaction_is_blind_to_main_effects() -> None:
    rng = np.random.default_rng(0)
    a, b, shift = rng.normal(size=5), rng.normal(size=5), rng.normal(size=5)
    base = interaction(a, b, b, a)
    moved = interaction(a + shift, b + shift, b + 3, a + 3)
    assert (moved.p, moved.effect) == pytest.approx((base.p, base.effect))


def test_three_seeds_cannot_reach_the_level() -> None:
    test = interaction([0.9, 0.8, 0.85], [0.2, 0.3, 0.25], [0.3, 0.2, 0.3], [0.3, 0.25, 0.2])
    assert test.p == test.p_min == pytest.approx(0.1)
    result, why = decide(test, 1)
    assert result == "not enough evidence"
    assert "below 0.1" in why


def test_paired_enumerates_signs() -> None:
    a, b = np.array([1.0, 2, 3, 4, 5, 6]), np.array([0.0, 0, 4, 0, 0, 0.5])
    d = a - b
    means = np.array([np.mean(d * s) for s in product([1, -1], repeat=6)])
    expected = 2 * min((means >= d.mean() - 1e-12).mean(), (means <= d.mean() + 1e-12).mean())
    test = paired(a, b)
    assert test.p == pytest.approx(expected)
    assert test.p_min == pytest.approx(2 / 64)
    interval = stats.ttest_rel(a, b).confidence_interval()
    assert (test.low, test.high) == pytest.approx((interval.low, interval.high))


def test_paired_family_is_holm_corrected() -> None:
    rng = np.random.default_rng(1)
    pairs = {f"t{i}": (rng.normal(i, 1, 8), rng.normal(0, 1, 8)) for i in range(3)}
    tests = paired_family(pairs)
    raw = [t.p for t in tests.values()]
    assert [t.p_holm for t in tests.values()] == pytest.approx(multipletests(raw, method="holm")[1])
    assert raw == [paired(*p).p for p in pairs.values()]


def test_proportions() -> None:
    test = proportions(4, 4, 0, 8)
    assert test.p == pytest.approx(1 / 495)  # C(12, 4) tables, one as extreme
    assert test.p_min == pytest.approx(1 / 495)
    newcombe = proportions(56, 70, 48, 80)  # Newcombe 1998, table II: 0.2 [0.0524, 0.3339]
    assert (newcombe.effect, newcombe.low, newcombe.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert proportions(1, 1, 0, 1).p_min == 1
    with pytest.raises(InputError, match="5 of 4"):
        proportions(5, 4, 0, 1)


def test_a_small_p_beside_an_interval_that_holds_zero_decides_nothing() -> None:
    """Four wide values against many narrow ones: the permutations say .01, Student's t on the unequal variances not."""
    few, many = [0.0, 0.05, 0.1, 0.35], [0.01 * i for i in range(-6, 7)]
    test = independent(few, many)
    assert test.p <= 0.05 and test.low < 0 < test.high
    result, why = decide(test, 1)
    assert result == "not enough evidence" and "the interval holds 0 beside that p" in why


def test_decide() -> None:
    test = proportions(4, 4, 0, 8)
    assert decide(test, 1)[0] == "supported"
    assert decide(test, -1)[0] == "contradicted"
    assert decide(proportions(2, 4, 2, 4), 1)[0] == "not enough evidence"
    family = paired_family({n: (np.arange(6.0), np.arange(6.0) - 1 - 0.1 * np.arange(6)) for n in "ab"})
    assert family["a"].p <= 0.05 < family["a"].p_holm  # type: ignore[operator]
    assert decide(family["a"], 1)[0] == "not enough evidence"
    with pytest.raises(InputError, match="1 or -1"):
        decide(test, 0)


def test_seeds_must_pair() -> None:
    with pytest.raises(InputError, match="same seeds"):
        paired([1, 2], [1, 2, 3])
    with pytest.raises(InputError, match="at least 2"):
        paired([1.0], [2.0])


def test_claim_record() -> None:
    claim = Claim(
        id="S1", statement="s", published=0.5, measured=0.4, result="supported", why="w", cells=("a", "b")
    )
    assert claim.record()["cells"] == ["a", "b"]
    with pytest.raises(InputError, match="did you mean 'supported'"):
        Claim(id="S1", statement="s", published=0, measured=0, result="suported", why="w")


def test_a_mean_over_seeds_has_students_interval_cut_where_nothing_can_be() -> None:
    values = [0.8, 0.9, 1.0]
    half = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3)
    assert seed_mean(values) == pytest.approx((0.9, 0.9 - half, 0.9 + half)) and 0.9 + half > 1
    assert seed_mean(values, within=(0, 1)) == pytest.approx((0.9, 0.9 - half, 1))
    assert seed_mean([0.0, 1.0], within=(0, 1)) == (0.5, 0, 1)
    assert seed_mean([0.7], within=(0, 1)) == (0.7, None, None)
    with pytest.raises(InputError, match="at least 1"):
        seed_mean([])
