"""The published cells beside ours: effects of every group under zero ablation, model by model and task by task.

Figures, not claims: where one of our cells has the published model, its effects under zero ablation stand
beside the paper's; their settings differ as said.  A published cell that was run with another model's heads is
skipped by name.  `anchors` is the whole table, `anchor_claims` the same as entries of `claims.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from causegrid.evidence.claims import COMPARED, Claim, seed_mean
from causegrid.studies.pattern.published import PublishedGroup, published_groups

MODE = "zero"
METRICS = ("top1", "logit_diff")
HELD_OUT = "held-out-"


def anchors(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per published group and metric: `task, model, group, metric, published, measured, low, high, n`
    (seeds)`, cells, skipped` (why the published figure is invalid)."""
    rows = []
    for g in published_groups():
        same = _ours(cells, g)
        for metric in METRICS:
            if metric not in g.effects and not g.invalid:
                continue
            values = [v for c in same if (v := _effect(c, g.group, metric)) is not None]
            mean, low, high = seed_mean(values) if values else (None, None, None)
            rows.append(
                {
                    "task": g.task, "model": g.hf, "group": g.group, "metric": metric,
                    "published": None if g.invalid else g.effects[metric], "measured": mean, "low": low, "high": high,
                    "n": len(values), "cells": [c["id"] for c in same], "skipped": g.invalid,
                }
            )  # fmt: skip
    return rows


def anchor_claims(cells: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """One entry per published (task, model)."""
    by_cell: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in anchors(cells):
        by_cell.setdefault((row["task"], row["model"]), []).append(row)
    found = []
    for (task, model), rows in by_cell.items():
        skipped = sorted({r["group"] for r in rows if r["skipped"]})
        shown = [r for r in rows if not r["skipped"]]
        reason = next((r["skipped"] for r in rows if r["skipped"]), "")
        same = rows[0]["cells"]
        elsewhere = _elsewhere([c for c in cells if c["id"] in same], {r["group"] for r in shown})
        ours = "theirs: zero ablation in fp16, 500 prompts (successor 118), no BOS"
        why = (
            f"{ours}; heads chosen and measured on the same prompts" if same else f"{model} was not run here"
        )
        if elsewhere:
            why += f"; heads picked twice count once here, theirs in both: {elsewhere}"
        found.append(
            Claim(
                id=f"{task}-{model.split('/')[-1]}",
                statement=f"Effects by group, {task} on {model}",
                published="; ".join(f"{name} {words}" for name, words in _by_group(shown, "published")),
                measured="; ".join(f"{name} {words}" for name, words in _by_group(shown, "measured")) or "-",
                result=COMPARED,
                why=why + (f"; skipped: {', '.join(skipped)} ({reason})." if skipped else "."),
                cells=tuple(same),
                kind="anchor",
            )
        )
    return found


def _by_group(rows: Sequence[Mapping[str, Any]], column: str) -> list[tuple[str, str]]:
    """(group, `-82.0 pp, -3.43 logits`), groups without a figure left out."""
    found: dict[str, list[str]] = {}
    for row in rows:
        value = row[column]
        if value is not None:
            words = f"{100 * value:+.1f} pp" if row["metric"] == "top1" else f"{value:+.2f} logits"
            found.setdefault(row["group"], []).append(words)
    return [(name, ", ".join(words)) for name, words in found.items()]


def _ours(cells: Sequence[Mapping[str, Any]], g: PublishedGroup) -> list[Mapping[str, Any]]:
    return [
        c
        for c in cells
        if c["config"]["model"].split("@")[0] == g.hf
        and str(c["config"]["task"]).removeprefix(HELD_OUT) == g.task
        and c["tables"]("effects") is not None
    ]


def _elsewhere(cells: Sequence[Mapping[str, Any]], groups: set[str]) -> str:
    """`induction without L12H8 (counts in name-mover), ...`: heads our disjoint groups left to an earlier screen."""
    found: dict[str, None] = {}
    for cell in cells:
        table = cell["tables"]("groups")
        if table is None or "note" not in table:
            continue
        for group, note in zip(table["group"], table["note"], strict=True):
            if group in groups and " counts in " in str(note):
                parts = (part.partition(" counts in ") for part in str(note).split("; "))
                left = ", ".join(f"{head} (counts in {owner})" for head, _, owner in parts)
                found[f"{group} without {left}"] = None
    return ", ".join(found)


def _effect(cell: Mapping[str, Any], group: str, metric: str) -> float | None:
    table: pd.DataFrame = cell["tables"]("effects")
    rows = table[(table["group"] == group) & (table["mode"] == MODE) & (table["metric"] == metric)]
    return float(rows["effect"].iloc[0]) if len(rows) else None
