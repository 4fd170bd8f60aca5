"""A finished cell as claims see it, and the rules on which cells may meet in a test (MEASURES 1.2).

- A cell is used at one length: the trained one, or the shorter one it learned to.  Under 8 it is `not learned`
  and no claim uses it.
- Cells of unequal lengths never meet in a test: of all lengths the one with most cells is taken (`at_length`).
- Rows of `erasure` are those of the probe's own directions; INLP, LEACE, principal and singular subspaces answer
  other questions.
- Nobody is dropped in silence: `left_out` names cells that did not learn, or learned less, `alone` those that a
  test by pairs had no partner for.

Many claims ask the same of a cell, and a table is a file: what was read and picked once is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from causegrid.spec import Value, split

T = TypeVar("T")
LEARNED_MINIMUM = 8
MIN_GAIN = 0.05  # under it a profile has no centre
TIED = 0.01  # layers within 1 pp of the best are the best layer too
NO_MODEL = ["baseline_majority", "baseline_position", "baseline_token", "baseline_token_pair"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One finished cell: its names, what it learned, and its tables."""

    id: str
    task: str
    model: str
    seed: int
    trained: int
    learned: int
    positions: str
    family: str  # the model's name without its options
    options: Mapping[str, Value]
    read: Callable[[str], pd.DataFrame | None]
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def length(self) -> int:
        """The length at which the cell may be used: the trained one, or the learned one below it."""
        return min(self.trained, self.learned)

    @property
    def has_learned(self) -> bool:
        """Whether claims may use it at all."""
        return self.learned >= LEARNED_MINIMUM

    @property
    def to_the_end(self) -> bool:
        """Whether it learned the whole trained length."""
        return self.learned >= self.trained

    def table(self, name: str) -> pd.DataFrame | None:
        """A table of the cell, None where it has none."""
        return self._once(name, lambda: self.read(name))

    def rows(self, name: str) -> pd.DataFrame:
        """A table's rows at the cell's length; no rows where there is no such table."""
        return self._once((name, self.length), lambda: _at_length(self.table(name), self.length))

    def profile(self, label: str | None = None) -> pd.DataFrame:
        """Probe rows of a label, default the trained one (the first), by layer."""
        return self._once(("profile", label), lambda: _of_label(self.rows("probes"), label))

    def labels(self) -> list[str]:
        """Labels with a probe profile, the trained one first."""
        rows = self.rows("probes")
        return list(dict.fromkeys(rows["label"])) if len(rows) else []

    def erased(self, rank: int | None, basis: str = "probe") -> pd.DataFrame:
        """Erasures of the probe's own directions (or of another `basis`) at this rank, None = all of its kind, one
        row a layer."""
        return self._once(("erased", rank, basis), lambda: _erased(self.rows("erasure"), rank, basis))

    def accuracy(self, lengths: Iterable[int], metric: str = "token") -> float | None:
        """Mean accuracy over these lengths; None unless the cell was measured at each."""
        found = self._once(("accuracy", metric), lambda: _by_length(self.table("behaviour"), metric))
        wanted = list(lengths)
        if not wanted or not set(wanted) <= set(found):
            return None
        return float(np.mean([found[n] for n in wanted]))

    def measured_lengths(self) -> set[int]:
        """Lengths in the cell's behaviour table."""
        found = self.table("behaviour")
        return set() if found is None else {int(n) for n in found["length"]}

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = make()
        kept: T = self._kept[key]
        return kept


def cell_of(given: Mapping[str, Any]) -> Cell:
    """A cell as `Study.claims` gets it."""
    config, facts = given["config"], given["facts"]
    pretrained = bool(config.get("fine_tuning"))  # an id or a folder, without options
    family, options = (config["model"], {}) if pretrained else split(config["model"])
    return Cell(
        id=given["id"],
        task=config["task"],
        model=config["model"],
        seed=int(config["seed"]),
        trained=int(config["training"]["length"]),
        learned=int(facts.get("learned_length", 0)),
        positions=str(facts.get("positions", "")),
        family=family,
        options=options,
        read=given["tables"],
    )


def gains(cell: Cell, label: str | None = None, column: str = "accuracy") -> NDArray[np.float64] | None:
    """A label's gain per layer, embedding output first: (accuracy - base) / (1 - base), at least 0; default the
    trained label's.  `column` `baseline_untrained`: that of the same network before training; None where unknown."""
    rows = cell.profile(label)
    if not len(rows) or column not in rows or rows[column].isna().any():
        return None
    base = float(rows[NO_MODEL].to_numpy().max())
    gain = (rows[column].to_numpy(dtype=np.float64) - base) / max(1 - base, 1e-9)
    return np.asarray(np.clip(gain, 0, 1))


def untrained_centre(cell: Cell) -> float | None:
    """Depth centre of the trained label in the untrained network (MEASURES 2.1); None where nothing is gained there."""
    gain = gains(cell, column="baseline_untrained")
    if gain is None or gain.max() < MIN_GAIN:
        return None
    increments = np.clip(np.diff(gain, prepend=0.0), 0, None)
    return float(increments @ np.linspace(0, 1, len(gain)) / increments.sum())


def summary(cell: Cell, column: str, label: str | None = None) -> float | None:
    """`depth_centre` or `last_block_share` of a label, default the trained one; None where it is undefined."""
    rows = _of_label(cell.rows("profile_summary"), label)
    value = float(rows[column].iloc[0]) if len(rows) else float("nan")
    return None if np.isnan(value) else value


def best(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows within `TIED` of the best value of a column: the best layers, of which there may be several."""
    found: pd.DataFrame = rows[rows[column] >= rows[column].max() - TIED]
    return found


def by_length(cells: Iterable[Cell]) -> dict[int, list[Cell]]:
    """Cells that learned, by the length they are used at."""
    found: dict[int, list[Cell]] = {}
    for c in cells:
        if c.has_learned:
            found.setdefault(c.length, []).append(c)
    return found


def at_length(cells: Iterable[Cell], most: Callable[[Sequence[Cell]], int] = len) -> tuple[int, list[Cell]]:
    """(length, cells): the length at which `most` of the cells is largest, the longer of two; (0, []) for none."""
    groups = by_length(cells)
    if not groups:
        return 0, []
    length = max(groups, key=lambda n: (most(groups[n]), n))
    return length, groups[length]


def named(cells: Iterable[Cell]) -> str:
    """`parity mamba seeds 0, 1; s3 gru seed 2`."""
    seeds: dict[str, list[int]] = {}
    for c in cells:
        seeds.setdefault(f"{c.task} {c.model}", []).append(c.seed)
    return "; ".join(
        f"{what} {'seed' if len(n) == 1 else 'seeds'} {', '.join(map(str, sorted(n)))}"
        for what, n in seeds.items()
    )


def learned_less(cells: Iterable[Cell]) -> str:
    """`to 24: s3 mamba seeds 0, 1; to 26: parity transformer seed 2`: those that learned a shorter length than the
    trained one; empty when there are none."""
    groups = by_length(c for c in cells if not c.to_the_end)
    return "; ".join(f"to {n}: {named(group)}" for n, group in sorted(groups.items()))


def alone(cells: Iterable[Cell], length: int, used: Iterable[str]) -> str:
    """A sentence on the cells of this length that are not among the ids `used`; empty when there are none."""
    ids = set(used)
    others = [c for c in by_length(cells).get(length, []) if c.id not in ids]
    return f" Without their counterparts at length {length}, left out: {named(others)}." if others else ""


def left_out(cells: Iterable[Cell], length: int) -> str:
    """A sentence on the cells among these that a test at `length` could not use; empty when there are none."""
    given = list(cells)
    unlearned = [c for c in given if not c.has_learned]
    said = f" Not learned, left out: {named(unlearned)}." if unlearned else ""
    others = [c for c in given if c.has_learned and c.length != length]
    if short := learned_less(others):
        said += f" Learned a shorter length, left out: {short}."
    for n, group in sorted(by_length(c for c in others if c.to_the_end).items()):
        said += f" Trained at {n}, left out: {named(group)}."
    return said


def _at_length(table: pd.DataFrame | None, length: int) -> pd.DataFrame:
    return pd.DataFrame() if table is None or "length" not in table else table[table["length"] == length]


def _by_length(behaviour: pd.DataFrame | None, metric: str) -> dict[int, float]:
    """Length -> accuracy."""
    if behaviour is None:
        return {}
    rows = behaviour[behaviour["metric"] == metric]
    return {int(n): float(a) for n, a in zip(rows["length"], rows["accuracy"], strict=True)}


def _erased(rows: pd.DataFrame, rank: int | None, basis: str) -> pd.DataFrame:
    if not len(rows):
        return rows
    rows = _of_label(rows[rows["basis"] == basis], None)
    return rows[rows["full"].astype(bool) if rank is None else rows["rank"] == rank]


def _of_label(rows: pd.DataFrame, label: str | None) -> pd.DataFrame:
    if not len(rows):
        return rows
    rows = rows[rows["label"] == (label or rows["label"].iloc[0])]
    return rows.sort_values("layer") if "layer" in rows else rows
