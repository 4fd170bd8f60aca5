"""S4 and version 2: what erasing the leading direction of the probe shows.

- S4: at the layer whose probe reads best, a fresh probe still reads the state after the erasure.
- S4-v1: there the task falls, beyond the random subspaces: version 1's sign that the state is necessary.
- V2: where the task falls so, at any block that reads the state, a refitted probe still finds the state, so the
  test is void and the necessity reading does not stand.

S4 and S4-v1 may both hold; V2 asks of version 1's own findings how many survive the refit.  Several layers may read
best (within 1 pp, as in S3): a cell votes when all of them answer alike, and is named when they do not, for which
of equals stands first is no finding.  Blocks alone: erasing the embedding output takes the input away.

What one direction can show depends on the classes: those of more than two lie in more than one direction, so the
tasks of two classes are counted apart, and the probe's whole row space stands beside.  So does LEACE, which removes
as many directions (one, for two classes): where it leaves nothing to read, it is the probe's direction that missed
the state, and not that the state has no such subspace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from causegrid.evidence.claims import Claim
from causegrid.evidence.reference import published
from causegrid.studies.state.claims.base import Vote, claims, counted, share, votes_at
from causegrid.studies.state.finished import Cell, best, named

MARGIN = 0.02  # "at baseline" and "holds": within 2 pp (MEASURES 3.2)
MISSING = "no finished cell that learned its task has a rank-1 erasure that answers."


@dataclass(frozen=True, kw_only=True)
class _Question:
    """Which layers of a cell are asked, what each answers, and what the cell says then."""

    layers: Callable[[pd.DataFrame], pd.DataFrame]
    answers: Callable[[pd.Series], bool | None]
    together: Callable[[Sequence[bool | None]], bool | None]
    yes: str  # ends "k of n pairs ..."

    def __call__(self, cell: Cell, rank: int | None = 1) -> bool | None:
        asked = self.layers(blocks(cell, rank))
        return self.together([self.answers(row) for _, row in asked.iterrows()]) if len(asked) else None


def blocks(cell: Cell, rank: int | None = 1, basis: str = "probe") -> pd.DataFrame:
    """Erasures of this rank (None: full) at blocks that read the state at all."""
    rows = cell.erased(rank, basis)
    return rows[(rows["layer"] >= 0) & (rows["reading"] != "not readable")] if len(rows) else rows


def falls(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows where the task falls beyond the random subspaces, and does not hold within 2 pp."""
    if not len(rows):
        return rows
    return rows[(rows["accuracy"] < rows["control_low"]) & (rows["low"] < rows["clean"] - MARGIN)]


def _where_best(rows: pd.DataFrame) -> pd.DataFrame:
    return best(rows, "probe") if len(rows) else rows


def _still_read(row: pd.Series) -> bool | None:
    """Is the state still there after the erasure?  None when the refit's interval cannot tell."""
    if row["refit_low"] > row["baseline"] + MARGIN:
        return True
    return False if row["refit_high"] <= row["baseline"] + MARGIN else None


def _hurts(row: pd.Series) -> bool | None:
    """Does the task fall at this row?  None between falling and holding."""
    if row["accuracy"] < row["control_low"] and row["low"] < row["clean"] - MARGIN:
        return True
    return False if row["low"] >= row["clean"] - MARGIN else None


def _unanimous(answers: Sequence[bool | None]) -> bool | None:
    return answers[0] if len(set(answers)) == 1 else None


def _most(answers: Sequence[bool | None]) -> bool | None:
    yes = sum(a is True for a in answers)
    return None if 2 * yes == len(answers) else 2 * yes > len(answers)


def _claim(id: str, statement: str, figure: str, cells: Sequence[Cell], asked: _Question) -> Claim:
    length, votes, others = votes_at(cells, asked)
    used = {c.id for c, _ in votes}
    silent = [
        c
        for c in cells
        if c.has_learned and c.length == length and c.id not in used and len(asked.layers(blocks(c)))
    ]
    said = f" No vote (layers that disagree, or no clear answer): {named(silent)}." if silent else ""
    return share(
        id,
        statement,
        figure,
        votes,
        f"{asked.yes}, at length {length}",
        MISSING,
        said=said + _beside(votes, asked) + others,
    )


def _beside(votes: Sequence[Vote], asked: _Question) -> str:
    """Two-class tasks alone, the whole row space of the probe, and LEACE at the same layers."""
    if not votes:
        return ""
    two = [(c, yes) for c, yes in votes if blocks(c)["full"].astype(bool).all()]
    whole = [(c, yes) for c, _ in votes if (yes := asked(c, None)) is not None]
    n = gone = 0
    for c, _ in votes:
        leace = blocks(c, None, "leace")
        if len(leace):
            same = leace[leace["layer"].isin(asked.layers(blocks(c))["layer"])]
            n += len(same)
            gone += int((same["refit_high"] <= same["baseline"] + MARGIN).sum())
    erased = f" LEACE leaves nothing to read at {gone} of these {n} layers." if n else ""
    return (
        f" Tasks of two classes alone, whose state can lie in one direction: {counted(two)}."
        f" All C - 1 directions of the probe: {counted(whole)}.{erased}"
    )


@claims.register("S4")
def decodable(cells: Sequence[Cell]) -> Claim:
    return _claim(
        "S4",
        "After erasing the probe's leading direction, where the probe reads best, the state is still decodable "
        "(version 2)",
        "version 2 withdraws the necessity reading of single-direction ablation; its figures are not known here",
        cells,
        _Question(
            layers=_where_best,
            answers=_still_read,
            together=_unanimous,
            yes="have a fresh probe above the baseline there",
        ),
    )


@claims.register("S4-v1")
def hurts(cells: Sequence[Cell]) -> Claim:
    small = published("state-encoding")["mamba_130m"]["single_direction_drop_percent_below"]
    large = published("state-encoding")["pythia_160m_dyck"]
    at = " and ".join(f"L{layer}" for layer in large["layers"])
    return _claim(
        "S4-v1",
        "Erasing the probe's leading direction, where the probe reads best, hurts the task (version 1: so it is "
        "necessary)",
        f"Pythia-160M on Dyck falls by about {large['accuracy_drop_percent_about']} % at {at}, mamba-130m by under "
        f"{small} %",
        cells,
        _Question(
            layers=_where_best,
            answers=_hurts,
            together=_unanimous,
            yes="fall there beyond the random directions",
        ),
    )


@claims.register("V2")
def void(cells: Sequence[Cell]) -> Claim:
    return _claim(
        "V2",
        "Refit the probe: where the task falls when the probe's leading direction is erased the state is mostly still "
        "there, so the fall does not show that this direction is necessary (version 2)",
        "version 2: single-direction ablation is not a necessity test; its figures are not known here",
        cells,
        _Question(
            layers=falls,
            answers=lambda row: bool(row["reading"] == "test void"),
            together=_most,
            yes="are void at most of the layers where the task falls",
        ),
    )
