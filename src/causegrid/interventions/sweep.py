"""The planner: many interventions on the same prompts, at a fraction of the naive cost.

The naive loop hooks the model and runs it whole, once per condition, for logits at every position.  Here

- the clean pass runs once and leaves the residual at every block boundary, so a condition whose first edit
  is in block l starts at block l (an edit of block l's output starts at block l + 1);
- only logits at the query position are computed, and reduced to per-prompt metrics at once;
- conditions that edit the same sites are stacked into one batch where one alone leaves the machine idle;
- equal conditions (equal `key`) are computed once, also across runs of one planner, so the nulls of several
  groups share their draws;
- conditions come from any iterable and are taken in chunks, sorted inside a chunk only: memory does not
  grow with their number, and a caller who has seen enough closes the generator.

Values equal the naive loop's: bit for bit at equal batch shapes (`stack=1`), to rounding otherwise.
Prompts are batched by equal length and never padded.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, InterventionError
from causegrid.interventions.metrics import METRICS, Targets, metric_values
from causegrid.models.forward import call, evaluating
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.edit import Edit, edit
from causegrid.sites.hooks import tap
from causegrid.sites.prefix import skip_blocks
from causegrid.sites.table import blocks, require
from causegrid.tasks import PromptSet

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
EditsFor = Callable[[Ints], Sequence[Edit]]
Metric = Callable[[Tensor, Ints], Tensor]

_KEPT_RESIDUALS = 2**30  # bytes of boundary residuals kept between chunks; beyond it they are recomputed
_KEPT_RESULTS = 10_000  # conditions remembered by key
_ALONE = 4  # prompts of each batch run one by one for the noise floor
_FULL_BATCH = {"cpu": 1024, "cuda": 32_768}  # tokens that fill the device


@dataclass(frozen=True)
class Condition:
    """One intervention: edits in force together.

    `edits` is a tuple, or a function from the prompts' indices (B,) in the planner's prompt set to the edits
    for that batch (all of one length), for edits that differ by prompt or by length; the sites must be the
    same in every batch.  Conditions with equal `key` (hashable, None = never equal) must be the same
    intervention: they are computed once.
    """

    name: str
    edits: tuple[Edit, ...] | EditsFor
    key: Hashable = None

    def on(self, index: Ints) -> tuple[Edit, ...]:
        """The edits for the prompts at `index`."""
        return self.edits if isinstance(self.edits, tuple) else tuple(self.edits(index))


@dataclass(frozen=True)
class _Batch:
    """Prompts of one length: their indices (B,), token ids (B, L)."""

    index: Ints
    tokens: Tensor


def _start(one: Edit, n_layers: int) -> int:
    """First block that must run for this edit to act."""
    after = one.site.kind == "resid_post" and one.site.layer < n_layers - 1
    return one.site.layer + 1 if after else max(one.site.layer, 0)


def _placed(edits: tuple[Edit, ...], start: int) -> tuple[Edit, ...]:
    """The edits with those at block start - 1's output moved to the same tensor, block start's input."""
    first = [
        replace(e, site=replace(e.site, layer=start, kind="resid_pre"))
        for e in edits
        if e.site.kind == "resid_post" and e.site.layer == start - 1
    ]
    rest = [e for e in edits if not (e.site.kind == "resid_post" and e.site.layer == start - 1)]
    return (*first, *rest)


def _stacked(per_condition: list[tuple[Edit, ...]]) -> tuple[Edit, ...]:
    """K conditions with the same sites, (B, ...) each -> edits that act on (K B, ...) block by block."""
    if len(per_condition) == 1:
        return per_condition[0]

    def over(members: tuple[Edit, ...]) -> Edit:
        def fn(value: Tensor) -> Tensor:
            for part, one in zip(value.chunk(len(members)), members, strict=True):
                new = one.fn(part)
                if new is part:
                    continue
                if new.shape != part.shape or new.dtype != part.dtype:
                    raise InterventionError(
                        f"{one.label} at {one.site} turned {tuple(part.shape)} {part.dtype} into "
                        f"{tuple(new.shape)} {new.dtype}: an edit keeps shape and dtype"
                    )
                shared = new.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
                part.copy_(new.clone() if shared else new)
            return value

        return Edit(members[0].site, fn, members[0].label)

    return tuple(over(members) for members in zip(*per_condition, strict=True))


class Planner:
    """The clean pass over some prompts, and any number of conditions run against it.

    `metric(logits, index)` maps query-position logits (..., B, V) of the prompts at `index` to values
    (..., B, M); by default M runs over `METRICS`.  `batch`: prompts of equal length per forward.  `stack`:
    conditions per forward (None = as many as fill the device).  `reuse=False` runs every block every time.
    """

    def __init__(
        self,
        model: Model,
        prompts: PromptSet,
        *,
        batch: int = 64,
        reuse: bool = True,
        stack: int | None = None,
        metric: Metric | None = None,
    ) -> None:
        if len(prompts) == 0:
            raise InputError(f"no prompts of {prompts.task!r} to run {model.name!r} on")
        if batch < 1 or (stack is not None and stack < 1):
            raise InputError(f"batch and stack must be at least 1, not {batch} and {stack}")
        self.model = model
        self.prompts = prompts
        self.batch = batch
        self.reuse = reuse
        self.stack = stack
        self._metric = metric or _task_metric(model, prompts)
        self._batches = _batches(model, prompts, batch)
        self._clean: Floats | None = None
        self._noise: Floats | None = None
        self._kept: dict[int, list[Tensor]] = {}
        self._results: OrderedDict[Hashable, Floats] = OrderedDict()

    @property
    def clean(self) -> Floats:
        """Per-prompt values (n_prompts, M) of the untouched model; the pass runs once."""
        if self._clean is None:
            parts = []
            room = _KEPT_RESIDUALS if self.reuse else 0
            for i, group in enumerate(self._batches):
                values, residuals = self._clean_pass(group, record=room > 0)
                parts.append(values)
                room -= sum(r.numel() * r.element_size() for r in residuals)
                if room > 0:
                    self._kept[i] = residuals
            self._clean = self._gather(parts)
        return self._clean

    @property
    def noise_floor(self) -> Floats:
        """Per metric (M,), how far any prompt's clean value moves between batch layouts (MEASURES 3): half
        batches, the stacked layout conditions are run in, and some prompts one by one."""
        if self._noise is None:
            floor = np.zeros(self.clean.shape[1])
            for part in self._batches:
                rows = len(part.index)
                half = max(1, (rows + 1) // 2)
                pieces = [slice(s, s + half) for s in range(0, rows, half)]
                pieces += [slice(s, s + 1) for s in range(min(rows, _ALONE))]
                others = [(self._values(self._forward(part.tokens[p]), part.index[p]), p) for p in pieces]
                stack = self._stack_of(part) if self._stack_of(part) > 1 else 2
                tiled = self._forward(part.tokens.repeat(stack, 1))  # (K B, V)
                stacked = self._values(tiled.view(stack, len(part.index), -1), part.index)
                others += [(layer, slice(None)) for layer in stacked]
                for values, piece in others:
                    moved = np.abs(values - self.clean[part.index[piece]])  # (rows, M)
                    floor = np.maximum(floor, np.nan_to_num(moved).max(axis=0))
            self._noise = floor
        return self._noise

    def run(
        self,
        conditions: Iterable[Condition],
        *,
        chunk: int = 256,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Iterator[tuple[str, Floats]]:
        """Yield (name, values (n_prompts, M)) per condition, in the order given.

        `chunk` conditions are taken from the iterable at a time.  `progress(done, total)`, total None when
        the number of conditions is not known.  Raises InputError for a site the model does not have or a
        condition without edits, InterventionError when an edit did not fire.
        """
        if chunk < 1:
            raise InputError(f"chunk must be at least 1, not {chunk}")
        total = len(conditions) if isinstance(conditions, Sequence) else None
        done = 0
        source = iter(conditions)
        while members := list(itertools.islice(source, chunk)):
            found = self._chunk(members)
            for one, values in zip(members, found, strict=True):
                done += 1
                if progress is not None:
                    progress(done, total)
                yield one.name, values

    def _chunk(self, members: list[Condition]) -> list[Floats]:
        """Values of each condition; equal keys are computed once, in order of the first edited block."""
        todo: dict[Hashable, Condition] = {}
        keys: list[Hashable] = []
        for i, one in enumerate(members):
            keys.append(("position", i) if one.key is None else ("key", one.key))
            if keys[-1] not in self._results:
                todo.setdefault(keys[-1], one)
        found = self._compute(todo)
        out = []
        for key in keys:
            values = found[key] if key in found else self._results[key]
            if key[0] == "key":  # type: ignore[index]
                self._results[key] = values
                self._results.move_to_end(key)
            out.append(values.copy())
        while len(self._results) > _KEPT_RESULTS:
            self._results.popitem(last=False)
        return out

    def _compute(self, todo: dict[Hashable, Condition]) -> dict[Hashable, Floats]:
        if not todo:
            return {}
        parts: dict[Hashable, list[Floats]] = {key: [] for key in todo}
        self.clean  # noqa: B018  (the clean pass leaves the residuals)
        for i, group in enumerate(self._batches):
            plan: dict[tuple[int, tuple[Site, ...]], list[tuple[Hashable, tuple[Edit, ...]]]] = {}
            for key, one in todo.items():
                edits = one.on(group.index)
                if not edits:
                    raise InputError(f"condition {one.name!r} has no edits")
                for each in edits:
                    require(self.model, each.site, "edit")
                start = min(_start(e, self.model.n_layers) for e in edits) if self.reuse else 0
                placed = _placed(edits, start) if start else edits
                plan.setdefault((start, tuple(e.site for e in placed)), []).append((key, placed))
            residuals = self._residuals(i, group) if self.reuse else []
            size = self._stack_of(group)
            for start, sites in sorted(plan, key=lambda p: (p[0], str(p[1]))):
                same = plan[start, sites]
                for s in range(0, len(same), size):
                    stack = same[s : s + size]
                    edits = _stacked([e for _, e in stack])
                    tokens, stored = group.tokens, residuals[start - 1] if start else None
                    if len(stack) > 1:
                        tokens = tokens.repeat(len(stack), 1)
                        stored = None if stored is None else stored.repeat(len(stack), 1, 1)
                    logits = self._forward(tokens, edits, start, stored)  # (K B, V)
                    values = self._values(logits.view(len(stack), len(group.index), -1), group.index)
                    for (key, _), each_values in zip(stack, values, strict=True):
                        parts[key].append(each_values)
        return {key: self._gather(found) for key, found in parts.items()}

    def _forward(
        self,
        tokens: Tensor,
        edits: tuple[Edit, ...] = (),
        start: int = 0,
        stored: Tensor | None = None,
    ) -> Tensor:
        """Query-position logits (B, V) float32, with blocks below `start` skipped."""
        with ExitStack() as scope:
            scope.enter_context(evaluating(self.model.module))
            scope.enter_context(torch.no_grad())
            if stored is not None:
                scope.enter_context(skip_blocks(self.model, start, stored))
            if edits:
                scope.enter_context(edit(self.model, *edits))
            return call(self.model, tokens, last=True).float()

    def _clean_pass(self, group: _Batch, *, record: bool) -> tuple[Floats, list[Tensor]]:
        """Clean values (B, M) and, when recorded, the inputs of blocks 1.. (B, L, d)."""
        residuals: list[Tensor] = []

        def keep(value: Tensor) -> None:
            residuals.append(value.detach().clone())

        with ExitStack() as scope:
            if record:
                for block in blocks(self.model)[1:]:
                    scope.callback(tap(block, "input", keep).remove)
            logits = self._forward(group.tokens)
        if record and len(residuals) != self.model.n_layers - 1:
            raise InterventionError(
                f"{self.model.name}: {len(residuals) + 1} blocks ran in the clean pass instead of "
                f"{self.model.n_layers}"
            )
        return self._values(logits, group.index), residuals

    def _residuals(self, i: int, group: _Batch) -> list[Tensor]:
        return self._kept[i] if i in self._kept else self._clean_pass(group, record=True)[1]

    def _values(self, logits: Tensor, index: Ints) -> Floats:
        values: Floats = self._metric(logits, index).double().cpu().numpy()
        return values

    def _gather(self, parts: list[Floats]) -> Floats:
        """Per-batch values -> the prompts' own order, (n_prompts, M)."""
        out = np.empty((len(self.prompts), parts[0].shape[-1]))
        for group, values in zip(self._batches, parts, strict=True):
            out[group.index] = values
        return out

    def _stack_of(self, group: _Batch) -> int:
        if self.stack is not None:
            return self.stack
        full = _FULL_BATCH.get(self.model.device.type, _FULL_BATCH["cpu"])
        return max(1, full // group.tokens.numel())


def _batches(model: Model, prompts: PromptSet, batch: int) -> list[_Batch]:
    lengths = prompts.lengths
    found = []
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        for s in range(0, len(members), batch):
            index = members[s : s + batch].astype(np.int64)
            ids = np.stack([np.asarray(prompts.tokens[i], dtype=np.int64) for i in index])
            found.append(_Batch(index, torch.from_numpy(ids).to(model.device)))
    return found


def _task_metric(model: Model, prompts: PromptSet) -> Metric:
    targets = Targets.of(prompts, model.device)
    for kind, ids in (("answer", targets.answers), ("foil", targets.foils)):
        if int(ids.max()) >= model.n_out:
            raise InputError(
                f"{kind} token {int(ids.max())} of {prompts.task!r} is outside the {model.n_out} logits of "
                f"{model.name!r}: these prompts were made for another tokenizer"
            )

    def metric(logits: Tensor, index: Ints) -> Tensor:
        return metric_values(logits, targets.rows(index))

    return metric


def sweep(
    model: Model,
    prompts: PromptSet,
    conditions: Iterable[Condition],
    *,
    batch: int = 64,
    reuse: bool = True,
    stack: int | None = None,
    chunk: int = 256,
    metric: Metric | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Iterator[tuple[str, Floats]]:
    """Yield (name, per-prompt values (n_prompts, M)) for every condition, in the order given.

    One `Planner` and one `run` of it: see there.  Columns are `METRICS` unless a `metric` is given.
    """
    planner = Planner(model, prompts, batch=batch, reuse=reuse, stack=stack, metric=metric)
    yield from planner.run(conditions, chunk=chunk, progress=progress)


def column(values: Floats, metric: str) -> Floats:
    """One metric's column of values (n_prompts, 5)."""
    return values[:, METRICS.index(metric)]
