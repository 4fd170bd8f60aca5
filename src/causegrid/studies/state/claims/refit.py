"""S4 and version 2: what erasing the single best probe direction shows.

- S4: at the layer whose probe reads best, a fresh probe still reads the state after the erasure.
- S4-v1: there the task falls, beyond the random subspaces: version 1's sign that the state is necessary.
- V2: where the task falls so, at any layer that reads the state, a refitted probe still finds the state, so the
  test is void and the necessity reading does not stand.

S4 and S4-v1 may both hold; V2 asks of version 1's own findings how many survive the refit.  With two classes
one direction is all a probe has, so Parity is no exception by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from causegrid.evidence.claims import Claim
from causegrid.evidence.reference import published
from causegrid.studies.state.claims.base import claims, share, votes_at
from causegrid.studies.state.finished import Cell

MARGIN = 0.02  # "at baseline" and "holds": within 2 pp (MEASURES 3.2)
MISSING = "no finished cell that learned its task has a rank-1 erasure that answers."


def one_direction(cell: Cell) -> pd.DataFrame:
    """Rank-1 erasures at layers that read the state at all."""
    rows = cell.erased(1)
    return rows[rows["reading"] != "not readable"] if len(rows) else rows


def falls(rows: pd.DataFrame) -> pd.Series:
    """Rows where the task falls beyond the random subspaces, and does not hold within 2 pp."""
    return (rows["accuracy"] < rows["control_low"]) & (rows["low"] < rows["clean"] - MARGIN)


def _holds_up(row: pd.Series) -> bool | None:
    """Is the state still there after the erasure?  None when the refit's interval cannot tell."""
    if row["refit_low"] > row["baseline"] + MARGIN:
        return True
    return False if row["refit_high"] <= row["baseline"] + MARGIN else None


def _hurts(row: pd.Series) -> bool | None:
    """Does the task fall at this row?  None between falling and holding."""
    if row["accuracy"] < row["control_low"] and row["low"] < row["clean"] - MARGIN:
        return True
    return False if row["low"] >= row["clean"] - MARGIN else None


def _most_void(rows: pd.DataFrame) -> bool | None:
    """Of the rows where the task falls, are most void?  None when it falls nowhere or they are half and half."""
    void = rows.loc[falls(rows), "reading"] == "test void"
    return None if not len(void) or void.mean() == 0.5 else bool(void.mean() > 0.5)


def _where_best(answer: Callable[[pd.Series], bool | None]) -> Callable[[pd.DataFrame], bool | None]:
    return lambda rows: answer(rows.iloc[int(rows["probe"].to_numpy().argmax())])


def _claim(
    id: str,
    statement: str,
    figure: str,
    cells: Sequence[Cell],
    answer: Callable[[pd.DataFrame], bool | None],
    what: str,
) -> Claim:
    def asked(cell: Cell) -> bool | None:
        rows = one_direction(cell)
        return answer(rows) if len(rows) else None

    length, votes, others = votes_at(cells, asked)
    return share(id, statement, figure, votes, f"{what}, at length {length}", MISSING, said=others)


@claims.register("S4")
def decodable(cells: Sequence[Cell]) -> Claim:
    return _claim(
        "S4",
        "After erasing the single best direction, where the probe reads best, the state is still decodable (version 2)",
        "version 2 withdraws the necessity reading of single-direction ablation; its figures are not known here",
        cells,
        _where_best(_holds_up),
        "have a fresh probe above the baseline there",
    )


@claims.register("S4-v1")
def hurts(cells: Sequence[Cell]) -> Claim:
    small = published("state-encoding")["mamba_130m"]["single_direction_drop_percent_below"]
    large = published("state-encoding")["pythia_160m_dyck"]
    at = " and ".join(f"L{layer}" for layer in large["layers"])
    return _claim(
        "S4-v1",
        "Erasing the single best direction, where the probe reads best, hurts the task (version 1: so it is necessary)",
        f"Pythia-160M on Dyck falls by about {large['accuracy_drop_percent_about']} % at {at}, mamba-130m by under "
        f"{small} %",
        cells,
        _where_best(_hurts),
        "fall there beyond the random directions",
    )


@claims.register("V2")
def void(cells: Sequence[Cell]) -> Claim:
    return _claim(
        "V2",
        "Refit the probe: where the task falls under single-direction erasure the state is mostly still there, so the "
        "fall shows no necessity (version 2)",
        "version 2: single-direction ablation is not a necessity test; its figures are not known here",
        cells,
        _most_void,
        "are void at most of the layers where the task falls",
    )
