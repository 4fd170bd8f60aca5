"""P2: is the previous-token group primary in mixture-of-experts models more often than chance, and than in dense ones?

A count of cells needs its own null: a cell with three groups makes one of them primary whatever they are.  So the
labels of the groups are permuted within every (task, model), all its seeds alike, and the number of cells in
which the permuted previous-token label is primary has an *exact* distribution: a unit adds the share of its
seeds in which the label's group is primary, each group of it being equally likely.  Cells without a primary
cannot tell and are counted beside.  Once by the margin's verdicts (`P2`), once by top-1's (`P2-top1`); `P2-dense`
compares the two kinds of model by count (Fisher's exact test).

The published count has no null at all for the previous-token group (its cells lack matched draws); the test is
shown on it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pandas as pd

from causegrid.evidence.claims import CONTRADICTED, SUPPORTED, UNDECIDED, Claim, decide, proportions
from causegrid.studies.pattern.claims.base import EXPERTS, claims, exact, ids, undecided
from causegrid.studies.pattern.published import EXPERTS as PUBLISHED_EXPERTS
from causegrid.studies.pattern.published import most_harmful, skipped

GROUP = "previous-token"
METRICS = {"logit_diff": "the margin", "top1": "top-1"}
LEVEL = Fraction(1, 20)
Unit = Mapping[str, Fraction]  # group -> share of the unit's seeds in which it is primary


@claims.register("P2")
def by_margin(groups: pd.DataFrame) -> Claim:
    return _primacy("P2", groups, "logit_diff")


@claims.register("P2-top1")
def by_top1(groups: pd.DataFrame) -> Claim:
    return _primacy("P2-top1", groups, "top1")


@claims.register("P2-dense")
def against_dense(groups: pd.DataFrame) -> Claim:
    statement = "Previous-token groups are primary in mixture-of-experts models more often than in dense ones"
    counts = _published("logit_diff"), _published("top1")
    figure = f"by margin: {counts[0]}; by top-1: {counts[1]}"
    rows = groups[groups["metric"] == "logit_diff"]
    moe = rows["family"].isin(EXPERTS)
    shares = [[u[GROUP] for u in units(rows[kind]).values()] for kind in (moe, ~moe)]
    votes = [[v > Fraction(1, 2) for v in side if v != Fraction(1, 2)] for side in shares]
    if not all(votes):
        return undecided(
            "P2-dense", statement, figure,
            f"needs previous-token groups, and a primary in their cells, on models of both kinds; {skipped()}.", rows,
        )  # fmt: skip
    test = proportions(sum(votes[0]), len(votes[0]), sum(votes[1]), len(votes[1]))
    result, why = decide(test, 1)
    return Claim(
        id="P2-dense", statement=statement, published=figure, measured=test.effect, low=test.low, high=test.high,
        result=result, cells=ids(rows),
        why=f"by margin, {sum(votes[0])} of {len(votes[0])} (task, model) units with experts, {sum(votes[1])} of "
        f"{len(votes[1])} without: {why}; {skipped()}.",
    )  # fmt: skip


def _primacy(id: str, groups: pd.DataFrame, metric: str) -> Claim:
    metric_name = METRICS[metric]
    statement = (
        f"With mixtures of experts previous-token groups are primary more often than chance, by {metric_name}"
    )
    rows = groups[groups["metric"] == metric]
    moe = rows["family"].isin(EXPERTS)
    dense = units(rows[~moe])
    beside = f" Dense models: {_said(list(dense.values()))}." if dense else ""
    mine = list(units(rows[moe]).values())
    figure = _published(metric)
    without = _without_primary(rows[moe])
    if not mine:
        missing = f"needs mixture-of-experts models with a previous-token group and a primary{without}."
        return undecided(id, statement, figure, missing + beside, rows[moe])
    observed, expected, p, least = permutation(mine)
    result = UNDECIDED
    if p <= LEVEL:
        result = SUPPORTED if observed > expected else CONTRADICTED
    k = sum(u[GROUP] > Fraction(1, 2) for u in mine)
    low, high = exact(k, len(mine))
    few = "; this many cannot reach 0.05" if least > LEVEL else ""
    return Claim(
        id=id, statement=statement, published=figure, measured=f"{float(observed):.3g} of {len(mine)}", low=low,
        high=high, result=result, cells=ids(rows[moe]),
        why=f"{_said(mine)}, least attainable {float(least):.2g}{few}; labels permuted within each (task, model), "
        f"exact; the interval is that of the share{without}.{beside}",
    )  # fmt: skip


def units(rows: pd.DataFrame) -> dict[tuple[str, str], Unit]:
    """(task, model) -> its groups' shares of primary, where the previous-token group competed and any was primary.

    Models trained from several seeds need not have the same groups: the cells of the list that most of them share
    count, since labels can be exchanged within one list alone.
    """
    found: dict[tuple[str, str], Unit] = {}
    for (task, model), mine in rows.groupby(["task", "model"]):
        lists = {cell: tuple(dict.fromkeys(rows["group"])) for cell, rows in mine.groupby("cell", sort=False)}
        lists = {cell: names for cell, names in lists.items() if GROUP in names}
        if not lists:
            continue
        (shared, _), *_ = Counter(lists.values()).most_common(1)
        mine = mine[mine["cell"].isin([cell for cell, names in lists.items() if names == shared])]
        seeds = mine["cell"].nunique()
        counts = mine[mine["verdict"] == "primary"].groupby("group")["cell"].nunique()
        names = list(dict.fromkeys(mine["group"]))
        if GROUP in names and len(counts):
            found[str(task), str(model)] = {g: Fraction(int(counts.get(g, 0)), seeds) for g in names}
    return found


def permutation(mine: Sequence[Unit]) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """(observed sum, expected sum, two-sided p, the least p these units could give), all exact."""
    chances: dict[Fraction, Fraction] = {Fraction(0): Fraction(1)}
    for unit in mine:
        grown: dict[Fraction, Fraction] = {}
        for total, chance in chances.items():
            for share in unit.values():
                grown[total + share] = grown.get(total + share, Fraction(0)) + chance / len(unit)
        chances = grown
    observed = sum((u[GROUP] for u in mine), Fraction(0))
    expected = sum((total * chance for total, chance in chances.items()), Fraction(0))

    def p(at: Fraction) -> Fraction:
        more = sum((c for t, c in chances.items() if t >= at), Fraction(0))
        less = sum((c for t, c in chances.items() if t <= at), Fraction(0))
        return min(Fraction(1), 2 * min(more, less))

    return observed, expected, p(observed), min(p(t) for t in chances)


def _said(mine: Sequence[Unit]) -> str:
    observed, expected, p, _ = permutation(mine)
    return f"{float(observed):.3g} of {len(mine)}, {float(expected):.3g} expected by chance, p {float(p):.2g}"


def _without_primary(rows: pd.DataFrame) -> str:
    have = set(units(rows))
    lost = [
        f"{t} on {m}"
        for t, m in dict.fromkeys(zip(rows["task"], rows["model"], strict=True))
        if (t, m) not in have
    ]
    return f"; no primary, or no previous-token group: {', '.join(lost)}" if lost else ""


def _published(metric: str) -> str:
    """The same count and test on the published cells."""
    first = most_harmful(metric)
    said = []
    for name, wanted in (("OLMoE", True), ("dense", False)):
        mine: list[Unit] = []
        for (_, model), (group, n) in first.items():
            if (model in PUBLISHED_EXPERTS) == wanted:
                rivals = [f"rival {i}" for i in range(n - 1)]
                unit = {GROUP: Fraction(int(group == GROUP)), **dict.fromkeys(rivals, Fraction(0))}
                if group != GROUP:
                    unit[rivals[0]] = Fraction(1)
                mine.append(unit)
        said.append(f"{name} {_said(mine)}")
    return "; ".join([*said, skipped()])
