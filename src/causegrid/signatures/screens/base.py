"""What a screen is, and the registry of them.

A *task screen* scores every head from its query row on a task's own prompts and needs named positions; a
*generic screen* names target positions in the synthetic repeated-pair batch, the rest (selectivity against a
background, thresholds) is the same for all of them.  A screen is one file with one decorator.

Scores are ratios of means over prompts, never means of ratios; a denominator is floored at 1e-8, which is
what the published figures used (their largest selectivity, 9.75e7, is that floor).

Rules (MEASURES 2.3).  `paper`: the published score, the five highest.  `strict`: position 0 never counts as
"other"; the target must hold at least 0.1 attention; where a symmetric foil exists the score is the
*difference* of the two masses (a mass, not a ratio) and must be positive; the five highest of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from causegrid.errors import unknown
from causegrid.registry import Registry
from causegrid.signatures.attention import Attention, Floats
from causegrid.signatures.batches import Ints

Rules = Literal["paper", "strict"]
RULES: tuple[str, ...] = ("paper", "strict")
FLOOR = 1e-8
MIN_MASS = 0.1
TOP = 5

screens: Registry[Any] = Registry("screen", "causegrid.signatures.screens")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One screen over all heads, each (n_layers, H): the score, the attention its target holds, and which
    heads may be selected at all."""

    score: Floats
    target_mass: Floats
    eligible: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class TaskScreen:
    """`needs`: named positions it reads; `targets`: those whose attention is the pattern (the largest counts
    when there are several); `score(attention, rules)`; `top`: how many heads are selected."""

    name: str
    needs: tuple[str, ...]
    targets: tuple[str, ...]
    score: Callable[[Attention, Rules], Scored]
    note: str
    top: int = TOP
    kind: Literal["task"] = "task"


@dataclass(frozen=True, kw_only=True)
class RepeatedPairs:
    """The synthetic batch: `tokens` (n, L) of random ids in which the pair A B stands once, at `first` (n,),
    and A is the last token, the query.  A and B occur nowhere else."""

    tokens: Ints
    first: Ints


@dataclass(frozen=True, kw_only=True)
class GenericScreen:
    """`places(batch)` -> (n, k) target positions; a head is selected at `threshold` times the background, and
    only when the class is its best one where `must_be_best`."""

    name: str
    places: Callable[[RepeatedPairs], Ints]
    note: str
    threshold: float = 30.0
    must_be_best: bool = False
    kind: Literal["generic"] = "generic"


Screen = TaskScreen | GenericScreen


def check_rules(rules: str) -> None:
    """Raises InputError unless `rules` is `paper` or `strict`."""
    if rules not in RULES:
        raise unknown("rules", rules, RULES)


def task_screen(
    name: str, *, needs: Sequence[str], targets: Sequence[str], note: str
) -> Callable[[Callable[[Attention, Rules], Scored]], Callable[[Attention, Rules], Scored]]:
    """Decorator: register a scoring function as a task screen."""

    def decorate(score: Callable[[Attention, Rules], Scored]) -> Callable[[Attention, Rules], Scored]:
        screens.register(name)(
            TaskScreen(name=name, needs=tuple(needs), targets=tuple(targets), score=score, note=note)
        )
        return score

    return decorate


def generic_screen(
    name: str, *, note: str, threshold: float = 30.0, must_be_best: bool = False
) -> Callable[[Callable[[RepeatedPairs], Ints]], Callable[[RepeatedPairs], Ints]]:
    """Decorator: register a function from the synthetic batch to target positions as a generic screen."""

    def decorate(places: Callable[[RepeatedPairs], Ints]) -> Callable[[RepeatedPairs], Ints]:
        screens.register(name)(
            GenericScreen(name=name, places=places, note=note, threshold=threshold, must_be_best=must_be_best)
        )
        return places

    return decorate


def ratio(target: Floats, background: Floats) -> Floats:
    """target / background, the background floored at 1e-8."""
    return np.asarray(target / np.maximum(background, FLOOR))


def against_foil(target: Floats, foil: Floats) -> Scored:
    """Strict scoring with a symmetric foil: the difference of the masses, positive, target at least 0.1."""
    score = target - foil
    return Scored(score=score, target_mass=target, eligible=(target >= MIN_MASS) & (score > 0))


def against_others(target: Floats, background: Floats, rules: Rules) -> Scored:
    """Ratio to a background mean; strict demands a target of at least 0.1."""
    eligible = target >= MIN_MASS if rules == "strict" else np.ones(target.shape, dtype=bool)
    return Scored(score=ratio(target, background), target_mass=target, eligible=eligible)
