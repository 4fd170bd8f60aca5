"""Patch clean activations into corrupted runs of one cell's model (MEASURES 3.4).

Every kind of site at the changed position, and the layer x position grid: block outputs everywhere, recurrent
states (run in steps, so dear) at the first position and from the one before the change on.  Each patch is read
at its own position and at the last one.  Rows whose answer is known without running the model are marked
`by construction` and support no claim.

The null: at the changed position each site (block outputs and states also right behind it and at the last
position) is also patched from *another* pair's clean run, chosen at random.  A
recovery means something only beyond it: where a site holds the whole state, an unrelated activation takes the
corrupted state away as well as the true one does, favours neither label, and so "recovers" about one half (in
parity half of the donors even hold the clean state).  For states of few classes this is far from 0.

A model that did not learn moves no readout: its rows are there, without numbers, marked `nothing to recover`.
A task need not make pairs (one of your own, or source code with few brackets): for a study that is no failure of
the cell, whose other stages hold, so there too the rows are there, and the mark says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from causegrid.errors import InputError, unknown
from causegrid.interventions.patching import (
    MIN_DENOMINATOR,
    Contrast,
    Floats,
    by_construction,
    patched_runs,
    plain_runs,
    recovered,
)
from causegrid.models.forward import token_ids
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.table import require, supported
from causegrid.tasks.pairs import pairs

KINDS = ("resid_pre", "resid_post", "attn_out", "mlp_out", "state")
GRID = ("resid_post", "state")
BATCH = 50
FEWEST = 8  # pairs
COLUMNS = (
    *(
        "site",
        "kind",
        "layer",
        "position",
        "changed",
        "readout",
        "label",
        "length",
        "recovery",
        "low",
        "high",
    ),
    *("n", "left_out", "null_recovery", "null_low", "null_high", "n_null", "mark"),
)
_STREAM = 34  # of the seed, apart from other stages'


def patching_table(
    model: Model,
    task: Any,
    *,
    length: int = 40,
    kinds: Sequence[str] | None = None,
    n_pairs: int = 100,
    grid: bool = True,
    n_null: int = 5,
    unpaired: Literal["refuse", "mark"] = "refuse",
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """One row per site and readout.  `kinds` None = those of `KINDS` that the model has; without `grid` only the
    changed position (the middle) is patched.

    Columns: `site, kind, layer, position, changed` (the changed position)`, readout` (position)`, label, length,
    recovery, low, high` (95 % bootstrap over pairs)`, n, left_out, null_recovery, null_low, null_high` (mean and
    range of `n_null` patches from another pair; NaN at positions without one)`, n_null, mark`.
    Where pairs are rare (`code-depth`) there are fewer than `n_pairs`; `unpaired`: a task that makes none, or too
    few, is refused, or has its rows at the changed position, without numbers, under a `mark` that says why.
    Raises InputError for kinds the model has not, a task without pairs, and a length the model or the task cannot
    take.
    """
    try:
        found = pairs(task, n_pairs, length, seed=[seed, _STREAM], least=min(n_pairs, FEWEST))
    except InputError as error:
        if unpaired == "refuse":
            raise
        nothing = np.empty(0)
        spots = _spots(model, kinds, length // 2, length, grid=False)
        return pd.DataFrame(
            _row(spot, length // 2, length - 1, task.label, length, str(error))
            | _numbers(nothing, nothing, spot, length - 1, {}, {})
            for spot in spots
        )[list(COLUMNS)]
    if model.n_out < task.labels[found.label]:
        raise InputError(
            f"{model.name} has {model.n_out} outputs, task {task.name!r} has {task.labels[found.label]} classes"
        )
    n_null = min(n_null, len(found) - 1)
    clean, corrupt = token_ids(model, found.clean), token_ids(model, found.corrupt)
    differs = found.clean != found.corrupt  # (B, L)
    labels = found.labels_clean[found.label], found.labels_corrupt[found.label]
    contrast = Contrast(model, range(length), *labels)
    after, before = (
        plain_runs(model, tokens, contrast, batch=BATCH) for tokens in (clean, corrupt)
    )  # (B, L)
    kept = after - before >= MIN_DENOMINATOR
    spots = _spots(model, kinds, found.position, length, grid)
    here = [spot for spot in spots if _has_null(spot, found.position, length)]
    shifts = np.random.default_rng([seed, _STREAM]).permutation(np.arange(1, len(found)))[:n_null]
    total = (len(spots) + n_null * len(here)) * -(-len(found) // BATCH)
    done = 0

    def ran() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, f"patching at length {length}")

    def run(source: Any, chosen: list[Site]) -> Floats:
        return patched_runs(model, source, corrupt, chosen, contrast, batch=BATCH, ran=ran)

    rows = []
    for layer in sorted({spot.layer for spot in spots}):
        mine = [spot for spot in spots if spot.layer == layer]
        at = [spot for spot in here if spot.layer == layer]
        if not kept.any():
            values, nulls = {}, {}
        else:
            values = dict(zip(mine, run(clean, mine), strict=True))
            draws = np.stack(
                [run(clean.roll(int(shift), dims=0), at) for shift in shifts]
            )  # (draws, spots, B, L)
            nulls = dict(zip(at, draws.swapaxes(0, 1), strict=True))
        for spot in mine:
            for read in _reads(spot, found.position, length):
                mark = (
                    "nothing to recover"
                    if not kept[:, read].any()
                    else "by construction"
                    if by_construction(model, spot, read, differs[kept[:, read]])
                    else ""
                )
                rows.append(
                    _row(spot, found.position, read, found.label, length, mark)
                    | _numbers(before[:, read], after[:, read], spot, read, values, nulls)
                )
    return pd.DataFrame(rows)[list(COLUMNS)]


def require_places(model: Model, kinds: Sequence[str] | None) -> Sequence[str]:
    """These kinds of site (None = all the model has).  Raises InputError for one unknown, or one it has not."""
    for kind in kinds or ():
        if kind not in KINDS:
            raise unknown("kind of site to patch", kind, KINDS)
        require(model, Site(0, kind, None, 0), "edit")
    reasons = supported(model, "edit")
    return kinds or [kind for kind in KINDS if not reasons[kind]]


def _spots(model: Model, kinds: Sequence[str] | None, changed: int, length: int, grid: bool) -> list[Site]:
    """Sites by layer and kind."""
    spots = []
    for layer in range(model.n_layers):
        for kind in require_places(model, kinds):
            places: Sequence[int] = range(length) if grid and kind in GRID else [changed]
            if grid and kind == "state":
                places = sorted({0, *range(max(changed - 1, 0), length)})
            spots += [require(model, Site(layer, kind, None, place), "edit") for place in places]
    return spots


def _row(spot: Site, changed: int, readout: int, label: str, length: int, mark: str) -> dict[str, Any]:
    """A row but for its numbers."""
    return {
        "site": str(spot),
        "kind": spot.kind,
        "layer": spot.layer,
        "position": spot.position,
        "changed": changed,
        "readout": readout,
        "label": label,
        "length": length,
        "mark": mark,
    }


def _has_null(spot: Site, changed: int, length: int) -> bool:
    """Every kind at the changed position; the grid's also right behind it and at the end, where the state may be
    carried by then."""
    behind = spot.kind in GRID and spot.position in (changed + 1, length - 1)
    return spot.position == changed or behind


def _reads(spot: Site, changed: int, length: int) -> list[int]:
    """The patched position, unless the labels are equal there yet, and the last one."""
    assert spot.position is not None
    own = [spot.position] if spot.position >= changed else []
    return sorted({*own, length - 1})


def _numbers(
    before: Floats,
    after: Floats,
    spot: Site,
    read: int,
    values: dict[Site, Floats],
    nulls: dict[Site, Floats],
) -> dict[str, float]:
    """Recovery and null of one row; NaN where nothing was run."""
    patched = values[spot][:, read] if values else before
    drawn = [recovered(before, after, draw[:, read])["recovery"] for draw in nulls.get(spot, ())]
    return {
        **recovered(before, after, patched),
        "null_recovery": float(np.mean(drawn)) if drawn else np.nan,
        "null_low": min(drawn, default=np.nan),
        "null_high": max(drawn, default=np.nan),
        "n_null": len(drawn),
    }
