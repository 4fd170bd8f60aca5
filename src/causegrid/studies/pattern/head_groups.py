"""Which heads compete in a cell: the groups its screens picked, made disjoint, with their pattern scores.

Only disjoint groups can be ranked (MEASURES 4.2).  Where two screens pick the same head it stays with the
screen listed first and leaves the later ones, and the table says so (*ours*).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from causegrid.errors import InputError
from causegrid.models.record import Model
from causegrid.signatures.attention import Attention, attention
from causegrid.signatures.generic import generic_screens, longest_input, repeated_pairs, usable_ids
from causegrid.signatures.patterns import fitting, group_pattern_score, selected_heads
from causegrid.signatures.screens.base import TaskScreen, screens

GENERIC_DEFAULT = ("induction", "previous-token", "duplicate-token")
PATTERN_SEQUENCES = 32  # synthetic sequences for the pattern score of a generic class


@dataclass(frozen=True, kw_only=True)
class HeadGroup:
    """`heads` as `L3H1`, best first; `target`: what their pattern is scored on; `note`: heads left elsewhere."""

    name: str
    heads: tuple[str, ...]
    target: str | None = None
    note: str = ""


def default_names(positions: Sequence[str]) -> list[str]:
    """The screens whose heads compete when a study names none: those of the task, then the generic ones."""
    return [*fitting(positions), *GENERIC_DEFAULT]


def screen_digests(groups: Sequence[str]) -> dict[str, str]:
    """Digests of the source of screens that are not causegrid's own: those of `groups`, and every generic one (the
    background of the generic classes leaves out the positions of all).  An edited screen makes another cell."""
    found = {}
    for name in screens.names():
        screen = screens.get(name)
        function = screen.score if isinstance(screen, TaskScreen) else screen.places
        module = inspect.getmodule(function)
        own = module is not None and module.__name__.partition(".")[0] == "causegrid"
        if not own and (name in groups or not isinstance(screen, TaskScreen)):
            found[f"screen {name}"] = hashlib.sha256(_source(function).encode()).hexdigest()[:16]
    return found


def _source(function: Callable[..., Any]) -> str:
    """Its whole file where there is one, as helpers count too; else what was typed (a notebook keeps it)."""
    try:
        return Path(inspect.getsourcefile(function) or "").read_text(encoding="utf-8")
    except (OSError, TypeError):
        try:
            return inspect.getsource(function)
        except (OSError, TypeError):
            raise InputError(
                f"screen function {getattr(function, '__name__', function)!r} has no source to tell its cells "
                "apart by: put it in a file"
            ) from None


def disjoint(table: pd.DataFrame, names: Sequence[str]) -> list[HeadGroup]:
    """Groups of a table of screens, in the order of `names`; a head stays with the first that picked it.

    A screen that picked nothing, or only heads of earlier groups, gives a group without heads and a note.
    """
    chosen = selected_heads(table)
    taken: dict[str, str] = {}
    groups = []
    for name in names:
        heads = chosen.get(name, [])
        shared = {h: taken[h] for h in heads if h in taken}
        own = tuple(h for h in heads if h not in taken)
        taken.update(dict.fromkeys(own, name))
        note = "; ".join(f"{h} counts in {owner}" for h, owner in shared.items())
        if not heads:
            note = "the screen picked no head"
        groups.append(HeadGroup(name=name, heads=own, target=name, note=note))
    return groups


def pattern_scores(
    model: Model, groups: Sequence[HeadGroup], rows: Attention, *, length: int, seed: int
) -> pd.DataFrame:
    """`group, heads, n_heads, target, note, pattern_score, pattern_p99, pattern` (beyond the 99th percentile of
    the random-target null; None without a target).

    Task screens and named positions are scored on the task's own rows, generic classes on a synthetic batch.
    """
    synthetic: Attention | None = None
    table = []
    for group in groups:
        score: dict[str, Any] = {"score": np.nan, "p99": np.nan, "beyond": None}
        if group.target is not None and group.heads:
            source = rows
            if _is_generic(group.target, rows):
                synthetic = synthetic or synthetic_rows(model, length=length, seed=seed)
                source = synthetic
            if group.target in source.positions or source is rows:
                score = group_pattern_score(source, group.heads, group.target, seed=seed)
        table.append(
            {
                "group": group.name,
                "heads": list(group.heads),
                "n_heads": len(group.heads),
                "target": group.target or "",
                "note": group.note,
                "pattern_score": score["score"],
                "pattern_p99": score["p99"],
                "pattern": score["beyond"],
            }
        )
    return pd.DataFrame(table)


def synthetic_rows(model: Model, *, length: int, seed: int) -> Attention:
    """Query rows on repeated-pair sequences, with each generic class's target as a named position.

    A class with several targets (`local`) has no single position and so no pattern score.  `length` is cut
    to the model's own number of positions, as for the generic classes.
    """
    length = min(length, longest_input(model) or length)
    n_tokens, special = usable_ids(model)
    batch = repeated_pairs(n_tokens, n=PATTERN_SEQUENCES, length=length, seed=seed + 1, leave_out=special)
    found = attention(model, batch.tokens)
    places = {s.name: s.places(batch) for s in generic_screens()}
    positions = {name: index[:, 0] for name, index in places.items() if index.shape[1] == 1}
    return Attention(rows=found.rows, lengths=found.lengths, positions=positions, task="synthetic")


def _is_generic(target: str, rows: Attention) -> bool:
    if target in rows.positions:
        return False
    return target in screens and not isinstance(screens.get(target), TaskScreen)
