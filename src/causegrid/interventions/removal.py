"""Removing a component of a model: one scope for every kind, which counts and refuses to be silent.

A `Component` says which layers have a part, in which modes it can be removed, and how one layer's removal is
put in force; `removed` enters those scopes, counts how often each fired, and holds that against the forwards of
the whole model: a removal that ran less often than the model did is an error, never a result (MEASURES 3).

`mean` replaces a value by its mean over reference sequences: per position as far as those reach, the mean over
all their positions beyond.  (The convolution alone is replaced by one mean for all positions.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from causegrid.errors import InputError, InterventionError, unknown
from causegrid.models.forward import logits, token_ids
from causegrid.models.record import Model
from causegrid.sites.hooks import tap
from causegrid.sites.table import Side

Fire = Callable[[], None]
Means = Mapping[int, Tensor]
Scope = Callable[[int, str, Tensor | None, Fire], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class Component:
    """`modes`: mode -> what it does, in one line.  `layers`: those that have the component.

    `scope(layer, mode, mean, fire)` puts one layer's removal in force and calls `fire` whenever it acts.
    `means(tokens, batch)` gives what the mode `mean` needs: layer -> mean over token ids (B, L).
    """

    model: Model
    kind: str
    modes: Mapping[str, str]
    layers: tuple[int, ...]
    scope: Scope
    means: Callable[[Any, int], dict[int, Tensor]] | None = None


@dataclass
class RemovalLog:
    """`layers` edited, per layer how often its removal acted, and how many forwards the model ran."""

    layers: tuple[int, ...]
    fired: dict[int, int] = field(default_factory=dict)
    forwards: int = 0

    @property
    def total(self) -> int:
        """All firings: layers x forwards."""
        return sum(self.fired.values())


def chosen_layers(component: Component, layers: int | Iterable[int] | None) -> tuple[int, ...]:
    """The layers asked for (None = all that have the component), in the order given, once each.

    Raises InputError for none at all, a layer out of range, or one without the component.
    """
    if layers is None:
        return component.layers
    chosen = tuple(dict.fromkeys([layers] if isinstance(layers, int) else layers))
    if not chosen:
        raise InputError(f"no layers given to remove {component.kind!r} from")
    model = component.model
    for layer in chosen:
        if not 0 <= layer < model.n_layers:
            raise InputError(
                f"layer {layer} is out of range: {model.name!r} has {model.n_layers} layers "
                f"(0..{model.n_layers - 1})"
            )
        if layer not in component.layers:
            raise InputError(
                f"layer {layer} of {model.name!r} has no {component.kind!r}: layers "
                f"{', '.join(map(str, component.layers))} have"
            )
    return chosen


@contextmanager
def removed(
    component: Component,
    mode: str,
    layers: int | Iterable[int] | None = None,
    *,
    means: Means | None = None,
) -> Iterator[RemovalLog]:
    """Run the body with the component of these layers (None = all) removed; `mean` takes `means`.

    Afterwards the model is what it was, bit for bit, also after an exception.  Raises InputError for an
    unknown mode, layers as in `chosen_layers`, or `mean` without means, and InterventionError when a layer's
    removal did not act exactly as often as the model ran (at least once).
    """
    model = component.model
    if mode not in component.modes:
        raise unknown(f"mode of {component.kind}", mode, component.modes)
    chosen = chosen_layers(component, layers)
    given = means or {}
    missing = [layer for layer in chosen if layer not in given]
    if mode == "mean" and missing:
        raise InputError(
            f"mode 'mean' of {component.kind!r} needs reference tokens (or means) for layers {missing}"
        )
    log = RemovalLog(chosen, dict.fromkeys(chosen, 0))

    def firing(layer: int) -> Fire:
        def fire() -> None:
            log.fired[layer] += 1

        return fire

    def ran(*_: Any) -> None:
        log.forwards += 1

    with ExitStack() as scope:
        scope.callback(model.module.register_forward_pre_hook(ran).remove)
        for layer in chosen:
            mean = given[layer] if mode == "mean" else None
            scope.enter_context(component.scope(layer, mode, mean, firing(layer)))
        yield log
    if not log.forwards or set(log.fired.values()) != {log.forwards}:
        counts = ", ".join(f"L{layer}: {n}" for layer, n in log.fired.items())
        raise InterventionError(
            f"{model.name}: {component.kind!r} was removed from {len(chosen)} layers, which ran ({counts}) times "
            f"in {log.forwards} forwards of the model"
        )


@dataclass(frozen=True)
class Read:
    """Where a value is read for its mean: `fn` maps the module's tensor to the value (B, L, width)."""

    module: nn.Module
    side: Side
    fn: Callable[[Tensor], Tensor]


def position_means(
    model: Model, reads: Mapping[int, Read], tokens: Any, batch: int = 64
) -> dict[int, Tensor]:
    """Mean over sequences of each layer's value, float64 (L, width), over token ids (B, L).

    Raises InterventionError when a module did not run once per forward.
    """
    ids = token_ids(model, tokens)
    sums: dict[int, list[Tensor]] = {layer: [] for layer in reads}

    def reader(layer: int, read: Read) -> Callable[[Tensor], None]:
        def add(value: Tensor) -> None:
            sums[layer].append(read.fn(value.detach()).sum(0, dtype=torch.float64))

        return add

    parts = range(0, len(ids), batch)
    with ExitStack() as scope:
        for layer, read in reads.items():
            scope.callback(tap(read.module, read.side, reader(layer, read)).remove)
        for s in parts:
            logits(model, ids[s : s + batch], last=True)
    for layer, found in sums.items():
        if len(found) != len(parts):
            raise InterventionError(
                f"{model.name}: what is to be averaged in layer {layer} ran {len(found)} times in {len(parts)}"
            )
    return {layer: torch.stack(found).sum(0) / len(ids) for layer, found in sums.items()}


def mean_like(mean: Tensor, value: Tensor) -> Tensor:
    """The mean (R, width) to put in place of a value (B, L, width): per position up to R, pooled beyond."""
    length = value.shape[1]
    if mean.dim() != 2 or mean.shape[1] != value.shape[2]:
        raise InputError(f"a mean has shape (positions, {value.shape[2]}) here, not {tuple(mean.shape)}")
    beyond = mean.mean(0, keepdim=True).expand(max(0, length - len(mean)), -1)
    return torch.cat([mean[:length], beyond]).to(value).expand_as(value)
