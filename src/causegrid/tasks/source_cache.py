"""Tokenised corpora in the user's cache: tokenising the standard library takes seconds, and every process of a
grid would pay them again.

A corpus is kept under a key made of all that decides its tokens (the interpreter, the rules, the files with their
sizes and times).  The file is written aside and renamed, so it is whole or not there; what cannot be read, or
does not fit together, counts as not there.  Arrays only, no pickle.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from causegrid.tasks.base import Ints

FIELDS = ("codes", "ends", "digests", "skipped")


def folder() -> Path:
    """`corpora` in `$CAUSEGRID_CACHE`, else in `causegrid` in `$XDG_CACHE_HOME`, else in `~/.cache/causegrid`."""
    own = os.environ.get("CAUSEGRID_CACHE")
    home = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "causegrid"
    return home.expanduser() / "corpora"


def load(key: str) -> dict[str, Any] | None:
    """What was saved under this key, or None where it is not there or damaged."""
    try:
        with np.load(folder() / f"{key}.npz", allow_pickle=False) as file:
            found = {name: file[name] for name in FIELDS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    ends: Ints = found["ends"]
    fits = ends.ndim == 1 and len(ends) == len(found["digests"]) > 0 and len(found["codes"]) == ends[-1]
    return found if fits else None


def save(key: str, arrays: dict[str, Any]) -> None:
    """Keep the arrays named in `FIELDS`; warns where the cache cannot be written."""
    aside = None
    try:
        folder().mkdir(parents=True, exist_ok=True)
        number, aside = tempfile.mkstemp(prefix=f".{key}-", dir=folder())
        with os.fdopen(number, "wb") as file:
            np.savez(file, **{name: arrays[name] for name in FIELDS})
        os.replace(aside, folder() / f"{key}.npz")
    except OSError as error:
        warnings.warn(
            f"tokenised source is not kept in {str(folder())!r} ({error.strerror or error}): every process tokenises "
            "it again; set CAUSEGRID_CACHE to a folder that can be written",
            stacklevel=2,
        )
        if aside is not None:
            with contextlib.suppress(OSError):
                os.unlink(aside)
