"""Whether a name in a study file means something, asked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from causegrid.errors import InputError, unknown


def require_task(name: str, kind: str) -> None:
    """Raises InputError unless `name` is a task of this kind ("state" or "prompt")."""
    from causegrid.tasks import task, tasks

    made = task(name)
    if made.kind != kind:
        known = ", ".join(tasks.names())
        raise InputError(f"task {name!r} is a {made.kind} task, this study takes {kind} tasks (of {known})")


def require_family(name: str) -> None:
    """Raises InputError unless `name` is a family that can be trained from scratch."""
    from causegrid.models import models

    families = [n for n, make in models.items() if getattr(make, "trainable", True)]
    if name not in families:
        raise unknown("model family", name, families)


def require_screens(names: Sequence[str]) -> None:
    """Raises InputError unless every name is a registered screen."""
    from causegrid.signatures.screens import screens

    for name in names:
        screens.get(name)


def require_model(name: str) -> None:
    """Raises InputError when `name` can only be a mistake: no registered model, no folder, no `org/name` id."""
    from causegrid.models import models

    if name in models or Path(name).is_dir() or name.count("/") == 1:
        return
    raise unknown("model", name, models.names(), "or a local folder, or a Hugging Face id org/name")
