"""Clean and corrupted sequences for activation patching (MEASURES 3.4).

A twin differs from its clean sequence at one position (for `dyck` also in later closing types, see there), and
its label at the readout is another one.  Both are legal sequences of the task and both belong to the split that
was asked for, so no twin was ever trained on, and no clean sequence comes twice (both from 20 tokens on: shorter
ones can be enumerated; twins of `code-depth` are edits of the split's files and pass for theirs).  Candidates that
fail are drawn again, a bounded number of times.  Labels of both come from `labels_of(tokens)`, never from how the
twin was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from causegrid.errors import InputError, unknown
from causegrid.tasks.base import Ints, Split, StateTask
from causegrid.tasks.splits import GUARDED, SPLITS, split_of, stream

_KEY = 1000  # of the random stream, apart from the splits'
_ROUNDS = 8
_CHUNK = 400_000  # tokens of candidates in one round, at most


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """`clean`, `corrupt` (n, L) token ids; `labels_clean`, `labels_corrupt` label name -> (n, L); the tokens differ
    first at `position`, the label named `label` at `readout` (both counted from the start)."""

    clean: Ints
    corrupt: Ints
    labels_clean: Mapping[str, Ints]
    labels_corrupt: Mapping[str, Ints]
    label: str
    position: int
    readout: int

    def __len__(self) -> int:
        return len(self.clean)


def pairs(
    task: StateTask,
    n: int,
    length: int,
    *,
    seed: int | Sequence[int],
    position: int | None = None,
    readout: int = -1,
    label: str | None = None,
    least: int | None = None,
    split: Split = "test",
) -> Pairs:
    """`n` pairs of `length` tokens, changed at `position` (None = the middle, L // 2), a function of the seed.

    `label` (None = the trained one) differs at `readout`.  Where pairs are rare there may be fewer, but at least
    `least` (None = n).  Raises InputError for a bad size, position, readout, label or split, for a task without
    twins, and when too few candidates have such a twin.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    name = task.label if label is None else label
    if name not in task.labels:
        raise unknown(f"label of task {task.name!r}:", name, task.labels)
    if n < 1 or length < 2:
        raise InputError(
            f"task {task.name!r}: {n} pairs of {length} tokens: at least 1 pair of 2 tokens is needed"
        )
    at = length // 2 if position is None else position
    for what, where in (("position", at), ("readout", readout)):
        if not -length <= where < length:
            raise InputError(f"{what} {where} is out of range: the sequences have {length} tokens")
    at, read = at % length, readout % length
    if read < at:
        raise InputError(f"readout {read} stands before the changed position {at}: nothing differs there")
    index = SPLITS.index(split)
    parts = list(seed) if isinstance(seed, Sequence) else [seed]
    rng = stream(parts, _KEY + index)
    most = max(1, _CHUNK // length)
    found: dict[bytes, tuple[Ints, Ints]] = {}  # in the order drawn
    tried, size = 0, min(most, 16 * n + 64)
    for turn in range(_ROUNDS):
        clean = task.sample(size, length, seed=[*parts, _KEY, turn], split=split).tokens
        corrupt = task.twins(clean, at, rng)
        keep = corrupt[:, at] != clean[:, at]
        keep &= task.labels_of(clean)[name][:, read] != task.labels_of(corrupt)[name][:, read]
        if length >= GUARDED and not task.edited_twins:
            keep &= split_of(task.split_names(corrupt)) == index
        for i in np.flatnonzero(keep).tolist():
            key = clean[i].tobytes() if length >= GUARDED else len(found).to_bytes(8, "big")
            found.setdefault(key, (clean[i], corrupt[i]))
        tried += size
        size = min(most, 64 + int(2 * n * tried / len(found))) if found else most
        if len(found) >= n or (turn and not found):
            break
    if len(found) < min(n, n if least is None else max(1, least)):
        raise InputError(
            f"task {task.name!r}: only {len(found)} of {tried} sequences of {length} tokens have a legal twin that "
            f"differs at position {at} and in {name!r} at {read}, and {n if least is None else least} are needed: "
            "take a position nearer to the readout, another length, or fewer pairs"
        )
    chosen = list(found.values())[:n]
    first, second = (np.stack([pair[i] for pair in chosen]) for i in (0, 1))
    return Pairs(
        clean=first,
        corrupt=second,
        labels_clean=task.labels_of(first),
        labels_corrupt=task.labels_of(second),
        label=name,
        position=at,
        readout=read,
    )
