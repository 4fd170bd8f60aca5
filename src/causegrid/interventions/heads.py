"""Head ablation: what removing attention heads does to a task, prompt by prompt (MEASURES 3.1).

Site: `z`, the head's slice of the input of the attention output projection, at every position, all heads of
a group at once.  `zero` sets it to 0, `mean` to its mean over a held-out reference batch of the same task
(per position when every prompt, evaluated or reference, has the same length; over all positions otherwise),
`resample` to the value it has, position by position, on another prompt of the same length.

An `Ablator` holds what all groups of one (model, prompts) share: the planner with its clean pass and the
reference.  All modes run on the same prompts, so they can be compared prompt by prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, unknown
from causegrid.evidence.effects import bootstrap_mean
from causegrid.headnames import head, head_name
from causegrid.interventions.groups import Group, check_heads, require_heads
from causegrid.interventions.metrics import METRICS
from causegrid.interventions.sweep import Condition, Planner
from causegrid.interventions.text import token_loss, windows
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.capture import capture
from causegrid.sites.edit import Edit
from causegrid.tasks import PromptSet, PromptTask

Mode = Literal["zero", "mean", "resample"]
MODES: tuple[Mode, ...] = ("zero", "mean", "resample")
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
        require_heads(model)
        prompts, held_out = _prompts(model, task_or_prompts, n, seed, bos, reference)
        if planner is None:
            planner = Planner(model, prompts, batch=batch, stack=stack)
        elif planner.model is not model or not _same(planner.prompts, prompts):
            raise InputError("the planner given was made for another model or other prompts")
        self.model = model
        self.prompts = planner.prompts
        self.reference = held_out
        self.planner = planner
        self.seed = seed
        self._means: dict[int, Tensor] = {}  # layer -> (L, H, d_h)
        self._pooled: dict[int, Tensor] = {}  # layer -> (H, d_h)
        self._donated: dict[int, dict[int, Tensor]] = {}  # layer -> length -> (prompts of it, L, H, d_h)
        lengths = self.prompts.lengths
        rank = {int(length): np.flatnonzero(lengths == length) for length in np.unique(lengths)}
        self._members = rank  # length -> prompts of it, ascending
        self._digest = _digest(held_out, seed)

    def conditions(self, groups: Groups, mode: Mode = "mean") -> list[Condition]:
        """The groups as conditions of the planner, heads checked; equal head sets share a key."""
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
            for column, metric in enumerate(METRICS):
                before, after = clean[:, column], ablated[:, column]
                effect = after - before
                known = ~np.isnan(effect)
                if not known.any():
                    continue
                low, high = bootstrap_mean(effect) if intervals else (np.nan, np.nan)
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
                        "flag": _flag(effect[known], float(noise[column])),
                        "clean": before.tolist(),
                        "values": effect.tolist(),
                    }
                )
        return pd.DataFrame(rows)

    def text_loss(
        self, groups: Groups, mode: Mode = "mean", texts: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Loss on ordinary text under each ablation: `group, mode, clean, ablated, increase` (nats per
        token).  `mean` uses the reference mean pooled over positions, since the lengths differ; `resample`
        has no value for other text and is refused.
        """
        if mode == "resample":
            raise InputError("mode 'resample' has no donor for ordinary text: allowed are 'zero', 'mean'")
        tokens = windows(self.model, texts)
        clean = token_loss(self.model, tokens)
        rows = []
        for group in named(groups, self.model):
            ablated = token_loss(self.model, tokens, self._edits(group.heads, mode, None))
            rows.append((group.name, mode, clean, ablated, ablated - clean))
        return pd.DataFrame(rows, columns=["group", "mode", "clean", "ablated", "increase"])

    def _condition(self, name: str, heads: Sequence[str], mode: Mode) -> Condition:
        if mode not in MODES:
            raise unknown("ablation mode", mode, MODES)
        origin: Hashable = None if mode == "zero" else self._digest
        key = ("heads", mode, origin, frozenset(heads))
        self._need(by_layer(heads), mode)
        if mode == "resample":
            return Condition(name, lambda index: self._edits(heads, mode, index), key)
        return Condition(name, self._edits(heads, mode, self.prompts.lengths), key)

    def _edits(self, heads: Sequence[str], mode: Mode, index: NDArray[np.int64] | None) -> tuple[Edit, ...]:
        """One edit per layer; `index` None asks for values that fit any text."""
        layers = by_layer(heads)
        self._need(layers, mode)
        edits = []
        for layer, members in layers.items():
            value: Tensor | None
            if mode == "zero":
                value = None
            elif mode == "mean" and index is not None and layer in self._means:
                value = self._means[layer][:, members]  # (L, h, d_h)
            elif mode == "mean":
                value = self._pooled[layer][members]  # (h, d_h)
            else:
                assert index is not None
                length = len(self.prompts.tokens[int(index[0])])
                row = np.searchsorted(self._members[length], index)
                rows = torch.from_numpy(row).to(self.model.device)
                value = self._donated[layer][length][rows][:, :, members]  # (B, L, h, d_h)
            edits.append(Edit(Site(layer, "z"), _writer(members, value), f"{mode} {_short(layer, members)}"))
        return tuple(edits)

    def _need(self, layers: Iterable[int], mode: Mode) -> None:
        """Read from the reference what these layers need and is not there yet, in one pass."""
        if mode == "zero":
            return
        if self.reference is None:
            raise InputError(
                f"mode {mode!r} needs prompts apart from the evaluated ones: give reference=, or a task "
                "instead of a PromptSet (or mode='zero')"
            )
        have: Mapping[int, Any] = self._pooled if mode == "mean" else self._donated
        missing = [layer for layer in layers if layer not in have]
        if not missing:
            return
        sites = [Site(layer, "z") for layer in missing]
        if mode == "resample":
            donors = self._donors()
            for length, members in self._members.items():
                z = self._read([donors[i] for i in members], sites)
                for layer, one in zip(missing, z, strict=True):
                    self._donated.setdefault(layer, {})[length] = one
            return
        one_length = len({*self.prompts.lengths.tolist(), *self.reference.lengths.tolist()}) == 1
        sums: list[Tensor | float] = [0.0] * len(missing)  # per position when there is one length
        n_tokens = 0
        lengths = self.reference.lengths
        for length in np.unique(lengths):
            tokens = [self.reference.tokens[int(i)] for i in np.flatnonzero(lengths == length)]
            for k, one in enumerate(self._read(tokens, sites)):
                sums[k] = sums[k] + one.sum((0,) if one_length else (0, 1), dtype=torch.float64)
            n_tokens += len(tokens) * int(length)
        for layer, total in zip(missing, sums, strict=True):
            assert isinstance(total, Tensor)
            if one_length:
                self._means[layer] = total / len(self.reference)
                total = total.sum(0)
            self._pooled[layer] = total / n_tokens

    def _read(self, tokens: Sequence[NDArray[np.int64]], sites: list[Site]) -> list[Tensor]:
        """`z` (n, L, H, d_h) at each site for prompts of one length."""
        parts: list[list[Tensor]] = [[] for _ in sites]
        for s in range(0, len(tokens), self.planner.batch):
            ids = torch.from_numpy(np.stack(tokens[s : s + self.planner.batch]).astype(np.int64))
            found = capture(self.model, ids, sites)
            for part, spot in zip(parts, sites, strict=True):
                part.append(found[str(spot)])
        return [torch.cat(part) for part in parts]

    def _donors(self) -> list[NDArray[np.int64]]:
        """For each evaluated prompt, another prompt's tokens of equal length: from the reference where it
        has one, else from the other evaluated prompts.  A function of the seed."""
        assert self.reference is not None
        rng = np.random.default_rng(self.seed)
        lengths = self.reference.lengths
        donors = []
        for i, tokens in enumerate(self.prompts.tokens):
            pool = [self.reference.tokens[int(j)] for j in np.flatnonzero(lengths == len(tokens))]
            if not pool:
                pool = [self.prompts.tokens[int(j)] for j in self._members[len(tokens)] if j != i]
            if not pool:
                raise InputError(
                    f"no other prompt has the {len(tokens)} tokens of {self.prompts.texts[i]!r}: "
                    "mode 'resample' needs one of equal length; use more prompts or mode 'mean'"
                )
            donors.append(pool[int(rng.integers(len(pool)))])
        return donors


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
    prompts: clean value, ablated - clean).  `flag` is `exactly zero` when no prompt changed at all, `within
    noise` when none changed by more than the noise floor.  A metric no prompt has (a margin without foils)
    has no row.

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


def _flag(effect: NDArray[np.float64], noise: float) -> str:
    if not effect.any():
        return "exactly zero"
    return "within noise" if float(np.abs(effect).max()) <= noise else ""


def _prompts(
    model: Model,
    given: PromptTask | PromptSet,
    n: int,
    seed: int,
    bos: str,
    reference: PromptSet | None,
) -> tuple[PromptSet, PromptSet | None]:
    """(evaluated, reference), without a prompt in common."""
    if isinstance(given, PromptTask):
        if model.tokenizer is None:
            raise InputError(f"{model.name!r} has no tokenizer, which the prompts of {given.name!r} need")
        if n < 1:
            raise InputError(f"n must be at least 1, not {n}")
        if reference is not None:
            prompts = given.prompts(model.tokenizer, n, seed=seed, bos=bos)
            return prompts, _apart(prompts, reference)
        extra = min(n, _REFERENCE)
        drawn = given.prompts(model.tokenizer, n + extra, seed=seed, bos=bos)
        if len(drawn) < 2:
            raise InputError(
                f"task {given.name!r} gave {len(drawn)} prompts: too few to hold a reference out"
            )
        n_kept = min(len(drawn) - 1, max(1, round(len(drawn) * n / (n + extra))))
        return drawn.subset(range(n_kept)), drawn.subset(range(n_kept, len(drawn)))
    if not isinstance(given, PromptSet):
        raise InputError(f"head ablation needs a prompt task or a PromptSet, not {type(given).__name__}")
    return given, None if reference is None else _apart(given, reference)


def _apart(prompts: PromptSet, reference: PromptSet) -> PromptSet:
    """The reference, if it holds prompts and none of the evaluated ones."""
    if len(reference) == 0:
        raise InputError("the reference holds no prompts")
    seen = {np.asarray(t).tobytes() for t in prompts.tokens}
    common = sum(np.asarray(t).tobytes() in seen for t in reference.tokens)
    if common:
        raise InputError(f"{common} of {len(reference)} reference prompts are among the evaluated ones")
    return reference


def _same(a: PromptSet, b: PromptSet) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a.tokens, b.tokens, strict=True))


def _digest(reference: PromptSet | None, seed: int) -> str:
    """Names a reference, so that planners shared by two ablators do not mix their results."""
    digest = hashlib.sha256(str(seed).encode())
    for tokens in reference.tokens if reference is not None else ():
        digest.update(np.asarray(tokens, dtype=np.int64).tobytes() + b"|")
    return digest.hexdigest()
