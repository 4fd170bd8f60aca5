"""A planner for some of another's prompts, without a clean pass of its own.

A null may run on a subset of the evaluated prompts (MEASURES 4.1).  Their clean values, noise floor and block
inputs are in the whole set's planner already, so they are taken from there: the baseline costs one pass over
the model, and the subset's clean values *are* the whole set's, not a second measurement of them: a whole planner
that has not made its pass yet makes it now, so that work taken up again in a new process gives the same numbers.
Block inputs that the whole planner did not keep are computed as always.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from causegrid.errors import InputError
from causegrid.interventions.sweep import Planner


def narrowed(planner: Planner, indices: Sequence[int]) -> Planner:
    """A planner for the prompts numbered `indices` of `planner`, which must use the metrics of its task.

    Raises InputError for an index outside its prompts, or one given twice.
    """
    pick = np.asarray(indices, dtype=np.int64)
    n = len(planner.prompts)
    if pick.size == 0 or pick.min() < 0 or pick.max() >= n or len(np.unique(pick)) != pick.size:
        raise InputError(f"prompts {list(indices)[:8]} ... are not distinct numbers from 0 to {n - 1}")
    part = Planner(
        planner.model,
        planner.prompts.subset(pick),
        batch=planner.batch,
        reuse=planner.reuse,
        stack=planner.stack,
    )
    part._clean = planner.clean[pick]
    part._noise = planner.noise_floor
    where = {
        int(prompt): (i, row)
        for i, group in enumerate(planner._batches)
        for row, prompt in enumerate(group.index)
    }
    for i, group in enumerate(part._batches):
        places = [where[int(pick[prompt])] for prompt in group.index]
        if all(batch in planner._kept for batch, _ in places):
            part._kept[i] = _rows(planner._kept, places)
    return part


def _rows(kept: dict[int, list[Tensor]], places: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The block inputs (B, L, d) of the rows at `places`, (batch, row) each, one per block."""
    n_blocks = len(kept[places[0][0]])
    return [torch.stack([kept[batch][block][row] for batch, row in places]) for block in range(n_blocks)]
