"""The experts of a mixture: which ones the router chose, and what one of them adds.

The experts of OLMoE, Mixtral and Qwen's mixtures are fused three-dimensional tensors: there is no module per
expert to hook.  What a router decides is read from its output, (logits, combine weights, chosen experts) for each
token.  An expert's contribution is removed where it is weighed: its combine weight is set to 0 *after* the top-k
choice and the others are not renormalised, so every other expert does exactly what it did (case 19).

A layer without a router has no experts (Qwen's mixtures may have dense layers among the others).
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


@dataclass(frozen=True, kw_only=True)
class Routes:
    """What one router decided in one forward, token by token (batch and positions flattened, N = B L).

    `logits` (N, E) before the softmax; `chosen` (N, k) expert indices, best first; `weights` (N, k) theirs.
    """

    logits: Tensor
    weights: Tensor
    chosen: Tensor


def expert_layers(model: Model) -> list[int]:
    """Layers that have experts, ascending.  Raises InputError for a model without any."""
    path = table(model).router
    found = [layer for layer, block in enumerate(blocks(model)) if path and _at(block, path) is not None]
    if not found:
        raise InputError(f"{model.name} ({model.family}) has no experts")
    return found


def n_experts(model: Model, layer: int) -> int:
    """How many experts a layer has.  Raises InputError for models without experts or layers out of range."""
    return int(_router(model, layer).get_parameter("weight").shape[0])


@contextmanager
def recorded_routes(model: Model) -> Iterator[dict[int, Routes]]:
    """What every router decided in the one forward of the body: layer -> `Routes`, detached.

    Edits in force are seen.  Raises InputError for a model without experts, InterventionError when a router ran
    not once: of two forwards it would be unclear which one was kept.
    """
    found: dict[int, Routes] = {}
    runs = dict.fromkeys(expert_layers(model), 0)
    handles = []

    def reader(layer: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
            logits, weights, chosen = (part.detach() for part in output)
            runs[layer] += 1
            found[layer] = Routes(logits=logits, weights=weights, chosen=chosen)

        return hook

    try:
        for layer in runs:
            handles.append(_router(model, layer).register_forward_hook(reader(layer)))
        yield found
    finally:
        for handle in handles:
            handle.remove()
    wrong = {layer: n for layer, n in runs.items() if n != 1}
    if wrong:
        layer, n = next(iter(wrong.items()))
        raise InterventionError(
            f"{model.name}: the router of layer {layer} ran {n} times in one recorded forward"
        )


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
    router = _at(blocks(model)[layer], path)
    if router is None:
        have = ", ".join(map(str, expert_layers(model)))
        raise InputError(
            f"layer {layer} of {model.name} is dense, it has no experts: layers that have are {have}"
        )
    return router


def _at(block: nn.Module, path: str) -> nn.Module | None:
    """The router of a block, None where the block is dense."""
    try:
        found = at(block, path)
    except AttributeError:
        return None
    return found
