"""Tables as the page's data: by column, only the columns it draws, numbers rounded to what a pixel can show.

By column a table of a thousand heads is a third of the size it has by row; `records` in the page's script
turns it round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs.store import CellRecord

DIGITS = 5
Columns = dict[str, list[Any]]


def plain(value: Any) -> Any:
    """JSON-able: numpy values become Python's, NaN and infinities null, floats five significant digits.

    Anything JSON does not know becomes its text.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return None if str(value) in ("NaT", "<NA>") else str(value)


def columns(table: pd.DataFrame | None, names: Sequence[str]) -> Columns:
    """The table by column: those of `names` it has.  No table: no columns."""
    return {} if table is None else {c: plain(list(table[c])) for c in names if c in table.columns}


def first(table: pd.DataFrame | None, names: Sequence[str]) -> dict[str, Any]:
    """The table's first row: `names`, None for what is not there."""
    if table is None or not len(table):
        return dict.fromkeys(names)
    row = table.iloc[0]
    return {c: plain(row[c]) if c in table.columns else None for c in names}


def over(cells: Sequence[CellRecord], name: str, names: Sequence[str]) -> Columns:
    """One table of every cell by column, with the cell's place in `cells` as `cell`."""
    whole: Columns = {"cell": [], **{c: [] for c in names}}
    for place, cell in enumerate(cells):
        table = cell.table(name)
        if table is None:
            continue
        found = columns(table, names)
        whole["cell"] += [place] * len(table)
        for c in names:
            whole[c] += found.get(c, [None] * len(table))
    return whole
