"""Rates, confusion, coverage: against counting by hand and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from causegrid.errors import InputError
from causegrid.evidence.calibration import confusion, covered, rate, rates
from causegrid.evidence.effects import bootstrap_mean, expanded_level


def test_rate_is_a_count_with_wilsons_interval():
    found = rate([True, False, False, False, False, False, False, False, False, False])
    assert (found["n"], found["hits"], found["rate"]) == (10, 1, 0.1)
    theirs = stats.binomtest(1, 10).proportion_ci(method="wilson")
    assert (found["low"], found["high"]) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert math.isnan(rate([])["rate"])
    with pytest.raises(InputError, match="1 axis"):
        rate([[True]])


def test_rates_by_columns():
    table = pd.DataFrame({"a": ["x", "x", "y"], "b": [1, 1, 2], "hit": [True, False, True]})
    found = rates(table, ["a", "b"], "hit")
    assert found[["a", "b", "n", "hits"]].values.tolist() == [["x", 1, 2, 1], ["y", 2, 1, 1]]
    with pytest.raises(InputError, match="'hits'"):
        rates(table, ["a"], "hits")


def test_rates_of_categories_have_no_empty_rows():
    table = pd.DataFrame({"a": pd.Categorical(["x"], categories=["x", "never"]), "hit": [True]})
    assert len(rates(table, ["a"], "hit")) == 1


def test_confusion_counts():
    counts = confusion(["p", "p", "n"], ["primary", "null", "null"])
    assert counts.loc["p"].to_dict() == {"primary": 1, "null": 1}
    assert counts.loc["n"].to_dict() == {"primary": 0, "null": 1}
    with pytest.raises(InputError, match="2 truths for 1"):
        confusion(["p", "p"], ["primary"])


def test_covered_includes_its_ends():
    assert covered([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.1]).tolist() == [True, True, False]
    with pytest.raises(InputError, match="not a number"):
        covered([math.nan], [1.0], [0.5])


def test_expanded_level_gives_students_interval_for_normal_values():
    """For many units the two agree; for 10, a percentile bootstrap at that level is as wide as Student's t."""
    assert expanded_level(100_000) == pytest.approx(0.95, abs=1e-4)
    values = np.random.default_rng(3).normal(size=10)
    low, high = bootstrap_mean(values, n=50_000, level=expanded_level(10))
    student = stats.t.interval(0.95, 9, values.mean(), stats.sem(values))
    assert high - low == pytest.approx(student[1] - student[0], rel=0.08)
    plain = bootstrap_mean(values, n=50_000)
    assert plain[1] - plain[0] < 0.9 * (student[1] - student[0])
    with pytest.raises(InputError, match="at least 2"):
        expanded_level(1)
