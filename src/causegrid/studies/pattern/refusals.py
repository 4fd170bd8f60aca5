"""What a cell cannot be run on, said before any number is made, with what can be run instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from causegrid.errors import InputError
from causegrid.signatures.screens.base import TaskScreen, screens


def require_groups(
    groups: Mapping[str, Sequence[str]],
    task: str,
    model: str,
    *,
    tried: Sequence[str],
    positions: Iterable[str],
    rules: str,
) -> None:
    """Raises InputError when no screen picked a head: nothing can be ablated, so nothing can be judged.

    `tried`: the screens; `positions`: those the task's prompts name.
    """
    if not groups:
        raise InputError(
            f"{nothing_picked(task, model, tried, positions)}; name other screens in the study"
            f"{', or use rules: paper' if rules != 'paper' else ''}, or judge heads of your own with "
            "`causegrid verdict --groups FILE.json`"
        )


def nothing_picked(task: str, model: str, tried: Sequence[str], positions: Iterable[str]) -> str:
    """That none of the screens `tried` picked a head, and which were not tried for want of named positions."""
    have = list(positions)
    unfit = [
        f"{name} ({', '.join(s.needs)})"
        for name, s in screens.items()
        if isinstance(s, TaskScreen) and name not in tried and not set(s.needs) <= set(have)
    ]
    said = f"none of the screens {', '.join(tried)} picked a head on task {task!r} with model {model!r}"
    if not unfit:
        return said
    return (
        f"{said}; its prompts name the positions {', '.join(have) or 'none'}, too few for {', '.join(unfit)}"
    )
