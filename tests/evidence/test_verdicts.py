"""One hand-made table per verdict, with its arithmetic, and the rules around them (MEASURES 4.1, 4.2).

Unless a test says otherwise: 40 prompts, baseline margin 4 (minimum effect 0.2), 199 draws spread evenly over
+-0.1, so that p = 2/200 = 0.01 for anything outside them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from evidence_tables import CEILING, TOP1, N, flips, frame, jitter, judge, null, quiet, row

from causegrid.errors import InputError
from causegrid.evidence.verdicts import Thresholds, verdict

A, B, C = ["L1H0", "L1H1"], ["L2H0", "L2H1"], ["L3H0", "L3H1"]


def alone(values: float, effects: object = None, **options: object) -> pd.Series:
    """The verdict on one group A with this mean margin effect."""
    return judge(
        frame(row("a", A, jitter(values))),
        frame(null("a", A, quiet() if effects is None else effects)),
        **options,
    ).loc["a"]  # type: ignore[arg-type]


def test_primary_and_its_numbers() -> None:
    v = alone(-2.0)
    assert v.verdict == v.combined == "primary"
    assert (v.n, v.baseline, v.effect, v.n_null) == (40, 4.0, pytest.approx(-2), 199)
    assert v.p == v.p_holm == v.p_min == pytest.approx(2 / 200)
    assert v.null_mean == pytest.approx(0, abs=1e-12)
    assert v.null_sd == pytest.approx(np.std(quiet(), ddof=1))
    assert v.z == pytest.approx(-2 / np.std(quiet(), ddof=1))
    towards = sum(max(0.0, -x) for x in quiet()) / 199  # 0.0251, above the floor 0.5 % x 4 = 0.02
    assert v.specificity == pytest.approx(2 / towards)
    assert "a" in v.reason and "-2 logits" in v.reason
    assert v.marks == []


def test_co_primary_and_secondary() -> None:
    wide = [-1.8 + (1.5 if i % 2 else -1.5) for i in range(N)]  # differs from a by 0.2 +- 0.47
    effects = frame(row("a", A, [-2.0] * N), row("b", B, wide), row("c", C, jitter(-1.0)))
    draws_table = frame(*(null(g, h, quiet(239)) for g, h in (("a", A), ("b", B), ("c", C))))
    v = judge(effects, draws_table)
    assert v.verdict.to_dict() == {"a": "primary", "b": "co-primary", "c": "secondary"}
    assert v.p_holm.tolist() == pytest.approx([3 * 2 / 240] * 3)
    assert "a, b, c" in v.reason["a"]
    assert "holds 0" in v.reason["b"] and "excludes 0" in v.reason["c"]


@pytest.mark.parametrize(
    ("single", "expected"),
    [((1.0, 1.0), "interferer"), ((1.0, 0.0), "interferer"), ((0.0, 0.0), "interferer (joint)")],
)
def test_interferer_when_half_its_heads_help_alone(single: tuple[float, float], expected: str) -> None:
    singles = frame(*(row(h, [h], jitter(x)) for h, x in zip(A, single, strict=True)))
    v = alone(+2.0, singles=singles)
    assert v.verdict == expected
    assert v.singles_sum == pytest.approx(sum(single))


def test_interferer_joint_without_singles() -> None:
    v = alone(+2.0)
    assert v.verdict == "interferer (joint)"
    assert "none was measured alone" in v.reason


def test_correlate_null_and_pattern_unknown() -> None:
    beyond, short = {"a": {"score": 0.5, "p99": 0.3}}, {"a": {"score": 0.2, "p99": 0.3}}
    assert alone(0.05, patterns=beyond).verdict == "correlate"
    v = alone(0.05, patterns=short)
    assert (v.verdict, v.marks) == ("null", [])
    v = alone(0.05)
    assert (v.verdict, v.marks) == ("null", ["pattern unknown"])
    assert alone(0.05, patterns={"a": {"beyond": True}}).verdict == "correlate"
    table = pd.DataFrame({"group": ["a"], "score": [0.5], "p99": [0.3], "beyond": [True]})
    assert alone(0.05, patterns=table).verdict == "correlate"


def test_inconclusive_when_the_interval_reaches_beyond_the_minimum() -> None:
    values = [0.05 + (1.0 if i % 2 else -1.0) for i in range(N)]  # +-0.31 around 0.05, minimum 0.2
    v = judge(frame(row("a", A, values)), frame(null("a", A, quiet()))).loc["a"]
    assert v.high > 0.2
    assert v.verdict == "inconclusive"


def test_a_real_effect_with_weak_specificity_is_inconclusive() -> None:
    # p = .01, but the draws harm by 0.6 on average: 1.5 / 0.6 = 2.5x, under 3x
    v = alone(-1.5, np.linspace(-0.7, -0.5, 199))
    assert v.specificity == pytest.approx(2.5)
    assert v.verdict == "inconclusive"


def test_draws_that_go_the_other_way_do_not_disqualify() -> None:
    v = alone(-1.5, np.linspace(0.5, 0.7, 199))  # against |mean of the null| it would be 2.5x
    assert v.specificity == pytest.approx(1.5 / 0.02)
    assert v.verdict == "primary"


def test_an_effect_whose_interval_holds_zero_is_not_significant() -> None:
    values = [-0.3 + (2.0 if i % 2 else -2.0) for i in range(N)]  # -0.3 +- 0.62; p = .01, 12x, minimum 0.2
    v = judge(frame(row("a", A, values)), frame(null("a", A, quiet()))).loc["a"]
    assert v.p == pytest.approx(0.01) and v.specificity > 3
    assert v.verdict == "inconclusive"
    assert "holds 0" in v.reason


def test_an_effect_under_the_minimum_is_not_significant() -> None:
    v = alone(-0.15, quiet(width=0.01))  # p = .01, specificity 7.5x, minimum 0.2
    assert v.p == pytest.approx(0.01)
    assert v.verdict == "null"


def test_unreliable_null_by_spread() -> None:
    # 30 of 199 draws help by 3: sd 1.08, above 4 / 4; none harms, so specificity is 2 / 0.02
    effects = [3.0] * 30 + [0.0] * 169
    v = alone(-2.0, effects)
    assert np.std(effects, ddof=1) == pytest.approx(1.076, abs=1e-3)
    assert v.verdict == "unreliable null"


def test_unreliable_null_by_mean() -> None:
    # draws remove 2.2 of 4 (55 %); -8 is 3.6 times that
    v = alone(-8.0, np.linspace(-2.3, -2.1, 199))
    assert v.verdict == "unreliable null"
    assert "55%" in v.reason


def test_reliability_is_asked_only_of_the_significant() -> None:
    assert alone(0.0, [3.0] * 30 + [0.0] * 169).verdict == "null"


def test_saturated() -> None:
    # top-1 0.8 -> 0.025 and, for the draws, 0.02 on average: both at most 0.04 above chance
    effects = frame(row("a", A, flips(31), TOP1, "top1"))
    draws_table = frame(null("a", A, quiet(width=0.01) - 0.78, "top1", clean=TOP1))
    v = judge(effects, draws_table, metrics=("top1",)).loc["a"]
    assert v.ablated == pytest.approx(0.025)
    assert v.verdict == "saturated"


def test_no_headroom_is_for_top1_alone() -> None:
    effects = frame(row("a", A, [0.0] * N, CEILING, "top1"), row("a", A, jitter(0.0)))
    draws_table = frame(null("a", A, [0.0] * 199, "top1", clean=CEILING), null("a", A, quiet()))
    v = verdict(effects, draws_table).set_index("metric")
    assert v.verdict.to_dict() == {"logit_diff": "null", "top1": "no headroom"}
    assert v.combined.tolist() == ["null", "null"]
    assert v.differs.all()


def test_harm_at_the_ceiling_is_still_judged() -> None:
    effects = frame(row("a", A, flips(20, CEILING), CEILING, "top1"))
    draws_table = frame(null("a", A, quiet(width=0.02), "top1", clean=CEILING))
    assert judge(effects, draws_table, metrics=("top1",)).loc["a"].verdict == "primary"


def test_not_testable_when_the_model_cannot_do_the_task() -> None:
    weak = [4.0] * 28 + [-1.0] * 12  # 28 of 40 = 0.70 under 0.75
    effects, draws_table = frame(row("a", A, jitter(-2.0), weak)), frame(null("a", A, quiet(), clean=weak))
    v = judge(effects, draws_table).loc["a"]
    assert v.verdict == "not testable"
    assert "70%" in v.reason
    assert judge(effects, draws_table, model_floor=0.7).loc["a"].verdict == "primary"
    wavering = [4.0] * 30 + [-12.0] * 10  # accuracy 0.75, margin 0 on average
    v = judge(frame(row("a", A, jitter(-2.0), wavering)), frame(null("a", A, quiet(), clean=wavering))).loc[
        "a"
    ]
    assert v.verdict == "not testable"
    assert "margin" in v.reason


def test_the_floor_reads_the_restricted_metric_where_there_is_one() -> None:
    effects = frame(row("a", A, jitter(-2.0)), row("a", A, [0.0] * N, [1.0] * 20 + [0.0] * 20, "restricted"))
    v = judge(effects, frame(null("a", A, quiet()))).loc["a"]
    assert v.verdict == "not testable"
    assert "50%" in v.reason


def test_not_testable_with_too_few_draws() -> None:
    v = alone(-2.0, quiet(38))  # p cannot be below 2/39 = .0513
    assert v.verdict == "not testable (draws)"
    assert alone(-2.0, quiet(39)).verdict == "primary"  # 2/40 = .05 exactly


@pytest.mark.parametrize(("n", "expected"), [(119, "primary"), (118, "not testable (draws)")])
def test_the_level_is_reached_exactly(n: int, expected: str) -> None:
    groups = (("a", A, -2.0), ("b", B, 0.0), ("c", C, 0.0))
    effects = frame(*(row(g, h, jitter(x)) for g, h, x in groups))
    draws_table = frame(*(null(g, h, quiet(n)) for g, h, _ in groups))
    v = judge(effects, draws_table)
    assert v.verdict["a"] == expected  # 3 x 2/120 = .05 exactly


def test_a_null_stopped_early_is_a_test() -> None:
    v = alone(0.05, np.concatenate([[-0.1] * 10, [0.1] * 10]))
    assert v.verdict == "null"


def test_holm_takes_significance_away() -> None:
    # one of three groups at raw p = 2 x 3 / 240 = .025: corrected .075
    effects = frame(row("a", A, jitter(-2.0)), row("b", B, jitter(0.0)), row("c", C, jitter(0.0)))
    tail = np.concatenate([[-3.0, -3.0], quiet(237)])
    v = judge(effects, frame(null("a", A, tail), null("b", B, quiet(239)), null("c", C, quiet(239))))
    assert v.p["a"] == pytest.approx(0.025)
    assert v.p_holm["a"] == pytest.approx(0.075)
    assert v.verdict["a"] == "inconclusive"


def test_without_a_foil_top1_decides_and_says_so() -> None:
    none = [np.nan] * N
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning):
        margin = row("a", A, none, none)
    effects = frame(margin, row("a", A, flips(20), TOP1, "top1"))
    draws_table = frame(null("a", A, quiet(width=0.02), "top1", clean=TOP1))
    v = verdict(effects, draws_table).set_index("metric")
    assert v.verdict.to_dict() == {"logit_diff": "not testable", "top1": "primary"}
    assert v.combined.tolist() == ["primary"] * 2
    assert not v.differs.any()
    assert "no foil" in v.reason["top1"] and "top1 decides" in v.reason["top1"]
    absent = verdict(effects[effects.metric == "top1"], draws_table).iloc[0]
    assert (absent.combined, absent.metric) == ("primary", "top1")
    assert "top1 decides" in absent.reason


def test_prompts_without_a_foil_are_left_out() -> None:
    values = [np.nan if i < 10 else -2.0 for i in range(N)]
    clean = [np.nan if i < 10 else 4.0 for i in range(N)]
    v = judge(frame(row("a", A, values, clean)), frame(null("a", A, quiet(), clean=[4.0] * 40))).loc["a"]
    assert (v.n, v.baseline, v.effect, v.verdict) == (30, 4.0, -2.0, "primary")


def test_the_margin_decides_and_top1_is_shown_to_differ() -> None:
    effects = frame(row("a", A, jitter(-2.0)), row("a", A, [0.0] * N, TOP1, "top1"))
    draws_table = frame(null("a", A, quiet()), null("a", A, quiet(width=0.01), "top1", clean=TOP1))
    v = verdict(effects, draws_table)
    assert v.combined.tolist() == ["primary"] * 2
    assert v.verdict.tolist() == ["primary", "inconclusive"]  # 40 unchanged prompts: +-8.8 pp
    assert v.differs.all()


def test_case_17_an_effect_inside_the_noise_floor_is_never_significant() -> None:
    effects = frame(row("a", A, jitter(-0.5), noise=0.6))
    v = judge(effects, frame(null("a", A, quiet()))).loc["a"]
    assert v.verdict == "inconclusive"
    assert "noise floor" in v.reason
    effects["noise"] = 0.4
    assert judge(effects, frame(null("a", A, quiet()))).loc["a"].verdict == "primary"


def test_an_effect_of_exactly_zero_is_said() -> None:
    v = judge(frame(row("a", A, [0.0] * N)), frame(null("a", A, quiet()))).loc["a"]
    assert "exactly 0 on every prompt" in v.reason


def test_the_mode_judged() -> None:
    effects = frame(row("a", A, jitter(-2.0)), row("a", A, jitter(-3.0), mode="zero"))
    both = frame(null("a", A, quiet()), null("a", A, quiet(), mode="zero"))
    assert judge(effects, both).loc["a"].effect == pytest.approx(-2)
    assert judge(effects, both, rules="paper").loc["a"].effect == pytest.approx(-3)
    assert judge(effects, both, mode="zero").loc["a"].effect == pytest.approx(-3)
    with pytest.raises(InputError, match="mode 'zero', the null only of mean"):
        judge(effects, frame(null("a", A, quiet())), mode="zero")
    with pytest.raises(InputError, match="allowed are mean, zero"):
        judge(effects, both, mode="resample")


def test_bad_tables_are_refused_by_name() -> None:
    effects, draws_table = frame(row("a", A, jitter(-2.0))), frame(null("a", A, quiet()))
    with pytest.raises(InputError, match="no draw belongs to group 'b'"):
        judge(frame(row("b", ["L1H0", "L2H0"], jitter(-2.0))), draws_table)
    with pytest.raises(InputError, match="'effect' is missing"):
        judge(effects.drop(columns="effect"), draws_table)
    with pytest.raises(InputError, match="two rows"):
        judge(pd.concat([effects, effects]), draws_table)
    with pytest.raises(InputError, match="no rows"):
        judge(effects, draws_table.iloc[:0])
    with pytest.raises(InputError, match="did you mean 'strict'"):
        judge(effects, draws_table, rules="strikt")
    with pytest.raises(InputError, match="did you mean 'logit_diff'"):
        judge(effects, draws_table, metrics=("logitdiff",))
    with pytest.raises(InputError, match="L1H1, but the model has 1 heads"):
        judge(effects, draws_table, heads_per_layer=1)
    with pytest.raises(InputError, match="did you mean 'a'"):
        judge(effects, draws_table, patterns={"aa": True})


def test_thresholds_are_recorded_and_can_be_set() -> None:
    effects, draws_table = frame(row("a", A, jitter(-0.5))), frame(null("a", A, quiet()))
    assert judge(effects, draws_table).loc["a"].verdict == "primary"
    strict = Thresholds(minimum_share=0.2)  # 0.8 of 4
    v = judge(effects, draws_table, thresholds=strict)
    assert v.loc["a"].verdict == "null"
    assert v.attrs["thresholds"]["minimum_share"] == 0.2
