"""`causegrid zoo`: train the tiny zoo, so that its models have names on this machine.

A finished run whose models have left the user cache puts them back from its cells; nothing is trained twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs import Outcome


def train_zoo(
    study: Path | str | None = None,
    out: Path | str = "runs/zoo",
    *,
    workers: int = 1,
    engine: str = "local",
    limit: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Outcome, pd.DataFrame]:
    """Run a study file of `study: zoo` (None: the one that ships) into `out`, resuming by itself.

    Returns how the run went and, for every finished cell, what its model can do (`capabilities`).
    """
    from causegrid.runs import run
    from causegrid.runs.config import of_study
    from causegrid.studies.examples import path

    options: dict[str, Any] = dict(workers=workers, engine=engine, limit=limit, progress=progress)
    if study is None:
        with path("zoo.yaml") as file:
            outcome = run(file, out, **options)
    else:
        outcome = run(of_study(study, "zoo"), out, **options)
    put_back(out)
    return outcome, capabilities(out)


def put_back(folder: Path | str) -> list[str]:
    """Keep every finished model of a run that the user cache lacks; returns their names."""
    from causegrid.models.zoo import KEPT, keep
    from causegrid.runs.store import open_run

    found = []
    for cell in open_run(folder).cells():
        name, seed = cell.config["model"], cell.config["seed"]
        whole = cell.status == "done" and (cell.path / "model.safetensors").is_file()
        if whole and cell.config["keep"] and not KEPT[name].digest(seed=seed):
            keep(cell.path, name, seed)
            found.append(f"{name}:seed={seed}")
    return found


def capabilities(folder: Path | str) -> pd.DataFrame:
    """The `capability` tables of a run's finished cells, one below the other, with `model` and `seed`."""
    import pandas as pd

    from causegrid.runs.store import open_run

    tables = []
    for cell in open_run(folder).cells():
        table = cell.table("capability") if cell.status == "done" else None
        if table is not None:
            table.insert(0, "model", cell.config["model"])
            table.insert(1, "seed", cell.config["seed"])
            tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
