"""Which components a model has, and how each is removed (MEASURES 3.3, for every family).

| kind | families | modes |
|---|---|---|
| `conv` | Mamba, Mamba-2 | `identity`, `zero`, `mean` |
| `attention` | with attention | `zero`, `mean` of what it adds to the residual; `self`: kept to its own position |
| `mixer` | Mamba, Mamba-2 | `zero`, `mean` of what the state space adds to the residual |
| `mlp` | with an MLP or experts | `zero`, `mean` of what it adds to the residual |
| `gate`, `mlp_gate` | Mamba, Mamba-2; Llama-like | `open`, `mean` |
| `input_gate`, `forget_gate`, `output_gate` | LSTM | `open`, `shut` |
| `reset_gate`, `update_gate` | GRU | `open`, `shut` |
| `state` | recurrent and state space | `reset` to its start before every position |

`state` `reset` and `attention` `self` are the same question: what is left when the mixer sees the current token
alone (the convolution of a Mamba still sees four).
Where things are is said by the family tables of `sites`; a new kind is one more maker in `_MAKERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from causegrid.interventions.convolution import convolution
from causegrid.interventions.gates import gates
from causegrid.interventions.removal import Component, Fire, Read, mean_like, position_means
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.edit import Edit, edit
from causegrid.sites.hooks import tap
from causegrid.sites.self_attention import self_attention
from causegrid.sites.states import restarted
from causegrid.sites.table import at, blocks, place, table
from causegrid.sites.weights import substitute

EMPTYING = 75.0  # A = -exp(75): in float32 exp(dt A) is exactly 0 for steps dt above 3e-31, softplus(-70)


def components(model: Model) -> dict[str, Component]:
    """Kind -> component, of all that this model has; see the module for kinds and modes.

    Raises InputError when the model's family has no site table.
    """
    found: dict[str, Component] = {}
    for make in _MAKERS:
        for component in make(model):
            found[component.kind] = component
    return found


def _convolution(model: Model) -> list[Component]:
    component = convolution(model)
    return [] if component is None else [component]


def _part(site_kind: str, model: Model) -> list[Component]:
    """What a module adds to the residual: `attention` or `mixer` (site `attn_out`), `mlp` (`mlp_out`)."""
    layout = table(model)
    if site_kind not in layout.places:
        return []
    kind = "mlp" if site_kind == "mlp_out" else "attention" if layout.attention else "mixer"
    modes = {"zero": "it adds nothing", "mean": "it adds its mean, per position"}
    if kind == "attention":
        modes["self"] = "every position attends to itself alone"
    layers = tuple(range(model.n_layers))

    def scope(layer: int, mode: str, mean: Tensor | None, fire: Fire) -> AbstractContextManager[Any]:
        if mode == "self":
            return self_attention(model, layer, fire)

        def replacement(value: Tensor) -> Tensor:
            fire()
            return torch.zeros_like(value) if mean is None else mean_like(mean, value)

        return edit(model, Edit(Site(layer, site_kind), replacement, mode))

    def means(tokens: Any, batch: int) -> dict[int, Tensor]:
        reads = {}
        for layer in layers:
            module, entry = place(model, Site(layer, site_kind))
            reads[layer] = Read(module, entry.side, lambda value: value)
        return position_means(model, reads, tokens, batch)

    return [Component(model=model, kind=kind, modes=modes, layers=layers, scope=scope, means=means)]


def _state(model: Model) -> list[Component]:
    """The recurrent state: restarted where it is carried, or emptied by its decay (Hugging Face's Mamba)."""
    layout = table(model)
    if "state" not in layout.places and not layout.decay:
        return []

    @contextmanager
    def emptied(layer: int, fire: Fire) -> Iterator[None]:
        path, _, leaf = layout.decay.rpartition(".")
        module = at(blocks(model)[layer], path)
        handle = tap(module, "output", lambda _: fire())
        try:
            large = torch.full_like(module.get_parameter(leaf), EMPTYING)
            with substitute(module, {leaf: large}, root=model.module):
                yield
        finally:
            handle.remove()

    def scope(layer: int, mode: str, mean: Tensor | None, fire: Fire) -> AbstractContextManager[Any]:
        if "state" in layout.places:
            return restarted(place(model, Site(layer, "state"))[0], fire)
        return emptied(layer, fire)

    modes = {"reset": "the state is back at its start before every position"}
    return [
        Component(model=model, kind="state", modes=modes, layers=tuple(range(model.n_layers)), scope=scope)
    ]


_MAKERS: tuple[Callable[[Model], list[Component]], ...] = (
    _convolution,
    partial(_part, "attn_out"),
    partial(_part, "mlp_out"),
    gates,
    _state,
)
