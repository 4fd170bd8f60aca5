"""Third-party CUDA kernels, used when they are installed: mamba-ssm's selective scan and causal-conv1d.

Both lay activations out (B, E, L); ours are (B, L, E).  Each function here takes our layout and answers None
where its kernel cannot be used: package absent, tensors elsewhere, a dtype or size the kernel does not take.
These kernels have no second derivatives.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TAPS = (2, 3, 4)  # kernel widths causal-conv1d is compiled for
_STATES = 256  # the largest state mamba-ssm's scan takes


def scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, *, softplus: bool, gate: Tensor | None
) -> Tensor | None:
    """`scan.selective_scan` without `signed`, by `mamba_ssm`; shapes as there."""
    given = [x, dt, B, C, *([] if gate is None else [gate])]
    if not _usable(given, (x, dt, A, B, C, D)) or A.shape[1] > _STATES:
        return None
    function = _find("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
    if function is None:
        return None
    u, delta, b, c = (v.transpose(1, 2).contiguous() for v in (x, dt, B, C))  # (B, E, L), (B, N, L)
    z = None if gate is None else gate.transpose(1, 2).contiguous()
    y: Tensor = function(
        u, delta, A.float().contiguous(), b, c, D=D.float(), z=z, delta_bias=None, delta_softplus=softplus
    )
    return y.transpose(1, 2)


def conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor | None:
    """`conv.causal_conv` by `causal_conv1d`; shapes as there."""
    if not _usable([x, weight, bias], [x, weight, bias]) or weight.shape[-1] not in _TAPS:
        return None
    function = _find("causal_conv1d", "causal_conv1d_fn")
    if function is None:
        return None
    y: Tensor = function(x.transpose(1, 2).contiguous(), weight[:, 0].contiguous(), bias, activation=None)
    return y.transpose(1, 2)


def on_device(v: Tensor) -> bool:
    """Whether a tensor is on a CUDA device."""
    return v.device.type == "cuda"


def _usable(same_dtype: list[Tensor], placed: Any) -> bool:
    kinds = {v.dtype for v in same_dtype}
    return all(on_device(v) for v in placed) and len(kinds) == 1 and kinds <= set(_DTYPES)


def _find(module: str, name: str) -> Callable[..., Any] | None:
    """The function where its package is installed; an installed package that fails to import says so."""
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        return None
    return found
