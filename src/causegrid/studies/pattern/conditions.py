"""What is ablated in a cell besides the groups that compete: unions, upper bounds, keep-only, groups picked again.

They describe the groups and are never ranked beside them (MEASURES 3.1, 4.1), so each carries its `role` and
the groups it is about.  A condition that would be a group over again (a group that fills its layers is its own
upper bound) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from causegrid.errors import InputError
from causegrid.evidence.family import family
from causegrid.headnames import heads as parse_heads
from causegrid.interventions.heads import all_heads_in_layers, keep_only
from causegrid.models.record import Model

ALL = "all groups"
GROUP, UNION, UPPER, KEEP, REPICKED = "group", "union", "upper bound", "keep only", "picked again"
PUBLISHED_UNIONS = (("previous-token", "induction"), ("name-mover", "s-inhibition"))


@dataclass(frozen=True, kw_only=True)
class Ablated:
    """One row of a cell's grid: `of` names the groups it is about."""

    name: str
    heads: tuple[str, ...]
    role: str
    of: tuple[str, ...]


def conditions(
    model: Model,
    groups: Mapping[str, Sequence[str]],
    *,
    unions: Sequence[Sequence[str]],
    picked_again: Mapping[str, Sequence[str]],
) -> list[Ablated]:
    """Everything that is ablated, the groups first.  `unions` and `picked_again` name groups that have heads."""
    found = [Ablated(name=g, heads=tuple(h), role=GROUP, of=(g,)) for g, h in groups.items()]
    named = [tuple(u) for u in unions if set(u) <= set(groups)]
    if len(groups) > 1:
        named = [u for u in named if set(u) != set(groups)]
        found += [_union(" + ".join(u), u, groups) for u in named]
        found.append(_union(ALL, tuple(groups), groups))
    for name, heads in groups.items():
        bound = all_heads_in_layers(model, heads)
        if len(bound) > len(heads):
            found.append(Ablated(name=f"layers of {name}", heads=tuple(bound), role=UPPER, of=(name,)))
    every = model.n_layers * model.n_heads
    found += [
        Ablated(name=f"only {name}", heads=tuple(keep_only(model, heads)), role=KEEP, of=(name,))
        for name, heads in groups.items()
        if len(heads) < every
    ]
    for name, heads in picked_again.items():
        found.append(Ablated(name=f"{name} without BOS", heads=tuple(heads), role=REPICKED, of=(name,)))
    return found


def _union(name: str, members: tuple[str, ...], groups: Mapping[str, Sequence[str]]) -> Ablated:
    return Ablated(name=name, heads=tuple(h for g in members for h in groups[g]), role=UNION, of=members)


def with_roles(effects: pd.DataFrame, listed: Sequence[Ablated], kinds: Mapping[str, str]) -> pd.DataFrame:
    """A table of effects with `kind, role, of` of each group behind its name."""
    by_name = {a.name: a for a in listed}
    place = list(effects.columns).index("group") + 1
    added: dict[str, list[Any]] = {
        "kind": [kinds.get(g, "descriptive") for g in effects["group"]],
        "role": [by_name[g].role for g in effects["group"]],
        "of": [list(by_name[g].of) for g in effects["group"]],
    }
    for at, (column, values) in enumerate(added.items()):
        effects.insert(place + at, column, values)
    return effects


def kinds_of(groups: Mapping[str, Sequence[str]], n_heads: int) -> dict[str, str]:
    """Group -> `competing` or `descriptive` (a single head, a group that fills a layer)."""
    sets = {name: tuple(sorted(parse_heads(heads))) for name, heads in groups.items()}
    return {name: member.kind for name, member in family(sets, n_heads).items()}


def check_unions(unions: Sequence[Sequence[str]], groups: Sequence[str] | None) -> None:
    """Raises InputError for a union of fewer than two screens, of one twice, or of one that does not compete."""
    for union in unions:
        if len(set(union)) < 2 or len(set(union)) < len(union):
            raise InputError(f"union {list(union)} must name two screens or more, each once")
        for name in union:
            if groups is not None and name not in groups:
                raise InputError(
                    f"union {list(union)} names screen {name!r}, which is not among the groups: {', '.join(groups)}"
                )
