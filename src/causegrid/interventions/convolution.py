"""Removing Mamba's causal convolution, for our Mamba and Mamba-2 and Hugging Face's (MEASURES 3.3).

A hook cannot do it: transformers hands the convolution's weight to a function and never calls the module,
so the removal is a scoped weight substitution that refuses shared storage and restores the same objects.
The current token is the *last* tap of the kernel (the input is padded on the left only).

- `identity`: last tap 1, others 0, bias 0: the convolution hands the current token through.
- `zero`: kernel and bias 0: nothing enters the state (the SiLU behind it gives 0).
- `mean`: kernel 0, bias the mean of the convolution's own output over reference tokens and positions; a convolution
  without a bias has no place for it, and no such mode.

What counts as a firing is a forward of a mixer whose kernel is substituted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.errors import InputError, unknown
from causegrid.interventions.removal import (
    Component,
    Fire,
    Read,
    RemovalLog,
    chosen_layers,
    position_means,
    removed,
)
from causegrid.models.record import Model
from causegrid.sites.hooks import tap
from causegrid.sites.table import blocks
from causegrid.sites.weights import substitute

ConvMode = Literal["identity", "zero", "mean"]
CONV_MODES: Mapping[str, str] = {
    "identity": "the kernel hands the current token through",
    "zero": "kernel and bias 0",
    "mean": "the convolution's mean output, one for all positions",
}
NO_BIAS = "this convolution has no bias to carry a mean: use mode 'identity' or 'zero'"


def convolution(model: Model) -> Component | None:
    """The model's convolutions, None when it has none."""
    mixers = {
        layer: mixer
        for layer, block in enumerate(blocks(model))
        if isinstance(mixer := getattr(block, "mixer", None), nn.Module)
        and isinstance(getattr(getattr(mixer, "conv1d", None), "weight", None), Tensor)
    }
    if not mixers:
        return None

    @contextmanager
    def scope(layer: int, mode: str, mean: Tensor | None, fire: Fire) -> Iterator[None]:
        mixer = mixers[layer]
        handle = tap(mixer, "output", lambda _: fire())
        try:
            with substitute(
                mixer.get_submodule("conv1d"), conv_substitute(mixer, mode, mean), root=model.module
            ):
                yield
        finally:
            handle.remove()

    def means(tokens: Any, batch: int) -> dict[int, Tensor]:
        reads = {
            layer: Read(mixer.get_submodule("in_proj"), "output", partial(_conv_output, mixer))
            for layer, mixer in mixers.items()
        }
        return {layer: m.mean(0) for layer, m in position_means(model, reads, tokens, batch).items()}

    biased = all(
        getattr(mixer.get_submodule("conv1d"), "bias", None) is not None for mixer in mixers.values()
    )
    modes = {mode: what for mode, what in CONV_MODES.items() if biased or mode != "mean"}
    return Component(model=model, kind="conv", modes=modes, layers=tuple(mixers), scope=scope, means=means)


def _required(model: Model) -> Component:
    found = convolution(model)
    if found is None:
        raise InputError(
            f"{model.name!r} ({model.family}) has no convolution to remove: mamba and mamba2 have one, unless "
            "built with conv=False"
        )
    return found


def conv_means(
    model: Model, tokens: Any, layers: int | Iterable[int] | None = None, *, batch: int = 64
) -> dict[int, Tensor]:
    """Mean output (C,) of each layer's convolution, before the activation, over token ids (B, L).

    Raises InputError as `remove_conv` does.
    """
    component = _required(model)
    chosen = chosen_layers(component, layers)
    assert component.means is not None
    means = component.means(tokens, batch)
    return {layer: means[layer] for layer in chosen}


def _conv_output(mixer: nn.Module, projected: Tensor) -> Tensor:
    """The input projection's output (B, L, P) -> the convolution's output (B, L, C).

    Mamba lays P out as (x, gate); Mamba-2 as (..., gate, x B C, dt) with one dt per head.
    """
    conv = mixer.get_submodule("conv1d")
    weight = conv.get_parameter("weight")  # (C, 1, K)
    channels, _, taps = weight.shape
    decay = mixer.get_parameter("A_log")
    if decay.dim() == 2:
        x = projected[..., :channels]
    else:
        end = projected.shape[-1] - decay.shape[0]
        x = projected[..., end - channels : end]
    bias = getattr(conv, "bias", None)
    padded = F.pad(x.transpose(1, 2), (taps - 1, 0))  # (B, C, K - 1 + L)
    with torch.no_grad():
        return F.conv1d(padded, weight, bias, groups=channels).transpose(1, 2)


def conv_substitute(mixer: nn.Module, mode: str, mean: Tensor | None = None) -> dict[str, Tensor]:
    """The parameters that stand for the convolution's own under `mode`; `mean` (C,) for `mean`.

    Raises InputError for an unknown mode, or `mean` without a mean or on a convolution without a bias.
    """
    if mode not in CONV_MODES:
        raise unknown("convolution mode", mode, CONV_MODES)
    conv = mixer.get_submodule("conv1d")
    weight = torch.zeros_like(conv.get_parameter("weight"))
    if mode == "identity":
        weight[:, :, -1] = 1.0
    tensors = {"weight": weight}
    bias = getattr(conv, "bias", None)
    if mode == "mean":
        if mean is None:
            raise InputError("mode 'mean' needs reference tokens (or means) to take the mean over")
        if bias is None:
            raise InputError(NO_BIAS)
        tensors["bias"] = mean.to(bias)
    elif bias is not None:
        tensors["bias"] = torch.zeros_like(bias)
    return tensors


@contextmanager
def remove_conv(
    model: Model,
    layers: int | Iterable[int] | None = None,
    mode: ConvMode = "identity",
    *,
    tokens: Any = None,
    means: Mapping[int, Tensor] | None = None,
) -> Iterator[RemovalLog]:
    """Run the body with the convolution of these layers (None = all) removed; see the module for the modes.

    `mean` takes `means` from `conv_means`, or reference `tokens` (B, L) to compute them from.  Afterwards the
    very same parameters are back.  Raises InputError for a model or layer without a convolution and as
    `removed` does, InterventionError when a layer's mixer did not run as often as the model.
    """
    component = _required(model)
    if mode == "mean" and mode not in component.modes:
        raise InputError(NO_BIAS)
    if mode == "mean" and means is None and tokens is not None:
        means = conv_means(model, tokens, layers)
    with removed(component, mode, layers, means=means) as log:
        yield log
