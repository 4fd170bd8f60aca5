"""Selective scan: h_t = a_t h_(t-1) + dt_t B_t x_t, y_t = C_t . h_t + D x_t, with a_t = exp(dt_t A).

Definition: Gu and Dao, "Mamba", arXiv 2312.00752, section 3.2 and algorithm 2.  With `signed=True` the
decay is 2 exp(dt_t A) - 1, so that eigenvalues reach into (-1, 1) and one layer can hold a parity (Grazzi
et al., "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues", arXiv 2411.12537).

`reference` is the readable loop.  `selective_scan` equals it and is what models call: on CPU in float32 it
runs compiled kernels that keep one state per `kernels.CHUNK` positions and recompute the others on the way
back, so memory is linear in L and nothing is ever divided by a product of decays (no overflow at any
length).  Every other dtype or device, and gradients of gradients, use the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causegrid.models import kernels

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
    initial: Tensor | None = None,
    on_state: OnState | None = None,
) -> Tensor:
    """The scan as a loop over positions: x, dt (B, L, E), A (E, N) <= 0, B, C (B, L, N), D (E,) -> (B, L, E).

    `initial` (B, E, N) is the state before the first position (zero when None).  `on_state(t, h)` sees the
    state h (B, E, N) after position t and returns the one to go on with: the place to record or edit it.
    """
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
    return torch.stack(out, dim=1)


def selective_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, *, signed: bool = False
) -> Tensor:
    """The scan, fast where it can be: x, dt (B, L, E), A (E, N) <= 0, B, C (B, L, N), D (E,) -> (B, L, E).

    Compiled on CPU in float32, `reference` elsewhere; differentiable any number of times.
    """
    given = (x, dt, A, B, C, D)
    if any(v.device.type != "cpu" or v.dtype != torch.float32 for v in given):
        return reference(x, dt, A, B, C, D, signed=signed)
    y: Tensor = _Scan.apply(x, dt, A, B, C, D, signed)  # type: ignore[no-untyped-call]
    return y


def _numpy(v: Tensor) -> Any:
    return v.detach().contiguous().numpy()


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, signed: bool
    ) -> Tensor:
        batch, length, width = x.shape
        n_state = A.shape[1]
        arrays = [_numpy(v) for v in (x, dt, A.t(), B, C, D)]
        y = torch.empty(batch, length, width)
        chunks = -(-length // kernels.CHUNK)
        needed = any(ctx.needs_input_grad)
        states = np.empty((batch, chunks, n_state, width) if needed else (0, 0, 0, 0), np.float32)
        scale, shift = (np.float32(2), np.float32(1)) if signed else (np.float32(1), np.float32(0))

        def work(_: int, low: int, high: int) -> None:
            kernels.scan_forward(*arrays, y.numpy(), states, scale, shift, low, high)

        kernels.over_batch(work, batch, x.numel())
        ctx.save_for_backward(x, dt, A, B, C, D)
        ctx.states, ctx.signed = states, signed
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must be differentiable
            wanted = [v for v, need in zip(saved, ctx.needs_input_grad, strict=False) if need]
            y = reference(*saved, signed=ctx.signed)
            found = iter(torch.autograd.grad(y, wanted, gy, create_graph=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:6]), None
        x, _, A, B, C, D = saved
        batch = x.shape[0]
        arrays = [_numpy(v) for v in (*saved[:2], A.t(), B, C, D)]
        gx, gdt, gb, gc = (
            torch.empty(x.shape),
            torch.empty(x.shape),
            torch.zeros(B.shape),
            torch.zeros(C.shape),
        )
        workers = kernels.workers_for(batch, x.numel())
        ga = np.zeros((workers, A.shape[1], A.shape[0]), np.float32)
        gskip = np.zeros((workers, D.shape[0]), np.float32)
        scale, shift = (np.float32(2), np.float32(1)) if ctx.signed else (np.float32(1), np.float32(0))
        grad = _numpy(gy)
        out = [v.numpy() for v in (gx, gdt, gb, gc)]

        def work(i: int, low: int, high: int) -> None:
            kernels.scan_backward(*arrays, ctx.states, grad, *out, ga[i], gskip[i], scale, shift, low, high)

        kernels.over_batch(work, batch, x.numel())
        return gx, gdt, torch.from_numpy(ga.sum(0).T), gb, gc, torch.from_numpy(gskip.sum(0)), None
