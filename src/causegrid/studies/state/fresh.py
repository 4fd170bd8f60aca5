"""A family's model as a cell will build it, asked before anything runs whether it can be."""

from __future__ import annotations

import functools

from causegrid.errors import InputError
from causegrid.models import model
from causegrid.tasks import task


def require_buildable(name: str, task_name: str, longest: int) -> None:
    """Raises InputError for options that make no model of this family, and for a length beyond its positions."""
    limit = _positions(name, task_name)
    if limit is not None and longest > limit:
        raise InputError(
            f"model {name!r} has {limit} learned positions, the longest length is {longest}: use at most {limit}, "
            f"max_length={longest}, or positions=sinusoidal"
        )


@functools.cache
def _positions(name: str, task_name: str) -> int | None:
    """How many positions the model learns, None where it learns none."""
    table = getattr(model(name, task=task(task_name)).module, "positions", None)
    return None if table is None else int(table.num_embeddings)
