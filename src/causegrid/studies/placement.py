"""Where a cell's model runs.

The number type belongs to the cell's identity: it changes numbers, so it is in the config.  The device does not:
one cell means the same on a laptop and on a GPU node, and a run begun on one may go on on the other.  It is
chosen for the run (`causegrid run --device`) and reaches the worker in the environment, read here alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from causegrid.errors import unknown

if TYPE_CHECKING:
    from causegrid.models.record import Model

DEVICE = "CAUSEGRID_DEVICE"
KINDS = ("auto", "cpu", "cuda", "balanced")


def choose(name: str) -> None:
    """Make `name` the device of the runs this process starts.  Raises InputError for one that is none."""
    os.environ[DEVICE] = _known(name)


def device() -> str:
    """The device of this run: `cpu` unless chosen.  Raises InputError for one that is none."""
    return _known(os.environ.get(DEVICE) or "cpu")


def placed(name: str, *, dtype: str = "float32", revision: str | None = None) -> Model:
    """The model of a name, in a cell's number type, on the run's device."""
    from causegrid.models import model

    return model(name, dtype=dtype, device=device(), revision=revision)


def _known(name: str) -> str:
    kind, _, number = name.partition(":")  # cuda:1
    if kind not in KINDS or (number and not (kind == "cuda" and number.isdigit())):
        raise unknown("device", name, KINDS)
    return name
