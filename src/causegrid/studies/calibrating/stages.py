"""The one stage of a calibration cell: its replicates, one after the other, each from a seed of its own.

A replicate's seed is (study seed, its number): it does not depend on the cell it falls into.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas as pd

from causegrid.studies.base import CellContext
from causegrid.studies.calibrating.exchange import null_trials
from causegrid.studies.calibrating.intervals import interval_trials
from causegrid.studies.calibrating.replicate import replicate

if TYPE_CHECKING:
    from causegrid.studies.calibration import CalibrationCell, PlantedFamily

Trial = Callable[["PlantedFamily", int, list[int]], pd.DataFrame]


class CalibrationStages:
    """The stages of one cell, by its question."""

    def __init__(self, cell: CalibrationCell) -> None:
        self.cell = cell

    def verdicts(self, context: CellContext) -> None:
        """Table `verdicts`: one row per replicate, group, rule set and metric."""
        context.save_table("verdicts", self._all(replicate, context))

    def intervals(self, context: CellContext) -> None:
        """Table `intervals`: one row per replicate, group, mode, metric and sample."""
        context.save_table("intervals", self._all(interval_trials, context))

    def nulls(self, context: CellContext) -> None:
        """Table `nulls`: one row per replicate and way of drawing."""
        context.save_table("nulls", self._all(null_trials, context))

    def _all(self, trial: Trial, context: CellContext) -> pd.DataFrame:
        c = self.cell
        tables = []
        started = time.process_time()
        for i in range(c.replicates):
            context.progress(i, c.replicates, "planted models")
            table = trial(c.family, c.n_prompts, [c.base, c.first + i])
            tables.append(table.assign(replicate=c.first + i))
        context.note(cpu_seconds=round(time.process_time() - started, 2))
        found = pd.concat(tables, ignore_index=True)
        words = found.select_dtypes(include=["object", "string"]).columns
        return found.astype(dict.fromkeys(words, "category"))
