"""The grid both studies share: blocks of tasks x models, expanded over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from causegrid.errors import InputError

Names = Annotated[tuple[str, ...], Field(min_length=1)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=2**32 - 1)], ...], Field(min_length=1)]


class Block(BaseModel):
    """Every task of `tasks` with every model of `models`; `seeds` takes the place of the study's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: Names
    models: Names
    seeds: Seeds | None = None


def pairs(blocks: Sequence[Any], seeds: Seeds) -> Iterator[tuple[Any, str, str, Seeds]]:
    """(block, task, model, the block's seeds or else `seeds`) in grid order.

    Raises InputError when a task, model and seed stand in the grid twice.
    """
    seen: set[tuple[str, str, int]] = set()
    for block in blocks:
        chosen = block.seeds or seeds
        for task in block.tasks:
            for model in block.models:
                again = [seed for seed in dict.fromkeys(chosen) if (task, model, seed) in seen]
                if again:
                    raise InputError(
                        f"the grid names task {task!r} with model {model!r} and seed {again[0]} twice: remove one"
                    )
                seen |= {(task, model, seed) for seed in chosen}
                yield block, task, model, chosen
