"""Causal depthwise convolution over positions, laid out (B, L, E) as the rest of a block.

The module keeps `nn.Conv1d`'s parameters (`weight` (E, 1, K), `bias` (E,)), so weights copy across and the
identity kernel is "last tap 1, others 0".  It is called as a module: hooks on it fire, its output is the
convolution's, before the activation.  Compiled on CPU in float32 (10x torch's depthwise path),
causal-conv1d's kernel on CUDA when installed (`cuda.py`), torch elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.models.ops import cuda, kernels
from causegrid.models.ops.again import again
from causegrid.models.ops.lanes import compiled, padded
from causegrid.models.ops.team import over_batch, workers_for


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """y_t = bias + sum_k weight[:, 0, k] x_(t - K + 1 + k), x zero before the start: x, y (B, L, E)."""
    fit = x.dim() == 3 and weight.shape == (x.shape[2], 1, weight.shape[-1]) and bias.shape == x.shape[2:]
    if fit and compiled(x, weight, bias):
        y: Tensor = _Conv.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    found = cuda.conv(x, weight, bias) if fit else None
    return _plain(x, weight, bias) if found is None else found


def _plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    padded = F.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0))
    return F.conv1d(padded, weight, bias, groups=weight.shape[0]).transpose(1, 2)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows, taps, shift = padded(x), padded(weight[:, 0].t().contiguous()), padded(bias)  # taps (K, E)
        y = torch.empty(*x.shape[:-1], taps.shape[-1])

        def work(_: int, low: int, high: int) -> None:
            kernels.conv_forward(rows, taps, shift, y.numpy(), low, high)

        over_batch(work, x.shape[0], x.numel())
        ctx.save_for_backward(x, weight, bias)
        return y[..., : x.shape[-1]]

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must be differentiable
            return again(_plain, (x, weight, bias), ctx.needs_input_grad, gy)
        rows, taps, grad = padded(x), padded(weight.detach()[:, 0].t().contiguous()), padded(gy)
        workers, width = workers_for(x.shape[0], x.numel()), x.shape[-1]
        gx = torch.empty(*x.shape[:-1], taps.shape[-1])
        gw, gbias = torch.zeros(workers, *taps.shape), torch.zeros(workers, taps.shape[-1])
        by_tap, by_bias = gw.numpy(), gbias.numpy()

        def work(i: int, low: int, high: int) -> None:
            kernels.conv_backward(rows, taps, grad, gx.numpy(), by_tap[i], by_bias[i], low, high)

        over_batch(work, x.shape[0], x.numel())
        return gx[..., :width], gw.sum(0).t()[:width, None].contiguous(), gbias.sum(0)[:width]


class CausalConv(nn.Module):
    """Depthwise causal convolution of `width` channels with `taps` taps: (B, L, width) -> (B, L, width)."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 1, taps))
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, width) -> (B, L, width)."""
        return causal_conv(x, self.weight, self.bias)
