"""The one way a value is read from or written to a module, and how a Site selects its part of it.

`tap` hides the three shapes PyTorch modules come in (tensor or tuple out, positional or keyword in), so
capture and edit see one tensor.  `select` turns that tensor, (B, L, width), into the view a Site names; the
view shares memory with it, so writing into the view writes into the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from causegrid.errors import InputError, InterventionError
from causegrid.sites.address import Site
from causegrid.sites.table import Place, Side


def tap(module: nn.Module, side: Side, fn: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `fn` on the module's first output (or input) at every forward; a returned tensor replaces it."""
    if side == "output":

        def after(_module: nn.Module, _args: Any, output: Any) -> Any:
            if not isinstance(output, tuple):
                return fn(output)
            new = fn(output[0])
            return None if new is None else (new, *output[1:])

        return module.register_forward_hook(after)

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            new = fn(args[0])
            return None if new is None else ((new, *args[1:]), kwargs)
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs), None)
        if name is None or not isinstance(kwargs[name], Tensor):
            raise InterventionError(f"{type(_module).__name__} was called without an input to read")
        new = fn(kwargs[name])
        return None if new is None else (args, {**kwargs, name: new})

    return module.register_forward_pre_hook(before, with_kwargs=True)


def select(value: Tensor, spot: Site, entry: Place, block: nn.Module, n_heads: int) -> Tensor:
    """The view of a module's tensor that a Site names.

    Residual kinds (B, L, d); `z` (B, L, H, d_h), `z[h]` (B, L, d_h); with `@p` without the position axis.
    Raises InputError when the position is out of range or the width is no multiple of the head count.
    """
    if entry.columns is not None:
        value = value[..., entry.columns(block)]
    if entry.heads:
        width = value.shape[-1]
        if not n_heads or width % n_heads:
            raise InputError(
                f"{spot}: a projection input of width {width} does not split into {n_heads} heads"
            )
        value = value.view(*value.shape[:-1], n_heads, width // n_heads)  # (B, L, H, d_h)
    if spot.position is not None:
        length = value.shape[1]
        if not -length <= spot.position < length:
            raise InputError(
                f"position {spot.position} of {spot} is out of range: the input has {length} tokens"
            )
        value = value[:, spot.position]
    if spot.head is not None:
        value = value[..., spot.head, :]
    return value


def writable(value: Tensor) -> Tensor:
    """A copy with the same strides where they are dense, so the layers behind run the same kernels on it."""
    return value.clone(memory_format=torch.preserve_format)
