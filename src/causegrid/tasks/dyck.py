"""Nested brackets: depth, and which bracket is on top (MEASURES 1.1).

Tokens: opening bracket of type i is i, closing is k + i.  At depth 0 the walk opens, at the greatest depth it
closes, else 1/2; types are uniform and a closing token matches the top.  Depth is a commutative count equal
to the position modulo 2, so the label `top` (0 = empty, else type + 1), which does need a stack, is always
there beside it.

No loop over tokens: a walk reflected at 0 and at the greatest depth is a free +-1 walk folded by a triangle
wave, and the bracket on top at t is the latest one opened to the depth of t.  For the split guard a sequence
is named by its moves and opening types: the closing types follow from them.

Twins for patching: the rest of a sequence is drawn anew from a position on, given that the token there differs
and every later *move* and opening type stays; closing types follow, so later closing tokens may differ.  With a
free rest the two depths at the end would differ for twenty reasons and no single patch could carry them back.
Only walks that stay within the bounds both ways have such a twin, so far behind the position few are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from causegrid.errors import InputError
from causegrid.tasks.base import MAX_CLASSES, Ints, Split, StateBatch, StateTask, tasks
from causegrid.tasks.splits import draw


class DyckTask(StateTask):
    """`k` bracket types (2k tokens); labels `depth` (0..max_depth) and `top` (0 = empty, else type + 1)."""

    def __init__(self, name: str, *, k: int, max_depth: int) -> None:
        for option, value in (("k", k), ("max_depth", max_depth)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"task {name!r}: {option} must be an integer >= 1, not {value!r}")
            if value >= MAX_CLASSES:
                raise InputError(
                    f"task {name!r}: {option}={value} makes more than {MAX_CLASSES} classes; take at most "
                    f"{MAX_CLASSES - 1}"
                )
        if k == 1 and max_depth == 1:
            raise InputError(f"task {name!r} has a single sequence at k=1, max_depth=1: raise one")
        self.name = name
        self.k = k
        self.max_depth = max_depth
        self.n_tokens = 2 * k
        self.labels = {"depth": max_depth + 1, "top": k + 1}
        self.note = f"nested brackets of {k} types, depth 0..{max_depth}, and the top bracket"

    def sample(self, n: int, length: int, *, seed: int | Sequence[int], split: Split) -> StateBatch:
        """`n` sequences (n, L), a function of (seed, split, n, length).  InputError: bad size or seed."""

        def propose(rng: np.random.Generator, m: int) -> Ints:
            moves = 2 * rng.integers(0, 2, size=(m, length), dtype=np.int64) - 1
            depth = self._fold(np.cumsum(moves, axis=1))
            kinds = rng.integers(1, self.k + 1, size=(m, length), dtype=np.int64)
            return np.where(self._opens(depth), kinds, 0)

        codes = draw(propose, n, length, seed=seed, split=split, task=self.name)
        tokens, labels = self._read(codes)
        return StateBatch(tokens=tokens, labels=labels)

    def labels_of(self, tokens: Ints) -> dict[str, Ints]:
        """`depth` and `top` after every token of legal sequences, (B, L) each."""
        return self._read(self.split_names(tokens))[1]

    def split_names(self, tokens: Ints) -> Ints:
        """Codes (B, L): 0 = close, else the opened type + 1."""
        return np.where(tokens < self.k, tokens + 1, 0)

    def twins(self, tokens: Ints, position: int, rng: np.random.Generator) -> Ints:
        """At `position` the other move, or another type opened; see the module for what follows."""
        codes = self.split_names(tokens)
        now, many = codes[:, position], len(codes)
        fresh = rng.integers(1, self.k + 1, size=many)
        other = (
            (now - 1 + rng.integers(1, self.k, size=many)) % self.k + 1 if self.k > 1 else np.zeros_like(now)
        )
        closes = rng.random(many) < 0.5
        codes[:, position] = np.where(now == 0, fresh, np.where(closes, 0, other))
        depth = np.cumsum(np.where(codes > 0, 1, -1), axis=1)
        legal = np.logical_and(depth >= 0, depth <= self.max_depth).all(axis=1, keepdims=True)
        return np.where(legal, self._read(codes)[0], tokens)

    def _read(self, codes: Ints) -> tuple[Ints, dict[str, Ints]]:
        """Codes (B, L) -> tokens (B, L) and labels."""
        opens = codes > 0
        depth = np.cumsum(np.where(opens, 1, -1), axis=1)
        top = self._top(codes, depth)
        under = np.zeros_like(top)  # top before each token
        under[:, 1:] = top[:, :-1]
        return np.where(opens, codes, self.k + under) - 1, {"depth": depth, "top": top}

    def _fold(self, walk: Ints) -> Ints:
        phase = walk % (2 * self.max_depth)
        return np.minimum(phase, 2 * self.max_depth - phase)

    def _opens(self, depth: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        opens = np.ones(depth.shape, dtype=bool)  # the first token always opens
        opens[:, 1:] = depth[:, 1:] > depth[:, :-1]
        return opens

    def _top(self, codes: Ints, depth: Ints) -> Ints:
        base = self.k + 1
        when = np.arange(codes.shape[1], dtype=np.int64) * base
        top = np.zeros_like(codes)
        for level in range(1, int(depth.max(initial=0)) + 1):
            here = depth == level
            opened = np.where(here & (codes > 0), when + codes, 0)
            latest = np.maximum.accumulate(opened, axis=1)
            np.copyto(top, latest % base, where=here)
        return top


@tasks.register("dyck")
def dyck(name: str, *, k: int = 2, max_depth: int = 10) -> StateTask:
    """Nested brackets of k types: depth 0..max_depth, and the type of the top bracket."""
    return DyckTask(name, k=k, max_depth=max_depth)
