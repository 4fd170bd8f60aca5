"""Head ablation: what removing attention heads does to a task, prompt by prompt (MEASURES 3.1).

Site: `z`, the head's slice of the input of the attention output projection, at every position, all heads of
a group at once.  `zero` sets it to 0, `mean` to its mean over a held-out reference batch of the same task,
`resample` to the value it has, position by position, on another prompt of the same length (`reference.py`).

An `Ablator` holds what all groups of one (model, prompts) share: the planner with its clean pass and the
reference.  All modes run on the same prompts, so they can be compared prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, unknown
from causegrid.evidence.effects import bootstrap_mean, effect_interval
from causegrid.headnames import head, head_name
from causegrid.interventions.condition import Condition
from causegrid.interventions.groups import Group, check_heads
from causegrid.interventions.metrics import METRICS
from causegrid.interventions.reference import MODES, Mode, Replacements
from causegrid.interventions.sweep import Planner
from causegrid.interventions.text import window_losses, windows
from causegrid.models.heads import require_attention
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.edit import Edit
from causegrid.tasks import PromptSet, PromptTask

Groups = Mapping[str, Any] | Sequence[Iterable[str]]
Progress = Callable[[int, int | None], None]

_REFERENCE = 100  # reference prompts drawn beside the evaluated ones, at most


class Ablator:
    """Head ablations on one model and one set of prompts.

    Given a task, up to n + min(n, 100) distinct prompts are drawn: the first part is evaluated, the rest is
    the reference; where the task has fewer, both shrink alike.  Given a PromptSet, all of it is evaluated
    and `reference` (another PromptSet, no prompt in common) is needed for `mean` and `resample`.

    Raises InputError for a model without attention heads or without a tokenizer, a state task, and a
    reference that overlaps the evaluated prompts.
    """

    def __init__(
        self,
        model: Model,
        task_or_prompts: PromptTask | PromptSet,
        *,
        n: int = 100,
        seed: int = 0,
        bos: str = "none",
        reference: PromptSet | None = None,
        planner: Planner | None = None,
        batch: int = 64,
        stack: int | None = None,
    ) -> None:
        require_attention(model)
        prompts, held_out = _prompts(model, task_or_prompts, n, seed, bos, reference)
        if planner is None:
            planner = Planner(model, prompts, batch=batch, stack=stack)
        elif planner.model is not model or not _same(planner.prompts, prompts):
            raise InputError("the planner given was made for another model or other prompts")
        self.model = model
        self.prompts = planner.prompts
        self.reference = held_out
        self.planner = planner
        self._values = Replacements(model, planner.prompts, held_out, seed=seed, batch=batch)
        self._digest = self._values.digest

    def conditions(self, groups: Groups, mode: Mode = "mean") -> list[Condition]:
        """The groups as conditions of the planner, heads checked; keyed by layer, so common parts run once."""
        return [self._condition(g.name, g.heads, mode) for g in named(groups, self.model)]

    def table(
        self, groups: Groups, mode: Mode = "mean", *, intervals: bool = True, progress: Progress | None = None
    ) -> pd.DataFrame:
        """One row per group x metric; see `ablate_heads` for the columns.

        `intervals=False` leaves `low` and `high` NaN (null draws do not need them).
        """
        members = named(groups, self.model)
        clean, noise = self.planner.clean, self.planner.noise_floor
        runs = self.planner.run([self._condition(g.name, g.heads, mode) for g in members], progress=progress)
        rows: list[dict[str, Any]] = []
        for group, (_, ablated) in zip(members, runs, strict=True):
            flags = _flags(ablated - clean, noise)
            for column, metric in enumerate(METRICS):
                before, after = clean[:, column], ablated[:, column]
                effect = after - before
                known = ~np.isnan(effect)
                if not known.any():
                    continue
                low, high = effect_interval(effect, metric) if intervals else (np.nan, np.nan)
                rows.append(
                    {
                        "group": group.name,
                        "heads": list(group.heads),
                        "n_heads": len(group.heads),
                        "mode": mode,
                        "metric": metric,
                        "n": int(known.sum()),
                        "baseline": float(before[known].mean()),
                        "ablated": float(after[known].mean()),
                        "effect": float(effect[known].mean()),
                        "low": low,
                        "high": high,
                        "noise": float(noise[column]),
                        "flag": flags[column],
                        "clean": before.tolist(),
                        "values": effect.tolist(),
                    }
                )
        return pd.DataFrame(rows)

    def text_loss(
        self, groups: Groups, mode: Mode = "mean", texts: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Loss on ordinary text under each ablation: `group, mode, n` (windows)`, clean, ablated, increase,
        low, high` (nats per token; the increase's interval is a paired bootstrap over windows of text).

        `mean` uses the reference mean pooled over positions, since the lengths differ; `resample` has no
        value for other text and is refused.
        """
        if mode == "resample":
            raise InputError("mode 'resample' has no donor for ordinary text: allowed are 'zero', 'mean'")
        tokens = windows(self.model, texts)
        clean = window_losses(self.model, tokens)
        rows = []
        for group in named(groups, self.model):
            ablated = window_losses(self.model, tokens, self._edits(group.heads, mode, None))
            change = ablated - clean
            means = (float(clean.mean()), float(ablated.mean()), float(change.mean()))
            rows.append((group.name, mode, len(change), *means, *bootstrap_mean(change)))
        columns = ["group", "mode", "n", "clean", "ablated", "increase", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def _condition(self, name: str, heads: Sequence[str], mode: Mode) -> Condition:
        if mode not in MODES:
            raise unknown("ablation mode", mode, MODES)
        origin: Hashable = None if mode == "zero" else self._digest
        layers = by_layer(heads)
        keys = tuple((mode, origin, tuple(members)) for members in layers.values())
        if mode != "resample":
            return Condition(name, self._edits(heads, mode, self.prompts.lengths), keys)
        self._values.need(layers, mode)
        return Condition(name, lambda index: self._edits(heads, mode, index), keys)

    def _edits(self, heads: Sequence[str], mode: Mode, index: NDArray[np.int64] | None) -> tuple[Edit, ...]:
        """One edit per layer; `index` None asks for values that fit any text."""
        layers = by_layer(heads)
        self._values.need(layers, mode)
        return tuple(
            Edit(
                Site(layer, "z"),
                _writer(members, self._values.value(layer, members, mode, index)),
                f"{mode} {_short(layer, members)}",
            )
            for layer, members in layers.items()
        )


def ablate_heads(
    model: Model,
    task_or_prompts: PromptTask | PromptSet,
    groups: Groups,
    *,
    mode: Mode = "mean",
    n: int = 100,
    seed: int = 0,
    bos: str = "none",
    reference: PromptSet | None = None,
    planner: Planner | None = None,
    batch: int = 64,
    stack: int | None = None,
    intervals: bool = True,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Ablate each group of heads and compare with the untouched model, prompt by prompt (MEASURES 3.1).

    `groups`: name -> heads (`["L3H1"]`, `"L3H1,L5H2"` or a `Group`), or a list of head lists (named
    `draw-0000` ...).  `n`, `seed`, `bos`: prompts drawn when a task is given.

    One row per group x metric: `group, heads` (list)`, n_heads, mode, metric, n` (prompts with a value)`,
    baseline, ablated, effect` (mean of ablated - clean)`, low, high` (95 % bootstrap over prompts)`, noise`
    (largest change of any prompt's clean value between batch layouts)`, flag, clean, values` (lists over
    prompts: clean value, ablated - clean).  `flag` is `exactly zero` when no metric of any prompt changed,
    `within noise` when the metric moved by no more than the noise floor on every prompt.  A metric no
    prompt has (a margin without foils) has no row.

    Raises InputError for heads the model does not have, a model without heads, an unknown mode, and a
    missing or overlapping reference.  For many calls on the same prompts make one `Ablator`.
    """
    ablator = Ablator(
        model,
        task_or_prompts,
        n=n,
        seed=seed,
        bos=bos,
        reference=reference,
        planner=planner,
        batch=batch,
        stack=stack,
    )
    return ablator.table(groups, mode, intervals=intervals, progress=progress)


def named(groups: Groups, model: Model) -> list[Group]:
    """Groups in any accepted form -> checked `Group`s; lists are named `draw-0000` ...  Raises InputError."""
    if isinstance(groups, str):
        raise InputError(
            f"groups must be a dict or a list of head lists, not {groups!r}; write {{'mine': ...}}"
        )
    if isinstance(groups, Mapping):
        pairs = [(str(k), v) for k, v in groups.items()]
    else:
        pairs = [(f"draw-{i:04d}", v) for i, v in enumerate(groups)]
        if any(isinstance(v, str) for _, v in pairs):
            raise InputError(
                'groups must be a dict or a list of head lists, as in [["L3H1", "L5H2"], ["L0H0"]]'
            )
    if not pairs:
        raise InputError("no groups given")
    out = []
    for name, value in pairs:
        target = value.target if isinstance(value, Group) else None
        heads = value.heads if isinstance(value, Group) else value
        if isinstance(heads, Mapping):
            heads, target = heads.get("heads", ()), heads.get("target")
        out.append(Group(name=name, heads=tuple(check_heads(model, heads, f"group {name!r}")), target=target))
    return out


def keep_only(model: Model, heads: str | Iterable[str]) -> list[str]:
    """All heads but these: ablating them keeps only the group (sufficiency).  InputError if none is left."""
    kept = set(check_heads(model, heads))
    every = (head_name(layer, h) for layer in range(model.n_layers) for h in range(model.n_heads))
    others = [name for name in every if name not in kept]
    if not others:
        raise InputError(f"the group holds all heads of {model.name!r}: nothing is left to ablate")
    return others


def all_heads_in_layers(model: Model, heads: str | Iterable[str]) -> list[str]:
    """All heads in the layers the group touches: the upper bound of what its layers do."""
    layers = by_layer(check_heads(model, heads))
    return [head_name(layer, h) for layer in layers for h in range(model.n_heads)]


def singles(heads: Iterable[str]) -> dict[str, list[str]]:
    """Each head alone, named by itself: `{"L3H1": ["L3H1"], ...}`."""
    return {name: [name] for name in (head_name(*head(h)) for h in heads)}


def by_layer(heads: Iterable[str]) -> dict[int, list[int]]:
    """`L3H1` names -> layer -> head indices, both ascending."""
    layers: dict[int, list[int]] = {}
    for layer, index in sorted(head(h) for h in heads):
        layers.setdefault(layer, []).append(index)
    return layers


def _writer(members: list[int], value: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Write `value` (None = 0) into some heads of z (B, L, H, d_h); the edit hands in a copy."""

    def fn(z: Tensor) -> Tensor:
        z[:, :, members] = 0.0 if value is None else value.to(z)
        return z

    return fn


def _short(layer: int, members: list[int]) -> str:
    names = ",".join(head_name(layer, h) for h in members[:4])
    return names + ("..." if len(members) > 4 else "")


def _flags(effects: NDArray[np.float64], noise: NDArray[np.float64]) -> list[str]:
    """Effects (n_prompts, M) of one group -> a flag per metric.

    `exactly zero` when no metric of any prompt changed; `within noise` when none changed by more than its
    noise floor, or this metric changed and did not; else "".
    """
    size = np.nan_to_num(np.abs(effects)).max(0)  # (M,)
    if not size.any():
        return ["exactly zero"] * len(size)
    small = size <= noise
    return ["within noise" if small.all() or (small[i] and size[i] > 0) else "" for i in range(len(size))]


def _prompts(
    model: Model,
    given: PromptTask | PromptSet,
    n: int,
    seed: int,
    bos: str,
    reference: PromptSet | None,
) -> tuple[PromptSet, PromptSet | None]:
    """(evaluated, reference), without a prompt in common."""
    if isinstance(given, PromptSet):
        return given, reference
    if not isinstance(given, PromptTask):
        raise InputError(f"head ablation needs a prompt task or a PromptSet, not {type(given).__name__}")
    if model.tokenizer is None:
        raise InputError(f"{model.name!r} has no tokenizer, which the prompts of {given.name!r} need")
    if n < 1:
        raise InputError(f"n must be at least 1, not {n}")
    if reference is not None:
        return given.prompts(model.tokenizer, n, seed=seed, bos=bos), reference
    extra = min(n, _REFERENCE)
    drawn = given.prompts(model.tokenizer, n + extra, seed=seed, bos=bos)
    if len(drawn) < 2:
        raise InputError(f"task {given.name!r} gave {len(drawn)} prompts: none left to hold out")
    n_kept = min(len(drawn) - 1, max(1, round(len(drawn) * n / (n + extra))))
    return drawn.subset(range(n_kept)), drawn.subset(range(n_kept, len(drawn)))


def _same(a: PromptSet, b: PromptSet) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a.tokens, b.tokens, strict=True))
