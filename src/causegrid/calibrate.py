"""`causegrid calibrate`: run the calibration, and turn a run of it into the tables of docs/calibration.md.

The page's tables stand between marks, `<!-- table NAME -->` and `<!-- end -->`; `filled` writes them anew from a
run, so a number on the page cannot drift from the run it is of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causegrid.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs import Outcome

_BLOCK = re.compile(r"(<!-- table ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def calibrate(
    study: Path | str | None = None,
    out: Path | str = "runs/calibration",
    *,
    workers: int = 1,
    engine: str = "local",
    limit: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Outcome, dict[str, pd.DataFrame]]:
    """Run a study file of `study: calibration` (None: the small one that ships) into `out`, resuming by itself.

    Returns how the run went and its summary tables.
    """
    from causegrid.runs import run
    from causegrid.studies.examples import path

    options: dict[str, Any] = dict(workers=workers, engine=engine, limit=limit, progress=progress)
    if study is None:
        with path("calibration.yaml") as file:
            outcome = run(file, out, **options)
    else:
        outcome = run(study, out, **options)
    return outcome, tables(out)


def tables(folder: Path | str) -> dict[str, pd.DataFrame]:
    """Name -> summary table of a finished or half-finished run.  Raises InputError for another study's folder."""
    from causegrid.studies.calibrating.summary import summaries

    return summaries(*(trials(folder, name) for name in ("verdicts", "intervals", "nulls")))


def trials(folder: Path | str, name: str) -> pd.DataFrame:
    """One table of all finished cells, with `family, prompts, asks` (the first word of the family's name)."""
    import pandas as pd

    from causegrid.runs.store import open_run

    run = open_run(folder)
    if run.study != "calibration":
        raise InputError(f"{str(folder)!r} holds a run of study {run.study!r}, not of 'calibration'")
    found = []
    for cell in run.cells():
        table = cell.table(name) if cell.status == "done" else None
        if table is not None:
            family = str(cell.config["family"]["name"])
            settings: dict[str, Any] = {"family": family, "prompts": int(cell.config["n_prompts"])}
            found.append(table.assign(**settings, asks=family.split(",")[0]))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def filled(page: str, found: Mapping[str, pd.DataFrame]) -> str:
    """The page with every table between marks written anew.  Raises InputError for a table that is not there."""

    def block(match: re.Match[str]) -> str:
        name = match.group(2)
        if name not in found:
            raise unknown("table of the calibration", name, list(found))
        return f"{match.group(1)}{markdown(found[name])}{match.group(4)}"

    return _BLOCK.sub(block, page)


def write_page(page: Path | str, folder: Path | str) -> None:
    """Write the tables of a page anew from a run folder, in place."""
    path = Path(page)
    path.write_text(filled(path.read_text(encoding="utf-8"), tables(folder)), encoding="utf-8")


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub writes it, floats to one decimal."""

    def cell(value: Any) -> str:
        return f"{value:.1f}" if isinstance(value, float) else str(value)

    lines = [[str(c) for c in table.columns], ["---"] * len(table.columns)]
    lines += [[cell(v) for v in row] for row in table.itertuples(index=False)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
