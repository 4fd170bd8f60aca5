"""Each expert of a mixture alone: what its weighed output does to the task.

Ablation is that of case 19: the combine weight is zeroed after the top-k choice, nothing is renormalised, at every
position.  Cheap by structure: a batch's clean pass leaves every layer's input, an expert of layer l runs from block
l up, and one that no token of the batch chose is not run at all, since nothing would change.

An expert's reference is the others of its layer that are used about as much (share of tokens within a factor of
2): an expert that sees twenty times the tokens does more, whatever it does.  `p` ranks the effect among them; with
few of them it cannot be small, and `p_min` says how small it could be.  Descriptive: no verdict, no correction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from causegrid.evidence.effects import effect_interval
from causegrid.evidence.nulls import pvalue
from causegrid.interventions.metrics import METRICS, Targets, metric_values
from causegrid.models.forward import logits
from causegrid.models.record import Model
from causegrid.signatures.batches import equal_length_batches, token_lists
from causegrid.signatures.routing import ALL, Floats
from causegrid.sites.capture import capture
from causegrid.sites.experts import ablate_expert, expert_layers, recorded_routes
from causegrid.sites.prefix import skip_blocks
from causegrid.tasks import PromptSet

LIKE = 2.0  # experts of like use: shares within this factor
FEWEST = 3  # of like use, for a reference


def expert_effects(
    model: Model,
    prompts: PromptSet,
    use: pd.DataFrame,
    *,
    top: int | None = None,
    batch_size: int = 64,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """One row per expert and metric: the `top` most used of each layer (None: all), by a `routing` table.

    Columns of `ablate_heads` (`group` is `L3E7`, mode `zero`) without heads, noise and flag, and `layer, expert,
    share` (of all tokens that chose it)`, tokens` (how many of these prompts' did)`, null_mean, null_sd, n_null,
    p, p_min`: the layer's other experts of like use among those ablated, NaN where there are under 3.
    Raises InputError for a model without experts.
    """
    wanted = most_used(use, top)
    layers = [layer for layer in expert_layers(model) if layer in wanted]
    lists = token_lists(prompts)
    targets = Targets.of(prompts, model.device)
    clean = np.empty((len(lists), len(METRICS)))
    ablated = {(x, e): np.empty_like(clean) for x in layers for e in wanted[x]}
    tokens = dict.fromkeys(ablated, 0)
    batches = list(equal_length_batches(lists, batch_size))
    done, total = 0, len(batches) * len(ablated)
    for index, ids in batches:
        rows = targets.rows(index)

        def values(rows: Targets = rows, ids: Any = ids) -> Floats:
            return metric_values(logits(model, ids, last=True), rows).cpu().numpy()

        sites = [f"L{layer - 1}.resid_post" for layer in layers]
        with recorded_routes(model) as routes:
            inputs = capture(model, ids, sites)
        clean[index] = values()
        for layer, site in zip(layers, sites, strict=True):
            seen = torch.bincount(routes[layer].chosen.reshape(-1), minlength=max(wanted[layer]) + 1).tolist()
            for expert in wanted[layer]:
                if seen[expert]:
                    ablated[layer, expert][index] = _without(model, layer, expert, inputs[site], values)
                    tokens[layer, expert] += seen[expert]
                else:
                    ablated[layer, expert][index] = clean[index]
                done += 1
                if progress is not None:
                    progress(done, total, "ablating experts")
    share = use[use["where"] == ALL].set_index(["layer", "expert"])["share"]
    found = []
    for (layer, expert), after in ablated.items():
        fact = {"group": f"L{layer}E{expert}", "layer": layer, "expert": expert}
        fact |= {"share": float(share[layer, expert]), "tokens": tokens[layer, expert], "mode": "zero"}
        found += [fact | row for row in _metric_rows(clean, after)]
    return _with_null(pd.DataFrame(found))


def most_used(use: pd.DataFrame, top: int | None) -> dict[int, list[int]]:
    """Layer -> its `top` experts by share of all tokens (None: all), most used first, ties by index."""
    rows = use[use["where"] == ALL].sort_values(["layer", "share", "expert"], ascending=[True, False, True])
    found: dict[int, list[int]] = {}
    for layer, expert in zip(rows["layer"].tolist(), rows["expert"].tolist(), strict=True):
        found.setdefault(layer, []).append(expert)
    return {layer: experts[:top] for layer, experts in found.items()}


def _without(model: Model, layer: int, expert: int, stored: Tensor, values: Callable[[], Floats]) -> Floats:
    with ExitStack() as scope:
        if layer:
            scope.enter_context(skip_blocks(model, layer, stored))
        scope.enter_context(ablate_expert(model, layer, expert))
        return values()


def _metric_rows(clean: Floats, after: Floats) -> list[dict[str, Any]]:
    rows = []
    for i, metric in enumerate(METRICS):
        effect = after[:, i] - clean[:, i]
        known = ~np.isnan(effect)
        if not known.any():
            continue
        low, high = effect_interval(effect, metric)
        row = {"metric": metric, "n": int(known.sum()), "baseline": float(clean[known, i].mean())}
        row |= {"ablated": float(after[known, i].mean()), "effect": float(effect[known].mean())}
        rows.append(row | {"low": low, "high": high, "values": effect.tolist()})
    return rows


def _with_null(table: pd.DataFrame) -> pd.DataFrame:
    """The table with each effect's place among the experts of like use in its layer."""
    null: list[Mapping[str, float]] = []
    rows = table.to_dict("records")
    for row in rows:
        own = float(row["share"])
        like = np.array(
            [
                float(other["effect"])
                for other in rows
                if (other["layer"], other["metric"]) == (row["layer"], row["metric"])
                and other["expert"] != row["expert"]
                and own / LIKE <= other["share"] <= own * LIKE
            ]
        )
        found = {"null_mean": np.nan, "null_sd": np.nan, "n_null": len(like), "p": np.nan, "p_min": np.nan}
        if len(like) >= FEWEST:
            p = pvalue(float(row["effect"]), like)
            found |= {"null_mean": like.mean(), "null_sd": like.std(ddof=1), "p": p.p, "p_min": p.p_min}
        null.append(found)
    return pd.concat([table, pd.DataFrame(null)], axis=1)
