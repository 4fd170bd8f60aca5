"""Draws that may hold the group's own heads: an exact permutation p-value, and what stays apart from it."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from evidence_tables import frame, jitter, judge, null, row

from causegrid.evidence import matched_random, pvalue
from causegrid.evidence.readings import NullTable, measured
from causegrid.evidence.thresholds import Thresholds


def test_all_other_subsets_and_only_they():
    draws = matched_random(["L0H0", "L0H1", "L1H2"], n_heads=4, n=500, own=True)
    expected = {
        (f"L0H{a}", f"L0H{b}", f"L1H{c}") for a, b in itertools.combinations(range(4), 2) for c in range(4)
    } - {("L0H0", "L0H1", "L1H2")}
    assert {tuple(sorted(d)) for d in draws} == expected
    assert len(draws) == draws.n_possible == 23
    assert draws.exhaustive and not draws.contaminated


def test_sampled_draws_are_distinct_and_never_the_group():
    group = ["L0H0", "L0H1"]
    for seed in range(30):
        draws = matched_random(group, n_heads=5, n=8, own=True, seed=seed)
        assert len({tuple(sorted(d)) for d in draws}) == 8
        assert all(sorted(d) != group for d in draws)
    assert not draws.exhaustive


def test_competing_heads_stay_out_and_own_ones_in():
    draws = matched_random(["L0H0", "L0H1"], n_heads=6, n=5, own=True, exclude=[["L0H0", "L0H1"], ["L0H5"]])
    drawn = {h for d in draws for h in d}
    assert "L0H5" not in drawn
    assert {"L0H0", "L0H1"} & drawn


def test_single_heads_have_the_draws_they_had():
    with_own = matched_random(["L0H3"], n_heads=6, n=50, own=True)
    assert sorted(map(tuple, with_own)) == sorted(map(tuple, matched_random(["L0H3"], n_heads=6, n=50)))


def test_the_p_value_is_exact_over_all_groups():
    """Every subset of 5 alike heads in turn: exactly a share a of them may have a p of at most a."""
    values = {f"L0H{i}": v for i, v in enumerate(np.random.default_rng(0).normal(size=6))}
    every = [list(pair) for pair in itertools.combinations(values, 2)]
    ps = []
    for group in every:
        draws = matched_random(group, n_heads=6, n=500, own=True)
        null = [sum(values[h] for h in d) for d in draws]
        ps.append(pvalue(sum(values[h] for h in group), null).p)
    for level in (0.1, 0.2, 0.4):
        assert np.mean(np.array(ps) <= level) <= level + 1e-12


def test_overlapping_draws_count_for_p_alone():
    effects = {"A": -1.0, "B": -0.2, "C": 0.1, "D": -0.1}
    heads = {"A": ["L0H0", "L0H1"], "B": ["L0H0", "L0H2"], "C": ["L0H2", "L0H3"], "D": ["L0H3", "L0H4"]}
    rows = [
        {"group": g, "heads": heads[g], "mode": "mean", "metric": "logit_diff", "baseline": 2.0, "n": 9}
        | {"ablated": 2.0 + e, "effect": e, "low": e, "high": e}
        for g, e in effects.items()
    ]
    null = pd.DataFrame(rows).assign(null_for="A")  # the group itself among them: dropped
    (group,) = measured(pd.DataFrame(rows[:1]), "effects")
    reading = NullTable(null, "mean").reading(group, frozenset(), Thresholds())
    assert reading.p is not None and reading.p.n == 3
    assert reading.null_mean == pytest.approx((0.1 - 0.1) / 2)
    assert reading.specificity == pytest.approx(1.0 / 0.05)
    unnamed = NullTable(null.drop(columns="null_for"), "mean").reading(group, frozenset(), Thresholds())
    assert unnamed.p is not None and unnamed.p.n == 2


@pytest.mark.parametrize(("own", "verdict"), [(True, "null"), (False, "not testable (draws)")])
def test_a_null_stopped_early_is_judged_by_the_draws_that_exist(own, verdict):
    """Three heads of nine: 83 draws may hold the group's own heads (2 / 84 = .024), 20 hold none (2 / 21 = .095)."""
    group = ["L0H0", "L0H1", "L0H2"]
    draws = matched_random(group, n_heads=9, n=20, own=own)
    effects = np.concatenate([np.full(10, -0.1), np.full(10, 0.1)])  # ten on either side: it stops here
    table = pd.DataFrame(null("a", group, effects)).assign(heads=list(draws))
    found = judge(frame(row("a", group, jitter(0.0))), table, heads_per_layer=9)
    assert found.loc["a", "verdict"] == verdict


def overlapping(n_apart: int, n: int = 159) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A group of three heads of layer 0 with an effect of -2, and `n` draws of which `n_apart` hold none of it."""
    group = ["L0H0", "L0H1", "L0H2"]
    draws = list(matched_random(group, n_heads=20, n=1139, own=True))
    apart = [d for d in draws if not set(d) & set(group)][:n_apart]
    shared = [d for d in draws if set(d) & set(group)][: n - n_apart]
    assert (len(apart), len(shared)) == (n_apart, n - n_apart)
    effects = [0.01] * n_apart + list(np.linspace(-1, 1, n - n_apart))
    rows = pd.DataFrame(null("a", ["L1H0"], [0.0] * 39)).reindex(range(n)).ffill()
    table = rows.assign(
        heads=[*apart, *shared], effect=effects, ablated=4 + np.array(effects), group=range(n)
    )
    return frame(row("a", group, jitter(-2.0))), table.assign(n=table["n"].astype(int))


@pytest.mark.parametrize(
    ("n_apart", "marked", "verdict"),
    [(0, True, "inconclusive"), (1, True, "unreliable null"), (9, True, "primary"), (10, False, "primary")],
)
def test_mean_and_specificity_are_of_the_draws_without_own_heads_and_how_many_is_said(
    n_apart, marked, verdict
):
    found = judge(*overlapping(n_apart), heads_per_layer=20).loc["a"]
    assert (found["n_null"], found["n_apart"]) == (159, n_apart) and found["p"] == pytest.approx(2 / 160)
    assert ("overlapping null" in found["marks"]) == marked and found["verdict"] == verdict
    if n_apart:
        assert found["null_mean"] == pytest.approx(0.01) and found["specificity"] == pytest.approx(2 / 0.02)
    else:  # p alone is known: neither a spread nor a specificity is made of draws that are in part the group
        assert np.isnan(found[["null_mean", "null_sd", "z", "specificity", "excess"]].astype(float)).all()
        assert "every random draw holds some of its heads" in found["reason"]


def test_the_published_rules_have_no_verdict_where_every_draw_holds_own_heads():
    effects, draws = overlapping(0)
    found = judge(effects, draws, heads_per_layer=20, rules="paper", mode="mean").loc["a"]
    assert found["verdict"] == "not testable (draws)" and "own heads" in found["reason"]
    assert (
        judge(*overlapping(9), heads_per_layer=20, rules="paper", mode="mean").loc["a", "verdict"]
        == "primary"
    )


def test_a_primary_beside_a_larger_harm_that_is_not_significant_says_so():
    effects, draws = overlapping(60)
    own = draws["heads"].map(lambda h: "L0H0" in h)
    draws["effect"] = np.where(own, -2.0, 0.01)
    draws["ablated"] = 4 + draws["effect"]
    small, quiet = (
        row("b", ["L1H3", "L1H4"], jitter(-1.0)),
        null("b", ["L1H3", "L1H4"], np.linspace(-0.1, 0.1, 159)),
    )
    both = pd.concat([effects, frame(small)]), pd.concat([draws, frame(quiet)])
    found = judge(*both, heads_per_layer=20)
    assert found.verdict.to_dict() == {"a": "inconclusive", "b": "primary"}
    assert found.marks["b"] == ["not the largest"]
    assert (
        "the largest significant harm" in found.reason["b"]
        and "; not the largest: a (-2 logits" in found.reason["b"]
    )
    alone = judge(frame(small), frame(quiet), heads_per_layer=20)
    assert alone.marks["b"] == [] and "the largest harm" in alone.reason["b"]


def test_where_every_draw_that_does_as_much_holds_own_heads_the_reason_says_so():
    """One head does all of it: any draw with that head is as good, and the p that cannot be small is explained."""
    effects, draws = overlapping(60)
    own = draws["heads"].map(lambda h: "L0H0" in h)
    assert 10 < own.sum() < 99
    draws["effect"] = np.where(own, -2.0, 0.01)
    draws["ablated"] = 4 + draws["effect"]
    found = judge(effects, draws, heads_per_layer=20).loc["a"]
    assert found["verdict"] == "inconclusive" and found["specificity"] == pytest.approx(2 / 0.02)
    assert f": {own.sum()} of 159 draws do as much, and each holds heads of the group" in found["reason"]
    draws.loc[0, ["effect", "ablated"]] = -2.0, 2.0  # one without any of its heads
    assert "draws do as much" not in judge(effects, draws, heads_per_layer=20).loc["a", "reason"]
