"""Train, validation and test sequences that never overlap (MEASURES 1.1).

Two guards.  Seed streams: the random stream is a function of (seed, split), so two splits never share one.
Hash: a sequence of 20 tokens or more *belongs* to one split by a hash of its tokens, and sampling rejects
the others; a test sequence can then never have been trained on, whatever seeds were used.  Shorter
sequences are enumerable (2^19 at most matter for parity) and have the streams alone.

The hash is a fixed linear form over 2^64 with a final mix, so that it is one matrix product for a batch and
the same on every machine.  Train holds three quarters of the sequences, validation and test an eighth each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from causegrid.errors import InputError, unknown
from causegrid.tasks.base import Ints, Split

SPLITS: tuple[Split, ...] = ("train", "val", "test")
GUARDED = 20  # length from which a sequence belongs to one split
EIGHTHS = {"train": 6, "val": 1, "test": 1}
_BOUNDS = np.cumsum([EIGHTHS[s] for s in SPLITS])
_CHUNK = 4_000_000  # tokens proposed at once, at most
_ROUNDS = 200

Propose = Callable[[np.random.Generator, int], Ints]


def stream(seed: int | Sequence[int], key: int) -> np.random.Generator:
    """The random stream of (seed, key).  Raises InputError unless seeds are integers >= 0."""
    parts = list(seed) if isinstance(seed, Sequence) else [seed]
    if not parts or any(not isinstance(p, (int, np.integer)) or p < 0 for p in parts):
        raise InputError(f"not a seed: {seed!r}; allowed are an integer >= 0 or a sequence of them")
    words = [len(parts)]
    for part in parts:
        words += [int(part) & 0xFFFFFFFF, int(part) >> 32]
    return np.random.default_rng(np.random.SeedSequence(words, spawn_key=(key,)))


@lru_cache(maxsize=64)
def _weights(length: int) -> NDArray[np.uint64]:
    return _mix((np.arange(length, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def split_of(codes: Ints) -> NDArray[np.int64]:
    """Index into `SPLITS` of each sequence, codes (B, L) -> (B,); a function of the row alone."""
    codes = np.ascontiguousarray(codes, dtype=np.int64)
    linear = codes.view(np.uint64) @ _weights(codes.shape[1])  # (B,), modulo 2^64
    eighth = _mix(linear + np.uint64(codes.shape[1])) >> np.uint64(61)  # 0..7
    return np.searchsorted(_BOUNDS, eighth.astype(np.int64), side="right")


def draw(
    propose: Propose, n: int, length: int, *, seed: int | Sequence[int], split: Split, task: str
) -> Ints:
    """`n` sequences (n, L) of this split, a function of (seed, split, n, length).

    `propose(rng, m)` gives m candidate rows (m, L): the tokens, or any code that names the token sequence
    one to one.  Raises InputError for a bad size, seed or split, and when a task has too few different
    sequences of this length to fill the split.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if n < 0 or length < 1:
        raise InputError(f"task {task!r} cannot sample {n} sequences of {length} tokens: n >= 0, length >= 1")
    index = SPLITS.index(split)
    rng = stream(seed, index)
    if length < GUARDED or n == 0:
        return propose(rng, n)
    share = EIGHTHS[split] / 8
    kept: list[Ints] = []
    missing = n
    for _ in range(_ROUNDS + n * length // _CHUNK * 8):
        batch = min(int(missing / share * 1.15) + 16, max(1, _CHUNK // length))
        rows = propose(rng, batch)
        rows = rows[split_of(rows) == index][:missing]
        kept.append(rows)
        missing -= len(rows)
        if missing == 0:
            return kept[0] if len(kept) == 1 else np.concatenate(kept)
    raise InputError(f"task {task!r} has too few sequences of {length} tokens to fill a {split} split")
