"""Reasons under the published rules: a null without draws, spread or mean is said in words, never as nan or inf."""

from __future__ import annotations

import pandas as pd
import pytest
from evidence_tables import frame, judge, row

GROUP = ["L0H0", "L0H1"]


def reason(effect, null, *, heads=GROUP, baseline=4.0, n_heads=16, **options):
    """The reason for one group on the margin, its null given as effects of distinct draws."""
    n = 40
    given = row("g", heads, [effect] * n, [baseline] * n)
    drawn = [[f"L0H{2 + i}", f"L0H{3 + i}"] for i in range(len(null))]
    rows = [
        {"null_for": "g", "heads": d, "metric": "logit_diff", "effect": e, "mode": "mean"}
        for d, e in zip(drawn, null, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["null_for", "heads", "metric", "effect", "mode"])
    return judge(frame(given), table, rules="paper", mode="mean", heads_per_layer=n_heads, **options).loc["g"]


def test_words_in_place_of_numbers():
    """Each kind of null once; the last, with everything known, keeps its numbers."""
    found = reason(-0.3, [-0.05, -0.05, -0.05])
    assert found.verdict == "primary" and "6x its null" in found.reason
    found = reason(-0.3, [0.0, 0.0])
    assert found.verdict == "primary" and "its random draws about 0 (mean +0 logits)" in found.reason
    found = reason(0.3, [0.1, 0.1])
    assert found.verdict == "inconclusive"
    assert found.reason.endswith("3x its null, no z: its 2 draws do not differ")
    found = reason(0.3, [0.1])
    assert found.reason.endswith("3x its null, no z: one draw has no spread")
    found = reason(0.3, [0.09, 0.11])
    assert found.reason.endswith("3x its null, z 14")
    found = reason(0.3, [0.0999, 0.1001])
    assert found.reason.endswith("3x its null, z 1414")
    found = reason(-0.3, [-0.29, -0.31])
    assert found.verdict == "null" and found.reason.endswith("1x its null, z 0")
    found = reason(-0.3, [-0.3, -0.3])
    assert found.verdict == "null" and found.reason.endswith("1x its null, no z: its 2 draws do not differ")


@pytest.mark.parametrize("pattern", [None, True])
def test_without_draws(pattern):
    wide = [f"L0H{h}" for h in range(5)]
    patterns = None if pattern is None else {"g": pattern}
    found = reason(-0.3, [], heads=wide, n_heads=8, patterns=patterns)
    if pattern is None:
        assert found.reason.endswith("-0.3 logits], without random draws to compare it with")
    else:
        assert found.verdict == "correlate"
    assert "nan" not in found.reason and "inf" not in found.reason


def test_nothing_to_remove_and_an_unknown_interval():
    found = reason(0.3, [0.0, 0.0], baseline=0.0)
    assert "no specificity: nothing can be removed, and its random draws remove nothing" in found.reason
    effects = pd.DataFrame(
        [dict(group="g", heads=GROUP, metric="top1", baseline=0.9, ablated=0.4, effect=-0.5)]
    )
    null = pd.DataFrame([dict(null_for="g", heads=["L0H2", "L0H3"], metric="top1", effect=-0.1)])
    found = judge(effects, null, rules="paper", metrics=("top1",)).loc["g"]
    assert found.reason == "the largest specific harm, -50 pp, 5x its null"
