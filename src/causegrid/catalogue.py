"""`causegrid list`: everything that is registered, with one line on each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

KINDS = ("tasks", "models", "screens", "studies", "engines")
GIVEN = ("n_tokens", "n_out", "dtype", "device")  # told by the task and the place


def catalogue(kinds: Sequence[str] = KINDS) -> pd.DataFrame:
    """One row per registered thing: kind, name, note, and the options its name may carry (name -> default)."""
    rows = [
        {"kind": kind, "name": name, "note": _note(kind, name, thing), "options": _options(kind, thing)}
        for kind in kinds
        for name, thing in _registry(kind).items()
    ]
    return pd.DataFrame(rows, columns=["kind", "name", "note", "options"])


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


def _note(kind: str, name: str, thing: Any) -> str:
    """What the thing says of itself; of one name among several (`s3` beside `s<n>`), what is made under it."""
    if (
        kind == "tasks"
        and "<" not in name
        and any(n != name and t is thing for n, t in _registry(kind).items())
    ):
        thing = thing(name)
    note = getattr(thing, "note", None)
    if isinstance(note, str) and note:
        return note[:1].upper() + note[1:] if kind == "tasks" else note
    return first_sentence(inspect.getdoc(thing) or "")


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line, without its full stop; a blank line ends it too."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[^.])\.(?= [A-Z`]|$)", paragraph, maxsplit=1)[0]


def _options(kind: str, thing: Any) -> dict[str, Any]:
    """Those with a plain value, as a name carries no lists; none where one is required, which no name gives."""
    if kind not in ("tasks", "models"):
        return {}
    found = [p for p in inspect.signature(thing).parameters.values() if p.kind is p.KEYWORD_ONLY]
    given = (*GIVEN, "seed") if any(p.name == "n_tokens" for p in found) else GIVEN
    named = {p.name: p.default for p in found if p.name not in given}
    if inspect.Parameter.empty in named.values():
        return {}
    return {k: v for k, v in named.items() if isinstance(v, (bool, int, float, str, type(None)))}
