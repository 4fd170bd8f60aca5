"""The planner: many interventions on the same prompts, at a fraction of the naive cost.

The naive loop hooks the model and runs it whole, once per condition, for logits at every position.  Here

- the clean pass runs once and leaves the residual at every block boundary, so a condition whose first edit
  is in block l starts at block l (an edit of block l's output starts at block l + 1);
- conditions whose first edits are equal share what these do, up to the block where they part
  (`shared_prefix.py`): null draws that begin with the same head are one run until their second head;
- only logits at the query position are computed, from a last MLP that runs at that position alone, and
  reduced to per-prompt metrics at once;
- conditions that edit the same sites are stacked into one batch where one alone leaves the machine idle;
- equal conditions (equal `keys`) are computed once, also across runs of one planner, so the nulls of several
  groups share their draws;
- conditions come from any iterable and are taken in chunks, arranged inside a chunk only: memory does not
  grow with their number, and a caller who has seen enough closes the generator.

Values equal the naive loop's: bit for bit at equal batch shapes (`stack=1`, where the last MLP runs in full
too), to rounding otherwise.
Prompts are batched by equal length and never padded.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, InterventionError
from causegrid.interventions.condition import Condition, Ints, stacked
from causegrid.interventions.metrics import METRICS, Targets, metric_values
from causegrid.interventions.shared_prefix import Node, Step, alike, steps, tree
from causegrid.interventions.ticker import Ticker
from causegrid.models.forward import call, evaluating
from causegrid.models.record import Model
from causegrid.sites.edit import Edit, edit
from causegrid.sites.hooks import tap
from causegrid.sites.prefix import mlp_at_query, query_mlp, skip_blocks, stop_before
from causegrid.sites.table import blocks, require
from causegrid.tasks import PromptSet

Floats = NDArray[np.float64]
Metric = Callable[[Tensor, Ints], Tensor]

KEPT_RESIDUALS = 2**30  # bytes of boundary residuals kept between chunks; beyond it they are recomputed
FORKS = 2**30  # bytes of residuals that conditions waiting to run may hold
_KEPT_RESULTS = 10_000  # conditions remembered by key
_ALONE = 4  # prompts of each batch run one by one for the noise floor
CHUNK = 512  # conditions taken at a time: enough for a null's draws to share what they have in common
FULL_BATCH = {"cpu": 1024, "cuda": 32_768}  # tokens that fill the device


@dataclass(frozen=True)
class _Batch:
    """Prompts of one length: their indices (B,), token ids (B, L)."""

    index: Ints
    tokens: Tensor


class Planner:
    """The clean pass over some prompts, and any number of conditions run against it.

    `metric(logits, index)` maps query-position logits (..., B, V) of the prompts at `index` to values
    (..., B, M); by default M runs over `METRICS`.  `batch`: prompts of equal length per forward.  `stack`:
    conditions per forward (None = as many as fill the device).  `reuse=False` runs every block in full.
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
        self._query_only = reuse and stack != 1
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
            room = KEPT_RESIDUALS if self.reuse else 0
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
                others = [
                    (self._values(self._clean_logits(part.tokens[p]), part.index[p]), p) for p in pieces
                ]
                stack = self._stack_of(part) if self._stack_of(part) > 1 else 2
                tiled = self._clean_logits(part.tokens.repeat(stack, 1))  # (K B, V)
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
        chunk: int = CHUNK,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Iterator[tuple[str, Floats]]:
        """Yield (name, values (n_prompts, M)) per condition, in the order given.

        `chunk` conditions are taken from the iterable at a time.  `progress(done, total)` is called as they
        are computed, total None when the number of conditions is not known.  Raises InputError for a site the
        model does not have or a condition without edits, InterventionError when an edit did not fire.
        """
        if chunk < 1:
            raise InputError(f"chunk must be at least 1, not {chunk}")
        total = len(conditions) if isinstance(conditions, Sequence) else None
        done = 0
        source = iter(conditions)
        while members := list(itertools.islice(source, chunk)):
            tick = Ticker(progress, done, len(members), total)
            found = self._chunk(members, tick)
            tick.close()
            done += len(members)
            for one, values in zip(members, found, strict=True):
                yield one.name, values

    def _chunk(self, members: list[Condition], tick: Ticker) -> list[Floats]:
        """Values of each condition; those with equal keys are computed once."""
        todo: dict[Hashable, Condition] = {}
        keys: list[Hashable] = []
        for i, one in enumerate(members):
            keys.append(("keys", one.named(self._batches[0].index)) if one.keys else ("position", i))
            if keys[-1] not in self._results:
                todo.setdefault(keys[-1], one)
        tick.share = len(self._batches) * len(todo) / len(members)
        found = self._compute(todo, tick)
        out = []
        for key in keys:
            values = found[key] if key in found else self._results[key]
            if key[0] == "keys":  # type: ignore[index]
                self._results[key] = values
                self._results.move_to_end(key)
            out.append(values.copy())
        while len(self._results) > _KEPT_RESULTS:
            self._results.popitem(last=False)
        return out

    def _compute(self, todo: dict[Hashable, Condition], tick: Ticker) -> dict[Hashable, Floats]:
        if not todo:
            return {}
        parts: dict[Hashable, list[Floats]] = {key: [] for key in todo}
        self.clean  # noqa: B018  (the clean pass leaves the residuals)
        for i, group in enumerate(self._batches):
            paths = []
            for key, one in todo.items():
                edits = one.on(group.index)
                for each in edits:
                    require(self.model, each.site, "edit")
                # without reuse a condition is one step of its own, from the first block on
                own = [Step(0, edits, object())]
                paths.append((key, steps(edits, one.keys, self.model.n_layers) if self.reuse else own))
            residuals = self._residuals(i, group) if self.reuse else []
            kept = group.tokens.numel() * self.model.d_model * 4
            size = max(1, self._stack_of(group), FORKS // kept)
            found: dict[Hashable, Tensor] = {}
            for some in alike(paths, size):
                for key, values in self._grow(tree(some), group, residuals):
                    found[key] = values
                    tick()
            rows = torch.stack(list(found.values())).cpu().numpy()  # the one wait for the device
            for key, own in zip(found, rows, strict=True):
                parts[key].append(own)
        return {key: self._gather(per_batch) for key, per_batch in parts.items()}

    def _grow(
        self, roots: list[Node], group: _Batch, residuals: list[Tensor]
    ) -> Iterator[tuple[Hashable, Tensor]]:
        """Run a tree of conditions upwards, block by block; yields each condition's values (B, M)."""
        waiting: dict[int, list[tuple[Node, Tensor | None]]] = {}
        for node in roots:
            waiting.setdefault(node.start, []).append(
                (node, residuals[node.start - 1] if node.start else None)
            )
        rows, size = len(group.index), self._stack_of(group)
        while waiting:
            start = min(waiting)
            alike: dict[Hashable, list[tuple[Node, Tensor | None]]] = {}
            for node, stored in waiting.pop(start):
                alike.setdefault((node.sites, node.stop), []).append((node, stored))
            for members in alike.values():
                for s in range(0, len(members), size):
                    stack = members[s : s + size]
                    nodes = [node for node, _ in stack]
                    inputs = [stored for _, stored in stack if stored is not None]
                    tokens = group.tokens if len(stack) == 1 else group.tokens.repeat(len(stack), 1)
                    logits, found = self._forward(
                        tokens,
                        stacked([node.edits for node in nodes]),
                        start,
                        None if not inputs else inputs[0] if len(inputs) == 1 else torch.cat(inputs),
                        keep={child.start for node in nodes for child in node.children},
                        stop=nodes[0].stop,
                    )
                    for k, node in enumerate(nodes):
                        mine = slice(k * rows, (k + 1) * rows)
                        for child in node.children:
                            waiting.setdefault(child.start, []).append((child, found[child.start][mine]))
                    if logits is None:
                        continue
                    values = self._metric(logits.view(len(stack), rows, -1), group.index).double()
                    for node, own in zip(nodes, values, strict=True):
                        yield from ((key, own) for key in node.ends)

    def _forward(
        self,
        tokens: Tensor,
        edits: tuple[Edit, ...] = (),
        start: int = 0,
        stored: Tensor | None = None,
        *,
        keep: Collection[int] = (),
        stop: int | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Query-position logits (B, V) float32 and what the blocks in `keep` are handed, (B, L, d).

        That is the output of the block below, after anybody's hooks on it.  Blocks below `start` are skipped;
        with `stop` the run ends before that block, without logits.
        """
        found: dict[int, Tensor] = {}

        def keeper(block: int) -> Callable[[Tensor], None]:
            def copy(value: Tensor) -> None:
                found[block] = value.detach().clone()

            return copy

        logits: Tensor | None = None
        with ExitStack() as scope:
            scope.enter_context(evaluating(self.model.module))
            scope.enter_context(torch.no_grad())
            if self._query_only and stop is None:
                mlp = query_mlp(self.model, (one.site for one in edits))
                scope.enter_context(mlp_at_query(mlp))
            if stored is not None:
                scope.enter_context(skip_blocks(self.model, start, stored))
            if edits:
                scope.enter_context(edit(self.model, *edits))
            stack = blocks(self.model)
            for block in keep:
                scope.callback(tap(stack[block - 1], "output", keeper(block)).remove)
            if stop is not None:
                scope.enter_context(stop_before(self.model, stop))
            logits = call(self.model, tokens, last=True).float()
        missing = sorted(set(keep) - set(found))
        if missing:
            raise InterventionError(f"{self.model.name}: blocks {missing} did not run where conditions part")
        return logits, found

    def _clean_pass(self, group: _Batch, *, record: bool) -> tuple[Floats, list[Tensor]]:
        """Clean values (B, M) and, when recorded, the inputs of blocks 1.. (B, L, d)."""
        wanted = range(1, self.model.n_layers) if record else ()
        logits, found = self._forward(group.tokens, keep=wanted)
        assert logits is not None
        return self._values(logits, group.index), [found[block] for block in wanted]

    def _clean_logits(self, tokens: Tensor) -> Tensor:
        logits, _ = self._forward(tokens)
        assert logits is not None
        return logits

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
        full = FULL_BATCH.get(self.model.device.type, FULL_BATCH["cpu"])
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
    chunk: int = CHUNK,
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
