"""Word problems of finite groups: the state is the running product of the tokens (MEASURES 1.1).

Tokens are iid uniform over *all* elements and the start is the identity (element 0), so every state is
equally likely at every position.  Composition order: products are read left to right, `a * b` = "apply a
first, then b"; the state after token t is tokens 0, 1, .., t applied in the order read.

Elements.  `z<n>`: k = rotation by k.  `s<n>`: all permutations of n points in lexicographic order of their
images, `a<n>`: the even ones; a permutation p sends point i to p[i].  `d<n>`: k + n f = rotate by k, then
flip (i -> -i) if f = 1.  Permutation groups `s<n>` have a second label, `sign` (0 even, 1 odd).

Running products are a prefix scan: log2(L) table look-ups over the whole batch, no loop over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import factorial

import numpy as np
from numpy.typing import NDArray

from causegrid.errors import InputError
from causegrid.tasks.base import Ints, Split, StateBatch, StateTask, tasks
from causegrid.tasks.splits import draw

MAX_ORDER = 120
_NUMBER = r"(0|[1-9]\d*)"
_SMALLEST = {"z": "z2", "s": "s2", "a": "a3", "d": "d1"}


class GroupTask(StateTask):
    """Tokens are group elements, labels `state` (the running product) and, for `s<n>`, `sign`.

    `table` (G, G) holds the products: `table[a, b]` = a first, then b; `sign` (G,) or None.
    """

    def __init__(self, name: str, table: Ints, sign: Ints | None = None, note: str = "") -> None:
        self.name = name
        self.note = note
        self.table = table
        self.sign = sign
        self.n_tokens = len(table)
        self.labels = {"state": len(table)} if sign is None else {"state": len(table), "sign": 2}

    def sample(self, n: int, length: int, *, seed: int | Sequence[int], split: Split) -> StateBatch:
        """`n` sequences (n, L), a function of (seed, split, n, length).  InputError: bad size or seed."""

        def propose(rng: np.random.Generator, m: int) -> Ints:
            return rng.integers(0, self.n_tokens, size=(m, length), dtype=np.int64)

        tokens = draw(propose, n, length, seed=seed, split=split, task=self.name)
        return StateBatch(tokens=tokens, labels=self.labels_of(tokens))

    def labels_of(self, tokens: Ints) -> dict[str, Ints]:
        """`state` and, where there is one, `sign` at every position, (B, L) each."""
        labels = {"state": running_product(self.table, tokens)}
        if self.sign is not None:
            labels["sign"] = self.sign[labels["state"]]
        return labels

    def twins(self, tokens: Ints, position: int, rng: np.random.Generator) -> Ints:
        """Another element at `position`: every later state differs, the sign where the elements' signs do."""
        changed = tokens.copy()
        changed[:, position] += rng.integers(1, self.n_tokens, size=len(tokens))
        changed[:, position] %= self.n_tokens
        return changed


def running_product(table: Ints, tokens: Ints) -> Ints:
    """Products of tokens 0..t in the order read, (B, L) -> (B, L)."""
    flat, order = table.reshape(-1), len(table)
    product = tokens.copy()
    shift = 1
    while shift < tokens.shape[1]:
        earlier, later = product[:, :-shift], product[:, shift:]
        product[:, shift:] = flat[earlier * order + later]
        shift *= 2
    return product


def cyclic(n: int) -> Ints:
    """Product table (n, n) of the rotations of n points."""
    k = np.arange(n)
    table: Ints = (k[:, None] + k[None, :]) % n
    return table


def dihedral(n: int) -> Ints:
    """Product table (2n, 2n) of the symmetries of an n-gon: rotate by k, then flip if f."""
    k, f = np.arange(2 * n) % n, np.arange(2 * n) // n
    turn = np.where(f == 1, -1, 1)  # a flip reverses the rotations that follow it
    rotation = (k[:, None] + turn[:, None] * k[None, :]) % n
    table: Ints = rotation + n * (f[:, None] ^ f[None, :])
    return table


def permutation_list(n: int, *, even_only: bool = False) -> Ints:
    """All (or the even) permutations of n points in lexicographic order, (G, n)."""
    every = np.array(list(permutations(range(n))), dtype=np.int64).reshape(factorial(n), n)
    return every[parity_of(every) == 0] if even_only else every


def parity_of(perms: Ints) -> Ints:
    """0 for even, 1 for odd permutations, (G, n) -> (G,): inversions modulo 2."""
    later = np.triu(np.ones((perms.shape[1],) * 2, dtype=bool), 1)
    inversions: Ints = ((perms[:, :, None] > perms[:, None, :]) & later).sum(axis=(1, 2))
    return inversions % 2


def permutation_table(perms: Ints) -> Ints:
    """Product table of a closed, lexicographically ordered list of permutations (G, n) -> (G, G)."""
    count, n = perms.shape
    rows: NDArray[np.int64] = np.arange(count)[None, :, None]
    composed = perms[rows, perms[:, None, :]]  # (G, G, n): b[a[i]], a first, then b
    place = n ** np.arange(n)[::-1]
    table: Ints = np.searchsorted(perms @ place, composed @ place).astype(np.int64)
    return table


def _size(name: str) -> int:
    kind, digits = name[0], name[1:]
    n = int(digits) if len(digits) <= 3 else MAX_ORDER + 1
    text = {"z": digits, "d": f"2 x {digits}", "s": f"{digits}!", "a": f"{digits}!/2"}[kind]
    if n == 0:
        raise InputError(f"group {name!r} does not exist, n starts at 1: take {_SMALLEST[kind]!r}")
    order = MAX_ORDER + 1
    if n <= MAX_ORDER:
        order = {"z": n, "d": 2 * n, "s": factorial(n), "a": max(1, factorial(n) // 2)}[kind]
    if order > MAX_ORDER:
        exact = f" = {order}" if n <= 10 and text != str(order) else ""
        raise InputError(f"group {name!r} has order {text}{exact}, over the limit of {MAX_ORDER} states")
    if order == 1:
        raise InputError(f"group {name!r} has order 1, nothing to track: take {_SMALLEST[kind]!r}")
    return n


@tasks.register("parity")
def parity(name: str) -> StateTask:
    """Parity of the ones so far: the word problem of Z2."""
    return GroupTask(name, cyclic(2), note="parity of the ones so far (Z2), 2 states")


@tasks.register("z6")
@tasks.register("z<n>", pattern="z" + _NUMBER)
def z(name: str) -> StateTask:
    """Running sum modulo n: the cyclic group; z6 is the abelian control for s3."""
    n = _size(name)
    return GroupTask(name, cyclic(n), note=f"running sum modulo {n}, {n} states")


@tasks.register("s3")
@tasks.register("s<n>", pattern="s" + _NUMBER)
def s(name: str) -> StateTask:
    """Running product of permutations of n points (non-commutative from n = 3), with their sign."""
    n = _size(name)
    perms = permutation_list(n)
    note = f"running product of permutations of {n} points, {len(perms)} states, and its sign"
    return GroupTask(name, permutation_table(perms), parity_of(perms), note)


@tasks.register("a<n>", pattern="a" + _NUMBER)
def a(name: str) -> StateTask:
    """Running product of even permutations of n points (not solvable from n = 5)."""
    n = _size(name)
    perms = permutation_list(n, even_only=True)
    return GroupTask(
        name, permutation_table(perms), note=f"running product of even permutations, {len(perms)} states"
    )


@tasks.register("d<n>", pattern="d" + _NUMBER)
def d(name: str) -> StateTask:
    """Running product of the rotations and flips of an n-gon."""
    n = _size(name)
    return GroupTask(name, dihedral(n), note=f"running product of symmetries of a {n}-gon, {2 * n} states")
