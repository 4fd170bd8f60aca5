"""Which keys a config knows at a place: read from the pydantic classes, for `did you mean`."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any


def allowed_at(config_type: Any, loc: Sequence[Any]) -> list[str]:
    """Field names of the mapping at `loc` (pydantic's location, with its names of union members)."""
    at = _models(config_type)
    for step in loc:
        if isinstance(step, int):
            continue
        fields = [m.model_fields[step].annotation for m in at if step in m.model_fields]
        if fields:
            at = [model for annotation in fields for model in _models(annotation)]
        else:
            at = [m for m in at if step == m.__name__ or _has_literal(m, step)] or at
    return list(dict.fromkeys(name for model in at for name in model.model_fields))


def _models(annotation: Any) -> list[Any]:
    """The pydantic classes inside an annotation: members of unions, items of lists, values of mappings."""
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


def _has_literal(model: Any, value: object) -> bool:
    return any(value in typing.get_args(f.annotation) for f in model.model_fields.values())


def ways(names: Iterable[object]) -> str:
    """`a, b, c`."""
    return ", ".join(str(name) for name in names)
