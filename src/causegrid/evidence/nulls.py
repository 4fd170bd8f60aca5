"""Nulls: what does ablating heads nobody asked for do, and how extreme is the group against it?

Draws are matched per layer (as many heads, from the layer's *other* heads), distinct, and exhaustive when few
exist: a draw is one number in a mixed radix of per-layer combinations, so sampling distinct draws is sampling
distinct integers, however many there are.  Heads of competing groups are left out, because draws that hit
another circuit inflate the null; where that leaves too few draws only the group itself is left out, and the
draws say so (`contaminated`).
P-values are counts: exceedances are compared after rounding to `TIE`, so that ties count as extreme, and the
p-value is kept as a fraction, so that Holm's comparison with .05 is one of integers (MEASURES 4.1).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from causegrid import headnames
from causegrid.errors import InputError

Heads = str | Iterable[str | tuple[int, int]]
Number = TypeVar("Number", float, Fraction)

TIE = 1e-6  # logits or fractions: effects nearer than half of this are tied
STOP = 10  # exceedances in each direction at which a sequential null stops


class Draws(list[list[str]]):
    """Matched-random draws: a list of lists of heads (`L3H1`, sorted) that knows how it was made.

    `n_possible`: distinct draws that exist.  `exhaustive`: all of them are here.  `contaminated`: heads of
    competing groups had to be let in to reach the number asked for.
    """

    def __init__(
        self, draws: Iterable[list[str]] = (), *, n_possible: int, exhaustive: bool, contaminated: bool
    ) -> None:
        super().__init__(draws)
        self.n_possible = n_possible
        self.exhaustive = exhaustive
        self.contaminated = contaminated


def matched_random(
    heads: Heads,
    *,
    n_heads: int,
    n: int,
    seed: int = 0,
    exclude: Heads | Iterable[Heads] = (),
    own: bool = True,
) -> Draws:
    """`n` distinct random groups with as many heads per layer as `heads`, none of them the group (MEASURES 4.1).

    `n_heads`: heads per layer of the model.  `exclude`: heads of competing groups (one group, or a list or a
    dict of groups), left out when that leaves at least `n` distinct draws, else let in and marked.  If fewer
    than `n` distinct draws exist, all of them, in random order.  Deterministic; the order of `heads` is moot.
    `own`: a draw may hold heads of the group: among heads that are alike the group is then one draw of many, and
    its rank an exact permutation p-value.  Without (as published) the p-value is too small for groups of several
    heads a layer, the more so the fewer others there are (docs/calibration.md).
    Raises InputError: empty group, n < 1, a head the model does not have, a layer with too few other heads.
    """
    group = sorted(headnames.heads(heads))
    others = _flat(exclude)
    if not group:
        raise InputError("a matched null needs a group of at least one head, not an empty one")
    if n < 1:
        raise InputError(f"a matched null needs n >= 1 draws, not {n}")
    for layer, index in [*group, *sorted(others)]:
        if index >= n_heads:
            raise InputError(
                f"there is no head {headnames.head_name(layer, index)}: the model has {n_heads} heads per "
                f"layer (H0 to H{n_heads - 1})"
            )
    counts = Counter(layer for layer, _ in group)
    mine = set(group)
    for layer, k in counts.items():
        if n_heads - k < k:
            raise InputError(
                f"no matched null for {','.join(headnames.head_name(*h) for h in group)}: layer {layer} has "
                f"{n_heads} heads, {k} of them in the group: only {n_heads - k} are left to draw from"
            )
    wide = {layer: [h for h in range(n_heads) if own or (layer, h) not in mine] for layer in counts}
    others -= mine
    narrow = {layer: [h for h in pool if (layer, h) not in others] for layer, pool in wide.items()}
    contaminated = narrow != wide and _possible(narrow, counts) - own < n
    pools = wide if contaminated else narrow
    possible = _possible(pools, counts)  # the group itself among them where `own`
    drawn = (_draw(rank, pools, counts) for rank in _ranks(possible, min(n + own, possible), seed))
    draws = [draw for draw in drawn if not own or sorted(headnames.heads(draw)) != group][:n]
    return Draws(draws, n_possible=possible - own, exhaustive=possible - own <= n, contaminated=contaminated)


def _flat(exclude: Heads | Iterable[Heads]) -> set[tuple[int, int]]:
    if isinstance(exclude, str):
        return set(headnames.heads(exclude))
    parts = list(exclude.values()) if isinstance(exclude, dict) else list(exclude)
    found: set[tuple[int, int]] = set()
    for part in parts:
        is_pair = isinstance(part, tuple) and all(isinstance(x, int | np.integer) for x in part)
        found.update(headnames.heads([part] if is_pair else part))  # type: ignore[list-item, arg-type]
    return found


def _possible(pools: dict[int, list[int]], counts: dict[int, int]) -> int:
    return math.prod(math.comb(len(pools[layer]), k) for layer, k in counts.items())


def _ranks(possible: int, n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    if possible <= 4 * n:
        return rng.sample(range(possible), n)
    ranks: dict[int, None] = {}
    while len(ranks) < n:
        ranks[rng.randrange(possible)] = None
    return list(ranks)


def _draw(rank: int, pools: dict[int, list[int]], counts: dict[int, int]) -> list[str]:
    drawn = []
    for layer, k in counts.items():
        pool = pools[layer]
        rank, digit = divmod(rank, math.comb(len(pool), k))
        drawn += [headnames.head_name(layer, pool[i]) for i in _combination(digit, len(pool), k)]
    return drawn


def _combination(rank: int, size: int, k: int) -> list[int]:
    """The `rank`-th of the C(size, k) ascending combinations in lexicographic order."""
    chosen, item = [], 0
    while k:
        first = math.comb(size - item - 1, k - 1)
        if rank < first:
            chosen.append(item)
            k -= 1
        else:
            rank -= first
        item += 1
    return chosen


@dataclass(frozen=True, kw_only=True)
class P:
    """A two-sided rank p-value over `n` draws, `n_harm` at or below the effect, `n_help` at or above it."""

    n_harm: int
    n_help: int
    n: int

    @property
    def harm(self) -> float:
        """One-sided p of the effect being this low."""
        return (1 + self.n_harm) / (1 + self.n)

    @property
    def help(self) -> float:
        """One-sided p of the effect being this high."""
        return (1 + self.n_help) / (1 + self.n)

    @property
    def exact(self) -> Fraction:
        """The two-sided p as a fraction: min(1, 2 min of the two)."""
        return min(Fraction(1), Fraction(2 * (1 + min(self.n_harm, self.n_help)), 1 + self.n))

    @property
    def exact_min(self) -> Fraction:
        """The smallest p this many draws can give, as a fraction."""
        return min(Fraction(1), Fraction(2, 1 + self.n))

    @property
    def p(self) -> float:
        """The two-sided p."""
        return float(self.exact)

    @property
    def p_min(self) -> float:
        """The smallest p this many draws can give."""
        return float(self.exact_min)

    @property
    def settled(self) -> bool:
        """Whether a sequential null would have stopped here: `STOP` exceedances in both directions."""
        return min(self.n_harm, self.n_help) >= STOP


def ranked(effect: float, null: ArrayLike, *, tie: float = TIE) -> NDArray[np.int8]:
    """-1, 0, 1 per null value (n,): below, tied with (nearer than tie / 2), or above the effect."""
    values = np.asarray(null, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"a null must be one value per draw (1 axis), not shape {values.shape}")
    if np.isnan(effect) or np.isnan(values).any():
        raise InputError("an effect or a null draw is not a number, so it has no rank")
    return np.sign(np.rint((values - effect) / tie)).astype(np.int8)


def pvalue(effect: float, null: ArrayLike, *, tie: float = TIE) -> P:
    """Rank p-value of `effect` against the draws `null` (n,), both directions (MEASURES 4.1).

    One-sided p = (1 + #{null at least as extreme, ties too}) / (1 + n).  Raises InputError: empty null, NaN.
    """
    order = ranked(effect, null, tie=tie)
    if order.size == 0:
        raise InputError("a p-value needs at least one null draw, not none")
    return P(n_harm=int((order <= 0).sum()), n_help=int((order >= 0).sum()), n=order.size)


def holm(ps: Sequence[Number]) -> list[Number]:
    """Holm's step-down adjusted p-values (Holm 1979), in the order given; fractions stay fractions."""
    adjusted = list(ps)
    running: Number = ps[0] * 0 if ps else 0.0  # type: ignore[assignment]
    for step, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        running = max(running, min(ps[i] * (len(ps) - step), ps[i] ** 0))
        adjusted[i] = running
    return adjusted


def benjamini_hochberg(ps: ArrayLike) -> NDArray[np.float64]:
    """Benjamini-Hochberg adjusted p-values (scipy), in the order given; NaN stays NaN and is not counted."""
    array = np.asarray(ps, dtype=np.float64)
    known = ~np.isnan(array)
    adjusted = np.full_like(array, np.nan)
    if known.any():
        adjusted[known] = stats.false_discovery_control(array[known], method="bh")
    return adjusted


def draws_needed(m: int, *, per_group: int = 80, least: int = 99) -> int:
    """Draws for a family of `m` competing groups: max(99, 80 m - 1) (MEASURES 4.1); 40 m - 1 reach .05."""
    return max(least, per_group * m - 1)


class SequentialNull:
    """A null fed draw by draw that stops once the effect is plainly inside it.

    After Besag & Clifford 1991 (Sequential Monte Carlo p-values, Biometrika 78): stops at `stop` exceedances
    in *both* directions.  Values of a chunk after that point are not used, so chunking does not move the p.
    """

    def __init__(self, effect: float, *, stop: int = STOP, tie: float = TIE) -> None:
        if stop < 1:
            raise InputError(f"a sequential null stops at 1 exceedance or more, not {stop}")
        self.effect = effect
        self.values: list[float] = []
        self._stop, self._tie = stop, tie
        self._harm = self._help = 0

    @property
    def done(self) -> bool:
        """Whether more draws would change nothing that matters."""
        return min(self._harm, self._help) >= self._stop

    @property
    def n(self) -> int:
        """Draws used so far."""
        return len(self.values)

    def add(self, values: float | ArrayLike) -> bool:
        """Take one null effect or a chunk of them, in order; True when done."""
        chunk = np.atleast_1d(np.asarray(values, dtype=np.float64))
        for value, order in zip(
            chunk.tolist(), ranked(self.effect, chunk, tie=self._tie).tolist(), strict=True
        ):
            if self.done:
                break
            self.values.append(value)
            self._harm += order <= 0
            self._help += order >= 0
        return self.done

    def pvalue(self) -> P:
        """The p-value from the draws so far.  Raises InputError before the first."""
        if not self.values:
            raise InputError("a p-value needs at least one null draw, not none")
        return P(n_harm=self._harm, n_help=self._help, n=self.n)
