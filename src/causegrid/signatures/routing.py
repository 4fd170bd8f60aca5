"""Where a mixture of experts sends each token, and how often it sends it elsewhere.

Design choices:
- Routes are read from the routers' own output during a plain forward (`sites/experts.py`), at every position: the
  planner's shortcuts, which skip positions nobody reads, are not used.
- A prompt counts once, however long it is: a share over all positions is the mean over prompts of each prompt's
  own share, and intervals resample prompts, since tokens of one prompt are not independent.
- A decision is the *set* of the k experts chosen for one token in one layer.  Two experts that change places
  within the set do the same work with nearly the same weights: that is no change.
- Clean and edited routes are compared batch by batch at equal shapes, so rounding is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from causegrid.errors import InputError
from causegrid.evidence.effects import resamples
from causegrid.models.forward import logits
from causegrid.models.record import Model
from causegrid.signatures.batches import Ints, Prompts, equal_length_batches, token_lists
from causegrid.sites.edit import Edit, edit
from causegrid.sites.experts import expert_layers, recorded_routes

Floats = NDArray[np.float64]
EditsFor = Callable[[Ints], Sequence[Edit]]
QUERY, ALL = "query", "all"  # where: at the query position, over all positions


@dataclass(frozen=True, kw_only=True)
class LayerRoutes:
    """One layer's routes: a list over prompts of `logits` (L, E), `weights` (L, k), `chosen` (L, k)."""

    logits: list[NDArray[np.float32]]
    weights: list[NDArray[np.float32]]
    chosen: list[Ints]

    @property
    def n_experts(self) -> int:
        """E."""
        return int(self.logits[0].shape[1])


def prompt_routes(
    model: Model, prompts: Prompts, *, edits: EditsFor | None = None, batch_size: int = 32
) -> dict[int, LayerRoutes]:
    """Every router's decisions on every token of the prompts: layer -> `LayerRoutes`, prompts in their order.

    `edits(index)` are in force for the prompts at `index`.  Raises InputError for a model without experts, and
    as `edit` does.
    """
    lists = token_lists(prompts)
    layers = expert_layers(model)
    found: dict[int, dict[int, tuple[NDArray[np.float32], NDArray[np.float32], Ints]]] = {
        x: {} for x in layers
    }
    for index, tokens in equal_length_batches(lists, batch_size):
        with recorded_routes(model) as routes:
            if edits is None:
                logits(model, tokens, last=True)
            else:
                with edit(model, *edits(index)):
                    logits(model, tokens, last=True)
        shape = (*tokens.shape, -1)
        for layer, one in routes.items():
            scores = one.logits.float().cpu().numpy().reshape(shape)  # (b, L, E)
            weights = one.weights.float().cpu().numpy().reshape(shape)  # (b, L, k)
            chosen = one.chosen.cpu().numpy().astype(np.int64).reshape(shape)
            for row, prompt in enumerate(index):
                found[layer][int(prompt)] = (scores[row], weights[row], chosen[row])
    out = {}
    for layer, rows in found.items():
        scores_, weights_, chosen_ = zip(*(rows[i] for i in range(len(lists))), strict=True)
        out[layer] = LayerRoutes(logits=list(scores_), weights=list(weights_), chosen=list(chosen_))
    return out


def routing(routes: Mapping[int, LayerRoutes]) -> pd.DataFrame:
    """How much each expert is used: one row per layer, expert and `where` (`query`, `all`).

    `share`: of tokens that chose it (over the experts of a layer they add up to k); `weight`: its mean combine
    weight, 0 where it was not chosen; `low`, `high`, `weight_low`, `weight_high`: 95 % bootstrap over prompts;
    `n` prompts.
    """
    tables = []
    for layer, one in routes.items():
        n, experts = len(one.chosen), one.n_experts
        used = [_spread(np.ones_like(c, dtype=np.float64), c, experts) for c in one.chosen]  # n x (L, E)
        weighed = [_spread(w, c, experts) for w, c in zip(one.weights, one.chosen, strict=True)]
        for where in (QUERY, ALL):
            share, low, high = _means(_per_prompt(used, where))
            weight, weight_low, weight_high = _means(_per_prompt(weighed, where))
            columns = {"layer": layer, "expert": np.arange(experts), "where": where}
            columns |= {"share": share, "low": low, "high": high}
            columns |= {"weight": weight, "weight_low": weight_low, "weight_high": weight_high, "n": n}
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def routes_table(routes: Mapping[int, LayerRoutes]) -> pd.DataFrame:
    """The decisions themselves: one row per prompt, position and layer.

    `prompt, position, query` (whether it is the query position)`, layer, chosen` (list of k experts, best
    first)`, weights` (theirs)`, logits` (list over all experts).
    """
    rows = []
    for layer, one in routes.items():
        for prompt, chosen in enumerate(one.chosen):
            last = len(chosen) - 1
            for at in range(len(chosen)):
                weights, scores = one.weights[prompt][at], one.logits[prompt][at]
                rows.append(
                    (prompt, at, at == last, layer, chosen[at].tolist(), weights.tolist(), scores.tolist())
                )
    names = ["prompt", "position", "query", "layer", "chosen", "weights", "logits"]
    return pd.DataFrame(rows, columns=names)


def changed(
    before: Mapping[int, LayerRoutes], after: Mapping[int, LayerRoutes]
) -> dict[int, dict[str, Floats]]:
    """Share of decisions that differ, prompt by prompt: layer -> {`query`, `all`} -> (n,).

    Raises InputError when the two are not of the same layers and prompts.
    """
    lengths = {layer: [len(c) for c in one.chosen] for layer, one in before.items()}
    if lengths != {layer: [len(c) for c in one.chosen] for layer, one in after.items()}:
        raise InputError("routes can only be compared on the same layers and the same prompts")
    out = {}
    for layer, one in before.items():
        pairs = zip(one.chosen, after[layer].chosen, strict=True)
        differ = [(np.sort(a, axis=1) != np.sort(b, axis=1)).any(axis=1) for a, b in pairs]  # n x (L,)
        out[layer] = {
            QUERY: np.array([float(d[-1]) for d in differ]),
            ALL: np.array([float(d.mean()) for d in differ]),
        }
    return out


def _spread(values: NDArray[np.floating], chosen: Ints, experts: int) -> Floats:
    """Values (L, k) of the chosen experts -> (L, E), 0 elsewhere."""
    out = np.zeros((len(chosen), experts))
    np.put_along_axis(out, chosen, values, axis=1)
    return out


def _per_prompt(tokens: list[Floats], where: str) -> Floats:
    """n x (L, E) -> (n, E)."""
    return np.stack([one[-1] if where == QUERY else one.mean(axis=0) for one in tokens])


def _means(values: Floats) -> tuple[Floats, Floats, Floats]:
    """(n, E) -> mean, low, high, each (E,); NaN limits from one prompt."""
    mean = values.mean(axis=0)
    if len(values) < 2:
        nothing = np.full_like(mean, np.nan)
        return mean, nothing, nothing
    drawn = np.concatenate([counts @ values for counts in resamples(len(values))]) / len(values)  # (2000, E)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return mean, low, high
