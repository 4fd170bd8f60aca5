"""Effects by template variant: ABBA and BABA, the kind of a sequence, the queried name (MEASURES 1.4).

A group that acts on one variant alone is another thing than one that acts on all; a mean over prompts hides
it.  Nothing is ablated again: the per-prompt effects of the cell are taken apart, intervals within a variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from causegrid.evidence.effects import as_values, effect_interval
from causegrid.studies.pattern.conditions import GROUP, UNION

JUDGED = ("logit_diff", "top1")
COLUMNS = ("group", "role", "mode", "metric", "variant", "n", "baseline", "effect", "low", "high")


def by_variant(effects: pd.DataFrame, variants: Sequence[str]) -> pd.DataFrame:
    """`group, role, mode, metric, variant, n, baseline, effect, low, high`: groups and unions, margin and top-1.

    `variants` names the variant of each measured prompt, in the order of the effects' `values`.
    """
    names = np.asarray(variants)
    rows: list[dict[str, Any]] = []
    wanted = effects[effects["role"].isin((GROUP, UNION)) & effects["metric"].isin(JUDGED)]
    for row in wanted.to_dict("records"):
        values, clean = as_values(row["values"]), as_values(row["clean"])
        for variant in dict.fromkeys(variants):
            mine = (names == variant) & ~np.isnan(values)
            if not mine.any():
                continue
            low, high = effect_interval(values[mine], row["metric"])
            rows.append(
                {
                    **{c: row[c] for c in ("group", "role", "mode", "metric")},
                    "variant": variant,
                    "n": int(mine.sum()),
                    "baseline": float(clean[mine].mean()),
                    "effect": float(values[mine].mean()),
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))
