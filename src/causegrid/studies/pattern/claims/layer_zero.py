"""P5: groups that sit mostly in layer 0 have a wider null: random draws there wreck the model by themselves.

Width: the sd of the random draws' margin effects as a share of the baseline margin, mean over the seeds of a
(task, model, group).  Layer-0-heavy: at least half of the heads; where that differs between models trained from several
seeds, the two kinds stand apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from causegrid.evidence.claims import Claim, decide, independent
from causegrid.studies.pattern.claims.base import claims, ids, undecided
from causegrid.studies.pattern.published import null_sd, valid

STATEMENT = "Groups with half of their heads or more in layer 0 have a wider null"
HEAVY = 0.5


@claims.register("P5")
def layer_zero(groups: pd.DataFrame) -> Claim:
    rows = groups[(groups["metric"] == "logit_diff") & groups["null_sd"].notna()]
    missing = "needs two groups or more of either kind, each with random draws."
    if not len(rows):
        return undecided("P5", STATEMENT, _figure(), missing, groups)
    width = rows["null_sd"].astype(float) / rows["baseline"].astype(float).abs()
    kinds = rows.assign(width=width, heavy=[heavy(heads) for heads in rows["heads"]])
    units = kinds.groupby(["task", "model", "group", "heavy"], as_index=False).agg({"width": "mean"})
    zero = units["heavy"].astype(bool)
    if min(int(zero.sum()), int((~zero).sum())) < 2:
        there = f" There are {int(zero.sum())} and {int((~zero).sum())}."
        return undecided("P5", STATEMENT, _figure(), missing + there, rows)
    test = independent(units.loc[zero, "width"].to_numpy(), units.loc[~zero, "width"].to_numpy())
    result, why = decide(test, 1)
    return Claim(
        id="P5", statement=STATEMENT, published=_figure(), measured=test.effect, low=test.low, high=test.high,
        result=result, why=f"{why} (null sd as a share of the baseline margin).", cells=ids(rows),
    )  # fmt: skip


def heavy(heads: Sequence[Any]) -> bool:
    """Whether at least half of the heads are in layer 0."""
    return sum(str(h).startswith("L0H") for h in heads) >= HEAVY * len(heads)


def _figure() -> str:
    """Null sd on top-1 of the published groups with ten draws, by kind."""
    sds: dict[bool, list[float]] = {True: [], False: []}
    for g in valid():
        sd = null_sd(g, "top1")
        if sd is not None:
            sds[heavy(g.heads)].append(100 * sd)
    shown = ", ".join(f"{v:.1f}" for v in sds[True]) or "none"
    others = f"the {len(sds[False])} others {np.median(sds[False]):.1f} in the median"
    return f"sd of ten draws on top-1, pp: layer-0-heavy {shown}; {others}"
