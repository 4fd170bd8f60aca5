"""How a prompt task draws its prompts: distinct combinations of words, variants in turn.

A prompt is a mixed-radix number (which name, which other name, which place, ...); drawing numbers without
replacement gives distinct prompts with no retries, and all of them when fewer exist than were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from math import prod

import numpy as np

from causegrid.errors import InputError
from causegrid.tasks.base import Ints, PromptSet
from causegrid.tasks.tokens import Draft, Encoder, prompt_set


def check_count(task: str, n: int) -> None:
    """Raise InputError unless at least one prompt is asked for."""
    if n < 1:
        raise InputError(f"task {task!r}: the number of prompts must be at least 1, not {n}")


def distinct(rng: np.random.Generator, sizes: Sequence[int], count: int) -> Ints:
    """Up to `count` distinct rows (count, len(sizes)), column j uniform over 0..sizes[j]-1."""
    total = prod(sizes)
    numbers = rng.choice(total, size=min(count, total), replace=False)
    return np.stack(np.unravel_index(numbers, tuple(sizes)), axis=1).astype(np.int64)


def others(pick: Sequence[int]) -> list[int]:
    """Ranks among the items *not yet taken* -> item indices, all different: (2, 2, 0) -> [2, 3, 0]."""
    taken: list[int] = []
    for rank in pick:
        item = int(rank)
        for used in sorted(taken):
            item += used <= item
        taken.append(item)
    return taken


def interleave(by_variant: Sequence[Sequence[Draft]]) -> list[Draft]:
    """The variants in turn: first of each, second of each, ..."""
    return [d for turn in zip_longest(*by_variant) for d in turn if d is not None]


def assemble(task: str, encoder: Encoder, drafts: Sequence[Draft], dropped: Sequence[str]) -> PromptSet:
    """Tokenise; a prompt this tokenizer cannot place is left out and listed.  InputError if none is left."""
    refused: list[str] = []

    def refuse(index: int, reason: str) -> None:
        refused.append(f"prompt {drafts[index].text!r}: {reason}")

    made = prompt_set(task, encoder, drafts, refuse=refuse, dropped=dropped)
    if not len(made):
        raise InputError(f"task {task!r}: this tokenizer leaves no usable prompt; the first: {refused[0]}")
    return replace(made, dropped=[*dropped, *refused]) if refused else made
