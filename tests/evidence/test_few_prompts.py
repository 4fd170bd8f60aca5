"""What too little cannot say: few prompts, samples in which nothing varied, models with nothing to remove."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evidence_tables import draws, frame, jitter, judge, null, quiet, row
from hypothesis import given, settings
from hypothesis import strategies as st

from causegrid.errors import InputError
from causegrid.evidence.readings import inside
from causegrid.evidence.verdicts import RULES, Thresholds, verdict
from causegrid.interventions.heads import ablate_heads
from causegrid.models import model
from causegrid.tasks import task

A, B = ["L1H0", "L1H1"], ["L2H0", "L2H1"]


def on(n: int, value: float, rules: str = "strict", **options: object) -> pd.Series:
    """Group A with this margin effect on n prompts."""
    effects = frame(row("a", A, [value] * n, [4.0] * n))
    given = options.pop("patterns", {"a": True})
    return judge(
        effects, frame(null("a", A, quiet(), clean=[4.0] * n)), rules=rules, patterns=given, **options
    ).loc["a"]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("value", [-2.0, 0.0, 2.0])
def test_few_prompts_are_not_testable(rules: str, value: float) -> None:
    v = on(7, value, rules)
    assert v.verdict == v.combined == "not testable"
    assert "7 prompts" in v.reason and "at least 8" in v.reason
    assert "1 prompt has" in on(1, value, rules).reason
    assert on(8, value, rules).verdict != "not testable"


@pytest.mark.parametrize("value", [-2.0, 0.0, 2.0])
def test_one_prompt_decides_nothing_even_where_it_is_allowed(value: float) -> None:
    for patterns in ({"a": True}, None):
        v = on(1, value, thresholds=Thresholds(min_prompts=1), patterns=patterns)
        assert v.verdict == "not testable"  # not even the model's own margin has an interval
        assert np.isnan(v.low) and np.isnan(v.high)


def test_an_unknown_interval_decides_nothing() -> None:
    effects = frame(*(row(g, h, jitter(x)) for g, h, x in (("a", A, -2.0), ("b", B, 0.0))))
    effects = effects.drop(columns=["values", "clean"])  # 40 prompts, no interval
    v = judge(effects, frame(null("a", A, quiet()), null("b", B, quiet())), patterns={"b": True})
    assert v.verdict.tolist() == ["inconclusive"] * 2
    assert not inside(np.nan, np.nan, 1.0)


def test_only_prompts_with_a_value_count() -> None:
    values, clean = [-2.0] * 7 + [np.nan] * 33, [4.0] * 7 + [np.nan] * 33
    v = judge(frame(row("a", A, values, clean)), frame(null("a", A, quiet(), clean=[4.0] * 40))).loc["a"]
    assert (v.n, v.verdict) == (7, "not testable")


def test_few_prompts_do_not_take_the_paper_primary() -> None:
    effects = frame(row("few", A, [-3.0] * 4, [4.0] * 4), row("b", B, jitter(-2.0)))
    rows = frame(null("few", A, quiet() - 0.3, clean=[4.0] * 4), null("b", B, quiet() - 0.3))
    assert judge(effects, rows, rules="paper").verdict.tolist() == ["not testable", "primary"]


def test_groups_without_shared_prompts_are_not_said_to_differ() -> None:
    groups = (("a", A, -2.0, 0), ("b", B, -1.9, 39))
    effects = frame(*(row(g, h, jitter(x), prompts=list(range(k, k + 40))) for g, h, x, k in groups))
    v = judge(effects, frame(null("a", A, quiet()), null("b", B, quiet())))
    assert v.verdict.tolist() == ["primary", "secondary"]
    assert "too few, to pair" in v.reason["b"] and "nan" not in v.reason["b"]


def test_unchanged_accuracies_on_few_prompts_are_no_null() -> None:
    def top1(n: int) -> str:
        clean = [1.0] * (n // 2) + [0.0] * (n - n // 2)
        effects = frame(row("a", A, [0.0] * n, clean, "top1"))
        table = frame(null("a", A, quiet(width=0.01), "top1", clean=clean))
        return str(judge(effects, table, metrics=("top1",)).loc["a"].verdict)

    assert [top1(n) for n in (8, 64, 144, 150)] == ["inconclusive"] * 3 + ["null"]  # minimum 2.5 pp: from 146


def test_ablation_tables_carry_the_exact_interval(small_lm: Path) -> None:
    table = ablate_heads(model(str(small_lm)), task("ioi"), {"a": ["L0H0"]}, mode="zero", n=8)
    top1 = table.set_index("metric").loc["top1"]
    assert set(top1["values"]) == {0.0}
    unseen = 1 - 0.025 ** (1 / top1.n)
    assert (top1.low, top1.high) == pytest.approx((-unseen, unseen))


@pytest.mark.parametrize("effect", [0.0, -0.5])
def test_paper_rules_with_nothing_to_remove(effect: float) -> None:
    effects = frame(row("a", A, [effect] * 10, [0.0] * 10))
    v = judge(effects, frame(null("a", A, [0.0] * 10, clean=[0.0] * 10)), rules="paper").loc["a"]
    assert v.specificity == 0 if effect == 0 else np.isnan(v.specificity)
    assert v.verdict not in ("primary", "secondary")


SIZES = st.sampled_from([0.0, 0.0, -1.0, 1.0, -0.3, 2.5, 1e-12, np.nan])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_tables_never_break_the_rules(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 10))
    zero = data.draw(st.booleans())
    values = st.just([0.0] * n) if zero else st.lists(SIZES, min_size=n, max_size=n)
    groups = {"a": A, "b": B, "one": ["L3H0"]}
    kept = data.draw(st.lists(st.sampled_from(sorted(groups)), min_size=1, unique=True))
    effects, rows = [], []
    for metric in data.draw(st.sampled_from([("logit_diff", "top1"), ("top1",), ("logit_diff",)])):
        clean = data.draw(values)
        for group in kept:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                effects.append(row(group, groups[group], data.draw(values), clean, metric))
            null_effects = data.draw(
                st.lists(st.just(0.0) if zero else SIZES.filter(np.isfinite), max_size=25)
            )
            drawn = draws(groups[group], len(null_effects))
            rows += [
                {"null_for": group, "heads": h, "metric": metric, "effect": e, "mode": "mean", "n": n}
                for h, e in zip(drawn, null_effects, strict=True)
            ]
    table = frame(*effects)
    for column in data.draw(st.sets(st.sampled_from(["values", "clean", "n"]))):
        table = table.drop(columns=column)
    null_table = pd.DataFrame(rows, columns=["null_for", "heads", "metric", "effect", "mode", "n"])
    for rules in RULES:
        for least in (1, 8):
            try:
                v = verdict(
                    table,
                    null_table,
                    rules=rules,
                    mode="mean",
                    heads_per_layer=data.draw(st.sampled_from([None, 40])),
                    patterns=data.draw(st.sampled_from([None, {kept[0]: True}])),
                    thresholds=Thresholds(min_prompts=least),
                )
            except InputError:
                continue
            counted = v[v["n"].between(1, least - 1)]
            assert set(counted["verdict"]) <= {"not testable"}
            if rules == "strict":
                unknown = v[v["low"].isna()]
                bad = {
                    "primary",
                    "co-primary",
                    "secondary",
                    "null",
                    "correlate",
                    "interferer",
                    "interferer (joint)",
                }
                assert not bad & set(unknown["verdict"])
