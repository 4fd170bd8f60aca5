"""What a finished state-encoding grid says, as small tables: who learned, where the state is read, what erasure,
components and patching did.  For pages of results (`causegrid report DIR --page FILE`).

Cells that did not learn (MEASURES 1.2) stand in `learned` and `behaviour` alone; the others are taken at the length
they learned.  "a to b" is the range over seeds, "a [b, c]" a mean over seeds with its 95 % t interval, which one seed
has not.  `beyond` and the longest length of `components` leave out cells whose positions are untrained there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from causegrid.evidence.claims import seed_mean
from causegrid.studies.state.finished import Cell, cell_of, gains, summary

READINGS = ("candidate necessary", "test void", "readable, not used", "inconclusive", "not readable")
KINDS = (
    ("probe", "1"),
    ("probe", "all"),
    ("principal", "all"),
    ("singular", "all"),
    ("inlp", ""),
    ("leace", ""),
)
UNMATCHED = "variance unmatched"
METRICS = ("token", "strict", "last")
SHARE, FREE = (0.0, 1.0), (-np.inf, np.inf)  # what a value can be


def summaries(given: Sequence[Mapping[str, Any]]) -> dict[str, pd.DataFrame]:
    """All tables for which a cell has something, of cells as `Study.claims` gets them."""
    cells = [cell_of(c) for c in given]
    facts = {str(c["id"]): c["facts"] for c in given}
    able = [c for c in cells if c.has_learned]
    found = {
        "learned": pd.DataFrame([_learned(group, facts) for group in _groups(cells, apart=False)]),
        "behaviour": pd.DataFrame(
            [row for group in _groups(cells, apart=False) for row in _behaviour(group)]
        ),
        "profiles": pd.DataFrame([row for group in _groups(able) for row in _profiles(group)]),
        "readings": _readings(able),
        "erasure": pd.DataFrame([row for group in _groups(able) for row in _erased(group)]),
        "beyond": _beyond(able),
        "components": pd.DataFrame([row for group in _groups(able) for row in _components(group)]),
        "patching": pd.DataFrame([row for group in _groups(able) for row in _patched(group)]),
    }
    return {name: table for name, table in found.items() if len(table)}


def _groups(cells: Iterable[Cell], *, apart: bool = True) -> list[list[Cell]]:
    """Cells of one task and model, and used at one length where `apart`; seeds ascending, tasks together, otherwise in
    the order of the grid."""
    cells = list(cells)
    tasks = list(dict.fromkeys(c.task for c in cells))
    cells.sort(key=lambda c: tasks.index(c.task))
    found: dict[tuple[str, str, int], list[Cell]] = {}
    for c in cells:
        found.setdefault((c.task, c.model, c.length if apart else 0), []).append(c)
    return [sorted(group, key=lambda c: c.seed) for group in found.values()]


def _learned(group: Sequence[Cell], facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Seeds, parameters, steps, learned length."""
    known = [facts[c.id] for c in group]
    return {
        "task": group[0].task,
        "model": group[0].model,
        "seeds": len(group),
        "parameters": _range([int(f["n_params"]) for f in known], "{:,}"),
        "steps": _range([int(f["steps"]) for f in known], "{}"),
        "learned to": ", ".join(str(c.learned) if c.has_learned else "no" for c in group),
    }


def _behaviour(group: Sequence[Cell]) -> list[dict[str, Any]]:
    """Accuracy by length, of tokens, whole sequences and the last position."""
    lengths = sorted(set.intersection(*(c.measured_lengths() for c in group)))
    rows: list[dict[str, Any]] = []
    for metric in METRICS:
        values = {n: [c.accuracy([n], metric) for c in group] for n in lengths}
        if any(v is not None for of in values.values() for v in of):
            rows.append(
                {"task": group[0].task, "model": group[0].model, "seeds": len(group), "accuracy of": metric}
                | {f"at {n}": _mean(values[n]) for n in lengths}
            )
    return rows


def _profiles(group: Sequence[Cell]) -> list[dict[str, Any]]:
    """Where each label is read: gain over its best no-model baseline by layer, and its two summaries."""
    rows: list[dict[str, Any]] = []
    for label in dict.fromkeys(name for c in group for name in c.labels()):
        profiles = [(c, found) for c in group if (found := gains(c, label)) is not None]
        blank = [found for c, _ in profiles if (found := gains(c, label, "baseline_untrained")) is not None]
        rows.append(
            {
                **_names(group),
                "label": label,
                "gain at embedding, then each block": _by_layer([found for _, found in profiles]),
                "untrained": _by_layer(blank),
                "depth centre": _mean([summary(c, "depth_centre", label) for c, _ in profiles]),
                "last-block share": _mean([summary(c, "last_block_share", label) for c, _ in profiles]),
            }
        )
    return rows


def _by_layer(profiles: Sequence[NDArray[np.float64]]) -> str:
    """Means over seeds, layer by layer."""
    return " · ".join(f"{np.mean(values):.2f}" for values in zip(*profiles, strict=True)) or "–"


def _readings(cells: Sequence[Cell]) -> pd.DataFrame:
    """Blocks by kind of subspace and reading, over all cells that learned."""
    rows = []
    for kind, rank in KINDS:
        parts = [_kind(c, kind, rank) for c in cells]
        table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        if len(table):
            counts = table["reading"].value_counts()
            rows.append(
                {"erased": _title(kind, rank, table), "blocks": len(table)}
                | {reading: int(counts.get(reading, 0)) for reading in READINGS}
                | {
                    "stopped at its limit": int((~table["removed"].astype(bool)).sum())
                    if kind == "inlp"
                    else "–"
                }
            )
    return pd.DataFrame(rows)


def _erased(group: Sequence[Cell]) -> list[dict[str, Any]]:
    """Task and fresh probe after each kind of erasure, mean over blocks that read the state, then over seeds."""
    rows = []
    for kind, rank in KINDS:
        parts = [_kind(c, kind, rank) for c in group]
        parts = [readable for p in parts if len(p) and len(readable := p[p["reading"] != "not readable"])]
        if parts:
            rows.append(
                {
                    **_names(group),
                    "erased": _title(kind, rank, pd.concat(parts)),
                    "blocks": sum(map(len, parts)),
                    "clean": _over(parts, "clean"),
                    "task accuracy": _over(parts, "accuracy"),
                    "random subspaces": _over(parts, "control_mean"),
                    "matched components": _over(parts, "matched_accuracy") + _unmatched(parts),
                    "fresh probe": _over(parts, "refit"),
                    "baseline": _over(parts, "baseline"),
                    "variance removed": _over(parts, "variance"),
                    "by random ones": _over(parts, "control_variance"),
                }
            )
    return rows


def _beyond(cells: Sequence[Cell]) -> pd.DataFrame:
    """Readings of subspaces fitted at the learned length and erased at longer ones, over all cells that learned and
    whose positions are trained there."""
    cells = [c for c in cells if c.positions != "learned"]
    rows = []
    for kind, rank in KINDS:
        parts = [_kind(c, kind, rank, "erasure_beyond", "fitted_length") for c in cells]
        table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        for length, part in table.groupby("length") if len(table) else ():
            counts = part["reading"].value_counts()
            rows.append(
                {"erased": _title(kind, rank, part), "at length": length, "blocks": len(part)}
                | {"clean accuracy": _range(part["clean"], "{:.2f}")}
                | {reading: int(counts.get(reading, 0)) for reading in READINGS}
                | {"cannot be run": int((part["mark"] != "").sum())}
            )
    return pd.DataFrame(rows)


def _components(group: Sequence[Cell]) -> list[dict[str, Any]]:
    """Change of token accuracy when a component of all layers is removed, at the learned length and the longest."""
    rows: list[dict[str, Any]] = []
    tables = [c.table("components") for c in group]
    held = [(c, t) for c, t in zip(group, tables, strict=True) if t is not None and len(t)]
    if not held:
        return rows
    for kind, mode in dict.fromkeys(
        (k, m) for _, t in held for k, m in zip(t["kind"], t["mode"], strict=True)
    ):
        near, far, longest = _Changes(), _Changes(), 0
        for c, t in held:
            mine = t[(t["kind"] == kind) & (t["mode"] == mode) & (t["metric"] == "token")]
            whole = mine[mine["layers"] == "all"] if (mine["layers"] == "all").any() else mine
            near.add(whole[whole["length"] == c.length])
            if c.positions != "learned":
                longest = int(whole["length"].max())
                far.add(whole[whole["length"] == longest])
        rows.append(
            {
                **_names(group),
                "removed": kind,
                "how": mode,
                "there, pp": near.said(),
                "longest": longest if far.effects else "–",
                "at the longest, pp": far.said(),
            }
        )
    return rows


@dataclass
class _Changes:
    """Changes of accuracy over seeds, in percentage points: none can take more than there was, or add more than was
    missing."""

    effects: list[float] = field(default_factory=list)
    clean: list[float] = field(default_factory=list)

    def add(self, rows: pd.DataFrame) -> None:
        """Rows of `components`."""
        self.effects += [100 * float(e) for e in rows["effect"]]
        self.clean += [100 * float(a) for a in rows["clean"]]

    def said(self) -> str:
        """Mean over seeds with its interval."""
        had = float(np.mean(self.clean)) if self.clean else 0.0
        return _mean(self.effects, "{:+.1f}", (-had, 100 - had))


def _patched(group: Sequence[Cell]) -> list[dict[str, Any]]:
    """Recovery at the last position from patches at the changed one, by site and layer, beside another pair's."""
    tables = [c.rows("patching") for c in group]
    parts = []
    for table in tables:
        if len(table):
            at = table[(table["position"] == table["changed"]) & (table["readout"] == table["length"] - 1)]
            parts.append(at[at["mark"] != "nothing to recover"])
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    rows: list[dict[str, Any]] = []
    if not len(whole):
        return rows
    for (kind, layer), part in whole.groupby(["kind", "layer"], sort=False):
        rows.append(
            {
                **_names(group),
                "site": kind,
                "block": layer,
                "recovery": _mean(list(part["recovery"]), within=FREE),
                "from another pair": _mean(list(part["null_recovery"]), within=FREE),
                "by construction": "yes" if (part["mark"] == "by construction").all() else "",
            }
        )
    return rows


def _kind(cell: Cell, kind: str, rank: str, table: str = "erasure", at: str = "length") -> pd.DataFrame:
    """A cell's erasures of one kind at its length and its blocks: rank 1, or all of the kind."""
    found = cell.table(table)
    if found is None or not len(found):
        return pd.DataFrame()
    mine = found[(found["basis"] == kind) & (found[at] == cell.length) & (found["layer"] >= 0)]
    if rank:
        mine = mine[mine["full"].astype(bool)] if rank == "all" else mine[mine["rank"] == int(rank)]
    return mine


def _title(kind: str, rank: str, rows: pd.DataFrame) -> str:
    """`probe, 1 direction`, `INLP, 45 to 120 directions`: those it took at these blocks."""
    if rank:
        return f"{kind}, {'1 direction' if rank == '1' else 'C - 1 directions'}"
    taken = _range(rows["rank"], "{:.0f}")
    return f"{kind.upper()}, {taken} direction{'' if taken == '1' else 's'}"


def _unmatched(parts: Sequence[pd.DataFrame]) -> str:
    """` (2 unmatched)`: blocks without components of nearly the same variance; their figure is in the mean too."""
    n = sum(int((p["matched_mark"] == UNMATCHED).sum()) for p in parts)
    return f" ({n} unmatched)" if n else ""


def _names(group: Sequence[Cell]) -> dict[str, Any]:
    first = group[0]
    return {"task": first.task, "model": first.model, "at length": first.length, "seeds": len(group)}


def _over(parts: Sequence[pd.DataFrame], column: str) -> str:
    """Mean over seeds, with its interval, of the mean over blocks."""
    return _mean([float(p[column].mean()) for p in parts])


def _mean(values: Iterable[float | None], form: str = "{:.2f}", within: tuple[float, float] = SHARE) -> str:
    known = [float(v) for v in values if v is not None and not np.isnan(v)]
    if not known:
        return "–"
    said = ["–" if v is None else form.format(v) for v in seed_mean(known, within=within)]
    mean, low, high = ("0.00" if v == "-0.00" else v for v in said)
    return mean if len(known) == 1 else f"{mean} [{low}, {high}]"


def _range(values: Iterable[float], form: str) -> str:
    known = sorted(values)
    low, high = form.format(known[0]), form.format(known[-1])
    return low if low == high else f"{low} to {high}"
