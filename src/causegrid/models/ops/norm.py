"""RMS norm over the last axis, x weight / sqrt(mean(x^2) + eps), in one pass forward and one backward.

torch composes it from five operations on CPU.  The module keeps `nn.RMSNorm`'s parameter (`weight`), so
weights copy across.  Compiled on CPU in float32, torch elsewhere and for gradients of gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.models.ops import kernels
from causegrid.models.ops.again import again
from causegrid.models.ops.lanes import compiled, padded
from causegrid.models.ops.team import over_batch, workers_for

EPS = 1e-5


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., d), weight (d,) -> (..., d)."""
    if not compiled(x, weight) or weight.dim() != 1 or x.shape[-1:] != weight.shape:
        return _plain(x, weight)
    y: Tensor = _Norm.apply(x, weight)  # type: ignore[no-untyped-call]
    return y


def _plain(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, EPS)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        width = weight.shape[0]
        rows, scale = padded(x.reshape(-1, width)), padded(weight)  # (R, d), (d,)
        y, inverse = torch.empty(rows.shape), torch.empty(len(rows))
        eps, share = np.float32(EPS), np.float32(1 / width)

        def work(_: int, low: int, high: int) -> None:
            kernels.norm_forward(rows, scale, eps, share, y.numpy(), inverse.numpy(), low, high)

        over_batch(work, len(rows), x.numel())
        ctx.save_for_backward(x, weight, inverse)
        return y[:, :width].reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        x, weight, inverse = ctx.saved_tensors
        width = weight.shape[0]
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must be differentiable
            return again(_plain, (x, weight), ctx.needs_input_grad, gy)
        rows, scale, grad = padded(x.reshape(-1, width)), padded(weight), padded(gy.reshape(-1, width))
        workers = workers_for(len(rows), x.numel())
        gx, gw = torch.empty(rows.shape), torch.zeros(workers, rows.shape[-1])
        by_weight, share = gw.numpy(), np.float32(1 / width)

        def work(i: int, low: int, high: int) -> None:
            kernels.norm_backward(
                rows, scale, share, inverse.numpy(), grad, gx.numpy(), by_weight[i], low, high
            )

        over_batch(work, len(rows), x.numel())
        return gx[:, :width].reshape(x.shape), gw.sum(0)[:width]


class RMSNorm(nn.Module):
    """RMS norm of the last `width` channels: (..., width) -> (..., width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) -> (..., width)."""
        return rms_norm(x, self.weight)
