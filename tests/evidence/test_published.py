"""The published null cells, recomputed from their ten draws, and the published rules on them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from causegrid.errors import InputError
from causegrid.evidence import nulls
from causegrid.evidence.effects import minimum_effect
from causegrid.evidence.nulls import pvalue
from causegrid.evidence.readings import NullTable, measured
from causegrid.evidence.reference import published
from causegrid.evidence.rules_paper import ratio
from causegrid.evidence.thresholds import Thresholds
from causegrid.evidence.verdicts import verdict

matched_random = partial(nulls.matched_random, own=False)  # as published
P = published("pattern-selectivity")
NULLS = [
    (task, model, condition, metric)
    for task, models in P["cells"].items()
    for model, cell in models.items()
    for condition in cell["conditions"]
    for metric in condition.get("matched_random_n10", {})
]
KEYS = {"top1_pp": "top1", "logit_diff": "logit_diff"}


def delta(task: str, model: str, condition: dict[str, Any], metric: str) -> float:
    """The group's effect, from the levels where they were published."""
    if metric == "top1_pp":
        return float(condition["delta_top1_pp"])
    if metric == "logit_diff":
        return float(condition["delta_logit_diff"])
    return float(condition[metric] - P["cells"][task][model]["baseline"][metric])


def test_there_are_published_nulls() -> None:
    assert len(NULLS) == 24


@pytest.mark.parametrize(("task", "model", "condition", "metric"), NULLS)
def test_published_null_statistics(task: str, model: str, condition: dict[str, Any], metric: str) -> None:
    stated = condition["matched_random_n10"][metric]
    values = np.array(stated["null_values_delta"])
    effect = delta(task, model, condition, metric)
    heads = condition["heads"]
    scale = 100 if metric == "top1_pp" else 1
    name = KEYS.get(metric, "answer_prob")  # a unit whose effects are not rescaled
    baseline = P["cells"][task][model]["baseline"]["top1" if metric == "top1_pp" else metric]
    effects = pd.DataFrame(
        [
            {
                "group": "g",
                "heads": heads,
                "metric": name,
                "baseline": baseline,
                "ablated": 0.0,
                "effect": effect / scale,
            }
        ]
    )
    drawn = matched_random(heads, n_heads=P["models"][model]["heads"], n=10)
    null = pd.DataFrame({"group": "d", "heads": list(drawn), "metric": name, "effect": values / scale})
    reading = NullTable(null, "").reading(measured(effects, "effects")[0], frozenset(), Thresholds())
    assert reading.null_mean * scale == pytest.approx(stated["mean"], abs=1.1e-4)
    assert reading.null_sd * scale == pytest.approx(stated["std_ddof1"], abs=1.1e-4)
    if stated["z"] is None:
        assert np.isnan(reading.z)
    else:
        assert reading.z == pytest.approx(stated["z"], abs=0.006 + 0.002 * abs(stated["z"]))
    if stated["ratio_signed"] is not None:
        signed = reading.effect / reading.null_mean
        assert signed == pytest.approx(stated["ratio_signed"], rel=4e-3, abs=0.006)
        limit = 0.005 * (1 if name == "top1" else reading.removable)
        assert ratio(reading) == (np.inf if abs(reading.null_mean) < limit else pytest.approx(abs(signed)))
    p = pvalue(effect / scale, values / scale)
    assert p.harm == pytest.approx(stated["p_rank_harm"], abs=5e-5)
    assert p.help == pytest.approx(stated["p_rank_help"], abs=5e-5)
    assert p.p >= 2 / 11


def cell(task: str, model: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The published groups that have a null, as tables."""
    data = P["cells"][task][model]
    effects, null = [], []
    for condition in data["conditions"]:
        for key, stated in condition.get("matched_random_n10", {}).items():
            metric, scale = KEYS[key], 100 if key == "top1_pp" else 1
            effect = delta(task, model, condition, key) / scale
            baseline = data["baseline"][metric]
            effects.append(
                dict(
                    group=condition["screen"],
                    heads=condition["heads"],
                    metric=metric,
                    baseline=baseline,
                    ablated=baseline + effect,
                    effect=effect,
                )
            )
            drawn = matched_random(condition["heads"], n_heads=P["models"][model]["heads"], n=10)
            for heads, value in zip(drawn, stated["null_values_delta"], strict=True):
                null.append(
                    dict(null_for=condition["screen"], heads=heads, metric=metric, effect=value / scale)
                )
    return pd.DataFrame(effects), pd.DataFrame(null)


def by(table: pd.DataFrame, metric: str) -> dict[str, str]:
    rows = table[table.metric == metric]
    return dict(zip(rows.group, rows.verdict, strict=True))


def test_paper_rules_on_ioi() -> None:
    v = verdict(*cell("ioi", "olmo1b"), rules="paper")
    assert by(v, "top1") == {"name_mover_top5": "null", "s_inhibition_top5": "primary"}  # 1.8x and 4.8x
    v = verdict(*cell("ioi", "olmoe1b7b"), rules="paper")
    assert by(v, "top1")["name_mover_top5"] == "primary"  # 34x
    assert by(v, "logit_diff")["s_inhibition_top5"] == "primary"  # the margin says otherwise
    assert set(v.combined[v.group == "name_mover_top5"]) == {"primary"}
    assert v.differs.any()


def test_paper_rules_find_the_correlate() -> None:
    v = verdict(
        *cell("ioi", "pythia1b"), rules="paper", patterns={"name_mover_top5": True, "s_inhibition_top5": True}
    )
    assert by(v, "top1") == {"name_mover_top5": "correlate", "s_inhibition_top5": "primary"}


def test_paper_rules_have_no_top1_primary_for_olmo_greater_than() -> None:
    v = verdict(*cell("greater_than", "olmo1b"), rules="paper")
    assert by(v, "top1")["gt_screen_top5"] != "primary"  # -0.6 pp against a null of exactly 0
    assert by(v, "logit_diff")["gt_screen_top5"] == "primary"


def test_ten_draws_decide_nothing_under_strict() -> None:
    v = verdict(*cell("ioi", "olmoe1b7b"), rules="strict")
    assert set(v.verdict) == {"not testable (draws)"}
    assert v.p_min.tolist() == pytest.approx([2 / 11] * 4)


def paper(groups: dict[str, tuple[float, float]], **options: Any) -> dict[str, str]:
    """Paper verdicts on hand-made top-1 groups: name -> (effect, null mean); null sd 0.02, baseline 0.9."""
    effects, null = [], []
    for i, (group, (effect, mean)) in enumerate(groups.items()):
        heads = [f"L{i}H0", f"L{i}H1"]
        effects.append(
            dict(group=group, heads=heads, metric="top1", baseline=0.9, ablated=0.9 + effect, effect=effect)
        )
        for heads_drawn, sign in zip(matched_random(heads, n_heads=16, n=10), [1, -1] * 5, strict=True):
            null.append(dict(null_for=group, heads=heads_drawn, metric="top1", effect=mean + sign * 0.02))
    v = verdict(pd.DataFrame(effects), pd.DataFrame(null), rules="paper", metrics=("top1",), **options)
    return dict(zip(v.group, v.verdict, strict=True))


def test_paper_rules_by_hand() -> None:
    found = paper(
        {
            "largest": (-0.5, -0.1),  # 5x
            "second": (-0.3, -0.1),  # 3x
            "small": (-0.08, -0.01),  # 8x but under 10 pp
            "unspecific": (-0.2, -0.11),  # 1.8x
            "flat": (0.01, 0.0),  # within one sd
            "gone": (-0.89, -0.88),  # the draws do the same
        }
    )
    assert found == {
        "largest": "primary",
        "second": "secondary",
        "small": "inconclusive",
        "unspecific": "null",
        "flat": "null",
        "gone": "saturated",
    }


@pytest.mark.parametrize(("alone", "expected"), [(0.05, "interferer"), (-0.05, "inconclusive")])
def test_paper_interferer_needs_its_heads(alone: float, expected: str) -> None:
    singles = pd.DataFrame(
        [
            dict(group=h, heads=[h], metric="top1", baseline=0.6, ablated=0.6 + alone, effect=alone)
            for h in ("L0H0", "L0H1")
        ]
    )
    assert paper({"g": (0.3, 0.06)}, singles=singles)["g"] == expected
    assert paper({"g": (0.3, 0.06)})["g"] == "inconclusive"


def test_reference_is_fresh_and_named() -> None:
    first = published("state-encoding")
    first["setup"] = None
    assert published("state-encoding")["setup"]["train_length"] == 40
    assert published("state-encoding")["source"]["arxiv"] == "2606.00926"
    with pytest.raises(InputError, match="did you mean 'state-encoding'"):
        published("state-encodings")
    assert minimum_effect("top1", P["cells"]["ioi"]["pythia1b"]["baseline"]["top1"]) == pytest.approx(0.0452)
