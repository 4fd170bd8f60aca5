"""A null of another task, another model or other prompts is refused by its clean values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from evidence_tables import MARGIN, TOP1, N, frame, jitter, judge, null, quiet, row

from causegrid.errors import InputError

A = ["L1H0", "L1H1"]
CLEAN = [4.0 + 0.05 * (i - (N - 1) / 2) for i in range(N)]  # mean 4, each its own


def cell(null_clean: list[float], clean: list[float] = MARGIN, **more: object) -> pd.Series:
    return judge(
        frame(row("a", A, jitter(-2.0), clean, **more)), frame(null("a", A, quiet(), clean=null_clean))
    ).loc["a"]


@pytest.mark.parametrize("rules", ["strict", "paper"])
def test_another_baseline_is_refused(rules: str) -> None:
    effects, table = frame(row("a", A, jitter(-2.0))), frame(null("a", A, quiet(), clean=[3.0] * N))
    with pytest.raises(InputError, match=r"group 'a', logit_diff.*baseline.*is 4, the null's is 3;"):
        judge(effects, table, rules=rules)
    with pytest.raises(InputError, match="group 'a', logit_diff"):  # the baselines alone tell
        judge(
            effects.drop(columns=["clean", "values"]).assign(low=-2.1, high=-1.9), table.drop(columns="clean")
        )


def test_one_foreign_draw_is_enough() -> None:
    table = frame(null("a", A, quiet()))
    table.loc[57, "baseline"] = 4.5
    with pytest.raises(InputError, match=r"the null's is 4\.5"):
        judge(frame(row("a", A, jitter(-2.0))), table)


def test_top1_is_checked_too() -> None:
    effects = frame(row("a", A, jitter(-2.0)), row("a", A, [0.0] * N, TOP1, "top1"))
    table = frame(null("a", A, quiet()), null("a", A, quiet(), "top1", clean=TOP1[::-1]))
    with pytest.raises(InputError, match=r"group 'a', top1: baselines 0\.8 .* 0\.8 .*prompt 0 is 1 .* 0 for"):
        judge(effects, table, metrics=("logit_diff", "top1"))


def test_other_prompts_with_the_same_mean_are_refused() -> None:
    assert cell(CLEAN, CLEAN).verdict == "primary"
    with pytest.raises(InputError, match=r"baselines 4 \(group\) and 4 \(null\).*prompt 0"):
        cell(CLEAN[::-1], CLEAN)


def test_the_tolerance_is_relative_and_adds_the_noise() -> None:
    shift = np.array(CLEAN)
    assert cell(list(shift + 0.0039), CLEAN).verdict == "primary"  # 1e-3 of 4
    with pytest.raises(InputError, match="another task"):
        cell(list(shift + 0.0041), CLEAN)
    assert cell(list(shift + 0.1), CLEAN, noise=0.1).verdict == "primary"
    with pytest.raises(InputError, match="another task"):
        cell(list(shift + 0.11), CLEAN, noise=0.1)
    small = [x / 100 for x in CLEAN]  # mean 0.04: 1e-3 absolute
    effects = frame(row("a", A, jitter(-0.02, 0.001), small))
    for away, fine in ((9e-4, True), (1.1e-3, False)):
        table = frame(null("a", A, quiet(width=1e-3), clean=[x + away for x in small]))
        if fine:
            judge(effects, table)
        else:
            with pytest.raises(InputError, match="another task"):
                judge(effects, table)


def test_the_noise_of_the_draws_counts() -> None:
    table = frame(null("a", A, quiet(), clean=[4.1] * N))
    assert judge(frame(row("a", A, jitter(-2.0))), table.assign(noise=0.1)).loc["a"].verdict == "primary"


def test_a_null_on_some_prompts_is_compared_on_those() -> None:
    effects = frame(row("a", A, jitter(-2.0), CLEAN))
    some = list(range(10))
    right = frame(null("a", A, quiet(), clean=[CLEAN[i] for i in some]))
    right["prompts"] = [some] * len(right)
    assert judge(effects, right).loc["a"].null_prompts == 10
    right["prompts"] = [list(range(10, 20))] * len(right)
    with pytest.raises(InputError, match="group 'a', logit_diff"):
        judge(effects, right)
    with pytest.raises(InputError, match="group 'a', logit_diff"):
        judge(effects, right.drop(columns="clean"))


def test_tables_that_do_not_say_are_accepted() -> None:
    table = frame(null("a", A, quiet(), clean=[3.0] * N)).drop(columns=["baseline", "clean"])
    assert judge(frame(row("a", A, jitter(-2.0))), table).loc["a"].verdict == "primary"


def test_values_and_prompts_must_agree() -> None:
    with pytest.raises(InputError, match="40 values of logit_diff for 39 prompts"):
        cell(MARGIN, prompts=list(range(39)))
