"""What a cell cannot be run on, said before any number is made, with what can be run instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from causegrid.errors import InputError
from causegrid.models.heads import require_attention

__all__ = ["require_attention", "require_groups"]


def require_groups(groups: Mapping[str, Sequence[str]], task: str, model: str) -> None:
    """Raises InputError when no screen picked a head: nothing can be ablated, so nothing can be judged."""
    if not groups:
        raise InputError(
            f"no screen picked a head on task {task!r} with model {model!r}: there is nothing to ablate; "
            "name other groups in the study, or use rules: paper"
        )
