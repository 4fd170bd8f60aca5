"""A cell's name is a function of what its numbers depend on.

The id is the start of a SHA-256 over canonical JSON (sorted keys, no spaces, no NaN) of the validated cell
config with the study's name and version: the same cell of a changed grid keeps its id and its results, and a
change of a study's meaning (`version`) makes new cells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from causegrid.errors import InputError

ID_LENGTH = 16


def cell_id(study: Any, cell: Any) -> str:
    """16 hex digits.  `study` has `name` and `version`, `cell` is a validated CellConfig or its JSON mapping.

    Raises InputError when a number of the config is not finite.
    """
    config = dumped(cell)
    whole = {"study": study.name, "version": study.version, "config": config}
    try:
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except ValueError:
        raise InputError(f"cell {label(config)}: its config holds a number that is not finite") from None
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_LENGTH]


def expand(study: Any, cells: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """id -> config (JSON mapping), in grid order; equal cells once.  Raises InputError for an empty grid."""
    found = {cell_id(study, cell): dumped(cell) for cell in cells}
    if not found:
        raise InputError(
            f"the grid of study {study.name!r} is empty: give it at least one task, model and seed"
        )
    return found


def dumped(cell: Any) -> dict[str, Any]:
    """The cell's config as a JSON mapping."""
    return dict(cell) if isinstance(cell, Mapping) else dict(cell.model_dump(mode="json"))


def label(config: Mapping[str, Any]) -> str:
    """How a person names a cell: `dyck mamba seed 0`."""
    return f"{config.get('task', '?')} {config.get('model', '?')} seed {config.get('seed', 0)}"
