"""A model larger than one GPU: its layers spread over the devices there are, by accelerate's device map.

Edits and captures follow the values to whatever device they are on.  What finds no room on any device is refused:
weights kept on a disk could be neither read nor edited there.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from causegrid.errors import InputError

BALANCED = "balanced"  # the name of all devices together


def device_map(where: str) -> dict[str, str]:
    """Arguments that make transformers spread the layers.  Raises InputError without the accelerate package."""
    if importlib.util.find_spec("accelerate") is None:
        raise InputError(
            f"{where!r} can be spread over devices with the accelerate package only: pip install accelerate"
        )
    return {"device_map": "auto"}


def require_room(where: str, module: Any) -> None:
    """Raises InputError when a weight has no place in memory."""
    away = [name for name, parameter in module.named_parameters() if parameter.is_meta]
    if away:
        raise InputError(
            f"{where!r} does not fit: {len(away)} of its weights, the first is {away[0]}, have no room on the "
            "devices here; use dtype bfloat16, or more GPUs"
        )
