"""Study files that ship: what `causegrid init` writes and what `causegrid demo` runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from pathlib import Path


def example(name: str) -> str:
    """The text of one shipped study file."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def path(name: str) -> AbstractContextManager[Path]:
    """The file itself, as a context manager (it may live in an archive)."""
    return as_file(files(__package__).joinpath(name))
