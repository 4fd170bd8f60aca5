"""Where a cell's model runs.

The number type belongs to the cell's identity: it changes numbers, so it is in the config.  The device does not:
one cell means the same on a laptop and on a GPU node, and a run begun on one may go on on the other.  It is
chosen for the run (`causegrid run --device`) and reaches the worker in the environment, read here alone.
"""

from __future__ import annotations

import os

from causegrid.errors import unknown
from causegrid.models import model
from causegrid.models.record import Model

DEVICE = "CAUSEGRID_DEVICE"
KINDS = ("auto", "cpu", "cuda", "balanced")


def device() -> str:
    """The device of this run: `cpu` unless chosen.  Raises InputError for one that is none."""
    chosen = os.environ.get(DEVICE) or "cpu"
    if chosen.partition(":")[0] not in KINDS:
        raise unknown("device", chosen, KINDS)
    return chosen


def placed(name: str, *, dtype: str = "float32", revision: str | None = None) -> Model:
    """The model of a name, in a cell's number type, on the run's device."""
    return model(name, dtype=dtype, device=device(), revision=revision)
