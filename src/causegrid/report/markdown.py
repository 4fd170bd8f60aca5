"""Tables of a run in a Markdown page of your own, written anew between marks.

A page holds `<!-- table NAME -->` ... `<!-- end -->`; `write_page` puts there what the run's finished cells say now:
`claims`, `anchors`, and the study's own summaries.  So a number on a page cannot drift from the run it is of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causegrid.errors import InputError, unknown
from causegrid.report.claims import claim_rows

if TYPE_CHECKING:
    import pandas as pd

ANCHOR = "anchor"  # kind of a claim that sets a published figure of other settings beside ours
_BLOCK = re.compile(r"(<!-- table ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_NAMES = {"id": "", "statement": "claim", "measured": "here", "interval": "95 %", "why": "on what"}


def tables(folder: Path | str) -> dict[str, pd.DataFrame]:
    """Name -> table over the finished cells of a run folder: its study's summaries, `claims` and `anchors`.

    Raises InputError when the folder is no run or its study's code cannot be imported.
    """
    from causegrid.runs import claims, summaries

    found = dict(summaries(folder))
    said = [{str(k): v for k, v in row.items()} for row in claims(folder).to_dict("records")]
    rows = {
        "claims": [c for c in said if c.get("kind") != ANCHOR],
        "anchors": [c for c in said if c.get("kind") == ANCHOR],
    }
    return found | {name: _claims(some) for name, some in rows.items() if some}


def write_page(page: Path | str, folder: Path | str) -> None:
    """Write the tables of a page anew from a run folder, in place.

    Raises InputError, with the page as it was, when it cannot be read or written or names a table the run has not.
    """
    from causegrid.runs import files

    path = Path(page)
    try:
        text = path.read_text(encoding="utf-8")
        files.write_text(path, filled(text, tables(folder)))
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "").lower() or "it is no UTF-8 text"
        raise InputError(f"cannot fill the page {str(path)!r}: {reason}") from None


def filled(page: str, found: Mapping[str, pd.DataFrame]) -> str:
    """The page with every table between marks written anew.  Raises InputError for a table that is not there."""

    def block(match: re.Match[str]) -> str:
        name = match.group(2)
        if name not in found:
            raise unknown("table of the run", name, list(found))
        return f"{match.group(1)}{markdown(found[name])}{match.group(4)}"

    return _BLOCK.sub(block, page)


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub writes it, floats to one decimal."""

    def cell(value: Any) -> str:
        text = f"{value:.1f}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    lines = [[str(c) for c in table.columns], ["---"] * len(table.columns)]
    lines += [[cell(v) for v in row] for row in table.itertuples(index=False)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _claims(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(claim_rows(rows)).rename(columns=_NAMES)
