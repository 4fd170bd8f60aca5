"""Tables of a run in a Markdown page of your own, written anew between marks.

A page holds `<!-- table NAME -->` ... `<!-- end -->`; `write_page` puts there what the run's finished cells say now:
`cells`, `claims`, `anchors`, and the study's own summaries.  So a number on a page cannot drift from the run it is of.
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
_HOW = {"done": "finished", "failed": "failed"}
_NAMES = {"id": "", "statement": "claim", "measured": "here", "interval": "95 %", "why": "on what"}


def tables(folder: Path | str) -> dict[str, pd.DataFrame]:
    """Name -> table of a run folder: `cells`, the seeds of every task and model by how far they are, and over the
    finished ones its study's summaries, `claims` and `anchors`.

    Raises InputError when the folder is no run or its study's code cannot be imported.
    """
    from causegrid.runs import claims, status, summaries

    found = {"cells": progress(status(folder)), **summaries(folder)}
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


def progress(rows: pd.DataFrame) -> pd.DataFrame:
    """`task, model, finished, not yet, failed`: seeds, "–" for none, of the cells as `runs.status` lists them."""
    import pandas as pd

    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for task, model, seed, how in rows[["task", "model", "seed", "status"]].itertuples(index=False):
        of = found.setdefault((str(task), str(model)), {"finished": [], "not yet": [], "failed": []})
        of[_HOW.get(how, "not yet")].append(str(seed))
    return pd.DataFrame(
        [
            {"task": task, "model": model} | {how: ", ".join(seeds) or "–" for how, seeds in of.items()}
            for (task, model), of in sorted(found.items(), key=lambda item: item[0])
        ],
        columns=["task", "model", "finished", "not yet", "failed"],
    )


def _claims(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(claim_rows(rows)).rename(columns=_NAMES)
