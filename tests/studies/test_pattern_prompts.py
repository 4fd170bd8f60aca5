"""Which prompts choose, which measure, which stand for the mean, under both rule sets; effects by variant."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from causegrid import model, task
from causegrid.evidence.effects import bootstrap_mean
from causegrid.signatures.patterns import prompts_of
from causegrid.studies.pattern.prompt_sets import prompt_parts, prompt_rows, spread
from causegrid.studies.pattern.variants import by_variant


@pytest.fixture(scope="module")
def lm(small_lm):
    return model(str(small_lm))


def parts(lm, n, rules, modes, name="ioi"):
    return prompt_parts(lm, task(name), n=n, seed=0, bos="none", rules=rules, modes=modes)


def texts(prompts):
    return set(prompts.texts)


def test_strict_rules_halve_the_prompts(lm):
    found = parts(lm, 40, "strict", ("mean", "zero"))
    assert len(found.chosen) == len(found.measured) == 20 and not texts(found.chosen) & texts(found.measured)
    assert found.reference is found.chosen and not found.same
    assert [name for name, _ in found.named()] == ["chosen on", "measured on"]
    first, second = prompts_of(lm, task("ioi"), n=40, seed=0, bos="none").halves()
    assert (found.chosen.texts, found.measured.texts) == (first.texts, second.texts)


def test_published_rules_evaluate_as_many_prompts_as_asked(lm):
    found = parts(lm, 40, "paper", ("zero", "mean"))
    assert found.chosen is found.measured and len(found.measured) == 40 and found.same
    assert len(found.reference) == 40 and not texts(found.reference) & texts(found.measured)
    assert Counter(found.measured.variant) == Counter(ABBA=20, BABA=20)
    large = parts(lm, 300, "paper", ("zero", "mean"))
    assert len(large.measured) == 300 and len(large.reference) == 100


def test_a_reference_is_drawn_only_where_a_mode_needs_one(lm):
    found = parts(lm, 40, "paper", ("zero",))
    assert found.reference is None and len(found.measured) == 40
    assert [name for name, _ in found.named()] == ["measured on"]


def test_few_prompts_shrink_alike(lm):
    """A task of 60 prompts, 50 asked with 50 beside: half and half."""

    class Few:
        kind, name, targets = "prompt", "few", ()

        def prompts(self, tokenizer, n, *, seed, bos):
            return task("ioi").prompts(tokenizer, min(n, 60), seed=seed, bos=bos)

    found = prompt_parts(lm, Few(), n=50, seed=0, bos="none", rules="paper", modes=("zero", "mean"))
    assert (len(found.measured), len(found.reference)) == (30, 30)


@pytest.mark.parametrize("k", [0, 1, 7, 30, 60])
def test_a_spread_keeps_the_variants_in_proportion(k):
    variants = ["x"] * 40 + ["y", "z"] * 10
    places = spread(variants, k)
    assert places == sorted(set(places)) and len(places) == k
    counts = Counter(variants[i] for i in places)
    for variant, n in Counter(variants).items():
        assert abs(counts[variant] - k * n / 60) <= 1


def test_rows_of_the_table_are_the_prompts(lm):
    found = parts(lm, 16, "paper", ("zero", "mean"))
    clean = np.arange(16 * 5.0).reshape(16, 5)
    table = prompt_rows(found, clean, lm.tokenizer)
    mine = table[table["half"] == "measured on"]
    assert list(mine["text"]) == list(found.measured.texts) and list(mine["top1"]) == list(clean[:, 0])
    assert table.loc[table["half"] == "reference", "top1"].isna().all()
    first = mine.iloc[0]
    twin = first["corrupted"].replace(" ,", ",")  # this tokenizer's own spacing
    words = list(zip(twin.split(), first["text"].split(), strict=True))
    assert sum(a != b for a, b in words) == 1  # the second subject


def test_effects_are_taken_apart_by_variant():
    rng = np.random.default_rng(0)
    values, clean = rng.normal(size=12), rng.normal(size=12)
    values[3] = np.nan
    variants = ["p", "q", "q"] * 4
    row = {
        "group": "g",
        "role": "group",
        "mode": "zero",
        "metric": "logit_diff",
        "values": values,
        "clean": clean,
    }
    found = by_variant(pd.DataFrame([row, {**row, "role": "keep only"}]), variants).set_index("variant")
    assert list(found.index) == ["p", "q"]
    kept = [i for i in range(12) if variants[i] == "p" and not np.isnan(values[i])]
    assert found.loc["p", "n"] == len(kept) == 3
    assert found.loc["p", "effect"] == pytest.approx(sum(values[i] for i in kept) / 3)
    assert found.loc["p", "baseline"] == pytest.approx(sum(clean[i] for i in kept) / 3)
    assert tuple(found.loc["p", ["low", "high"]]) == pytest.approx(bootstrap_mean(values[kept]))
    whole = (found["effect"] * found["n"]).sum() / found["n"].sum()
    assert whole == pytest.approx(np.nanmean(values))


def test_groups_and_unions_are_taken_apart_and_nothing_else():
    given = {"mode": "zero", "metric": "logit_diff", "values": [1.0, 2.0], "clean": [3.0, 5.0]}
    effects = pd.DataFrame(
        [{**given, "group": role, "role": role} for role in ("group", "union", "upper bound", "picked again")]
        + [{**given, "group": "group", "role": "group", "metric": m} for m in ("top1", "restricted")]
    )
    found = by_variant(effects, ["p", "q"])
    assert found.groupby(["role", "metric"]).size().to_dict() == {
        ("group", "logit_diff"): 2, ("union", "logit_diff"): 2, ("group", "top1"): 2,
    }  # fmt: skip
    assert by_variant(effects.iloc[2:3], ["p", "q"]).empty
