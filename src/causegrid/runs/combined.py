"""A run's tables, each over all its finished cells: derived, written when the grid ends and with a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from causegrid.errors import InputError
from causegrid.runs import files, store

if TYPE_CHECKING:
    import pandas as pd

KEYS = ("cell", "task", "model", "seed")


def combine(run: store.Run, *, csv: bool = False) -> list[Path]:
    """Write `tables/<name>.parquet` (and `.csv`): each table over all finished cells, keys in front.

    Keys are `cell, task, model, seed`; a table's own column of such a name is kept as `<name>_in_table`.
    In CSV, lists of words become one text and lists of numbers (per-prompt values) are left out.
    Tables no finished cell has are removed: the folder is derived.  Raises InputError for a table that cannot
    be read, or whose column has irreconcilable types in two cells; every other table is written.
    """
    import pyarrow as pa

    done = [cell for cell in run.cells() if cell.status == "done"]
    folder = run.folder / store.TABLES
    folder.mkdir(exist_ok=True)
    written: list[Path] = []
    problems: list[str] = []
    for name in sorted({table for cell in done for table in cell.tables()}):
        try:
            parts = [part for cell in done if (part := _keyed(cell, name)) is not None]
            whole = pa.concat_tables(parts, promote_options="permissive").to_pandas()
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowIOError) as error:
            problems.append(f"table {name!r} cannot be joined over cells: {files.first_line(error)}")
            continue
        path = folder / f"{name}.parquet"
        files.write_table(path, whole)
        written.append(path)
        if csv:
            written.append(path.with_suffix(".csv"))
            _write_csv(written[-1], whole)
    for stale in {p for p in folder.iterdir() if p.suffix in (".parquet", ".csv")} - set(written):
        stale.unlink(missing_ok=True)
    if problems:
        raise InputError("\n".join(problems))
    return written


def _keyed(cell: store.CellRecord, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = cell.find(f"{name}.parquet")
    if path is None:
        return None
    table = pq.read_table(path).replace_schema_metadata(None)
    table = table.rename_columns([f"{c}_in_table" if c in KEYS else c for c in table.column_names])
    keys = {"cell": cell.id, **{k: cell.config.get(k) for k in KEYS[1:]}}
    for at, (key, value) in enumerate(keys.items()):
        table = table.add_column(at, key, pa.repeat(pa.scalar(value), len(table)))
    return table


def _write_csv(path: Path, table: pd.DataFrame) -> None:
    def words(value: Any) -> Any:
        return (
            " ".join(map(str, value)) if hasattr(value, "__len__") and not isinstance(value, str) else value
        )

    flat = table.copy()
    for column in [c for c, kind in flat.dtypes.items() if kind == "object"]:
        first = next((v for v in flat[column] if hasattr(v, "__len__") and len(v)), "")
        if not isinstance(first, str) and not isinstance(first[0], str):
            flat = flat.drop(columns=column)
        else:
            flat[column] = flat[column].map(words)
    files.write_aside(path, lambda aside: flat.to_csv(aside, index=False))
