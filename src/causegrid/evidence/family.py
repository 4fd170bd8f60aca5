"""Which groups compete?  Only disjoint ones are ranked and corrected for (MEASURES 4.1, 4.2).

A single head, a group that fills a whole layer (keep-only groups do), a union, a superset and any group that
overlaps another are `descriptive`: reported, not ranked.  Where two groups overlap the smaller competes, and
of two equally large ones the one whose heads come first: neither the list's order nor any effect decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from causegrid.errors import unknown
from causegrid.evidence.readings import Head

COMPETING, DESCRIPTIVE = "competing", "descriptive"


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A group's kind and, for a descriptive one, why."""

    kind: str
    why: str = ""

    @property
    def competes(self) -> bool:
        return self.kind == COMPETING


def family(
    groups: Mapping[str, tuple[Head, ...]], heads_per_layer: int, given: Mapping[str, str] | None = None
) -> dict[str, Membership]:
    """Name -> membership.  `given` names kinds that are not to be worked out ("competing" or "descriptive").

    Raises InputError for a kind or a group in `given` that does not exist.
    """
    given = dict(given or {})
    for name, kind in given.items():
        if name not in groups:
            raise unknown("group in groups_kind", name, groups)
        if kind not in (COMPETING, DESCRIPTIVE):
            raise unknown(f"kind of group {name!r}", kind, (COMPETING, DESCRIPTIVE))
    members = {name: Membership(kind=kind, why="named so") for name, kind in given.items()}
    taken = {name: set(groups[name]) for name, m in members.items() if m.competes}
    rest = [name for name in groups if name not in members]
    for name in sorted(rest, key=lambda g: (len(groups[g]), groups[g], g)):
        why = _alone(groups[name], heads_per_layer) or _overlap(set(groups[name]), taken)
        members[name] = Membership(kind=DESCRIPTIVE if why else COMPETING, why=why)
        if not why:
            taken[name] = set(groups[name])
    return {name: members[name] for name in groups}


def _alone(heads: tuple[Head, ...], heads_per_layer: int) -> str:
    if len(heads) == 1:
        return "a single head"
    for layer, k in sorted(Counter(layer for layer, _ in heads).items()):
        if k >= heads_per_layer:
            return f"holds every head of layer {layer}"
    return ""


def _overlap(heads: set[Head], taken: Mapping[str, set[Head]]) -> str:
    met = {name: other for name, other in sorted(taken.items()) if heads & other}
    if not met:
        return ""
    names = ", ".join(met)
    if heads == set().union(*met.values()) and len(met) > 1:
        return f"the union of {names}"
    return f"contains {names}" if all(other <= heads for other in met.values()) else f"overlaps {names}"


def possible_draws(heads: tuple[Head, ...], heads_per_layer: int, *, own: bool) -> int:
    """How many distinct matched draws exist when only the group itself is left out; `own`: they may hold its heads."""
    counts = Counter(layer for layer, _ in heads).values()
    if own:
        return math.prod(math.comb(heads_per_layer, k) for k in counts) - 1
    return math.prod(math.comb(heads_per_layer - k, k) for k in counts)


def too_few_others(heads: tuple[Head, ...], heads_per_layer: int) -> str:
    """Why no matched null can be drawn for the group; empty when one can."""
    for layer, k in sorted(Counter(layer for layer, _ in heads).items()):
        if heads_per_layer - k < k:
            return (
                f"layer {layer} has {heads_per_layer} heads, {k} of them in the group: "
                "too few others to draw from"
            )
    return ""
