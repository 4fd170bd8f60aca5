"""Prompts of ragged lengths, in batches of equal length.

No padding is ever needed: prompts of one length go together, so a padded row cannot reach a score
(MEASURES 1.4).  Every measure on prompts streams through this one function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causegrid.errors import InputError
from causegrid.tasks.base import PromptSet

Ints = NDArray[np.int64]
Prompts = PromptSet | Sequence[Any] | NDArray[np.integer[Any]]


def token_lists(prompts: Prompts) -> list[Ints]:
    """A prompt set, a (B, L) array or a list of token lists -> one 1-D array per prompt.

    Raises InputError when there is no prompt or one is empty.
    """
    given = prompts.tokens if isinstance(prompts, PromptSet) else prompts
    lists = [np.asarray(t, dtype=np.int64).reshape(-1) for t in given]
    if not lists:
        raise InputError("no prompts given: at least one is needed")
    empty = [i for i, t in enumerate(lists) if t.size == 0]
    if empty:
        raise InputError(f"prompt {empty[0]} is empty: every prompt needs at least one token")
    return lists


def equal_length_batches(lists: Sequence[Ints], batch_size: int) -> Iterator[tuple[Ints, Ints]]:
    """(indices (b,), tokens (b, L)) for every batch; lengths ascending, order kept within a length."""
    lengths = np.array([len(t) for t in lists])
    for length in np.unique(lengths):
        index = np.flatnonzero(lengths == length)
        for start in range(0, len(index), batch_size):
            part = index[start : start + batch_size]
            yield part.astype(np.int64), np.stack([lists[i] for i in part])  # (b,), (b, L)
