"""Was the null measured where the group was?  Clean values tell: the same model on the same prompts repeats them.

An effect and its draws mean something beside each other only on one model and the same prompts.  Tables carry
no such identity, but the untouched model's values do: those of the draws must be the group's own, to 1e-3
(relative above 1) and the noise between batch layouts.  What a table does not carry is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from causegrid.errors import InputError
from causegrid.evidence.effects import Floats, as_values

TOLERANCE = 1e-3
Rows = np.ndarray[Any, Any]


class CleanTable:
    """The columns of a null table about the untouched model: `baseline`, `noise`, `clean`, where it has them."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._baseline, self._noise = _floats(table, "baseline"), _floats(table, "noise")
        self._clean = table["clean"].tolist() if "clean" in table.columns else None

    def values(self, row: int) -> Floats:
        """Per-prompt clean values of a row, empty when it has none."""
        return np.empty(0) if self._clean is None else as_values(self._clean[row])

    def check(
        self, rows: Rows, clean: Floats, values: Floats, baseline: float, noise: float, what: str
    ) -> None:
        """Raises InputError when a draw in `rows` has another baseline, or other clean values.

        `clean`, `values`: the group's, (n,) on the draws' prompts, or empty; then `baseline` (may be NaN)
        stands for their mean.  `noise`: the group's noise floor.  `what` names group and metric.
        """
        if clean.size:
            known = ~np.isnan(clean) & ~np.isnan(values)
            baseline = float(clean[known].mean()) if known.any() else math.nan
        theirs = self._baseline[rows]  # (draws,)
        floor = np.fmax(np.nan_to_num(self._noise[rows]), noise)
        slack = TOLERANCE * max(1.0, abs(baseline)) + floor
        away = np.nan_to_num(np.abs(theirs - baseline) - slack, nan=-1.0)
        worst = int(away.argmax())
        if away[worst] > 0:
            raise InputError(
                f"null: {what}: the group's clean baseline on the null's prompts is {baseline:.4g}, the null's "
                f"is {theirs[worst]:.4g}; it was measured on another task, another model or other prompts"
            )
        if self._clean is not None and clean.size:
            self._each(self._clean, rows, clean, (baseline, slack), what)

    def _each(
        self, table: Sequence[Any], rows: Rows, clean: Floats, group: tuple[float, Floats], what: str
    ) -> None:
        baseline, slack = group
        for number, row in enumerate(rows):
            there = as_values(table[row])
            if there.size != clean.size:
                continue
            away = np.nan_to_num(np.abs(there - clean), nan=0.0)
            i = int(away.argmax())
            if away[i] > slack[number]:
                raise InputError(
                    f"null: {what}: baselines {baseline:.4g} (group) and {self._baseline[row]:.4g} (null), but the "
                    f"clean value of prompt {i} is {clean[i]:.4g} for the group, {there[i]:.4g} for the null: "
                    "it was measured on other prompts or another model"
                )


def _floats(table: pd.DataFrame, column: str) -> Floats:
    if column not in table.columns:
        return np.full(len(table), np.nan)
    return table[column].to_numpy(dtype=np.float64)
