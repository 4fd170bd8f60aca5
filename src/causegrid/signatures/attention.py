"""Attention rows of the query position, for all prompts of a set, taken once and scored by every screen.

Rows are float32 whatever the model's dtype, left-aligned, and zero beyond each prompt's own last token;
the query is always that last token.  Only the query row is ever computed (MEASURES 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causegrid.errors import InputError
from causegrid.models.heads import require_attention
from causegrid.models.record import Model
from causegrid.signatures.batches import Ints, Prompts, equal_length_batches, token_lists
from causegrid.tasks.base import PromptSet

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """`rows` (n_layers, B, H, L): softmax weights of each prompt's last position; `lengths` (B,);
    `positions[name]` (B,), -1 where that prompt has none; `task` is only named in messages.

    Entries at or beyond a prompt's length are set to zero, whatever was passed.
    Raises InputError when shapes disagree or a position lies outside its prompt.
    """

    rows: Floats
    lengths: Ints
    positions: Mapping[str, Ints] = field(default_factory=dict)
    task: str = ""

    def __post_init__(self) -> None:
        rows, lengths = np.asarray(self.rows), np.asarray(self.lengths, dtype=np.int64)
        if rows.ndim != 4 or lengths.shape != (rows.shape[1],):
            raise InputError(
                f"attention rows of shape {rows.shape} with lengths {lengths.shape}: "
                "rows must be (n_layers, B, H, L) and lengths (B,)"
            )
        if lengths.min() < 1 or lengths.max() > rows.shape[3]:
            raise InputError(f"prompt lengths must lie in 1..{rows.shape[3]}, the width of the rows")
        real = np.arange(rows.shape[3]) < lengths[:, None]  # (B, L)
        object.__setattr__(self, "rows", np.where(real[:, None, :], rows, np.float32(0)))
        object.__setattr__(self, "lengths", lengths)
        for name, index in self.positions.items():
            if np.any((np.asarray(index) >= lengths) | (np.asarray(index) < -1)):
                raise InputError(f"position {name!r} lies outside its prompt for some prompts")

    @property
    def n_layers(self) -> int:
        return int(self.rows.shape[0])

    @property
    def n_heads(self) -> int:
        return int(self.rows.shape[2])

    @property
    def query(self) -> Ints:
        """Index of the query position, (B,)."""
        return self.lengths - 1

    def __len__(self) -> int:
        return int(self.rows.shape[1])

    def keep(self, which: Ints | NDArray[np.bool_]) -> Attention:
        """The prompts selected by an index or boolean array."""
        return Attention(
            rows=self.rows[:, which],
            lengths=self.lengths[which],
            positions={k: np.asarray(v)[which] for k, v in self.positions.items()},
            task=self.task,
        )

    def having(self, names: Sequence[str], *, wanted_by: str) -> Attention:
        """The prompts that have every named position.

        Raises InputError naming the task's positions when one is unknown or no prompt is left.
        """
        missing = [n for n in names if n not in self.positions]
        known = ", ".join(self.positions) or "none"
        of_task = f"task {self.task!r}" if self.task else "this prompt set"
        if missing:
            raise InputError(
                f"{wanted_by} needs the named position{'s' * (len(names) > 1)} {', '.join(names)}; "
                f"{of_task} has {known}"
            )
        present = np.ones(len(self), dtype=bool)
        for name in names:
            present &= np.asarray(self.positions[name]) >= 0
        if not present.any():
            raise InputError(f"{wanted_by}: no prompt of {of_task} has all of {', '.join(names)}")
        return self if present.all() else self.keep(present)

    def at(self, index: Ints) -> Floats:
        """Attention to one position per prompt: index (B,) -> (n_layers, B, H)."""
        gathered = np.take_along_axis(self.rows, np.asarray(index)[None, :, None, None], axis=3)
        return gathered[..., 0]

    def mass(self, name: str) -> Floats:
        """Attention to a named position, mean over prompts: (n_layers, H)."""
        return np.asarray(self.at(self.positions[name]).mean(axis=1, dtype=np.float64))

    def elsewhere(self, left_out: Sequence[Ints], *, first: bool) -> Floats:
        """Mean attention to the positions that are not `left_out` (each (B,), entries below 0 ignored), per
        prompt, then over prompts: (n_layers, H).  `first=False` leaves position 0 out too.

        Prompts with no position left are left out; raises InputError when that is every prompt.
        """
        slots = np.arange(self.rows.shape[3])
        other = slots < self.lengths[:, None]  # (B, L)
        for index in left_out:
            other &= slots != np.asarray(index)[:, None]
        if not first:
            other[:, 0] = False
        count = other.sum(axis=1)
        usable = count > 0
        if not usable.any():
            raise InputError("the prompts are too short: no position is left to compare the target with")
        weight = np.where(usable[:, None], other / np.maximum(count, 1)[:, None], 0.0) / usable.sum()
        return np.asarray(np.einsum("lbhp,bp->lh", self.rows, weight, optimize=True))


def attention(model: Model, prompts: Prompts, *, batch_size: int = 32) -> Attention:
    """Query rows of every prompt at every layer, batched by equal length.

    `prompts`: a PromptSet (its named positions come along), a (B, L) array, or a list of token lists.
    Raises InputError when the model has no attention.
    """
    require_attention(model)
    from causegrid.sites.rows import query_rows

    lists = token_lists(prompts)
    lengths = np.array([len(t) for t in lists], dtype=np.int64)
    rows = np.zeros((model.n_layers, len(lists), model.n_heads, int(lengths.max())), dtype=np.float32)
    for index, tokens in equal_length_batches(lists, batch_size):
        got = query_rows(model, tokens).float().cpu().numpy()  # (n_layers, b, H, L)
        rows[:, index, :, : tokens.shape[1]] = got
    if not isinstance(prompts, PromptSet):
        return Attention(rows=rows, lengths=lengths)
    return Attention(rows=rows, lengths=lengths, positions=dict(prompts.positions), task=prompts.task)
