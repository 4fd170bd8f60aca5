"""A reading: one group's effect on one metric beside its null, read from the tables `ablate_heads` gives.

The tables are checked once, here, so that the rules work on plain numbers.  Heads are compared as sets, so
neither the order of rows nor the order of heads matters.  A null row belongs to the group named in its
`null_for`, else to every group with as many heads in each layer; a draw that is the group or repeats another is
dropped, and one that shares a head with it unless it names the group: such draws count for the p-value alone,
since what they do is in part what the group does.  Mean, sd, z and specificity are of the draws `apart` from the
group, and unknown where there is none.  Where the null was measured on some of the prompts only, the
group's effect against it (`matched`) is taken on the same prompts (MEASURES 4.1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from causegrid import headnames
from causegrid.errors import InputError, unknown
from causegrid.evidence import effects as sizes
from causegrid.evidence.effects import Floats, as_values, effect_interval
from causegrid.evidence.nulls import P, pvalue, ranked
from causegrid.evidence.origin import CleanTable
from causegrid.evidence.thresholds import Thresholds

Head = tuple[int, int]
SLACK = 1e-9  # comparisons with a threshold: what differs by less is equal
NEEDED = ("group", "heads", "metric", "baseline", "ablated", "effect")


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One row of an effects table: `values` and `clean` (n,) per prompt, empty when the table has none."""

    group: str
    heads: tuple[Head, ...]
    mode: str
    metric: str
    n: int | None  # prompts with a value; None when the table does not say
    baseline: float
    ablated: float
    effect: float
    low: float
    high: float
    chance: float
    noise: float  # largest change of a clean value between batch layouts
    values: Floats
    clean: Floats
    prompts: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A measured effect and its null."""

    measured: Measured
    null: Floats  # (n_null,) effects of the draws
    apart: Floats  # (n_apart,) those of the draws without a head of the group
    matched: float  # the effect on the draws' prompts
    n_prompts: int  # how many prompts those are
    foreign: bool  # some draw holds a head of a competing group
    own: bool  # some draw holds a head of the group itself
    thresholds: Thresholds

    @property
    def effect(self) -> float:
        return self.measured.effect

    @property
    def defined(self) -> bool:
        """False when the metric does not exist here: a margin without a foil."""
        return not (math.isnan(self.measured.effect) or math.isnan(self.measured.baseline))

    @property
    def removable(self) -> float:
        m = self.measured
        return sizes.removable(m.metric, m.baseline, chance=m.chance)

    @property
    def headroom(self) -> float:
        return sizes.headroom(self.measured.metric, self.measured.baseline)

    @property
    def minimum(self) -> float:
        """The minimum effect of interest."""
        m, t = self.measured, self.thresholds
        return sizes.minimum_effect(
            m.metric, m.baseline, chance=m.chance, share=t.minimum_share, floor=t.minimum_accuracy
        )

    @cached_property
    def null_mean(self) -> float:
        return float(self.apart.mean()) if self.apart.size else math.nan

    @cached_property
    def null_sd(self) -> float:
        return float(self.apart.std(ddof=1)) if self.apart.size > 1 else math.nan

    @property
    def z(self) -> float:
        """(effect - null mean) / null sd; NaN when the null does not vary."""
        return (self.matched - self.null_mean) / self.null_sd if self.null_sd > 0 else math.nan

    @cached_property
    def p(self) -> P | None:
        """Rank p-value against the null; None without one."""
        return pvalue(self.matched, self.null) if self.defined and self.null.size else None

    def as_extreme(self, draws: Floats) -> int:
        """How many of some draws go as far as the group, in its direction (ties as the p-value counts them)."""
        sign = -1 if self.matched < 0 else 1
        return int((sign * ranked(self.matched, draws) >= 0).sum())

    @cached_property
    def specificity(self) -> float:
        """|effect| / max(mean of max(0, sign(effect) x null), 0.5 % of the removable part) (MEASURES 4.1)."""
        if not self.apart.size:
            return math.nan
        with_it = float(np.maximum(0.0, np.sign(self.matched) * self.apart).mean())
        floor = max(with_it, self.thresholds.specificity_floor * self.removable)
        return abs(self.matched) / floor if floor > 0 else (math.inf if self.matched else 0.0)

    @property
    def excludes_zero(self) -> bool:
        return self.measured.low > 0 or self.measured.high < 0

    @property
    def large_enough(self) -> bool:
        return abs(self.effect) >= self.minimum - SLACK

    @property
    def negligible(self) -> bool:
        """Whether the interval lies inside +- the minimum effect."""
        return inside(self.measured.low, self.measured.high, self.minimum)

    @property
    def within_noise(self) -> bool:
        """Whether a margin moved less than between batch layouts (accuracies move in whole prompts)."""
        m = self.measured
        return m.metric not in sizes.ACCURACIES and abs(m.effect) <= m.noise

    @property
    def saturated(self) -> bool:
        """Group and null both at the floor: less than the minimum effect is left of the removable part."""
        m = self.measured
        floor = (0.0 if m.metric == "logit_diff" else m.chance) + self.minimum + SLACK
        return bool(self.null.size) and m.ablated <= floor and m.baseline + self.null_mean <= floor

    @property
    def unreliable(self) -> str:
        """Why the null cannot be relied on; empty when it can."""
        t = self.thresholds
        if 0 < self.apart.size < 2 <= self.null.size:
            return f"1 of its {self.null.size} random draws holds none of its heads, so their spread is not known"
        if -self.null_mean > t.null_removes * self.removable + SLACK:
            share = -self.null_mean / self.removable if self.removable else math.inf
            return f"the random draws alone remove {share:.0%} of what can be removed"
        if self.null_sd > t.null_spread * self.removable + SLACK:
            share = self.null_sd / self.removable if self.removable else math.inf
            return f"the random draws spread over {share:.0%} of what can be removed (sd)"
        return ""


def inside(low: float, high: float, bound: float) -> bool:
    """Whether [low, high] lies inside +- bound; False for an unknown interval."""
    return -bound - SLACK <= low and high <= bound + SLACK


def measured(table: pd.DataFrame, what: str, *, seed: int = 0) -> list[Measured]:
    """The rows of an effects table.  Raises InputError: a missing column, a group without heads."""
    absent = [c for c in NEEDED if c not in table.columns]
    if absent:
        raise InputError(
            f"{what}: column {absent[0]!r} is missing; ablate_heads gives a table with {', '.join(NEEDED)}"
        )
    return [_row(record, what, seed) for record in table.to_dict("records")]


def _row(record: Mapping[Any, Any], what: str, seed: int) -> Measured:
    group, heads = str(record["group"]), head_set(record["heads"])
    if not heads:
        raise InputError(f"{what}: group {group!r} has no heads")
    values, clean = as_values(record.get("values")), as_values(record.get("clean"))
    metric = str(record["metric"])
    baseline, ablated, effect = (float(record[c]) for c in ("baseline", "ablated", "effect"))
    known = ~np.isnan(values)
    if values.size and known.any() and not known.all():
        effect = float(values[known].mean())
        if clean.size == values.size:
            baseline = float(clean[known].mean())
            ablated = baseline + effect
    low, high = float(record.get("low", math.nan)), float(record.get("high", math.nan))
    if (math.isnan(low) or math.isnan(high)) and known.any():
        low, high = effect_interval(values, metric, seed=seed)
    chance = record.get("chance")
    prompts = record.get("prompts")
    if not _missing(prompts) and values.size not in (0, len(prompts)):  # type: ignore[arg-type]
        raise InputError(
            f"{what}: group {group!r} has {values.size} values of {metric} for {len(prompts)} prompts"  # type: ignore[arg-type]
        )
    return Measured(
        group=group,
        heads=heads,
        mode="" if _missing(record.get("mode")) else str(record["mode"]),
        metric=metric,
        n=int(known.sum()) if values.size else _count(record.get("n")),
        baseline=baseline,
        ablated=ablated,
        effect=effect,
        low=low,
        high=high,
        chance=_chance(metric) if _missing(chance) else float(chance),  # type: ignore[arg-type]
        noise=0.0 if _missing(record.get("noise")) else float(record["noise"]),
        values=values,
        clean=clean,
        prompts=None if _missing(prompts) else tuple(int(i) for i in prompts),  # type: ignore[union-attr]
    )


def _chance(metric: str) -> float:
    return sizes.chance(metric) if metric in sizes.METRICS else 0.0


def _count(cell: Any) -> int | None:
    return None if _missing(cell) else int(cell)


def _missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


@lru_cache(maxsize=65536)
def _head(text: str | Head) -> Head:
    return headnames.head(text)


def head_set(given: str | Iterable[str | Head]) -> tuple[Head, ...]:
    """Heads sorted, each once."""
    parts = [p for p in given.split(",") if p.strip()] if isinstance(given, str) else given
    return tuple(sorted({_head(p) for p in parts}))


def shape(heads: Iterable[Head]) -> frozenset[tuple[int, int]]:
    """(layer, number of heads) pairs."""
    return frozenset(Counter(layer for layer, _ in heads).items())


class NullTable:
    """The draws of one mode, found by group and metric."""

    def __init__(self, table: pd.DataFrame, mode: str) -> None:
        for column in ("metric", "effect"):
            if column not in table.columns:
                raise InputError(
                    f"null: column {column!r} is missing; give the table ablate_heads makes of the draws"
                )
        if "heads" not in table.columns:
            raise InputError("null: column 'heads' is missing, so no draw can be matched to a group")
        if "mode" in table.columns and mode:
            modes = sorted({str(m) for m in table["mode"].dropna()})
            table = table[table["mode"].isna() | (table["mode"] == mode)]
            if modes and not len(table):
                raise InputError(
                    f"null: the effects are of mode {mode!r}, the null only of {', '.join(modes)}"
                )
        keys = [h if isinstance(h, str) else ",".join(str(x) for x in h) for h in table["heads"]]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        sets = [head_set(key) for key in number]
        first: dict[tuple[Head, ...], int] = {}
        same = [first.setdefault(heads, i) for i, heads in enumerate(sets)]
        self._sets = [frozenset(heads) for heads in sets]
        self.heads: frozenset[Head] = frozenset().union(*self._sets)  # every head of any draw
        self._shapes = [shape(heads) for heads in sets]
        self._draw = np.array([same[number[key]] for key in keys], dtype=np.int64)  # (rows,)
        self._effect = table["effect"].to_numpy(dtype=np.float64)
        self._metric = table["metric"].to_numpy(dtype=object)
        named = table["null_for"] if "null_for" in table.columns else pd.Series([None] * len(table))
        self._for = np.array([None if _missing(x) else str(x) for x in named.tolist()], dtype=object)
        self._marked = np.zeros(len(table), dtype=bool)
        if "contaminated" in table.columns:
            self._marked = table["contaminated"].eq(True).to_numpy(dtype=bool)
        self._n = table["n"].to_numpy() if "n" in table.columns else None
        self._prompts = table["prompts"].tolist() if "prompts" in table.columns else None
        self._clean = CleanTable(table)

    def rows(self, group: str, heads: tuple[Head, ...], metric: str) -> np.ndarray[Any, Any]:
        """Row numbers of the group's draws for this metric, one per distinct draw."""
        own, form = frozenset(heads), shape(heads)
        clear = np.array([own.isdisjoint(s) for s in self._sets], dtype=bool)
        other = np.array([s != own for s in self._sets], dtype=bool)
        alike = np.array([s == form for s in self._shapes], dtype=bool)
        unnamed = np.array([x is None for x in self._for], dtype=bool)
        belongs = ((self._for == group) & other[self._draw]) | (unnamed & (alike & clear)[self._draw])
        rows = np.flatnonzero((self._metric == metric) & belongs)
        _, first = np.unique(self._draw[rows], return_index=True)
        return rows[np.sort(first)]

    def reading(self, m: Measured, others: frozenset[Head], thresholds: Thresholds) -> Reading:
        """The group's reading; `others` are the heads of the groups it competes with."""
        rows = self.rows(m.group, m.heads, m.metric)
        null = self._effect[rows]
        clear = np.array([frozenset(m.heads).isdisjoint(self._sets[self._draw[r]]) for r in rows], dtype=bool)
        foreign = any(not others.isdisjoint(self._sets[self._draw[r]]) for r in rows)
        foreign = foreign or bool(self._marked[rows].any())
        chosen = self._chosen(m, rows) if rows.size else None
        matched, n_prompts = (m.effect, (m.n or 0) if rows.size else 0)
        if chosen is not None:
            there = m.values[chosen]
            there = there[~np.isnan(there)]
            matched, n_prompts = (float(there.mean()) if there.size else math.nan), int(there.size)
        if rows.size and not math.isnan(m.baseline):
            at = slice(None) if chosen is None else chosen
            clean = m.clean[at] if m.clean.size == m.values.size else np.empty(0)
            whole = math.nan if chosen is not None else m.baseline
            self._clean.check(rows, clean, m.values[at], whole, m.noise, f"group {m.group!r}, {m.metric}")
        if np.isnan(null).any() and not math.isnan(m.effect):
            raise InputError(
                f"null: a draw for group {m.group!r} has no {m.metric} although the group has one"
            )
        return Reading(
            measured=m,
            null=null,
            apart=null[clear],
            matched=matched,
            n_prompts=n_prompts,
            foreign=foreign,
            own=not bool(clear.all()),
            thresholds=thresholds,
        )

    def _chosen(self, m: Measured, rows: np.ndarray[Any, Any]) -> list[int] | None:
        """Which of the group's values are on the draws' prompts; None when all are."""
        subset = self._subset(m, rows)
        if subset is None:
            return None
        if not m.values.size:
            raise InputError(
                f"null: measured on {len(subset)} prompts; pairing group {m.group!r} with them needs "
                "the group's per-prompt values (column 'values')"
            )
        own = m.prompts if m.prompts is not None else tuple(range(m.values.size))
        place = {prompt: i for i, prompt in enumerate(own)}
        strange = [p for p in subset if p not in place]
        if strange:
            raise InputError(f"null: prompt {strange[0]} is not among the prompts of group {m.group!r}")
        return [place[p] for p in subset]

    def _subset(self, m: Measured, rows: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
        """The prompts the draws were measured on; None when they are the group's."""
        if self._prompts is not None and not _missing(self._prompts[rows[0]]):
            seen = {id(self._prompts[r]): self._prompts[r] for r in rows}
            subsets = {tuple(int(i) for i in p) for p in seen.values()}
            if len(subsets) > 1:
                raise InputError(f"null: the draws of group {m.group!r} were measured on different prompts")
            subset = subsets.pop()
            return None if subset == m.prompts else subset
        n = None if self._n is None else _count(self._n[rows[0]])
        if n is None or not m.values.size or n in (m.n, m.values.size):
            return None
        clean = self._clean.values(rows[0])
        if clean.size == n < m.clean.size and np.allclose(clean, m.clean[:n], atol=1e-4, equal_nan=True):
            return tuple(m.prompts[:n]) if m.prompts is not None else tuple(range(n))
        raise InputError(
            f"null: measured on {n} prompts, group {m.group!r} on {m.n}, and no column 'prompts' says which"
        )


def one_mode(
    table: pd.DataFrame, wanted: str | None, preferred: str
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """(rows of the mode judged, the other rows, its name); `wanted` or, with several modes, `preferred`."""
    if "mode" not in table.columns:
        return table, table.iloc[:0], ""
    modes = sorted({str(m) for m in table["mode"].dropna()})
    mode = wanted or (preferred if preferred in modes or len(modes) != 1 else modes[0])
    if modes and mode not in modes:
        raise unknown("ablation mode in the effects table", mode, modes)
    mine = table["mode"].isna() | (table["mode"] == mode)
    return table[mine], table[~mine], mode
