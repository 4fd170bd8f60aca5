"""Published figures set beside ours where no test is possible: other settings, or no interval to test against.

`anchors` is the whole comparison with Sarrof et al. (NeurIPS 2024), one row per published figure: strict accuracy by
length bin, of Mamba by depth.  Ours have four blocks unless a cell's options say otherwise; where no cell has the
published depth, ours stand there with the depth named among the settings that differ.  They report what training
gave, learned or not, so cells that did not learn, or learned less, are in and are named.

`anchor_claims` gives the same as entries of `claims.json` of kind `anchor`, one per published model, together with
the probe profiles and last-block shares of arXiv 2606.00926: figures, not claims, so their result is `compared`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from causegrid.evidence.claims import COMPARED, Claim, seed_mean
from causegrid.evidence.effects import wilson
from causegrid.evidence.reference import published
from causegrid.spec import split
from causegrid.studies.state.finished import Cell, learned_less, named, summary

BINS = (
    (1, 50),
    (51, 100),
    (101, 150),
)  # of training lengths 2-50; the third is not given in the source's summary
LAYERS = 4  # blocks of our families unless the options say otherwise
TARGETS = {
    "parity": "",
    "dyck-1": "their target is the set of next symbols, ours the depth",
    "bounded dyck": "their target is the set of next symbols, ours the depth",
}
NAMES = {"transformer": "Transformer", "mamba": "Mamba", "mamba2": "Mamba-2", "lstm": "LSTM", "gru": "GRU"}


def anchors(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row per published figure of Sarrof et al.

    `id, task, model, layers, bin, published` (fraction)`, measured, low, high` (mean over seeds, t interval
    within 0 and 1; Wilson's of the test sequences for one seed; None without cells)`, n` (seeds)`, lengths, cells,
    settings` (that differ).
    """
    rows = []
    for i, (task, model, layers, figures) in enumerate(_sarrof(), start=1):
        same, settings = _comparable(cells, task, model, layers)
        for name, value, (low, high) in figures:
            lengths, values = _values(same, low, high)
            mean, from_, to = (None, None, None) if not values else seed_mean(values, within=(0, 1))
            if len(values) == 1 and len(lengths) == 1:
                from_, to = _one(
                    next(c for c in same if c.accuracy(lengths, "strict") is not None), lengths[0]
                )
            rows.append(
                {
                    "id": f"A{i}", "task": task, "model": model, "layers": layers, "bin": name, "published": value,
                    "measured": mean, "low": from_, "high": to, "n": len(values), "lengths": lengths,
                    "cells": [c.id for c in same], "settings": settings,
                }
            )  # fmt: skip
    return rows


def anchor_claims(cells: Sequence[Cell]) -> list[Claim]:
    """Profiles and last-block shares of the paper, then Sarrof et al., as entries of `claims.json`."""
    found = [_shares(cells), *_profiles(cells)]
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in anchors(cells):
        by_id.setdefault(row["id"], []).append(row)
    for id, rows in by_id.items():
        first = rows[0]
        depth = "" if first["layers"] is None else f" of {first['layers']} layers"
        found.append(
            Claim(
                id=id,
                statement=f"Sarrof et al.: {first['task']}, {NAMES[first['model']]}{depth}, strict accuracy by length",
                published="; ".join(f"{r['bin']}: {100 * r['published']:.4g} %" for r in rows),
                measured="; ".join(_bin(r) for r in rows) if first["cells"] else "-",
                result=COMPARED,
                why="; ".join(first["settings"]) + ".",
                cells=tuple(first["cells"]),
                kind="anchor",
            )
        )
    return found


def _sarrof() -> list[tuple[str, str, int | None, list[tuple[str, float, tuple[int, int]]]]]:
    """(task, model, layers, [(bin, fraction, lengths)]) as published."""
    data = published("state-encoding")["external_anchor_strict_accuracy_percent"]
    found = []
    for task in ("parity", "dyck-1"):
        for name, values in data[task].items():
            model, _, depth = name.partition("_")
            bins = zip(BINS, values, strict=False)
            figures = [(f"{a}-{b}", v / 100, (a, b)) for (a, b), v in bins]
            found.append((task, model, int(depth[0]) if depth else None, figures))
    bounded = data["bounded_dyck_k8_m10_mamba_2_layers_d30"]
    figures = [
        ("development set", bounded["dev"], (1, 50)),
        ("701-1400", bounded["test_len_701_1400"], (701, 1400)),
    ]
    found.append(("bounded dyck", "mamba", 2, figures))
    return found


def _comparable(
    cells: Sequence[Cell], task: str, model: str, layers: int | None
) -> tuple[list[Cell], list[str]]:
    """Our cells that come nearest, and the settings in which they differ."""
    k = {"parity": None, "dyck-1": 1, "bounded dyck": 8}[task]
    name = "parity" if k is None else "dyck"
    plain = [c for c in cells if split(c.task)[0] == name and c.family == model and _only_depth(c)]
    types = {c.id: int(split(c.task)[1].get("k", 2)) for c in plain} if k else {}
    exact = [c for c in plain if types.get(c.id) == k]
    same = exact or plain
    deep = [c for c in same if _layers(c) == layers]
    same = deep or [c for c in same if _layers(c) == LAYERS]
    lengths = "development lengths not given" if k == 8 else "lengths 2-50 mixed"
    settings = [f"theirs: {lengths}, targets at every position"]
    trained = sorted({c.trained for c in same})
    if trained:
        settings.append(f"ours: lengths up to {', '.join(map(str, trained))}")
    if layers is not None and not deep:
        settings.append(f"{LAYERS} layers here, {layers} there")
    if layers is None:
        settings.append(f"{LAYERS} layers here, their Transformer's are not given")
    if k and same and not exact:
        settings.append(f"{', '.join(map(str, sorted(set(types.values()))))} bracket types here, {k} there")
    if k == 1:
        settings.append("depth bounded by 10 here, unbounded there; the third bin's lengths are assumed")
    if k == 8:
        settings.append("width 128 here, 30 there")
    if TARGETS[task]:
        settings.append(TARGETS[task])
    if model == "transformer" and same:
        settings.append(f"positions {', '.join(sorted({c.positions or 'learned' for c in same}))} here")
    unlearned = [c for c in same if not c.has_learned]
    if unlearned:
        settings.append(f"{len(unlearned)} of {len(same)} here did not learn ({named(unlearned)}) and are in")
    if short := learned_less(same):
        settings.append(f"learned to a shorter length than the trained one, and in: {short}")
    return same, settings if same else [*settings, "no cell of ours to set beside it"]


def _only_depth(cell: Cell) -> bool:
    return set(cell.options) <= {"n_layers"}


def _layers(cell: Cell) -> int:
    return int(cell.options.get("n_layers", LAYERS))


def _values(cells: Sequence[Cell], low: int, high: int) -> tuple[list[int], list[float]]:
    """(lengths of the bin at which all were measured, mean strict accuracy of each cell over them)."""
    sets = [{n for n in c.measured_lengths() if low <= n <= high} for c in cells]
    lengths = sorted(set.intersection(*sets)) if sets else []
    values = [c.accuracy(lengths, "strict") for c in cells] if lengths else []
    return lengths, [v for v in values if v is not None]


def _one(cell: Cell, length: int) -> tuple[float | None, float | None]:
    """Wilson's interval of one cell's test sequences."""
    table = cell.table("behaviour")
    if table is None or "n" not in table:
        return None, None
    row = table[(table["length"] == length) & (table["metric"] == "strict")].iloc[0]
    return wilson(round(row["accuracy"] * row["n"]), int(row["n"]))


def _bin(row: Mapping[str, Any]) -> str:
    if row["measured"] is None:
        return f"{row['bin']}: not measured"
    interval = "" if row["low"] is None else f" [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
    at = ", ".join(map(str, row["lengths"]))
    return f"{row['bin']} (at {at}): {100 * row['measured']:.1f} %{interval} n {row['n']}"


def _shares(cells: Sequence[Cell]) -> Claim:
    """The last block's share of the gain on Parity, per model: published for two, ours for all."""
    figure = published("state-encoding")["derived"]["last_block_share_parity"]
    used = [
        c
        for c in cells
        if c.task == "parity" and c.has_learned and summary(c, "last_block_share") is not None
    ]
    groups: dict[str, list[Cell]] = {}
    for c in used:
        groups.setdefault(_at(c), []).append(c)
    ours = {}
    for name, group in sorted(groups.items()):
        ours[name] = _mean([summary(c, "last_block_share") or 0.0 for c in group], within=(0, 1))
    without = [c for c in cells if c.task == "parity" and not c.has_learned]
    return Claim(
        id="last-block-share", statement="Share of the probe's gain made by the last block, Parity",
        published=figure, measured=ours or "-", result=COMPARED, kind="anchor", cells=tuple(c.id for c in used),
        why="computed from the published profiles by our definition (base: chance); base here: the best lookup table"
        + (f"; not learned, left out: {named(without)}." if without else "."),
    )  # fmt: skip


def _profiles(cells: Sequence[Cell]) -> list[Claim]:
    """The published probe profiles, block by block, beside ours."""
    found = []
    for task, models in published("state-encoding")["probe_accuracy_percent"].items():
        if task not in ("parity", "dyck"):
            continue
        for model, figures in models.items():
            given = [c for c in cells if (c.task, c.model) == (task, model)]
            used = [c for c in given if c.has_learned and len(c.profile())]
            ours = {}
            for name in sorted({_at(c) for c in used}):
                rows = [c.profile().set_index("layer")["accuracy"] for c in used if _at(c) == name]
                blocks = [layer for layer in rows[0].index if layer >= 0]
                means = [
                    _mean([100 * float(r[b]) for r in rows], digits=1, of="", within=(0, 100)) for b in blocks
                ]
                ours[name] = f"{' · '.join(means)} (n {len(rows)})"
            without = [c for c in given if not c.has_learned]
            found.append(
                Claim(
                    id=f"profile-{task}-{model}",
                    statement=f"Probe accuracy by block, {task}, {NAMES[model]}, percent",
                    published=" · ".join(map(str, figures)),
                    measured=ours or "-",
                    result=COMPARED,
                    kind="anchor",
                    cells=tuple(c.id for c in used),
                    why="published: probe sizes, steps, seeds and k of Dyck are not known; the embedding output is not "
                    "shown" + (f"; not learned, left out: {named(without)}." if without else "."),
                )
            )
    return found


def _at(cell: Cell) -> str:
    """`mamba`, or `mamba at 24` for a cell that learned to 24 only."""
    return cell.model if cell.to_the_end else f"{cell.model} at {cell.length}"


def _mean(
    values: Sequence[float],
    *,
    digits: int = 2,
    of: str = " n ",
    within: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """`0.55 [0.40, 0.70] n 7`."""
    mean, low, high = seed_mean(values, within=within)
    interval = "" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{mean:.{digits}f}{interval}" + (f"{of}{len(values)}" if of else "")
