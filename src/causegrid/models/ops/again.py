"""Gradients that are themselves differentiable, through the plain form of an operation (`create_graph=True`).

The compiled gradients have none of their own, so under `create_graph=True` the plain form runs again on what
forward saved.  It runs on views of the saved tensors and is differentiated by those: where one saved tensor
was computed from another (a scan's step from its input), a gradient by the saved tensors themselves would
also follow that path, which autograd walks on its own, and count it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def again(
    plain: Callable[..., Any], saved: Sequence[Tensor | None], needed: Sequence[bool], grads: Any
) -> tuple[Any, ...]:
    """The gradients of plain(*saved), weighted with `grads`, by each of `saved`; None where not needed."""
    inner = [None if v is None else v.view_as(v) for v in saved]
    needed = needed[: len(saved)]
    wanted = [v for v, need in zip(inner, needed, strict=True) if need and v is not None]
    found = iter(torch.autograd.grad(plain(*inner), wanted, grads, create_graph=True))
    return tuple(next(found) if need else None for need in needed)
