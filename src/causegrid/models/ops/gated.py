"""The RMS norm of x silu(gate) that ends a Mamba-2 block, in one pass over memory each way.

Plain torch writes every step out (the sigmoid, the products, the square, its mean, and each one's gradient)
and keeps most of them.  Here nothing is kept but the inputs.  Compiled on CPU in float32 when a group's
channels are a whole number of `lanes.WIDTH`, plain torch elsewhere and for gradients of gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.models.ops.again import again
from causegrid.models.ops.lanes import WIDTH, compiled, load, sigmoid, splat, store, total
from causegrid.models.ops.team import over_batch, workers_for
from causegrid.models.ops.views import flat

EPS = 1e-5

_f32 = np.float32
_jit: Any = numba.njit(cache=True, nogil=True)


def _norm_forward(
    x: Any,  # (B, L, E)
    gate: Any,  # flat
    strides: Any,  # of the gate: batch, position
    weight: Any,  # (E,)
    y: Any,  # (B, L, E), out
    groups: int,
    low: int,
    high: int,
) -> None:
    length, width = x.shape[1:]
    size = width // groups
    v = np.empty(size, np.float32)
    for i in range(low, high):
        for t in range(length):
            at = i * strides[0] + t * strides[1]
            for start in range(0, width, size):
                squares = splat(_f32(0.0))
                for e in range(0, size, WIDTH):
                    g = load(gate, (at + start + e,))
                    value = load(x, (i, t, start + e)) * (g * sigmoid(g))
                    squares = squares + value * value
                    store(v, (e,), value)
                scale = _f32(1.0) / np.sqrt(total(squares) / _f32(size) + _f32(EPS))
                for e in range(0, size, WIDTH):
                    store(y, (i, t, start + e), load(v, (e,)) * scale * load(weight, (start + e,)))


def _norm_backward(
    x: Any,
    gate: Any,
    strides: Any,
    weight: Any,
    gy: Any,  # (B, L, E), gradient of y
    gx: Any,  # (B, L, E), out
    ggate: Any,  # (B, L, E), out
    gweight: Any,  # (E,), added to
    groups: int,
    low: int,
    high: int,
) -> None:
    length, width = x.shape[1:]
    size = width // groups
    sig = np.empty(size, np.float32)
    for i in range(low, high):
        for t in range(length):
            at = i * strides[0] + t * strides[1]
            for start in range(0, width, size):
                squares = along = splat(_f32(0.0))
                for e in range(0, size, WIDTH):
                    g = load(gate, (at + start + e,))
                    s = sigmoid(g)
                    store(sig, (e,), s)
                    value = load(x, (i, t, start + e)) * (g * s)
                    squares = squares + value * value
                    along = along + value * (load(gy, (i, t, start + e)) * load(weight, (start + e,)))
                scale = _f32(1.0) / np.sqrt(total(squares) / _f32(size) + _f32(EPS))
                back = total(along) * scale * scale / _f32(size)
                for e in range(0, size, WIDTH):
                    g, s = load(gate, (at + start + e,)), load(sig, (e,))
                    xe, grad = load(x, (i, t, start + e)), load(gy, (i, t, start + e))
                    value = xe * (g * s)
                    store(gweight, (start + e,), load(gweight, (start + e,)) + grad * (value * scale))
                    inner = (
                        grad * load(weight, (start + e,)) - value * back
                    ) * scale  # gradient of x silu(gate)
                    store(gx, (i, t, start + e), inner * (g * s))
                    store(ggate, (i, t, start + e), inner * xe * (s * (1.0 + g * (1.0 - s))))


norm_forward = _jit(_norm_forward)
norm_backward = _jit(_norm_backward)


def plain_norm(x: Tensor, gate: Tensor, weight: Tensor, groups: int) -> Tensor:
    """The definition: RMS norm of x silu(gate) by group of channels, times `weight`."""
    x = x * F.silu(gate)
    parts = x.view(*x.shape[:-1], groups, -1)
    return F.rms_norm(parts, parts.shape[-1:], eps=EPS).flatten(-2) * weight


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, groups: int) -> Tensor:
        inputs, y = _arrays(x, gate, weight), torch.empty(x.shape)
        out = y.numpy()
        over_batch(lambda _, low, high: norm_forward(*inputs, out, groups, low, high), x.shape[0], x.numel())
        ctx.save_for_backward(x, gate, weight)
        ctx.groups = groups
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, weight = saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must be differentiable
            return *again(partial(plain_norm, groups=ctx.groups), saved, ctx.needs_input_grad, gy), None
        inputs, grad = _arrays(x, gate, weight), gy.contiguous().numpy()
        gx, ggate = torch.empty(x.shape), torch.empty(x.shape)
        out = (gx.numpy(), ggate.numpy())
        gweight = np.zeros((workers_for(x.shape[0], x.numel()), x.shape[-1]), np.float32)
        over_batch(
            lambda i, low, high: norm_backward(*inputs, grad, *out, gweight[i], ctx.groups, low, high),
            x.shape[0],
            x.numel(),
        )
        return gx, ggate, torch.from_numpy(gweight.sum(0)), None


def _arrays(x: Tensor, gate: Tensor, weight: Tensor) -> tuple[Any, ...]:
    return x.detach().contiguous().numpy(), *flat(gate), weight.detach().contiguous().numpy()


class GatedNorm(nn.Module):
    """RMS norm of x silu(gate), by group of channels: x, gate (B, L, E) -> (B, L, E)."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate (B, L, E) -> (B, L, E)."""
        fit = x.dim() == 3 and x.shape == gate.shape and x.shape[2:] == self.weight.shape
        whole = x.shape[-1] % (self.groups * WIDTH) == 0
        if not compiled(x, gate, self.weight) or not fit or not whole or not x.numel():
            return plain_norm(x, gate, self.weight, self.groups)
        y: Tensor = _Norm.apply(x, gate, self.weight, self.groups)  # type: ignore[no-untyped-call]
        return y
