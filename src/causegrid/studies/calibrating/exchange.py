"""The null alone: how often is any corrected p small when all heads are alike?

Heads are given effects drawn from one distribution and groups their sum, so a group is a draw like any other and
nothing is there to be found, unless it is a primary one: its heads harm by so many standard deviations more.  No
model is run, so thousands of trials cost seconds; planted models ask the same of everything together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from causegrid.evidence import SequentialNull, draws_needed, holm, matched_random
from causegrid.headnames import head

if TYPE_CHECKING:
    from causegrid.studies.calibration import PlantedFamily

SHIFT = 10.0  # standard deviations of one head's effect for a share of 1
DRAWS = {"other heads": False, "the group's own too": True}


def null_trials(family: PlantedFamily, n_prompts: int, seed: list[int]) -> pd.DataFrame:
    """One row per way of drawing: the first group's raw p, the smallest corrected p, and the draws used."""
    rng = np.random.default_rng(seed)
    shape = (family.layers, family.heads)
    effects = rng.normal(size=shape)
    if family.tail == "heavy":
        effects *= np.exp(rng.normal(size=shape))
    free = {layer: [int(h) for h in rng.permutation(family.heads)] for layer in range(family.layers)}
    groups = [
        [f"L{i % family.layers}H{free[i % family.layers].pop()}" for i in range(one.size)]
        for one in family.groups
    ]
    for one, heads in zip(family.groups, groups, strict=True):
        for name in heads if one.role == "primary" else ():
            effects[head(name)] -= SHIFT * one.share
    n = draws_needed(len(groups))
    rows = []
    for drawn, own in DRAWS.items():
        ps, used = [], 0
        for heads in groups:
            draws = matched_random(
                heads, n_heads=family.heads, n=n, seed=int(rng.integers(2**31)), exclude=groups, own=own
            )
            null = SequentialNull(_sum(effects, heads))
            null.add([_sum(effects, draw) for draw in draws])
            ps.append(null.pvalue().exact)
            used += null.n
        rows.append({"draws": drawn, "p": float(ps[0]), "p_holm": float(min(holm(ps))), "used": used})
    return pd.DataFrame(rows)


def _sum(effects: np.ndarray[tuple[int, int], np.dtype[np.float64]], heads: list[str]) -> float:
    return float(sum(effects[head(h)] for h in heads))
