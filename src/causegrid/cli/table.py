"""Tables of the command line: aligned columns, nothing cut, no header broken inside a word.

Elsewhere than on a terminal a row is one line, as wide as it needs.  On a terminal too narrow for that, headers stack
at their underscores and text folds at spaces; columns that still find no room go below, beside the ones that
name the rows.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from causegrid.terminal import cell

if TYPE_CHECKING:
    import pandas as pd

GAP = 2  # characters between columns
FOLDED = 16  # text folds to no less than this
WORD = 40  # a longer word of a text folds inside


def emit_table(table: pd.DataFrame, *, digits: int = 3) -> None:
    """Print a table on stdout, floats rounded to `digits`."""
    columns = [_column(table, i, digits) for i in range(table.shape[1])]
    if not sys.stdout.isatty():
        for line in _plain(columns):
            print(line)
        return
    width = shutil.get_terminal_size().columns
    for i, (block, widths) in enumerate(fitted(columns, width)):
        if i:
            print()
        _draw(block, widths)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column as text: its name and its cells, and what stands in them."""

    name: str
    cells: tuple[str, ...]
    numeric: bool = False
    fraction: bool = False

    @property
    def natural(self) -> int:
        """Characters without a break in header or cells."""
        return max(map(_width, (self.name, *self.cells)))

    @property
    def stacked(self) -> int:
        """Characters with the header stacked and the cells whole."""
        return max(map(_width, (*self.name.split("_"), *self.cells)))

    @property
    def narrowest(self) -> int:
        """Characters with the header stacked and text folded at spaces."""
        if self.numeric:
            return self.stacked
        words = [min(_width(word), WORD) for text in self.cells for word in text.split()]
        header = [_width(word) for word in self.name.split("_")]
        return max(*header, *words, min(self.stacked, FOLDED))


def fitted(columns: Sequence[Column], width: int) -> Iterator[tuple[list[Column], list[int]]]:
    """The columns in one block, or in several that repeat those that name the rows, with the width of each."""
    if sum(c.natural for c in columns) + _gaps(columns) <= width:
        yield list(columns), [c.natural for c in columns]
        return
    lead = _naming(columns, width)
    block = list(lead)
    for column in columns[len(lead) :]:
        wider = [*block, column]
        if len(block) > len(lead) and sum(c.narrowest for c in wider) + _gaps(wider) > width:
            yield block, _shrunk(block, width)
            wider = [*lead, column]
        block = wider
    yield block, _shrunk(block, width)


def _naming(columns: Sequence[Column], width: int) -> list[Column]:
    """The leading columns that say which row it is: those before the first fraction, in half the width."""
    lead: list[Column] = []
    for column in columns[:-1]:
        wider = [*lead, column]
        if column.fraction or sum(c.narrowest for c in wider) + _gaps(wider) > width // 2:
            break
        lead = wider
    return lead


def _shrunk(block: Sequence[Column], width: int) -> list[int]:
    """Widths that fit, the widest text given up first; never under the narrowest."""
    widths = [c.stacked for c in block]
    while sum(widths) + _gaps(block) > width:
        spare = [i for i, c in enumerate(block) if widths[i] > c.narrowest]
        if not spare:
            break
        widths[max(spare, key=lambda i: widths[i])] -= 1
    return widths


def _plain(columns: Sequence[Column]) -> Iterator[str]:
    """Header and rows, one line each."""
    texts = [(c.name, *c.cells) for c in columns]
    for row in zip(*texts, strict=True):
        padded = []
        for text, column in zip(row, columns, strict=True):
            blanks = " " * (column.natural - _width(text))
            padded.append(blanks + text if column.numeric else text + blanks)
        yield (" " * GAP).join(padded).rstrip()


def _draw(block: Sequence[Column], widths: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, GAP // 2), header_style="bold")
    for column, width in zip(block, widths, strict=True):
        header = column.name.replace("_", "\n") if _width(column.name) > width else column.name
        side: Any = "right" if column.numeric else "left"
        shown.add_column(Text(header), justify=side, vertical="top", overflow="fold", width=width)
    for row in zip(*(c.cells for c in block), strict=True):
        shown.add_row(*map(Text, row))
    Console(width=max(sum(widths) + _gaps(block), 1)).print(shown)


def _column(table: pd.DataFrame, i: int, digits: int) -> Column:
    values = table.iloc[:, i]
    cells = tuple(" ".join(cell(v, digits).split()) for v in values.tolist())
    kind = values.dtype.kind
    return Column(name=str(table.columns[i]), cells=cells, numeric=kind in "ifu", fraction=kind == "f")


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _gaps(columns: Sequence[Column]) -> int:
    return GAP * max(len(columns) - 1, 0)
