"""Removing Mamba's causal convolution, for our Mamba and Mamba-2 and Hugging Face's (MEASURES 3.3).

A hook cannot do it: transformers hands the convolution's weight to a function and never calls the module,
so the removal is a scoped weight substitution that refuses shared storage and restores the same objects.
The current token is the *last* tap of the kernel (the input is padded on the left only).

- `identity`: last tap 1, others 0, bias 0: the convolution hands the current token through.
- `zero`: kernel and bias 0: nothing enters the state (the SiLU behind it gives 0).
- `mean`: kernel 0, bias the mean of the convolution's own output over reference tokens.

What counts as a firing is a forward of a mixer whose kernel is substituted; a layer that saw none is an
error, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.errors import InputError, InterventionError, unknown
from causegrid.models.forward import logits
from causegrid.models.record import Model
from causegrid.sites.hooks import tap
from causegrid.sites.table import blocks
from causegrid.sites.weights import substitute

ConvMode = Literal["identity", "zero", "mean"]
CONV_MODES: tuple[ConvMode, ...] = ("identity", "zero", "mean")


@dataclass
class ConvLog:
    """`layers` edited, and per layer how many forwards ran with the kernel substituted."""

    layers: tuple[int, ...]
    fired: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All firings: layers x forwards."""
        return sum(self.fired.values())


def conv_layers(model: Model, layers: int | Iterable[int] | None = None) -> dict[int, nn.Module]:
    """Layer -> mixer that holds a convolution, for the layers asked for (None = all).

    Raises InputError for a layer out of range and for a model or layer without a convolution.
    """
    stack = blocks(model)
    chosen = range(len(stack)) if layers is None else [layers] if isinstance(layers, int) else list(layers)
    if not len(chosen):
        raise InputError("no layers given to remove the convolution from")
    found: dict[int, nn.Module] = {}
    for layer in chosen:
        if not 0 <= layer < len(stack):
            raise InputError(
                f"layer {layer} is out of range: {model.name!r} has {len(stack)} layers (0..{len(stack) - 1})"
            )
        mixer = getattr(stack[layer], "mixer", None)
        if not isinstance(getattr(getattr(mixer, "conv1d", None), "weight", None), Tensor):
            raise InputError(
                f"layer {layer} of {model.name!r} ({model.family}) has no convolution to remove: "
                "mamba and mamba2 have one, unless built with conv=False"
            )
        assert isinstance(mixer, nn.Module)
        found[layer] = mixer
    return found


def conv_means(
    model: Model, tokens: Any, layers: int | Iterable[int] | None = None, *, batch: int = 64
) -> dict[int, Tensor]:
    """Mean output (C,) of each layer's convolution, before the activation, over token ids (B, L)."""
    chosen = conv_layers(model, layers)
    sums: dict[int, Tensor | float] = dict.fromkeys(chosen, 0.0)
    ids = torch.as_tensor(tokens)

    def reader(layer: int, mixer: nn.Module) -> Any:
        def read(projected: Tensor) -> None:
            sums[layer] = sums[layer] + _conv_output(mixer, projected.detach()).sum(
                (0, 1), dtype=torch.float64
            )

        return read

    with ExitStack() as scope:
        for layer, mixer in chosen.items():
            scope.callback(tap(mixer.get_submodule("in_proj"), "output", reader(layer, mixer)).remove)
        for s in range(0, len(ids), batch):
            logits(model, ids[s : s + batch], last=True)
    means: dict[int, Tensor] = {}
    for layer, total in sums.items():
        if not isinstance(total, Tensor):
            raise InterventionError(f"{model.name}: the input projection of layer {layer} was never called")
        means[layer] = total / ids.numel()
    return means


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


def conv_substitute(mixer: nn.Module, mode: ConvMode, mean: Tensor | None = None) -> dict[str, Tensor]:
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
            raise InputError("this convolution has no bias to carry a mean: use mode 'identity' or 'zero'")
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
) -> Iterator[ConvLog]:
    """Run the body with the convolution of these layers (None = all) removed; see the module for the modes.

    `mean` takes `means` from `conv_means`, or reference `tokens` (B, L) to compute them from.  Afterwards the
    very same parameters are back.  Raises InputError as `conv_layers` and `conv_substitute` do, and
    InterventionError when a layer's mixer did not run, or not as often as the others.
    """
    chosen = conv_layers(model, layers)
    if mode == "mean" and means is None and tokens is not None:
        means = conv_means(model, tokens, chosen)
    given = means or {}
    tensors = {layer: conv_substitute(mixer, mode, given.get(layer)) for layer, mixer in chosen.items()}
    log = ConvLog(tuple(chosen), dict.fromkeys(chosen, 0))

    def counter(layer: int) -> Any:
        def count(_: Tensor) -> None:
            log.fired[layer] += 1

        return count

    with ExitStack() as scope:
        for layer, mixer in chosen.items():
            conv = mixer.get_submodule("conv1d")
            scope.enter_context(substitute(conv, tensors[layer], root=model.module))
            scope.callback(tap(mixer, "output", counter(layer)).remove)
        yield log
    if len(set(log.fired.values())) != 1 or 0 in log.fired.values():
        counts = ", ".join(f"L{layer}: {n}" for layer, n in log.fired.items())
        raise InterventionError(
            f"{model.name}: the convolution was removed from {len(chosen)} layers, which ran ({counts}) times"
        )
