"""One table over all cells of a pattern-selectivity run: every competing group's p, with Benjamini-Hochberg beside.

Holm's correction is over the groups of one cell, which decide together; over a report of many cells some raw p
are small by chance, so the expected share of false ones among those called is shown beside: Benjamini and
Hochberg's step-up over the raw p of all competing groups of all cells, per metric (MEASURES 4.1).  No verdict
turns on it.  Cells under their leading rules; a group without random draws has no p and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from causegrid.runs import files, store

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs.store import CellRecord

NAME = "across_cells"
STUDY = "pattern-selectivity"
COLUMNS = (
    "cell", "task", "model", "seed", "group", "metric", "effect", "low", "high", "n_null", "p", "p_holm", "p_bh",
    "p_min", "verdict", "combined", "rules", "other",
)  # fmt: skip


def across_cells(cells: Sequence[CellRecord]) -> pd.DataFrame:
    """`cell, task, model, seed, group, metric, effect, low, high, n_null, p, p_holm, p_bh, p_min, verdict,
    combined, rules, other`: a row per competing group and metric of every cell."""
    import pandas as pd

    from causegrid.evidence.nulls import benjamini_hochberg

    tables = []
    for cell in cells:
        table = cell.table("verdicts")
        if table is None or not len(table):
            continue
        table = leading(table)
        keys = {k: cell.config.get(k) for k in ("task", "model", "seed")}
        rules = cell.config.get("rules", "") if "rules" not in table else table["rules"]
        found = table[table["kind"] == "competing"].assign(cell=cell.id, **keys, rules=rules)
        tables.append(found.reindex(columns=[c for c in COLUMNS if c != "p_bh"]))
    if not tables:
        return pd.DataFrame(columns=list(COLUMNS))
    whole = pd.concat(tables, ignore_index=True)
    corrected = whole.groupby("metric", sort=False)["p"].transform(
        lambda p: benjamini_hochberg(p.astype(float))
    )
    return whole.assign(p_bh=corrected)[list(COLUMNS)]


def leading(verdicts: pd.DataFrame) -> pd.DataFrame:
    """The rows under the rules that lead; all of them in a table of one rule set."""
    return verdicts[verdicts["leads"].astype(bool)] if "leads" in verdicts else verdicts


def write_across(run: store.Run) -> None:
    """Write the table beside the combined ones, as Parquet and CSV, over finished cells."""
    if run.study != STUDY:
        return
    table = across_cells([c for c in run.cells() if c.status == "done"])
    if len(table):
        path = run.folder / store.TABLES / f"{NAME}.parquet"
        files.write_table(path, table)
        files.write_aside(path.with_suffix(".csv"), lambda aside: table.to_csv(aside, index=False))
