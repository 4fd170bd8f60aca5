"""S2: S3's profile is nearer Parity's than Dyck's; Z6 says whether that is the group or the number of classes.

A profile is the gain per layer; a distance is the mean absolute difference over layers, within one family and
seed, at one length.  The unit of the tests is the family and seed.  Z6 has as many classes as S3 but commutes, as
Parity does: nearer S3, classes explain the grouping as well as order does; nearer Parity, they do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from causegrid.evidence.claims import Claim, decide, paired, seed_mean
from causegrid.studies.state.claims.base import claims, undecided
from causegrid.studies.state.finished import Cell, alone, at_length, gains, left_out

STATEMENT = "S3's profile is nearer Parity's than Dyck's (Z6 as the abelian control)"
CONTROL = "The control Z6 (commutative, as many classes as S3) is nearer S3 than Parity"
FIGURE = "stated, no figure"
OURS = "ours: the paper has no such task"
PAIRS = (("s3", "parity"), ("s3", "dyck"), ("z6", "s3"), ("z6", "parity"))
Units = Mapping[tuple[str, int], Mapping[str, Cell]]


@claims.register("S2")
def grouping(cells: Sequence[Cell]) -> Claim:
    return _nearer("S2", STATEMENT, FIGURE, cells, ("s3", "parity"), ("s3", "dyck"), PAIRS)


@claims.register("S2-z6")
def control(cells: Sequence[Cell]) -> Claim:
    return _nearer("S2-z6", CONTROL, OURS, cells, ("z6", "s3"), ("z6", "parity"), PAIRS[2:])


def _nearer(
    id: str,
    statement: str,
    figure: str,
    cells: Sequence[Cell],
    near: tuple[str, str],
    far: tuple[str, str],
    shown: Sequence[tuple[str, str]],
) -> Claim:
    tasks = {*near, *far}
    given = [c for c in cells if c.task in tasks and not c.options]
    length, same = at_length(given, lambda group: len(_units(group, tasks)))
    units = _units(same, tasks)
    used = [c.id for u in units.values() for t, c in u.items() if t in tasks]
    without = alone(given, length, used) + left_out(given, length)
    if len(units) < 2:
        missing = (
            f"needs {', '.join(sorted(tasks))} learned to one length by the same families, 2 seeds or more"
        )
        return undecided(id, statement, figure, f"{missing}; there are {len(units)}.{without}")
    test = paired(*([_distance(u, *pair) for u in units.values()] for pair in (far, near)))
    result, why = decide(test, 1)
    everything = [c for c in cells if c.has_learned and c.length == length and not c.options]
    return Claim(
        id=id, statement=statement, published=figure, low=test.low, high=test.high, result=result,
        measured=f"difference of distances {test.effect:+.3f}",
        why=f"distance {_words(far)} minus {_words(near)}: {why}, length {length}. Distances: "
        f"{_distances(everything, shown)}.{without}",
        cells=tuple(used),
    )  # fmt: skip


def _units(cells: Sequence[Cell], tasks: set[str]) -> Units:
    """(model, seed) -> task -> cell, where every one of the tasks has a profile."""
    found: dict[tuple[str, int], dict[str, Cell]] = {}
    for c in cells:
        if len(c.profile()):
            found.setdefault((c.model, c.seed), {})[c.task] = c
    return {unit: by for unit, by in found.items() if tasks <= set(by)}


def _distance(by_task: Mapping[str, Cell], a: str, b: str) -> float:
    first, second = gains(by_task[a]), gains(by_task[b])
    assert first is not None and second is not None
    return float(np.abs(first - second).mean())


def _distances(cells: Sequence[Cell], pairs: Sequence[tuple[str, str]]) -> str:
    """`s3 to parity 0.10 [0.05, 0.15] n 6, ...`."""
    said = []
    for pair in pairs:
        values = [_distance(u, *pair) for u in _units(cells, set(pair)).values()]
        if not values:
            said.append(f"{_words(pair)} unknown")
            continue
        mean, low, high = seed_mean(values, within=(0, 1))
        interval = "" if low is None else f" [{low:.3f}, {high:.3f}]"
        said.append(f"{_words(pair)} {mean:.3f}{interval} n {len(values)}")
    return ", ".join(said)


def _words(pair: tuple[str, str]) -> str:
    return f"{pair[0]} to {pair[1]}"
