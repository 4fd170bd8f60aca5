"""The grid both studies share: blocks of tasks x models, expanded over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from causegrid.errors import InputError

Names = Annotated[tuple[str, ...], Field(min_length=1)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]


class Block(BaseModel):
    """Every task of `tasks` with every model of `models`; `seeds` takes the place of the study's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: Names
    models: Names
    seeds: Seeds | None = None


def pairs(blocks: Sequence[Any]) -> Iterator[tuple[Any, str, str]]:
    """(block, task, model) in grid order.  Raises InputError when a pair stands in two blocks."""
    seen: set[tuple[str, str]] = set()
    for block in blocks:
        for task in block.tasks:
            for model in block.models:
                if (task, model) in seen:
                    raise InputError(f"the grid names task {task!r} with model {model!r} twice: remove one")
                seen.add((task, model))
                yield block, task, model
