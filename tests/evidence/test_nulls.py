"""Nulls: matched draws, p-values, corrections, the sequential stop."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from causegrid.errors import InputError
from causegrid.evidence import nulls
from causegrid.evidence.nulls import SequentialNull, benjamini_hochberg, draws_needed, holm, pvalue

matched_random = partial(nulls.matched_random, own=False)  # draws with own heads: test_own_draws.py


def layers(heads: list[str]) -> Counter[str]:
    return Counter(h.split("H")[0] for h in heads)


def test_a_plain_list_of_lists() -> None:
    draws = matched_random(["L3H1", "L3H2", "L5H0"], n_heads=8, n=20, seed=4)
    assert isinstance(draws, list)
    assert len(draws) == 20
    assert all(isinstance(d, list) and all(isinstance(h, str) for h in d) for d in draws)
    assert draws.n_possible == math.comb(6, 2) * 7
    assert not draws.exhaustive and not draws.contaminated
    assert draws == matched_random("L5H0,L3H2,L3H1", n_heads=8, n=20, seed=4)
    assert draws != matched_random("L5H0,L3H2,L3H1", n_heads=8, n=20, seed=5)


def test_all_distinct_draws_when_few_exist() -> None:
    draws = matched_random(["L0H0", "L0H1"], n_heads=6, n=50)
    expected = {frozenset({f"L0H{a}", f"L0H{b}"}) for a, b in combinations(range(2, 6), 2)}
    assert {frozenset(d) for d in draws} == expected
    assert len(draws) == len(expected) == draws.n_possible == 6
    assert draws.exhaustive
    orders = {tuple(map(tuple, matched_random(["L0H0", "L0H1"], n_heads=6, n=50, seed=s))) for s in range(8)}
    assert len(orders) > 1


def test_competitors_are_left_out_while_enough_draws_remain() -> None:
    clean = matched_random(["L0H0"], n_heads=8, n=4, exclude={"other": ["L0H1", "L0H2"], "far": ["L7H3"]})
    assert not clean.contaminated
    assert clean.n_possible == 5
    assert not {h for d in clean for h in d} & {"L0H1", "L0H2"}
    let_in = matched_random(["L0H0"], n_heads=8, n=6, exclude=["L0H1", "L0H2"])
    assert let_in.contaminated
    assert let_in.n_possible == 7
    elsewhere = matched_random(["L0H0"], n_heads=8, n=50, exclude=["L5H1"])
    assert elsewhere.exhaustive and not elsewhere.contaminated  # few, but not for the competitors' sake


def test_exclude_takes_one_group_or_many() -> None:
    forms = [
        "L0H1,L0H2",
        ["L0H1", "L0H2"],
        [["L0H1"], ["L0H2"]],
        {"a": "L0H1", "b": ["L0H2"]},
        [(0, 1), (0, 2)],
    ]
    assert all(
        matched_random("L0H0", n_heads=8, n=3, exclude=f)
        == matched_random("L0H0", n_heads=8, n=3, exclude=forms[0])
        for f in forms
    )


def test_case_23_a_head_the_model_does_not_have() -> None:
    with pytest.raises(InputError, match=r"no head L0H12: the model has 8 heads"):
        matched_random(["L0H12"], n_heads=8, n=10)
    with pytest.raises(InputError, match="8 heads"):
        matched_random(["L0H1"], n_heads=8, n=10, exclude=["L0H8"])


def test_refusals_say_why() -> None:
    with pytest.raises(InputError, match=r"layer 2 has 4 heads, 3 of them in the group: only 1"):
        matched_random(["L2H0", "L2H1", "L2H2"], n_heads=4, n=10)
    with pytest.raises(InputError, match="empty"):
        matched_random([], n_heads=4, n=10)
    with pytest.raises(InputError, match="n >= 1"):
        matched_random(["L0H0"], n_heads=4, n=0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_matched_random_properties(data: st.DataObject) -> None:
    n_heads = data.draw(st.integers(4, 12))
    sizes = data.draw(
        st.dictionaries(st.integers(0, 5), st.integers(1, n_heads // 2), min_size=1, max_size=3)
    )
    group = [
        f"L{layer}H{h}" for layer, k in sizes.items() for h in data.draw(st.permutations(range(n_heads)))[:k]
    ]
    every = [f"L{layer}H{h}" for layer in sizes for h in range(n_heads)]
    exclude = data.draw(st.lists(st.sampled_from(every), max_size=6))
    n = data.draw(st.integers(1, 60))
    draws = matched_random(group, n_heads=n_heads, n=n, seed=data.draw(st.integers(0, 99)), exclude=exclude)
    taken = set(group) | (set() if draws.contaminated else set(exclude))
    assert len({frozenset(d) for d in draws}) == len(draws) == min(n, draws.n_possible)
    assert draws.exhaustive == (draws.n_possible <= n)
    for d in draws:
        assert not set(d) & taken
        assert layers(d) == layers(group)
        assert len(set(d)) == len(d)
        assert all(int(h.split("H")[1]) < n_heads for h in d)


def test_draws_are_uniform() -> None:
    seen: Counter[frozenset[str]] = Counter()
    for seed in range(600):
        seen.update(frozenset(d) for d in matched_random("L0H0,L0H1", n_heads=7, n=2, seed=seed))
    assert len(seen) == 10
    assert max(seen.values()) < 2 * min(seen.values())


def test_many_draws_of_a_large_group_are_quick() -> None:
    draws = matched_random([f"L{i}H{j}" for i in range(20) for j in range(5)], n_heads=32, n=800)
    assert len({tuple(d) for d in draws}) == 800


def test_pvalue_by_hand() -> None:
    p = pvalue(-2.0, [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert (p.harm, p.help) == (3 / 10, 9 / 10)  # -3 and the tie are as low; all but -3 are as high
    assert p.p == pytest.approx(0.6)
    assert p.p_min == pytest.approx(0.2)
    assert pvalue(0.0, [1.0] * 10).harm == pytest.approx(1 / 11)  # the published 10 draws
    assert pvalue(5.0, [5.0]).p == 1


def test_ties_count_as_extreme_despite_rounding() -> None:
    effect = 0.1 + 0.2
    assert effect != 0.3
    p = pvalue(effect, [0.3, 0.3, 0.1])
    assert (p.n_harm, p.n_help) == (3, 2)


def test_pvalue_refuses() -> None:
    with pytest.raises(InputError, match="at least one"):
        pvalue(1.0, [])
    with pytest.raises(InputError, match="not a number"):
        pvalue(1.0, [0.0, np.nan])


@settings(max_examples=60, deadline=None)
@given(st.floats(-5, 5), st.lists(st.floats(-5, 5), min_size=1, max_size=40))
def test_pvalue_properties(effect: float, null: list[float]) -> None:
    p = pvalue(effect, null)
    assert 0 < p.p_min <= p.p <= 1
    mirrored = pvalue(-effect, [-x for x in null])
    assert (p.n_harm, p.n_help, p.p) == (mirrored.n_help, mirrored.n_harm, mirrored.p)
    assert pvalue(effect, null[::-1]) == p


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(0.0001, 1), min_size=1, max_size=12))
def test_holm_against_statsmodels(ps: list[float]) -> None:
    ours = holm(ps)
    assert ours == pytest.approx(multipletests(ps, method="holm")[1], abs=1e-12)
    assert all(a >= p and a <= 1 for a, p in zip(ours, ps, strict=True))
    order = np.argsort(ps, kind="stable")
    assert np.all(np.diff(np.array(ours)[order]) >= 0)


def test_holm_keeps_fractions_exact() -> None:
    adjusted = holm([Fraction(2, 120), Fraction(1, 2), Fraction(1)])
    assert adjusted == [Fraction(1, 20), Fraction(1), Fraction(1)]
    assert holm([]) == []


def test_benjamini_hochberg() -> None:
    ps = [0.01, 0.04, 0.03, 0.5]
    assert benjamini_hochberg(ps) == pytest.approx(multipletests(ps, method="fdr_bh")[1])
    with_gap = benjamini_hochberg([0.01, np.nan, 0.04, 0.03, 0.5])
    assert math.isnan(with_gap[1])
    assert np.delete(with_gap, 1) == pytest.approx(multipletests(ps, method="fdr_bh")[1])
    assert np.isnan(benjamini_hochberg([np.nan])).all()


def test_draws_needed_suffice() -> None:
    assert [draws_needed(m) for m in (1, 2, 5, 10)] == [99, 159, 399, 799]
    assert draws_needed(10, per_group=40) == 399
    for m in range(3, 12):
        n = draws_needed(m, per_group=40)
        assert m * Fraction(2, 1 + n) == Fraction(1, 20)


def test_sequential_null_stops_inside() -> None:
    rng = np.random.default_rng(0)
    null = rng.normal(0, 1, 400)
    sequential = SequentialNull(0.05)
    assert sequential.add(null)
    stop = next(i for i in range(1, 401) if (null[:i] <= 0.05).sum() >= 10 and (null[:i] >= 0.05).sum() >= 10)
    assert sequential.n == stop < 60
    assert sequential.pvalue() == pvalue(0.05, null[:stop])
    one_by_one = SequentialNull(0.05)
    for value in null:
        if one_by_one.add(float(value)):
            break
    assert one_by_one.pvalue() == sequential.pvalue()
    assert sequential.pvalue().settled


def test_sequential_null_goes_on_outside() -> None:
    null = np.random.default_rng(1).normal(0, 1, 399)
    sequential = SequentialNull(-9.0)
    assert not sequential.add(null)
    assert sequential.pvalue() == pvalue(-9.0, null)
    assert sequential.pvalue().p == pytest.approx(2 / 400)
    with pytest.raises(InputError, match="at least one"):
        SequentialNull(0.0).pvalue()


def test_sequential_null_keeps_its_size() -> None:
    rng = np.random.default_rng(2)
    rejected = 0
    for _ in range(600):
        values = rng.normal(size=100)
        sequential = SequentialNull(values[0])
        sequential.add(values[1:])
        rejected += sequential.pvalue().p <= 0.05
    assert rejected / 600 <= 0.075
