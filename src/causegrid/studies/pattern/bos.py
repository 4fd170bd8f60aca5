"""The BOS diagnostic: is a group's effect that of heads which look at the first token? (MEASURES 4.2)

A head whose attention sits on position 0 reads next to nothing, and what it writes is about a constant;
ablating it moves the model without touching the task (the published binding cell of Pythia: five heads help
by +98 pp one by one, by +37 together, and harm by 16 once BOS heads are left out).  So, for every group: the
class of each head, each head alone, the sum of the single effects beside the group's, and the group picked
again without heads of the BOS class (first-token selectivity of 30x or more on the synthetic batch).

Picked again: a task screen takes the next best eligible heads; a generic class, which takes all heads beyond
its threshold, has no next best and only loses its BOS heads.  Heads of other groups stay with them (*ours*).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from causegrid.headnames import head_name
from causegrid.signatures.attention import Attention
from causegrid.signatures.screens.base import Rules, TaskScreen, screens

BOS_CLASS = "first-token"


def bos_heads(classes: pd.DataFrame) -> set[str]:
    """Heads of the BOS class in a table of generic classes."""
    own = classes[(classes["class"] == BOS_CLASS) & classes["selected"]]
    return {head_name(int(x), int(h)) for x, h in zip(own["layer"], own["head"], strict=True)}


def picked_again(
    rows: Attention, groups: Mapping[str, Sequence[str]], classes: pd.DataFrame, *, rules: Rules
) -> pd.DataFrame:
    """`group, heads, n_heads, left_out` (its BOS-class heads)`, note`: every group without them.

    A group without a BOS-class head is not picked again (no heads, and the note says so).
    """
    bos = bos_heads(classes)
    taken = {h for heads in groups.values() for h in heads}
    found = []
    for name, heads in groups.items():
        out = [h for h in heads if h in bos]
        again = [h for h in heads if h not in bos]
        note = ""
        if not out:
            again, note = [], "none of its heads is of the BOS class"
        elif isinstance(screens.get(name), TaskScreen):
            again += _next(rows, name, rules, without=taken | bos)[: len(out)]
            short = len(heads) - len(again)
            note = f"{short} fewer: no other head is eligible" if short else ""
        else:
            note = f"{len(out)} fewer: a class takes every head beyond its threshold"
        if out and not again:
            note = "every head of it is of the BOS class, and no other is eligible"
        found.append({"group": name, "heads": again, "n_heads": len(again), "left_out": out, "note": note})
    return pd.DataFrame(found, columns=["group", "heads", "n_heads", "left_out", "note"])


def _next(rows: Attention, name: str, rules: Rules, *, without: Collection[str]) -> list[str]:
    """Eligible heads of a task screen by score, best first."""
    screen: TaskScreen = screens.get(name)
    scored = screen.score(rows.having(screen.needs, wanted_by=f"screen {name!r}"), rules)
    layer, head = np.indices(scored.score.shape)
    order = np.argsort(-scored.score.ravel(), kind="stable")
    order = order[scored.eligible.ravel()[order]]
    names = [head_name(int(layer.ravel()[i]), int(head.ravel()[i])) for i in order]
    return [n for n in names if n not in without]


def bos_table(
    groups: Mapping[str, Sequence[str]], classes: pd.DataFrame, singles: pd.DataFrame, metrics: Sequence[str]
) -> pd.DataFrame:
    """`group, head, best_class, bos, bos_selectivity, bos_mass, metric, effect, low, high`: each head alone.

    `bos`: whether the head is of the BOS class.
    """
    names = [head_name(int(x), int(h)) for x, h in zip(classes["layer"], classes["head"], strict=True)]
    by_head = zip(names, classes.to_dict("records"), strict=True)
    first = {name: r for name, r in by_head if r["class"] == BOS_CLASS}
    alone = _by_key(singles)
    rows: list[dict[str, Any]] = []
    for group, heads in groups.items():
        for metric in metrics:
            for head in heads:
                if (head, metric) not in alone:
                    continue
                own, of = alone[head, metric], first[head]
                rows.append(
                    {
                        "group": group,
                        "head": head,
                        "best_class": of["best_class"],
                        "bos": bool(of["selected"]),
                        "bos_selectivity": float(of["selectivity"]),
                        "bos_mass": float(of["target_mass"]),
                        "metric": metric,
                        **{c: float(own[c]) for c in ("effect", "low", "high")},
                    }
                )
    columns = [
        "group",
        "head",
        "best_class",
        "bos",
        "bos_selectivity",
        "bos_mass",
        "metric",
        "effect",
        "low",
        "high",
    ]
    return pd.DataFrame(rows, columns=columns)


def _by_key(effects: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """(group, metric) -> row."""
    return {(str(r["group"]), str(r["metric"])): r for r in effects.to_dict("records")}  # type: ignore[misc]


def bos_groups(table: pd.DataFrame, effects: pd.DataFrame, again: pd.DataFrame, *, mode: str) -> pd.DataFrame:
    """The same by group and metric: `group, metric, mode, n_heads, n_bos, effect, low, high, singles_sum,
    bos_sum` (of its BOS-class heads)`, again` (heads)`, again_effect, again_low, again_high, note`."""
    own = _by_key(effects[effects["mode"] == mode])
    repicked = again.set_index("group")
    rows: list[dict[str, Any]] = []
    for group, metric in dict.fromkeys(zip(table["group"], table["metric"], strict=True)):
        heads = table[(table["group"] == group) & (table["metric"] == metric)]
        whole, new = own[group, metric], own.get((f"{group} without BOS", metric))
        rows.append(
            {
                "group": group,
                "metric": metric,
                "mode": mode,
                "n_heads": len(heads),
                "n_bos": int(heads["bos"].sum()),
                **{c: float(whole[c]) for c in ("effect", "low", "high")},
                "singles_sum": float(heads["effect"].sum()),
                "bos_sum": float(heads.loc[heads["bos"], "effect"].sum()),
                "again": list(repicked.loc[group, "heads"]),
                **{f"again_{c}": float(new[c]) if new else np.nan for c in ("effect", "low", "high")},
                "note": repicked.loc[group, "note"],
            }
        )
    columns = [
        "group",
        "metric",
        "mode",
        "n_heads",
        "n_bos",
        "effect",
        "low",
        "high",
        "singles_sum",
        "bos_sum",
    ]
    return pd.DataFrame(rows, columns=[*columns, "again", "again_effect", "again_low", "again_high", "note"])
