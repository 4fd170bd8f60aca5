"""A linear layer from few inputs to many outputs, whose gradients are the products the machine does well.

`nn.Linear`'s own backward multiplies a wide transposed matrix by a thin one, 5 - 9 times slower in MKL than
the same product written the other way round (measured at 2560 x 256 by 8 inputs).  Forward is `F.linear`,
and under autocast, which mixes dtypes, backward is torch's too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad = gy.reshape(-1, weight.shape[0])  # (R, out)
        gx = F.linear(gy, weight.t().contiguous())
        gw = (x.reshape(-1, weight.shape[1]).t() @ grad).t()
        return gx, gw, grad.sum(0)


class NarrowLinear(nn.Linear):
    """`nn.Linear` with a bias: (..., in) -> (..., out), for in much smaller than out."""

    def forward(self, input: Tensor) -> Tensor:
        """input (..., in) -> (..., out)."""
        kind = input.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            return F.linear(input, self.weight, self.bias)
        y: Tensor = _Narrow.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y
