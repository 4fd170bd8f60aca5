"""The page's data on a state-encoding run: cells, and every table of theirs that the page draws.

A cell is shown at the length at which it may be used: the trained one, or the shorter one it learned to.
A hundred cells make a hundred thousand rows, so the page holds the rows of that length, learning curves of
`CURVE` points, and component effects at that length and at the longest; the tables beside it hold the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from causegrid.report.rows import DECIMALS, Columns, columns, over, packed, plain

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs.store import CellRecord

CURVE = 100
CURVES = {"step": "last", "length": "last", "loss": "mean", "token_accuracy": "mean"}
FACTS = ("n_params", "steps", "solved", "learned", "learned_length", "schedule", "positions", "lr")
PROFILE = ("depth_centre", "last_block_share")
WANTED = {
    "behaviour": "length metric accuracy low high n",
    "probes": "layer label accuracy low high baseline_majority baseline_position baseline_token "
    "baseline_token_pair baseline_untrained baseline_shuffled shuffled_low shuffled_high baseline_control "
    "control_low control_high",
    "erasure": "layer label basis rank full iterations removed control_variance clean accuracy low high control_low "
    "control_high n_control matched_accuracy matched_mark probe refit refit_low refit_high refit_control "
    "baseline reading",
    "erasure_beyond": "layer length basis rank removed clean accuracy low high control_low control_high n_control "
    "matched_accuracy matched_mark probe refit refit_low refit_high baseline reading mark",
    "components": "kind mode layer length metric accuracy effect low high n noise flag",
    "patching": "kind layer position changed readout recovery low high n left_out null_recovery null_low "
    "null_high mark",
}


def section(cells: Sequence[CellRecord]) -> dict[str, Any]:
    """Everything the page draws, from the tables of `cells`."""
    said = [_cell(c) for c in cells]

    def shown(column: str) -> Callable[[int, pd.DataFrame], pd.DataFrame]:
        return lambda at, t: t[t[column] == said[at]["length"]] if column in t else t

    keep: dict[str, Callable[[int, pd.DataFrame], pd.DataFrame]] = {
        **dict.fromkeys(("probes", "erasure", "patching"), shown("length")),
        "erasure_beyond": shown("fitted_length"),
        "components": lambda at, t: t[t["length"].isin((said[at]["length"], t["length"].max()))],
    }
    tables = {name: over(cells, name, names.split(), keep.get(name)) for name, names in WANTED.items()}
    over_seeds = {"over_seeds": _over_seeds(cells), "profiles": _profiles(cells, said)}
    return {"cells": said, "training": _curves(cells), **over_seeds, **tables}


def _cell(cell: CellRecord) -> dict[str, Any]:
    facts = {name: plain(cell.facts.get(name)) for name in FACTS}
    trained = int(cell.config["training"]["length"])
    reached = facts["learned_length"] or 0
    lengths = cell.table("profile_summary")
    probed = set() if lengths is None else set(lengths["length"])
    return {
        **{k: cell.config[k] for k in ("task", "model", "seed")},
        **facts,
        "asked": cell.config["training"].get("steps"),
        "trained": trained,
        "length": min(reached, trained) if reached in probed else trained,
        "seconds": plain(cell.seconds),
    }


def _curves(cells: Sequence[CellRecord]) -> Columns:
    """Learning curves of at most `CURVE` points, each the mean over its stretch of steps (the length: its last)."""
    import pandas as pd

    found = []
    for place, cell in enumerate(cells):
        table = cell.table("training")
        if table is None or not len(table):
            continue
        stretch = np.arange(len(table)) * min(CURVE, len(table)) // len(table)
        how = {c: CURVES[c] for c in CURVES if c in table.select_dtypes("number")}
        found.append(table.groupby(stretch).agg(how).round(4).assign(cell=place))
    return columns(pd.concat(found), ("cell", *CURVES)) if found else {}


def _over_seeds(cells: Sequence[CellRecord]) -> Columns:
    """Behaviour of each task and model by length and metric: mean over seeds with its t interval, within 0..1."""
    import pandas as pd

    from causegrid.evidence.claims import seed_mean

    tables = [
        table.assign(task=cell.config["task"], model=cell.config["model"])
        for cell in cells
        if (table := cell.table("behaviour")) is not None
    ]
    if not tables:
        return {}
    keys = ["task", "model", "length", "metric"]
    got = pd.concat(tables).dropna(subset="accuracy").groupby(keys, sort=False)["accuracy"]
    rows = [(*key, *seed_mean(list(values), within=(0, 1)), len(values)) for key, values in got]
    whole = pd.DataFrame(rows, columns=[*keys, "mean", "low", "high", "n"]).astype(
        {"low": float, "high": float}
    )
    found = columns(whole.round(4), list(whole.columns))
    return {c: packed(values) for c, values in found.items()}


def _profiles(cells: Sequence[CellRecord], said: Sequence[dict[str, Any]]) -> Columns:
    """Depth centre and last-block share of each task, model and label: mean over seeds with its t interval, within
    0..1, of the cells shown at one length; those that did not learn are apart."""
    import pandas as pd

    from causegrid.evidence.claims import seed_mean

    tables = [
        table[table["length"] == facts["length"]].assign(
            task=facts["task"], model=facts["model"], learned=facts["learned"] != "not learned"
        )
        for cell, facts in zip(cells, said, strict=True)
        if (table := cell.table("profile_summary")) is not None and len(table)
    ]
    if not tables:
        return {}
    keys = ["task", "model", "label", "length", "learned"]
    rows = []
    for key, group in pd.concat(tables).groupby(keys, sort=True):
        row: dict[str, Any] = {**dict(zip(keys, key, strict=True)), "n": len(group)}
        for name in PROFILE:
            values = list(group[name].dropna())
            row[name], row[f"{name}_low"], row[f"{name}_high"] = (
                seed_mean(values, within=(0, 1)) if values else (None, None, None)
            )
        rows.append(row)
    names = [*keys, "n", *(f"{name}{end}" for name in PROFILE for end in ("", "_low", "_high"))]
    whole = pd.DataFrame(rows, columns=names)
    numbers = names[len(keys) + 1 :]
    whole[numbers] = whole[numbers].astype(float).round(DECIMALS)
    found = columns(whole, names)
    return {c: packed(values) for c, values in found.items()}
