"""The published cells of arXiv 2606.05378 in our names, the invalid ones named and left out.

The greater-than and successor cells of two models were run with a third model's induction and previous-token
heads, partly out of range: they measure nothing, so no figure, claim or count here holds them (`skipped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from causegrid.evidence.reference import published

SCREENS = {
    "prev_token_circuit": "previous-token",
    "induction_circuit": "induction",
    "name_mover_top5": "name-mover",
    "s_inhibition_top5": "s-inhibition",
    "gt_screen_top5": "gt",
    "succ_self_attn_top5": "successor",
    "vb_screen_top5": "binding",
    "vb_screen_top5_non_BOS": "binding without BOS",
    "prev+induction_union": "previous-token + induction",
    "name_mover+s_inhibition_union": "name-mover + s-inhibition",
}
BOUND = "all_heads_in_name_mover_layers"
COMPETING = ("previous-token", "induction", "name-mover", "s-inhibition", "gt", "successor", "binding")
DELTAS = {"top1": ("delta_top1_pp", 0.01), "logit_diff": ("delta_logit_diff", 1.0)}
EXPERTS = ("olmoe1b7b",)


@dataclass(frozen=True, kw_only=True)
class PublishedGroup:
    """One ablated group of one published cell; `null` holds ten draws per metric where there were any."""

    task: str
    model: str  # the paper's short name
    hf: str
    group: str  # our name
    heads: tuple[str, ...]
    effects: dict[str, float]  # metric -> fraction or logits
    null: dict[str, tuple[float, ...]]
    invalid: str  # why, empty when it is valid


@cache
def published_groups() -> tuple[PublishedGroup, ...]:
    """Every group of every published cell, the invalid ones included and marked."""
    data = published("pattern-selectivity")
    bad = {(b["task"], b["model"], s): b["reason"] for b in data["known_invalid"] for s in b["screens"]}
    found = []
    for task, models in data["cells"].items():
        for model, cell in models.items():
            for one in cell["conditions"]:
                screen = one["screen"]
                name = "layers of name-mover" if screen.startswith(BOUND) else SCREENS.get(screen)
                if name is None:
                    continue  # the single-seed random draws
                found.append(
                    PublishedGroup(
                        task=task.replace("_", "-"),
                        model=model,
                        hf=data["models"][model]["hf"],
                        group=name,
                        heads=tuple(one["heads"] or ()),
                        effects=_effects(one),
                        null=_null(one),
                        invalid=bad.get((task, model, screen), ""),
                    )
                )
    return tuple(found)


def _effects(one: dict[str, Any]) -> dict[str, float]:
    found = {m: scale * one[key] for m, (key, scale) in DELTAS.items() if key in one}
    if "logit_diff" not in found and "delta_target_logit" in one:  # successor had no foil
        found["target_logit"] = one["delta_target_logit"]
    return found


def _null(one: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    ten = one.get("matched_random_n10", {})
    found = {}
    for metric, (key, scale) in {"top1": ("top1_pp", 0.01), "logit_diff": ("logit_diff", 1.0)}.items():
        if key in ten:
            found[metric] = tuple(scale * v for v in ten[key]["null_values_delta"])
    return found


def valid() -> list[PublishedGroup]:
    """The groups whose figures mean what they say."""
    return [g for g in published_groups() if not g.invalid]


def skipped() -> str:
    """`greater-than pythia1b (induction, previous-token), ...`: the cells left out, by name."""
    by_cell: dict[str, list[str]] = {}
    for g in published_groups():
        if g.invalid:
            by_cell.setdefault(f"{g.task} {g.model}", []).append(g.group)
    listed = ", ".join(f"{cell} ({', '.join(sorted(groups))})" for cell, groups in by_cell.items())
    return f"published cells left out, run with another model's heads: {listed}"


def most_harmful(metric: str, *, against: str = "previous-token") -> dict[tuple[str, str], tuple[str, int]]:
    """(task, model) -> (the competing group with the largest harm, how many competed), valid groups only.

    Successor has no published margin: the answer's logit stands in.  Cells in which the group `against` is not
    valid are left out, since nothing was compared with it there; "" keeps them.
    """
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for g in valid():
        value = g.effects.get(metric, g.effects.get("target_logit") if metric == "logit_diff" else None)
        if g.group in COMPETING and value is not None:
            cells.setdefault((g.task, g.model), {})[g.group] = value
    kept = {cell: groups for cell, groups in cells.items() if not against or against in groups}
    found = {}
    for cell, groups in kept.items():
        first = min(groups, key=lambda name: groups[name])
        if groups[first] < 0:
            found[cell] = (first, len(groups))
    return found


def null_sd(group: PublishedGroup, metric: str) -> float | None:
    """The sd of its ten random draws; None where it had none."""
    values = group.null.get(metric)
    return None if values is None else float(np.std(values, ddof=1))
