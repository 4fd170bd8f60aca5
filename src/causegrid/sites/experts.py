"""Ablating one expert of a mixture.

The experts of OLMoE are fused three-dimensional tensors: there is no module per expert to hook.  Its
contribution is removed where it is weighed: the combine weight is set to 0 *after* the top-k choice and the
others are not renormalised, so every other expert does exactly what it did (case 19).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from causegrid.errors import InputError, InterventionError
from causegrid.models.record import Model
from causegrid.sites.table import at, blocks, table


@dataclass
class ExpertLog:
    """`fired`: forwards of the router seen; `tokens`: how many tokens had chosen the expert."""

    fired: int = 0
    tokens: int = 0


def n_experts(model: Model, layer: int) -> int:
    """How many experts a layer has.  Raises InputError for models without experts or layers out of range."""
    return int(_router(model, layer).get_parameter("weight").shape[0])


@contextmanager
def ablate_expert(model: Model, layer: int, expert: int) -> Iterator[ExpertLog]:
    """Run the body with one expert's combine weight at 0, top-k choice and other weights unchanged.

    Raises InputError for a model without experts or an index out of range, InterventionError when the
    router never ran.  A log with `tokens == 0` means the expert was never chosen: then nothing changed.
    """
    router = _router(model, layer)
    total = n_experts(model, layer)
    if not 0 <= expert < total:
        raise InputError(
            f"expert {expert} is out of range: {model.name} has {total} experts (0..{total - 1})"
        )
    log = ExpertLog()

    def hook(_module: nn.Module, _args: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
        scores, weights, index = output  # (N, E), (N, k), (N, k)
        hit = index == expert
        log.fired += 1
        log.tokens += int(hit.sum())
        return scores, weights.masked_fill(hit, 0.0), index

    handle = router.register_forward_hook(hook)
    try:
        yield log
    finally:
        handle.remove()
    if not log.fired:
        raise InterventionError(f"{model.name}: the router of layer {layer} never ran")


def _router(model: Model, layer: int) -> nn.Module:
    path = table(model).router
    if not path:
        raise InputError(f"{model.name} ({model.family}) has no experts")
    if not 0 <= layer < model.n_layers:
        raise InputError(
            f"layer {layer} is out of range: {model.name} has {model.n_layers} layers "
            f"(0..{model.n_layers - 1})"
        )
    return at(blocks(model)[layer], path)
