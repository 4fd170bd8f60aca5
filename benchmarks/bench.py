"""What a benchmark row gives back, and how it is kept: figures, curves and notes, one JSON file per row.

A `Figure` is one ratio of interleaved runs with its quartiles, its target and, where two results must be
equal, their largest difference.  An `Equality` is such a difference alone.  A `Curve` is how a cost grows.
A `Note` is a sentence for the page.  The page is drawn from the JSON alone, so a number nobody measured
cannot get onto it.

A row is a function `run(quick, say)` in `rows/`, registered with `@row(name, title=...)`.  `quick` asks for
tiny sizes that only show that the row works; `say(text)` prints progress.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.timing import Seconds, ratio

Say = Callable[[str], None]
Kind = Literal["speedup", "cost"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One ratio: `speedup` is other / ours (bigger is better), `cost` is ours / other (smaller is better)."""

    name: str
    against: str
    kind: Kind
    ratio: float
    low: float
    high: float
    rounds: int
    ours_s: float
    other_s: float
    threads: int
    target: float | None
    difference: float | None = None
    tolerance: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None when there is no target."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.kind == "speedup" else self.ratio <= self.target

    @property
    def equal(self) -> bool | None:
        """Whether results that must be equal are; None when nothing was compared.  NaN is not equal."""
        if self.difference is None or self.tolerance is None:
            return None
        return self.difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Equality:
    """Two results that must be equal, where no ratio belongs to them."""

    name: str
    against: str
    difference: float
    tolerance: float
    note: str = ""

    @property
    def equal(self) -> bool:
        """Whether they are; NaN is not equal."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A cost against a size: `series` maps a name to values (unit in `y`), `exponent` to [value, low, high]."""

    name: str
    x: str
    xs: list[float]
    series: dict[str, list[float]]
    y: str
    exponent: dict[str, list[float]]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something found out that is not one ratio."""

    title: str
    text: str


Result = Figure | Equality | Curve | Note
_TYPES: dict[str, Any] = {"figure": Figure, "equality": Equality, "curve": Curve, "note": Note}


def figure(
    name: str,
    against: str,
    kind: Kind,
    *,
    ours: Seconds | Sequence[float],
    other: Seconds | Sequence[float],
    threads: int,
    target: float | None,
    difference: float | None = None,
    tolerance: float | None = None,
    note: str = "",
) -> Figure:
    """A Figure from the seconds of interleaved rounds: `ours[i]` and `other[i]` ran next to each other."""
    mine, theirs = np.asarray(ours, float), np.asarray(other, float)
    middle, low, high = ratio(theirs, mine) if kind == "speedup" else ratio(mine, theirs)
    return Figure(
        name=name,
        against=against,
        kind=kind,
        ratio=middle,
        low=low,
        high=high,
        rounds=len(mine),
        ours_s=float(np.median(mine)),
        other_s=float(np.median(theirs)),
        threads=threads,
        target=target,
        difference=difference,
        tolerance=tolerance,
        note=note,
    )


class Row:
    """A registered row: its name, the title of its part of the page, the function that measures it."""

    def __init__(self, name: str, title: str, run: Callable[[bool, Say], Sequence[Result]]) -> None:
        self.name, self.title, self.run = name, title, run


rows: dict[str, Row] = {}


def row(
    name: str, *, title: str
) -> Callable[[Callable[[bool, Say], Sequence[Result]]], Callable[[bool, Say], Sequence[Result]]]:
    """Decorator: register `run(quick, say)` as the row `name`.  Raises ValueError when the name is taken."""

    def decorate(run: Callable[[bool, Say], Sequence[Result]]) -> Callable[[bool, Say], Sequence[Result]]:
        if name in rows:
            raise ValueError(f"the benchmark row {name!r} is registered twice")
        rows[name] = Row(name, title, run)
        return run

    return decorate


def discover(package: str = "benchmarks.rows") -> dict[str, str]:
    """Import every module of `package`; returns module name -> traceback of those that could not be."""
    broken = {}
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        try:
            importlib.import_module(f"{package}.{module.name}")
        except Exception:  # one broken row must not take the others with it; it is reported and fails the run
            broken[module.name] = traceback.format_exc()
    return broken


def write(path: Path, results: Sequence[Result], **facts: Any) -> None:
    """Write a row's results and facts about its run as JSON, old or new and never half."""
    if any(isinstance(r, Figure) and not math.isfinite(r.ratio) for r in results):
        raise ValueError(f"{path.stem}: a ratio is not finite")
    kinds = {kind: name for name, kind in _TYPES.items()}
    found = [{"type": kinds[type(r)], **dataclasses.asdict(r)} for r in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps({**facts, "results": found}, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)


def read(path: Path) -> tuple[list[Result], dict[str, Any]]:
    """The results and the facts that `write` kept."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    results: list[Result] = []
    for found in facts.pop("results"):
        kind = _TYPES[found.pop("type")]
        results.append(kind(**found))
    return results, facts
