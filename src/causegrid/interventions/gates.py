"""Holding a model's multiplicative gates at a constant.

- Sigmoid gates of LSTM and GRU: `open` (1) and `shut` (0), by substitution: the gate's rows of both weight
  matrices are 0, its bias is +-`SATURATED`.  In float32 that gives exactly 1, and exactly 0 in torch or at most
  2e-38, the smallest normal number, in the compiled loops.
  A GRU's update gate says how much of the state stays: `open`, and nothing is ever written.
- SiLU gates of Mamba, Mamba-2 and gated MLPs: `open` (1) and `mean` (its mean over reference sequences), by
  writing, where the gate is projected, what SiLU maps to that value (to rounding).  Shut, such a gate leaves
  nothing of the mixer or MLP behind it: that is the mode `zero` of `mixer` or `mlp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.errors import InputError
from causegrid.interventions.removal import Component, Fire, Read, mean_like, position_means
from causegrid.models.record import Model
from causegrid.sites.hooks import tap, writable
from causegrid.sites.table import Gate, at, blocks, table
from causegrid.sites.weights import substitute

SATURATED = 200.0
SIGMOID_MODES: Mapping[str, str] = {"open": "the gate is 1", "shut": "the gate is 0"}
SILU_MODES: Mapping[str, str] = {"open": "the gate is 1", "mean": "the gate's mean, per position"}
_LOWEST = -1.2784645427610738  # where SiLU is least; it rises from here on


def gates(model: Model) -> list[Component]:
    """A component for every gate of the family's table that this model has."""
    made = [
        _silu(model, name, gate) if gate.part is None else _sigmoid(model, name, gate)
        for name, gate in table(model).gates.items()
    ]
    return [component for component in made if component.layers]


def _sigmoid(model: Model, name: str, gate: Gate) -> Component:
    modules = {layer: at(block, gate.path) for layer, block in enumerate(blocks(model))}
    assert gate.part is not None
    part, parts = gate.part

    @contextmanager
    def scope(layer: int, mode: str, mean: Tensor | None, fire: Fire) -> Iterator[None]:
        module = modules[layer]
        tensors = {key: p.detach().clone() for key, p in module.named_parameters()}
        if "bias_ih_l0" not in tensors:
            raise InputError(f"layer {layer} of {model.name!r} has no biases to hold its {name} with")
        for tensor in tensors.values():
            size = tensor.shape[0] // parts
            tensor[part * size : (part + 1) * size] = 0.0
        size = len(tensors["bias_ih_l0"]) // parts
        held = SATURATED if mode == "open" else -SATURATED
        tensors["bias_ih_l0"][part * size : (part + 1) * size] = held
        handle = tap(module, "output", lambda _: fire())
        try:
            with substitute(module, tensors, root=model.module):
                yield
        finally:
            handle.remove()

    return Component(model=model, kind=name, modes=SIGMOID_MODES, layers=tuple(modules), scope=scope)


def _silu(model: Model, name: str, gate: Gate) -> Component:
    stack = blocks(model)
    modules = {layer: at(block, gate.path) for layer, block in enumerate(stack) if _has_silu(block, gate)}
    everything = slice(None)
    columns = {layer: gate.columns(stack[layer]) if gate.columns else everything for layer in modules}

    @contextmanager
    def scope(layer: int, mode: str, mean: Tensor | None, fire: Fire) -> Iterator[None]:
        target = torch.ones(()) if mean is None else mean
        before = silu_inverse(target)  # () or (R, width)

        def write(projected: Tensor) -> Tensor:
            fire()
            projected = writable(projected)
            held = projected[..., columns[layer]]  # (B, L, width)
            held.copy_(mean_like(before, held) if before.dim() else before.to(held).expand_as(held))
            return projected

        handle = tap(modules[layer], "output", write)
        try:
            yield
        finally:
            handle.remove()

    def means(tokens: Any, batch: int) -> dict[int, Tensor]:
        reads = {layer: Read(modules[layer], "output", _after_silu(columns[layer])) for layer in modules}
        return position_means(model, reads, tokens, batch)

    return Component(
        model=model, kind=name, modes=SILU_MODES, layers=tuple(modules), scope=scope, means=means
    )


def _after_silu(columns: slice) -> Callable[[Tensor], Tensor]:
    return lambda projected: F.silu(projected[..., columns])


def _has_silu(block: nn.Module, gate: Gate) -> bool:
    """Whether the block has this gate, squashed by a SiLU."""
    names = dict(block.named_modules())
    if gate.path not in names or (gate.activation and gate.activation not in names):
        return False
    if not gate.activation:
        return True
    x = torch.linspace(-4.0, 4.0, 9)
    return torch.allclose(names[gate.activation](x), F.silu(x))


def silu_inverse(value: Tensor) -> Tensor:
    """The x >= -1.28, float64, with SiLU(x) = value; values below SiLU's least, -0.28, count as that."""
    y = value.double()
    low = torch.full_like(y, _LOWEST)
    high = y.abs() + 1.0  # SiLU(x) > x - 0.28
    for _ in range(80):
        middle = (low + high) / 2
        under = F.silu(middle) < y
        low, high = torch.where(under, middle, low), torch.where(under, high, middle)
    return (low + high) / 2
