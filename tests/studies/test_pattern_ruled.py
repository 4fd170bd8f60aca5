"""Both rule sets over the same effects and draws; no draws, no verdict; sentences on what is only described."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from causegrid.evidence import VERDICTS, verdict
from causegrid.studies.pattern.ruled import described_rows, sentence, verdicts

N, HEADS = 64, 40
BASE = {"logit_diff": 4.0, "top1": 0.9, "restricted": 1.0}
SETS = {
    "strong": ["L1H0", "L2H0"], "small": ["L1H1", "L2H1"], "idle": ["L1H2", "L2H2"], "helps": ["L1H3", "L2H3"],
}  # fmt: skip
SIZES = {"strong": -2.0, "small": -0.7, "idle": 0.0, "helps": 1.0}


def row(group, heads, metric, effect, spread=0.3, **more):
    rng = np.random.default_rng([len(group), len(metric)])
    values = effect + spread * rng.standard_normal(N)
    values += effect - values.mean()
    half = 2 * spread / np.sqrt(N)
    clean = np.full(N, BASE[metric])
    return {
        "group": group, "heads": heads, "mode": "mean", "metric": metric, "n": N, "baseline": BASE[metric],
        "ablated": BASE[metric] + effect, "effect": effect, "low": effect - half, "high": effect + half, "noise": 0.0,
        "flag": "", "clean": clean.tolist(), "values": values.tolist(), "role": "group", "of": [group], **more,
    }  # fmt: skip


def tables(groups=SETS):
    scale = {"logit_diff": 1.0, "top1": 0.1, "restricted": 0.02}
    effects = [row(g, h, m, SIZES[g] * s, 0.3 * s) for g, h in groups.items() for m, s in scale.items()]
    singles = [row(h, [h], m, SIZES[g] * s / 2, 0.3 * s) for g, hs in groups.items() for h in hs
               for m, s in scale.items()]  # fmt: skip
    rng = np.random.default_rng(0)
    nulls = []
    for i in range(400):
        a, b = rng.integers(4, HEADS, size=2)
        for m, s in scale.items():
            drawn = row(f"d{i}", [f"L1H{a}", f"L2H{b}"], m, 0.1 * s * rng.standard_normal(), 0.0)
            nulls += [{**drawn, "null_for": g} for g in groups]
    notes = [{"group": g, "n_null": 400, "why": ""} for g in groups]
    patterns = [{"group": g, "pattern": True, "pattern_score": 0.5, "pattern_p99": 0.2} for g in groups]
    bare = pd.DataFrame(nulls).drop(columns=["clean", "values"])
    return pd.DataFrame(effects), bare, *map(pd.DataFrame, (notes, singles, patterns))


def judged(rules="strict", floor="", groups=SETS, without=()):
    effects, nulls, notes, singles, patterns = tables(groups)
    nulls = nulls[~nulls["null_for"].isin(without)]
    notes.loc[notes["group"].isin(without), ["n_null", "why"]] = [0, "layer 1 has too few other heads"]
    if floor:
        nulls = nulls.iloc[:0]
    return verdicts(
        effects, nulls, notes, rules=rules, mode="mean", floor=floor, singles=singles, groups=patterns, text=None,
        heads_per_layer=HEADS,
    )  # fmt: skip


@pytest.mark.parametrize("rules", ["strict", "paper"])
def test_either_rule_set_leads_and_the_other_stands_beside(rules):
    found = judged(rules)
    effects, nulls, _, singles, patterns = tables()
    for name in ("strict", "paper"):
        own = found[found["rules"] == name].reset_index(drop=True)
        wanted = verdict(
            effects, nulls, rules=name, mode="mean", singles=singles, heads_per_layer=HEADS,
            patterns={r["group"]: {"score": 0.5, "p99": 0.2} for r in patterns.to_dict("records")},
        )  # fmt: skip
        for column in (
            "group",
            "metric",
            "verdict",
            "combined",
            "reason",
            "effect",
            "p",
            "p_holm",
            "specificity",
        ):
            assert (
                own[column].tolist() == pytest.approx(wanted[column].tolist(), nan_ok=True)
                if (own[column].dtype.kind == "f")
                else own[column].tolist() == wanted[column].tolist()
            )
        assert own["marks"].map(list).tolist() == wanted["marks"].map(list).tolist()
        assert (own["leads"] == (name == rules)).all()
    by = {name: dict(zip(t["group"], t["combined"], strict=True)) for name, t in found.groupby("rules")}
    assert by["strict"]["strong"] == by["paper"]["strong"] == "primary"
    assert by["strict"]["idle"] == by["paper"]["idle"] == "correlate"
    assert by["strict"]["helps"] == "interferer"
    for r in found.to_dict("records"):
        assert r["other"] == by["paper" if r["rules"] == "strict" else "strict"][r["group"]]
    assert found["leads"].iloc[0] and not found["leads"].iloc[-1]
    assert found.attrs["rules"] == rules and found.attrs["thresholds"]["specificity"] == 3.0


def test_they_can_disagree():
    """A harm of 0.3 of 4 logits, far beyond its draws: secondary under strict, too small for the published 10 %."""
    found = judged()
    small = found[(found["group"] == "small") & (found["metric"] == "logit_diff")].set_index("rules")
    assert small.loc["strict", "combined"] == "secondary" and small.loc["paper", "combined"] != "secondary"
    assert small.loc["strict", "other"] == small.loc["paper", "combined"]


@pytest.mark.parametrize("rules", ["strict", "paper"])
def test_a_group_without_draws_has_no_verdict_under_either(rules):
    """Wide groups of 21 of 40 heads a layer: no other 21 exist."""
    wide = {"helps": [f"L1H{h}" for h in range(21)], "idle": [f"L2H{h}" for h in range(21)]}
    found = judged(rules, groups=wide, without=tuple(wide))
    assert set(found["verdict"]) == set(found["combined"]) == {"not testable (draws)"}
    assert found.loc[found["rules"] == "paper", "reason"].eq("layer 1 has too few other heads").all()
    assert found["p"].isna().all() and not found["differs"].any()


def test_a_model_that_fails_the_floor_has_no_verdict_under_either(monkeypatch):
    monkeypatch.setitem(BASE, "logit_diff", 0.0)
    monkeypatch.setitem(BASE, "restricted", 0.5)
    found = judged(floor="the model does not do the task")
    assert set(found["verdict"]) == {"not testable"} and set(found["rules"]) == {"strict", "paper"}
    paper = found[found["rules"] == "paper"]
    assert paper["reason"].str.contains("no random draws were made: the model does not do the task").all()


def test_every_verdict_has_a_reason_that_names_its_number():
    for r in judged().to_dict("records"):
        assert r["verdict"] in VERDICTS and len(r["reason"]) > 20
        assert "nan" not in r["reason"] and ("logits" in r["reason"] or "pp" in r["reason"])


GROUP = row("a", ["L1H0"], "logit_diff", -1.0)
OTHER = row("b", ["L1H1"], "logit_diff", -0.5)


@pytest.mark.parametrize(
    ("role", "heads", "effect", "of", "words"),
    [
        ("union", ["L1H0", "L1H1"], -2.0, ["a", "b"],
         "a, b removed together: -2 logits [-2.1 logits, -1.9 logits]; one by one they add up to -1.5 logits"),
        ("upper bound", [f"L1H{h}" for h in range(4)], -2.0, ["a"],
         "all 4 heads of the layer of a removed: -2 logits [-2.1 logits, -1.9 logits]; the group alone makes "
         "-1 logits, 50 % of it"),
        ("upper bound", [f"L{x}H0" for x in range(4)], 2.0, ["a"],
         "all 4 heads of the 4 layers of a removed: +2 logits [+1.9 logits, +2.1 logits]; the group alone makes "
         "-1 logits"),
        ("keep only", ["L0H0", "L0H1"], -3.0, ["a"],
         "with all 2 heads but those of a removed, a margin of 1 logits is left of 4 logits, 25 % of it"),
        ("picked again", ["L2H2"], -0.2, ["a"],
         "a without heads of the BOS class: -0.2 logits [-0.3 logits, -0.1 logits], against -1 logits with them"),
    ],
)  # fmt: skip
def test_sentences(role, heads, effect, of, words):
    given = row("x", heads, "logit_diff", effect, 0.4, role=role, of=of)
    assert sentence(given, [g for g in (GROUP, OTHER) if g["group"] in of]) == words


def test_described_rows_are_never_ranked():
    union = row("all groups", ["L1H0", "L1H1"], "logit_diff", -2.0, role="union", of=["a", "b"])
    found = described_rows(pd.DataFrame([GROUP, OTHER, union]), "strict")
    assert found["group"].tolist() == ["all groups"]
    assert found[["kind", "verdict", "combined"]].to_numpy().tolist() == [["descriptive"] * 3]
    assert "p" not in found and found["n_null"].tolist() == [0]


@pytest.mark.parametrize("rules", ["strict", "paper"])
def test_only_the_deciding_mode_is_judged_and_described(rules):
    """A union, and everything once more in another mode: neither is judged, the union described in the deciding one."""
    effects, nulls, notes, singles, patterns = tables()
    heads = [h for own in SETS.values() for h in own]
    scale = {"logit_diff": 1.0, "top1": 0.1}
    union = [
        row("all groups", heads, m, -1.5 * s, 0.3 * s, role="union", of=list(SETS)) for m, s in scale.items()
    ]
    measured = pd.concat([effects, pd.DataFrame(union)])
    beside = measured.assign(mode="zero", effect=3 * measured["effect"])
    plain, found = (
        verdicts(
            table, nulls, notes, rules=rules, mode="mean", floor="", singles=singles, groups=patterns, text=None,
            heads_per_layer=HEADS,
        )
        for table in (effects, pd.concat([beside, measured], ignore_index=True))
    )  # fmt: skip
    described = found[found["role"] == "union"]
    assert described["metric"].tolist() == ["logit_diff", "top1"] and set(described["mode"]) == {"mean"}
    assert described["effect"].tolist() == pytest.approx([-1.5, -0.15]) and described["leads"].all()
    judged_rows = found[found["role"] == "group"].reset_index(drop=True)
    assert set(judged_rows["group"]) == set(SETS) and set(judged_rows["mode"]) == {"mean"}
    assert judged_rows["effect"].tolist() == plain["effect"].tolist()
    assert judged_rows["combined"].tolist() == plain["combined"].tolist()
