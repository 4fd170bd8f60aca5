"""One hand-made table per mark (MEASURES 4.2), on margin 4 (minimum 0.2) and top-1 0.8 (minimum 0.04)."""

from __future__ import annotations

import pandas as pd
import pytest
from evidence_tables import TOP1, N, flips, frame, jitter, null, quiet, row

from causegrid.errors import InputError
from causegrid.evidence.verdicts import verdict

A, B = ["L1H0", "L1H1"], ["L2H0", "L2H1"]


def both(margin: float, lost: int, **options: object) -> pd.DataFrame:
    """Verdicts on group A that moves the margin by `margin` and loses `lost` of 32 right answers."""
    effects = frame(row("a", A, jitter(margin)), row("a", A, flips(lost), TOP1, "top1"))
    draws = frame(null("a", A, quiet()), null("a", A, quiet(width=0.01), "top1", clean=TOP1))
    return verdict(effects, draws, **options).set_index("metric")  # type: ignore[arg-type]


def repeated(table: pd.DataFrame, times: int) -> pd.DataFrame:
    """The same table as if every prompt had come `times` times."""
    lists = {c: table[c].map(lambda cell: list(cell) * times) for c in ("values", "clean") if c in table}
    return table.assign(n=table["n"] * times, **lists)


def test_margin_not_argmax() -> None:
    effects = frame(row("a", A, jitter(-1.5)), row("a", A, flips(0), TOP1, "top1"))
    draws = frame(null("a", A, quiet()), null("a", A, quiet(width=0.01), "top1", clean=TOP1))
    v = verdict(repeated(effects, 5), repeated(draws, 5))  # margin -37.5 %, top-1 untouched on 200: +-1.8 pp
    assert all("margin-not-argmax" in m for m in v.marks)
    few = verdict(repeated(effects, 4), repeated(draws, 4))  # on 160: +-2.3 pp
    assert not any("margin-not-argmax" in m for m in few.marks)
    effects = frame(row("a", A, jitter(-0.9)), row("a", A, flips(0), TOP1, "top1"))
    weak = verdict(repeated(effects, 5), repeated(draws, 5)).set_index("metric")
    assert "margin-not-argmax" not in weak.marks["logit_diff"]  # significant, but only 22.5 %
    assert "margin-not-argmax" not in both(-1.5, 1).marks["logit_diff"]  # one of 40: interval to -7.5 pp


def test_margin_not_argmax_needs_significance() -> None:
    effects = frame(row("a", A, jitter(-1.5)), row("a", A, flips(0), TOP1, "top1"))
    draws = frame(null("a", A, quiet(width=4.0)), null("a", A, quiet(width=0.01), "top1", clean=TOP1))
    v = verdict(repeated(effects, 5), repeated(draws, 5)).set_index("metric")
    assert v.verdict["logit_diff"] == "inconclusive"
    assert "margin-not-argmax" not in v.marks["logit_diff"]


def test_argmax_not_margin() -> None:
    v = both(0.0, 16)  # top-1 0.8 -> 0.4
    assert v.verdict["top1"] == "primary"
    assert all("argmax-not-margin" in m for m in v.marks)
    assert "argmax-not-margin" not in both(0.0, 6).marks["top1"]  # 0.15 of 0.8 is 19 %
    assert "argmax-not-margin" not in both(-0.5, 16).marks["top1"]  # the margin moves too


@pytest.mark.parametrize(
    ("zero", "mean", "marked"), [(-1.0, 0.0, True), (-0.1, 0.0, False), (-1.0, -0.5, False)]
)
def test_constant_writer(zero: float, mean: float, marked: bool) -> None:
    effects, draws = frame(row("a", A, jitter(mean))), frame(null("a", A, quiet()))
    other = frame(row("a", A, jitter(zero), mode="zero"))
    given = verdict(effects, draws, metrics=("logit_diff",), other_mode=other)
    assert ("constant writer" in given.marks[0]) == marked
    together = verdict(pd.concat([effects, other]), draws, metrics=("logit_diff",))
    assert ("constant writer" in together.marks[0]) == marked
    assert "constant writer" not in verdict(effects, draws, metrics=("logit_diff",)).marks[0]


@pytest.mark.parametrize(
    ("alone", "marked"),
    [
        ((-0.2, -0.4), True),  # -2 is 3.3 times -0.6
        ((-0.3, -0.4), False),  # 2.9 times
        ((-0.6, +3.0), True),  # only effects of the same sign are summed: 3.3 times
        ((0.0, 0.0), True),  # the sum is floored at the minimum, 0.2: 10 times
    ],
)
def test_redundant(alone: tuple[float, float], marked: bool) -> None:
    effects, draws = frame(row("a", A, jitter(-2.0))), frame(null("a", A, quiet()))
    singles = frame(*(row(h, [h], jitter(x)) for h, x in zip(A, alone, strict=True)))
    v = verdict(effects, draws, metrics=("logit_diff",), singles=singles)
    assert ("redundant" in v.marks[0]) == marked
    partial = verdict(effects, draws, metrics=("logit_diff",), singles=singles.iloc[:1])
    assert "redundant" not in partial.marks[0]


def test_redundant_is_not_said_of_small_effects() -> None:
    effects, draws = frame(row("a", A, jitter(-0.5))), frame(null("a", A, quiet()))  # under 3 x 0.2
    singles = frame(*(row(h, [h], jitter(0.0)) for h in A))
    assert "redundant" not in verdict(effects, draws, metrics=("logit_diff",), singles=singles).marks[0]


def test_breaks_ordinary_text() -> None:
    text = pd.DataFrame({"group": ["a"], "mode": ["mean"], "clean": [3.0], "ablated": [3.3]})
    assert all("breaks ordinary text" in m for m in both(-2.0, 0, text=text).marks)
    text["ablated"] = 3.29
    assert "breaks ordinary text" not in both(-2.0, 0, text=text).marks["top1"]
    text["mode"], text["ablated"] = "zero", 9.0
    assert "breaks ordinary text" not in both(-2.0, 0, text=text).marks["top1"]
    with pytest.raises(InputError, match="'clean' is missing"):
        both(-2.0, 0, text=text.drop(columns="clean"))


def test_contaminated() -> None:
    effects = frame(row("a", A, jitter(-2.0)), row("b", ["L1H2", "L1H3"], jitter(0.0)))
    draws = frame(null("a", A, quiet(159)), null("b", ["L1H2", "L1H3"], quiet(159)))
    mixed = verdict(effects, draws, metrics=("logit_diff",))
    assert all("contaminated" in m for m in mixed.marks)  # the first draws hold the other group's heads
    hit = [h for h in draws.heads if set(h) & {*A, "L1H2", "L1H3"}]
    apart = draws[[h not in hit for h in draws.heads]]
    clean = verdict(effects, apart, metrics=("logit_diff",))
    assert not any("contaminated" in m for m in clean.marks)
    said = verdict(effects, apart.assign(contaminated=True), metrics=("logit_diff",))
    assert all("contaminated" in m for m in said.marks)


def test_pattern_unknown_stands_on_null_alone() -> None:
    v = both(0.0, 16)
    assert v.verdict["logit_diff"] == "null"
    assert "pattern unknown" in v.marks["logit_diff"]
    assert "pattern unknown" not in v.marks["top1"]
    known = both(0.0, 16, patterns={"a": False})
    assert "pattern unknown" not in known.marks["logit_diff"]


def test_marks_without_per_prompt_values() -> None:
    effects = frame(row("a", A, jitter(-1.5))).drop(columns=["values", "clean"])
    effects["low"], effects["high"] = -1.6, -1.4
    v = verdict(effects, frame(null("a", A, quiet())), metrics=("logit_diff",))
    assert v.verdict[0] == "primary"
    assert v.n[0] == N
