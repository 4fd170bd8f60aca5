"""Selective scan: h_t = a_t h_(t-1) + dt_t B_t x_t, y_t = C_t . h_t + D x_t, with a_t = exp(dt_t A).

Definition: Gu and Dao, "Mamba", arXiv 2312.00752, section 3.2 and algorithm 2.  With `signed=True` the
decay is 2 exp(dt_t A) - 1, so that eigenvalues reach into (-1, 1) and one layer can hold a parity (Grazzi
et al., "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues", arXiv 2411.12537).
`softplus=True` takes the step before its softplus and `gate` multiplies y by SiLU(gate), as mamba-ssm's
function does: one pass over memory instead of five.

`reference` is the readable loop.  `selective_scan` equals it and is what models call: on CPU in float32 it
runs compiled kernels that keep one state per `kernels.CHUNK` positions and recompute the others on the way
back, so memory is linear in L and nothing is ever divided by a product of decays (no overflow at any
length).  On CUDA it is mamba-ssm's kernel when that is installed (`cuda.py`).  Everything else,
shapes that broadcast and gradients of gradients use the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from causegrid.models.ops import cuda, kernels
from causegrid.models.ops.again import again
from causegrid.models.ops.lanes import compiled, padded
from causegrid.models.ops.team import over_batch, workers_for

OnState = Callable[[int, Tensor], Tensor]


def reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    signed: bool = False,
    softplus: bool = False,
    gate: Tensor | None = None,
    initial: Tensor | None = None,
    on_state: OnState | None = None,
) -> Tensor:
    """The scan as a loop: x, dt, gate (B, L, E), A (E, N) <= 0, B, C (B, L, N), D (E,) -> (B, L, E).

    `initial` (B, E, N) is the state before the first position (zero when None).  `on_state(t, h)` sees the
    state h (B, E, N) after position t and returns the one to go on with: the place to record or edit it.
    """
    dt = F.softplus(dt) if softplus else dt
    h = x.new_zeros(x.shape[0], *A.shape) if initial is None else initial  # (B, E, N)
    out = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t, :, None] * A)
        if signed:
            decay = 2.0 * decay - 1.0
        h = decay * h + (dt[:, t] * x[:, t])[..., None] * B[:, t, None, :]
        if on_state is not None:
            h = on_state(t, h)
        out.append((h * C[:, t, None, :]).sum(-1) + D * x[:, t])  # (B, E)
    y = torch.stack(out, dim=1)
    return y if gate is None else y * F.silu(gate)


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    signed: bool = False,
    softplus: bool = False,
    gate: Tensor | None = None,
) -> Tensor:
    """The scan, fast where it can be; arguments as `reference`.

    Compiled on CPU in float32, mamba-ssm's kernel on CUDA, `reference` elsewhere; the first and the last are
    differentiable any number of times.
    """
    if compiled(x, dt, A, B, C, D, gate) and _fit(x, dt, A, B, C, D, gate):
        y: Tensor = _Scan.apply(x, dt, A, B, C, D, gate, signed, softplus)  # type: ignore[no-untyped-call]
        return y
    found = None if signed else cuda.scan(x, dt, A, B, C, D, softplus=softplus, gate=gate)
    if found is not None:
        return found
    return reference(x, dt, A, B, C, D, signed=signed, softplus=softplus, gate=gate)


def _fit(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, gate: Tensor | None) -> bool:
    """Whether the shapes are the ones the kernels take on trust; the loop broadcasts, or refuses, others."""
    states = (*x.shape[:2], A.shape[-1])
    return (
        x.dim() == 3
        and x.shape == dt.shape == (x if gate is None else gate).shape
        and A.shape == (x.shape[2], A.shape[-1])
        and B.shape == C.shape == states
        and D.shape == x.shape[2:]
    )


def _arrays(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, gate: Tensor | None
) -> list[Any]:
    """What both kernels read, in their order."""
    wide = [padded(x), padded(dt), padded(A.t().contiguous())]
    return [
        *wide,
        B.detach().numpy(),
        C.detach().numpy(),
        padded(D),
        wide[0] if gate is None else padded(gate),
    ]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        gate: Tensor | None,
        signed: bool,
        softplus: bool,
    ) -> Tensor:
        batch, length, width = x.shape
        arrays = _arrays(x, dt, A, B, C, D, gate)
        wide = arrays[0].shape[-1]
        y = torch.empty(batch, length, wide)
        kept = (batch, (length - 1) // kernels.CHUNK) if any(ctx.needs_input_grad) else (0, 0)
        states = torch.empty(*kept, A.shape[1], wide).numpy()
        flags = (softplus, gate is not None, np.float32(1 + signed), np.float32(signed))

        def work(_: int, low: int, high: int) -> None:
            kernels.scan_forward(*arrays, y.numpy(), states, *flags, low, high)

        over_batch(work, batch, x.numel())
        ctx.save_for_backward(x, dt, A, B, C, D, gate)
        ctx.states, ctx.flags, ctx.options = states, flags, dict(signed=signed, softplus=softplus)
        return y[..., :width]

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must be differentiable

            def plain(*given: Any) -> Tensor:
                return reference(*given[:6], gate=given[6], **ctx.options)

            return *again(plain, saved, ctx.needs_input_grad, gy), None, None
        x, _, A, B, C, _, gate = saved
        batch, length, width = x.shape
        arrays = _arrays(*saved)
        wide, workers = arrays[0].shape[-1], workers_for(batch, x.numel())
        gx, gdt = torch.empty(batch, length, wide), torch.empty(batch, length, wide)
        ggate = torch.empty(0, 0, 0) if gate is None else torch.empty(batch, length, wide)
        gb, gc = torch.zeros(B.shape), torch.zeros(C.shape)
        ga, gskip = torch.zeros(workers, A.shape[1], wide), torch.zeros(workers, wide)
        out = [v.numpy() for v in (gx, gdt, gb, gc, ggate)]
        grad, by_rate, by_skip = padded(gy), ga.numpy(), gskip.numpy()

        def work(i: int, low: int, high: int) -> None:
            kernels.scan_backward(
                *arrays, ctx.states, grad, *out, by_rate[i], by_skip[i], *ctx.flags, low, high
            )

        over_batch(work, batch, x.numel())
        gx, gdt, ggate = (v[..., :width] for v in (gx, gdt, ggate))
        return (
            *(gx, gdt, ga.sum(0).t()[:width], gb, gc, gskip.sum(0)[:width]),
            *(None if gate is None else ggate, None, None),
        )
