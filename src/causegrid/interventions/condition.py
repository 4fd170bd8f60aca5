"""A condition: edits that are in force together, with the keys that tell which of them are the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError
from causegrid.sites.edit import Edit, same_kind

Ints = NDArray[np.int64]
EditsFor = Callable[[Ints], Sequence[Edit]]


@dataclass(frozen=True)
class Condition:
    """One intervention: edits in force together.

    `edits` is a sequence, or a function from the prompts' indices (B,) in the planner's prompt set to the edits
    for that batch (all of one length), for edits that differ by prompt or by length; the sites must be the
    same in every batch.  `keys`: one per edit, or none (shared with nothing).  Edits at one site with equal
    keys must be the same intervention: what conditions have in common is then computed once.
    """

    name: str
    edits: Sequence[Edit] | EditsFor
    keys: tuple[Hashable, ...] = ()

    def on(self, index: Ints) -> tuple[Edit, ...]:
        """The edits for the prompts at `index`.  InputError when there are none, or not one key for each."""
        edits = tuple(self.edits(index) if callable(self.edits) else self.edits)
        if not edits:
            raise InputError(f"condition {self.name!r} has no edits")
        if self.keys and len(self.keys) != len(edits):
            raise InputError(
                f"condition {self.name!r} has {len(self.keys)} keys for {len(edits)} edits: give one each, or none"
            )
        return edits

    def named(self, index: Ints) -> Hashable:
        """What tells the condition from others with keys.  InputError for a key that cannot be hashed."""
        name = tuple((one.site, key) for one, key in zip(self.on(index), self.keys, strict=True))
        try:
            hash(name)
        except TypeError as error:
            raise InputError(f"a key of condition {self.name!r} cannot be compared: {error}") from None
        return name


def stacked(per_condition: list[tuple[Edit, ...]]) -> tuple[Edit, ...]:
    """K conditions with the same sites, (B, ...) each -> edits that act on (K B, ...) block by block."""
    if len(per_condition) == 1:
        return per_condition[0]

    def over(members: tuple[Edit, ...]) -> Edit:
        def fn(value: Tensor) -> Tensor:
            for part, one in zip(value.chunk(len(members)), members, strict=True):
                new = one.fn(part)
                same_kind(one, part, new)
                if new is part:
                    continue
                shared = new.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
                part.copy_(new.clone() if shared else new)
            return value

        return Edit(members[0].site, fn, members[0].label)

    return tuple(over(members) for members in zip(*per_condition, strict=True))
