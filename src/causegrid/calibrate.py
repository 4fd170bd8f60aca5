"""`causegrid calibrate`: run the calibration and summarise it.

docs/calibration.md is filled from a run by `causegrid report results/calibration --page docs/calibration.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs import Outcome


def calibrate(
    study: Path | str | None = None,
    out: Path | str = "runs/calibration",
    *,
    workers: int = 1,
    engine: str = "local",
    limit: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Outcome, Mapping[str, pd.DataFrame]]:
    """Run a study file of `study: calibration` (None: the small one that ships) into `out`, resuming by itself.

    Returns how the run went and its summary tables.
    """
    from causegrid.runs import run, summaries
    from causegrid.runs.config import of_study
    from causegrid.studies.examples import path

    options: dict[str, Any] = dict(workers=workers, engine=engine, limit=limit, progress=progress)
    if study is None:
        with path("calibration.yaml") as file:
            outcome = run(file, out, **options)
    else:
        outcome = run(of_study(study, "calibration"), out, **options)
    return outcome, summaries(out)
