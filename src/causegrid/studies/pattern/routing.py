"""Mixture of experts: does ablating a group of heads send tokens to other experts?

Shown beside the group's effect, because an ablation that changes the routing also swaps the weights of every
later block: part of its effect may be that, and not the heads' own work.

A group's change is read beside that of a few of its matched-random draws without its own heads, on the same prompts
and in the same mode.  It is a description with a reference, not a test: it enters no verdict and no correction.
Layers below the group cannot change and are left out; its own layer can, since experts follow attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causegrid.evidence.effects import bootstrap_mean, effect_interval
from causegrid.headnames import head
from causegrid.interventions.condition import Condition
from causegrid.interventions.heads import Ablator
from causegrid.interventions.narrowed import narrowed
from causegrid.signatures.routing import (
    ALL,
    QUERY,
    Floats,
    LayerRoutes,
    changed,
    prompt_routes,
    routes_table,
    routing,
)
from causegrid.sites.table import table
from causegrid.studies.pattern.experts import expert_effects
from causegrid.studies.pattern.prompt_sets import subset

if TYPE_CHECKING:
    from causegrid.studies.base import CellContext
    from causegrid.studies.pattern.stages import PatternStages

N_DRAWS = 5  # of a group's null, as the reference
Changes = dict[int, dict[str, Floats]]


def save_routing(work: PatternStages, context: CellContext) -> None:
    """The stage `routing` of a mixture of experts; a dense model saves nothing.

    Tables `routing` (use of every expert, on all measured prompts), `routes` (the decisions), `expert_effects` and
    `routing_changes`, the last three on the prompts of the null.
    """
    c = work.cell
    if not table(work.model).router:
        return
    measured = work.parts.measured
    use = routing(prompt_routes(work.model, measured))
    context.save_table("routing", use)
    pick = subset(len(measured), c.matched_null.n_prompts, c.seed)
    planner = narrowed(work.ablator.planner, pick)
    ablator = Ablator(
        work.model, planner.prompts, reference=work.parts.reference, planner=planner, seed=c.seed
    )
    clean = prompt_routes(work.model, planner.prompts)
    decisions = routes_table(clean)
    context.save_table("routes", decisions.assign(prompt=[pick[i] for i in decisions["prompt"]]))
    context.save_table(
        "expert_effects",
        expert_effects(work.model, planner.prompts, use, top=c.experts, progress=context.progress),
    )
    groups = context.table("groups")
    changes = routing_changes(
        ablator,
        {str(g): list(h) for g, h in zip(groups["group"], groups["heads"], strict=True) if len(h)},
        context.table("effects"),
        context.table("nulls"),
        modes=c.modes,
        on=pick,
        clean=clean,
        progress=context.progress,
    )
    context.save_table("routing_changes", changes)


def routing_changes(
    ablator: Ablator,
    groups: Mapping[str, Sequence[str]],
    effects: pd.DataFrame,
    nulls: pd.DataFrame,
    *,
    modes: Sequence[str],
    on: Sequence[int] | None = None,
    clean: Mapping[int, LayerRoutes] | None = None,
    n_draws: int = N_DRAWS,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """One row per group, mode, `where` (`query`, `all`) and layer, and one with layer -1 over all of them.

    `share`: of (token, layer) decisions whose set of chosen experts differs from the untouched model's; `low`,
    `high`: bootstrap over the `n` prompts; `null_mean`, `null_low`, `null_high`: mean and range of the same share
    over `n_null` of the group's matched-random draws, of those without its own heads (NaN where there is none);
    `effect`, `effect_low`, `effect_high`: the group's on the margin, on the same prompts, from `effects`.  `on`: which
    prompts of `effects` those of the ablator are (default all).  `clean`: routes of the untouched model on the
    ablator's prompts, where at hand.
    """
    before = prompt_routes(ablator.model, ablator.prompts) if clean is None else clean
    draws = {name: null_heads(nulls, name, heads, n_draws) for name, heads in groups.items()}
    total = len(modes) * sum(1 + len(d) for d in draws.values())
    done = 0
    rows: list[dict[str, Any]] = []
    for mode in modes:
        for name, heads in groups.items():
            lowest = min(head(h)[0] for h in heads)
            runs = []
            for members in [heads, *draws[name]]:
                runs.append(_above(_changes(ablator, members, mode, before), lowest))
                done += 1
                if progress is not None:
                    progress(done, total, "routing under ablation")
            fact = {
                "group": name,
                "mode": mode,
                "n": len(ablator.prompts),
                **_margin(effects, name, mode, on),
            }
            for where in (QUERY, ALL):
                for layer in (*runs[0], -1):
                    own, *null = (_values(run, layer, where) for run in runs)
                    rows.append(fact | {"where": where, "layer": layer} | _summary(own, null))
    order = ["group", "mode", "where", "layer", "share", "low", "high", "null_mean", "null_low", "null_high"]
    return pd.DataFrame(rows, columns=[*order, "n_null", "n", "effect", "effect_low", "effect_high"])


def null_heads(nulls: pd.DataFrame, group: str, heads: Sequence[str], n: int) -> list[list[str]]:
    """The first `n` draws of a group in a table of nulls that hold none of the group's `heads`."""
    if "null_for" not in nulls or not len(nulls):
        return []
    of_group = nulls[nulls["null_for"] == group].drop_duplicates("draw")
    drawn = ([str(h) for h in draw] for draw in of_group["heads"])
    return [draw for draw in drawn if not set(heads) & set(draw)][:n]


def _changes(ablator: Ablator, heads: Sequence[str], mode: str, before: Mapping[int, LayerRoutes]) -> Changes:
    (condition,) = ablator.conditions({"one": list(heads)}, mode)  # type: ignore[arg-type]
    return changed(before, _routes(ablator, condition))


def _routes(ablator: Ablator, condition: Condition) -> dict[int, LayerRoutes]:
    return prompt_routes(ablator.model, ablator.prompts, edits=condition.on)


def _above(changes: Changes, lowest: int) -> Changes:
    return {layer: found for layer, found in changes.items() if layer >= lowest}


def _values(changes: Changes, layer: int, where: str) -> Floats:
    """Per-prompt shares (n,) of one layer; layer -1: over all that could change."""
    if layer >= 0:
        return changes[layer][where]
    if not changes:
        return np.empty(0)
    mean: Floats = np.mean([found[where] for found in changes.values()], axis=0)
    return mean


def _summary(own: Floats, null: Sequence[Floats]) -> dict[str, Any]:
    if not own.size:  # heads above the last layer with experts
        return {"share": np.nan, "low": np.nan, "high": np.nan, "n_null": 0}
    low, high = bootstrap_mean(own)
    means = [float(one.mean()) for one in null]
    found = {"share": float(own.mean()), "low": low, "high": high, "n_null": len(means)}
    if means:
        found |= {"null_mean": float(np.mean(means)), "null_low": min(means), "null_high": max(means)}
    return found


def _margin(effects: pd.DataFrame, group: str, mode: str, on: Sequence[int] | None) -> dict[str, float]:
    """The group's effect on the margin and its interval, on the prompts of the null."""
    rows = effects[
        (effects["group"] == group) & (effects["mode"] == mode) & (effects["metric"] == "logit_diff")
    ]
    if not len(rows):
        return dict.fromkeys(("effect", "effect_low", "effect_high"), float("nan"))
    values = np.asarray(rows["values"].iloc[0], dtype=np.float64)
    values = values if on is None else values[list(on)]
    low, high = effect_interval(values, "logit_diff")
    return {"effect": float(np.nanmean(values)), "effect_low": low, "effect_high": high}
