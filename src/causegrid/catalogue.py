"""`causegrid list`: everything that is registered, with one line on each."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pandas as pd

KINDS = ("tasks", "models", "screens", "studies", "engines")


def catalogue(kinds: Sequence[str] = KINDS) -> pd.DataFrame:
    """One row per registered thing: kind, name, note."""
    rows = [
        {"kind": kind, "name": name, "note": _note(thing)}
        for kind in kinds
        for name, thing in _registry(kind).items()
    ]
    return pd.DataFrame(rows, columns=["kind", "name", "note"])


def _registry(kind: str) -> Any:
    if kind == "tasks":
        from causegrid.tasks import tasks as found
    elif kind == "models":
        from causegrid.models import models as found
    elif kind == "screens":
        from causegrid.signatures.screens import screens as found
    elif kind == "studies":
        from causegrid.studies.base import studies as found
    else:
        from causegrid.runs.engines import engines as found
    return found


def _note(thing: Any) -> str:
    note = getattr(thing, "note", None)
    if isinstance(note, str) and note:
        return note
    document = inspect.getdoc(thing) or ""
    return document.splitlines()[0] if document else ""
