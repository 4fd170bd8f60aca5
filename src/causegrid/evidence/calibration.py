"""How often is a procedure right?  Arrays and tables of trials in; rates, confusion and coverage out (MEASURES 4.4).

Every rate comes with Wilson's interval over its trials, because a false-positive rate without one is an opinion
too.  A trial without a value (NaN) is left out, never counted as a miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from causegrid.errors import InputError, unknown
from causegrid.evidence.effects import wilson

RATE_COLUMNS = ("n", "hits", "rate", "low", "high")


def rate(hits: ArrayLike) -> dict[str, float]:
    """`n, hits, rate, low, high` of trials (n,) that are true or false; NaN everywhere without trials."""
    known = np.asarray(hits, dtype=bool)
    if known.ndim != 1:
        raise InputError(f"trials must be one value each (1 axis), not shape {known.shape}")
    if known.size == 0:
        return dict(zip(RATE_COLUMNS, (0, 0, math.nan, math.nan, math.nan), strict=True))
    count = int(known.sum())
    return dict(
        zip(RATE_COLUMNS, (known.size, count, count / known.size, *wilson(count, known.size)), strict=True)
    )


def rates(table: pd.DataFrame, by: Sequence[str], hit: str) -> pd.DataFrame:
    """One row per combination of the columns `by`, in order of appearance: them, then `n, hits, rate, low, high`
    of the boolean column `hit`.  Raises InputError for a column that is not there."""
    for column in (*by, hit):
        if column not in table.columns:
            raise unknown("column of the trials", column, [str(c) for c in table.columns])
    rows = [
        dict(zip(by, key, strict=True)) | rate(part[hit].to_numpy())
        for key, part in table.groupby(list(by), sort=False, dropna=False)
    ]
    return pd.DataFrame(rows, columns=[*by, *RATE_COLUMNS])


def confusion(truth: Sequence[str], found: Sequence[str]) -> pd.DataFrame:
    """Counts, a row per truth and a column per verdict found, both in order of first appearance.

    Raises InputError when the two do not have the same length.
    """
    if len(truth) != len(found):
        raise InputError(f"{len(truth)} truths for {len(found)} verdicts: give one of each per trial")
    rows, columns = list(dict.fromkeys(truth)), list(dict.fromkeys(found))
    counts = np.zeros((len(rows), len(columns)), dtype=np.int64)
    for t, f in zip(truth, found, strict=True):
        counts[rows.index(t), columns.index(f)] += 1
    return pd.DataFrame(counts, index=rows, columns=columns)


def covered(low: ArrayLike, high: ArrayLike, truth: ArrayLike) -> NDArray[np.bool_]:
    """Whether each interval [low, high] holds its truth; arrays that broadcast.  InputError for an unknown end."""
    lows, highs, truths = (np.asarray(x, dtype=np.float64) for x in (low, high, truth))
    if np.isnan(lows).any() or np.isnan(highs).any() or np.isnan(truths).any():
        raise InputError("an interval or a truth is not a number: leave such trials out")
    return np.asarray((lows <= truths) & (truths <= highs))
