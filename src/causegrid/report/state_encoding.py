"""The page's data on a state-encoding run: cells, behaviour, probe profiles, erasures.

A cell is shown at the length at which it may be used: the trained one, or the shorter one it learned to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from causegrid.report.rows import Columns, first, over, plain

if TYPE_CHECKING:
    from causegrid.runs.store import CellRecord

NO_MODEL = ("baseline_majority", "baseline_position", "baseline_token", "baseline_token_pair")
FACTS = ("n_params", "steps", "solved", "learned", "learned_length", "positions")
ERASURE = (
    "layer",
    "label",
    "length",
    "rank",
    "full",
    "clean",
    "accuracy",
    "low",
    "high",
    "control_low",
    "control_high",
    "n_control",
    "probe",
    "refit",
    "refit_low",
    "refit_high",
    "refit_control",
    "baseline",
    "reading",
)


def section(cells: Sequence[CellRecord]) -> dict[str, Any]:
    """Everything the page draws, from the finished cells' tables."""
    probe = ["layer", "label", "length", "accuracy", "low", "high", "baseline_untrained", "baseline_control"]
    return {
        "cells": [_cell(c) for c in cells],
        "behaviour": over(cells, "behaviour", ["length", "metric", "accuracy", "low", "high", "n"]),
        "probes": _with_base(over(cells, "probes", [*probe, *NO_MODEL])),
        "erasure": over(cells, "erasure", ERASURE),
    }


def _with_base(probes: Columns) -> Columns:
    """The best of the baselines that need no model, as `base`, in their place."""
    found = [probes.pop(name) for name in NO_MODEL]
    known = [[v for v in values if v is not None] for values in zip(*found, strict=True)]
    return {**probes, "base": [max(values, default=None) for values in known]}


def _cell(cell: CellRecord) -> dict[str, Any]:
    facts = {name: plain(cell.facts.get(name)) for name in FACTS}
    trained = int(cell.config["training"]["length"])
    reached = facts["learned_length"] or 0
    lengths = cell.table("profile_summary")
    probed = set() if lengths is None else set(lengths["length"])
    length = min(reached, trained) if reached in probed else trained
    at = lengths[lengths["length"] == length] if lengths is not None else None
    return {
        **{k: cell.config[k] for k in ("task", "model", "seed")},
        **facts,
        "trained": trained,
        "length": length,
        **first(at, ["total_gain", "last_block_share", "depth_centre"]),
        "seconds": plain(cell.seconds),
    }
