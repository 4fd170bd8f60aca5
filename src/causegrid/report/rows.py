"""Tables as the page's data: by column, only the columns it draws, numbers rounded to what a pixel can show.

By column a table of a thousand heads is a third of the size it has by row, and a column of words is smaller
still as the words and a place in them for each row; `records` in the page's script turns both round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs.store import CellRecord

DIGITS = 5
DECIMALS = 4  # of accuracies, effects and recoveries over many cells
Columns = dict[str, Any]


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


def over(
    cells: Sequence[CellRecord],
    name: str,
    names: Sequence[str],
    keep: Callable[[int, pd.DataFrame], pd.DataFrame] | None = None,
) -> Columns:
    """One table of every cell by column, with the cell's place in `cells` as `cell`.

    `keep(place, table)` picks the rows.  Numbers have `DECIMALS` decimals; a column of words is packed.
    """
    whole: dict[str, list[Any]] = {"cell": [], **{c: [] for c in names}}
    for place, cell in enumerate(cells):
        table = cell.table(name)
        if table is None:
            continue
        table = (keep(place, table) if keep else table).round(DECIMALS)
        found = columns(table, names)
        whole["cell"] += [place] * len(table)
        for c in names:
            whole[c] += found.get(c, [None] * len(table))
    return {c: packed(values) for c, values in whole.items()}


def packed(values: list[Any]) -> Any:
    """A column of words as `{"words": [...], "at": [place in words of each row]}`; others as they are."""
    if not values or not all(v is None or isinstance(v, str) for v in values):
        return values
    places = {word: i for i, word in enumerate(dict.fromkeys(values))}
    return {"words": list(places), "at": [places[v] for v in values]}
