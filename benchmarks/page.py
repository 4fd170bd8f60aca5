"""`docs/performance.md` and its plots, from the results' JSON alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ORDER = ("training_steps", "floors", "seeds", "sweeps", "screens", "probing", "startup")


def order(names: Iterable[str]) -> list[str]:
    """Row names as the page shows them: those of `ORDER` first, then by name."""
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def write(root: Path, folder: Path) -> None:
    """Write the page."""
