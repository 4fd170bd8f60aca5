"""Families, null matching, invariances, error rates and speed of the verdict (MEASURES 4.1).

Unless a test says otherwise: 40 prompts, baseline margin 4, 199 draws spread evenly over +-0.1.
"""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest
from evidence_tables import MARGIN, N, draws, frame, jitter, judge, null, quiet, row
from hypothesis import given, settings
from hypothesis import strategies as st

from causegrid.errors import InputError
from causegrid.evidence.verdicts import verdict

A, B, C = ["L1H0", "L1H1"], ["L2H0", "L2H1"], ["L3H0", "L3H1"]


def test_unions_supersets_and_singles_are_reported_not_ranked() -> None:
    groups = {"a": A, "b": B, "a+b": A + B, "more a": [*A, "L5H0"], "L1H0": ["L1H0"]}
    effects = frame(*(row(g, h, jitter(-2.0 - 0.1 * len(h))) for g, h in groups.items()))
    draws_table = frame(*(null(g, h, quiet(159)) for g, h in groups.items() if len(h) > 1))
    draws_table = pd.concat([draws_table, frame(null("L1H0", ["L1H0"], quiet(30)))])
    v = judge(effects, draws_table)
    assert v.kind.to_dict() == {
        "a": "competing",
        "b": "competing",
        "a+b": "descriptive",
        "more a": "descriptive",
        "L1H0": "descriptive",
    }
    assert v.verdict[["a", "b"]].tolist() == ["primary", "co-primary"]
    assert v.verdict[["a+b", "more a"]].tolist() == ["descriptive"] * 2
    assert v.p_holm["a"] == pytest.approx(2 * 2 / 160)  # two tests, not five
    assert v.p_holm[["a+b", "more a", "L1H0"]].isna().all()
    assert "the union of a, b" in v.reason["a+b"]
    assert "contains a" in v.reason["more a"]
    assert v.verdict["L1H0"] == "not testable (draws)"
    assert (v["rank"]["L1H0"], v.rank_of["L1H0"]) == (1, 31)
    assert "ranks 1 of 31 heads of layer 1" in v.reason["L1H0"]


def test_a_single_heads_rank() -> None:
    effects = frame(row("L1H0", ["L1H0"], jitter(-0.5)))
    draws_table = frame(null("x", ["L1H0"], [-0.9, -0.7, -0.1, 0.0, 0.2], named=False))
    v = judge(effects, draws_table).loc["L1H0"]
    assert (v["rank"], v.rank_of) == (3, 6)


def test_overlap_keeps_one_and_the_user_may_say_which() -> None:
    groups = {"a": ["L1H0", "L1H1"], "b": ["L1H1", "L1H2"]}
    effects = frame(*(row(g, h, jitter(-2.0)) for g, h in groups.items()))
    draws_table = frame(*(null(g, h, quiet()) for g, h in groups.items()))
    assert judge(effects, draws_table).kind.tolist() == ["competing", "descriptive"]
    given = judge(effects, draws_table, groups_kind={"b": "competing"})
    assert given.kind.tolist() == ["descriptive", "competing"]
    with pytest.raises(InputError, match="did you mean 'competing'"):
        judge(effects, draws_table, groups_kind={"b": "competin"})


def test_a_whole_layer_has_no_null_and_no_rank() -> None:
    layer = [f"L7H{i}" for i in range(40)]
    effects = frame(row("a", A, jitter(-2.0)), row("layer", layer, jitter(-3.0)))
    v = judge(effects, frame(null("a", A, quiet(700))))
    assert v.kind["layer"] == "descriptive"
    assert v.verdict["layer"] == "not testable (draws)"
    assert "every head of layer 7" in v.reason["layer"]
    assert v.verdict["a"] == "primary"


def test_too_few_others_is_a_reason_not_an_error() -> None:
    group = ["L4H0", "L4H1", "L4H2"]
    effects = frame(row("a", A, jitter(-2.0)), row("big", group, jitter(-2.0)))
    v = judge(effects, frame(null("a", A, quiet(3))), heads_per_layer=4)
    assert v.verdict["big"] == "not testable (draws)"
    assert "layer 4 has 4 heads, 3 of them" in v.reason["big"]
    none = frame(null("a", A, quiet(1))).iloc[:0]
    alone = judge(effects[effects.group == "big"], none, heads_per_layer=4)
    assert alone.verdict["big"] == "not testable (draws)"


def test_null_rows_find_their_group_by_shape() -> None:
    effects = frame(row("a", A, jitter(-2.0)), row("one", ["L2H0", "L3H0"], jitter(-1.0)))
    unnamed = frame(
        null("a", A, quiet(), named=False), null("one", ["L2H0", "L3H0"], quiet(150), named=False)
    )
    v = judge(effects, unnamed)
    assert v.n_null.tolist() == [199, 150]


def test_draws_that_share_a_head_or_repeat_are_dropped() -> None:
    effects = frame(row("a", A, jitter(-2.0)))
    clean = frame(null("a", A, quiet(), named=False))
    extra = clean.iloc[[0, 1]].copy()
    extra["effect"] = -9.0
    own = clean.iloc[[2, 3]].copy()
    own["heads"] = [["L1H0", "L1H7"], ["L1H9", "L1H1"]]
    own["effect"] = -9.0
    v = judge(effects, pd.concat([clean, extra, own])).loc["a"]
    assert v.n_null == 199
    assert v.p == pytest.approx(0.01)


def test_heads_may_be_written_as_text() -> None:
    effects, draws_table = frame(row("a", A, jitter(-2.0))), frame(null("a", A, quiet()))
    listed = judge(effects, draws_table).loc["a"]
    effects["heads"] = effects["heads"].map(",".join)
    draws_table["heads"] = draws_table["heads"].map(",".join)
    written = judge(effects, draws_table).loc["a"]
    assert written.heads == "L1H0,L1H1" and listed.heads == A
    assert written.drop("heads").astype(str).equals(listed.drop("heads").astype(str))


def test_a_null_on_some_prompts_is_met_on_the_same_prompts() -> None:
    # -2 on prompts 0..19, 0 on the others: -1 on average, -2 on the null's prompts
    values = [-2.0] * 20 + [0.0] * 20
    few = frame(null("a", A, quiet(), clean=MARGIN[:20]))
    few["prompts"] = [list(range(20))] * len(few)
    v = judge(frame(row("a", A, values)), few).loc["a"]
    assert v.effect == pytest.approx(-1.0)
    assert (v.n, v.null_prompts, v.excess) == (40, 20, pytest.approx(-2.0))
    assert v.z == pytest.approx(-2.0 / np.std(quiet(), ddof=1))
    few["prompts"] = [list(range(100, 120))] * len(few)
    shifted = row("a", A, values, prompts=list(range(80, 120)))
    assert judge(frame(shifted), few).loc["a"].z == pytest.approx(0, abs=1e-9)
    with pytest.raises(InputError, match="prompt 100 is not among"):
        judge(frame(row("a", A, values)), few)


def test_a_null_on_the_first_prompts_is_recognised_by_its_clean_values() -> None:
    clean = [4.0 + 0.01 * i for i in range(N)]
    values = [-2.0] * 20 + [0.0] * 20
    v = judge(frame(row("a", A, values, clean)), frame(null("a", A, quiet(), clean=clean[:20]))).loc["a"]
    assert v.z == pytest.approx(-2.0 / np.std(quiet(), ddof=1))
    with pytest.raises(InputError, match="no column 'prompts' says which"):
        judge(frame(row("a", A, values, clean)), frame(null("a", A, quiet(), clean=clean[5:25])))


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_row_order_does_not_matter(random: object) -> None:
    groups = {"a": (A, -2.0), "b": (B, -1.9), "c": (C, 1.0), "d": (["L1H1", "L2H1"], -1.0)}
    effects = frame(*(row(g, h, jitter(x, 0.5)) for g, (h, x) in groups.items()))
    draws_table = frame(*(null(g, h, quiet(159, 0.2), named=False) for g, (h, _) in groups.items()))
    base = judge(effects, draws_table).sort_index()
    order, other = list(range(len(effects))), list(range(len(draws_table)))
    random.shuffle(order)  # type: ignore[attr-defined]
    random.shuffle(other)  # type: ignore[attr-defined]
    again = judge(effects.iloc[order], draws_table.iloc[other]).sort_index()
    columns = ["kind", "n_null", "p", "p_holm", "verdict", "marks", "reason", "combined"]
    assert base[columns].astype(str).equals(again[columns].astype(str))


@settings(max_examples=15, deadline=None)
@given(st.floats(-1e4, 1e4), st.sampled_from([-2.0, -0.3, 0.0, 0.3, 2.0]))
def test_a_shift_of_all_logits_changes_nothing(shift: float, mean: float) -> None:
    rng = np.random.default_rng(0)
    answer, foil = rng.normal(8, 1, N), rng.normal(4, 1, N)
    after = answer + mean + rng.normal(0, 0.1, N)
    null_after = [answer + x for x in quiet()]

    def cell(by: float) -> pd.Series:
        clean = (answer + by) - (foil + by)
        values = (after + by) - (foil + by) - clean
        effects = [float((((a + by) - (foil + by)) - clean).mean()) for a in null_after]
        return judge(frame(row("a", A, values, clean)), frame(null("a", A, effects, clean=clean))).loc["a"]

    still, moved = cell(0.0), cell(shift)
    assert (still.verdict, still.p, still.marks) == (moved.verdict, moved.p, moved.marks)


def test_false_positives_stay_rare() -> None:
    """Groups drawn from their null's own heavy-tailed distribution: `primary` in at most 7 % of cells."""
    rng = np.random.default_rng(11)
    cells, wrong, below = 300, 0, 0
    drawn = draws(A, 99, 20)
    for _ in range(cells):
        effects = np.minimum(0.0, 0.02 * rng.standard_cauchy(100)).clip(-6)
        table = pd.DataFrame(
            {"group": "d", "heads": drawn, "metric": "logit_diff", "effect": effects[1:], "mode": "mean"}
        )
        v = judge(frame(row("a", A, [effects[0]] * N)), table).loc["a"]
        wrong += v.verdict in ("primary", "unreliable null")
        below += v.p <= 0.05
    assert wrong / cells <= 0.07
    assert below / cells <= 0.08


def test_power_on_a_planted_effect() -> None:
    rng = np.random.default_rng(12)
    found = 0
    for _ in range(30):
        effects = frame(row("a", A, list(rng.normal(-1.0, 0.5, N))))
        found += judge(effects, frame(null("a", A, rng.normal(0, 0.1, 99)))).loc["a"].verdict == "primary"
    assert found == 30


def test_ten_groups_of_800_draws_are_quick() -> None:
    rng = np.random.default_rng(13)
    groups = {f"g{i}": [f"L{i}H{j}" for j in range(3)] for i in range(10)}
    values = rng.normal(0, 0.5, 64).tolist()
    effects, rows = [], []
    for metric, clean in (("logit_diff", [4.0] * 64), ("top1", [1.0] * 56 + [0.0] * 8)):
        for group, heads in groups.items():
            effects.append(row(group, heads, values, clean, metric))
            more = null(group, heads, rng.normal(0, 0.05, 800), metric, clean=clean, named=False)
            rows += [{**r, "values": values} for r in more]
    table, null_table = pd.DataFrame(effects), pd.DataFrame(rows)
    start = time.process_time()
    v = verdict(table, null_table)
    assert time.process_time() - start < 2
    assert (v.n_null == 800).all()


def test_a_competing_group_without_draws_counts_in_the_family() -> None:
    """MEASURES 4.1: m competing groups, so a p is corrected for all of them, also for one that cannot be tested."""
    big = ["L4H0", "L4H1", "L4H2"]
    effects = frame(row("a", A, jitter(-2.0)), row("b", B, jitter(-2.0)), row("big", big, jitter(-2.0)))
    draws_table = frame(null("a", A, quiet(239)), null("b", B, quiet(239)))
    v = judge(effects, draws_table, heads_per_layer=4)
    assert v.kind["big"] == "competing" and v.verdict["big"] == "not testable (draws)"
    assert v.p_holm["a"] == v.p_holm["b"] == pytest.approx(3 * 2 / 240) and np.isnan(v.p_holm["big"])
    short = frame(null("a", A, quiet(79)), null("b", B, quiet(79)))  # 3 x 2 / 80 = .075
    assert judge(effects, short, heads_per_layer=4).verdict["a"] == "not testable (draws)"
