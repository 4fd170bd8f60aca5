"""Mamba-2's recurrence: h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t, y_t = h_t C_t + D x_t, one decay per head.

Dao and Gu, arXiv 2405.21060, sections 6 and 7.  Three forms of the same function:
`ssd_steps`, position by position: the definition, and the place to see or edit the state.
`ssd_chunks`, plain torch: inside a chunk the scan is a masked attention-like matrix product, between chunks a
recurrence over a few states; memory and time are linear in the length.  Decays are exponentials of sums over
the positions between, each summed on its own: neither quotients, which overflow, nor differences of long
cumulative sums, which cancel.
`ssd`, what models call: compiled loops over chunks on CPU in float32 (`ssd_kernels.py`), with the gradient
written by hand; mamba-ssm's kernel on CUDA where that package is installed (no second derivatives there);
`ssd_chunks` for every other dtype or device, and for gradients of gradients.
Shapes: x (B, L, H, P), dt (B, L, H), A (H,), B and C (B, L, G, N), D (H,), head h in group h // (H / G).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from causegrid.models.ops import cuda, ssd_kernels
from causegrid.models.ops.again import again
from causegrid.models.ops.lanes import WIDTH, compiled
from causegrid.models.ops.team import over_batch, workers_for
from causegrid.models.ops.views import flat


def ssd_steps(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    chunk: int = 0,
    on_state: Callable[[int, Tensor], Tensor] | None = None,
) -> Tensor:
    """The definition, one position at a time (`chunk` is unused) -> (B, L, H, P).

    `on_state(t, h)` sees the state h (B, H, P, N) after position t and returns the one to go on with.
    """
    batch, length, heads, width = x.shape
    share = heads // B.shape[2]
    h = x.new_zeros(batch, heads, width, B.shape[-1])
    out = []
    for t in range(length):
        b, c = (v[:, t].repeat_interleave(share, dim=1) for v in (B, C))  # (B, H, N)
        new = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, :, None]  # (B, H, P, N)
        h = torch.exp(dt[:, t] * A)[..., None, None] * h + new
        if on_state is not None:
            h = on_state(t, h)
        out.append((h * c[:, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(out, dim=1)


def ssd_chunks(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, *, chunk: int = 64
) -> Tensor:
    """The same as matrix products over chunks of `chunk` positions -> (B, L, H, P)."""
    batch, length, heads, width = x.shape
    groups, n_state = B.shape[2:]
    dt, B, C = (
        dt.expand(batch, length, heads),
        B.expand(batch, length, -1, -1),
        C.expand(batch, length, *B.shape[2:]),
    )
    skip = D[:, None] * x
    size = min(chunk, length)
    k = -(-length // size)
    pad = k * size - length
    if pad:  # a padded position has dt = 0: it decays nothing and adds nothing
        x, dt, B, C = (F.pad(v, (0, 0) * (v.dim() - 2) + (0, pad)) for v in (x, dt, B, C))
    share = heads // groups
    # (B, K, G, H/G, T, P), (B, K, G, H/G, T), (B, K, G, 1, T, N)
    u = (x * dt[..., None]).view(batch, k, size, groups, share, width).permute(0, 1, 3, 4, 2, 5)
    logs = (dt * A).view(batch, k, size, groups, share).permute(0, 1, 3, 4, 2)
    b = B.reshape(batch, k, size, groups, 1, n_state).permute(0, 1, 3, 4, 2, 5)
    c = C.reshape(batch, k, size, groups, 1, n_state).permute(0, 1, 3, 4, 2, 5)
    ones = torch.ones(size, size, dtype=torch.bool, device=x.device)
    between = logs[..., None].expand(*logs.shape, size).masked_fill(ones.triu(), 0).cumsum(-2)
    decay = between.masked_fill(ones.triu(1), -math.inf).exp()  # (..., T, T), from column to row
    y = ((c @ b.mT) * decay) @ u
    if k > 1:
        since = logs.cumsum(-1).exp()[..., None]  # decay from before the chunk to each position
        ends = (u * decay[..., -1, :, None]).mT @ b  # (B, K, G, H/G, P, N): what each chunk adds to the state
        before = [torch.zeros_like(ends[:, 0])]
        for i in range(k - 1):
            before.append(since[:, i, :, :, -1:] * before[-1] + ends[:, i])
        y = y + since * (c @ torch.stack(before, dim=1).mT)
    return y.permute(0, 1, 4, 2, 3, 5).reshape(batch, k * size, heads, width)[:, :length] + skip


def ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, *, chunk: int = 64) -> Tensor:
    """The same, fast where it can be -> (B, L, H, P)."""
    if compiled(x, dt, A, B, C, D) and x.numel() and _fit(x, dt, A, B, C, D):
        y: Tensor = _Ssd.apply(x, dt, A, B, C, D, min(chunk, x.shape[1]))  # type: ignore[no-untyped-call]
        return y
    found = _by_mamba_ssm(x, dt, A, B, C, D, chunk)
    return ssd_chunks(x, dt, A, B, C, D, chunk=chunk) if found is None else found


def _fit(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> bool:
    """Whether the shapes are the ones the kernels take on trust; `ssd_chunks` broadcasts or refuses others."""
    return (
        x.dim() == B.dim() == 4
        and dt.shape == x.shape[:3]
        and A.shape == D.shape == x.shape[2:3]
        and B.shape == C.shape == (*x.shape[:2], *B.shape[2:])
        and x.shape[2] % B.shape[2] == 0
    )


def _by_mamba_ssm(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, chunk: int
) -> Tensor | None:
    """mamba-ssm's kernel, which has no second derivative; None where it is absent or does not take these."""
    given = (x, dt, A, B, C, D)
    if not all(cuda.on_device(v) for v in given) or x.dtype not in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ):
        return None
    try:
        kernel = importlib.import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mamba_ssm":
            raise
        return None
    size = min(256, max(16, 1 << (chunk - 1).bit_length()))  # it takes powers of two; the result is the same
    y: Tensor = kernel(x, dt, A, B, C, size, D=D)
    return y


def _numpy(v: Tensor) -> Any:
    return v.detach().contiguous().numpy()


class _Ssd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, chunk: int
    ) -> Tensor:
        batch, length, heads, width = x.shape
        groups, n_state = B.shape[2:]
        chunks = -(-length // chunk)
        rows, columns = ssd_kernels.up(chunk, 4), ssd_kernels.up(chunk, WIDTH)
        state = (ssd_kernels.up(n_state, WIDTH), ssd_kernels.up(width, WIDTH))
        keep = any(ctx.needs_input_grad)
        products = np.empty((batch, chunks, groups, rows, columns) if keep else (0,) * 5, np.float32)
        states = np.empty((batch, chunks, heads, *state) if keep and chunks > 1 else (0,) * 5, np.float32)
        inputs = (*flat(x), _numpy(dt), _numpy(A), *flat(B), *flat(C), _numpy(D))
        y = torch.empty(batch, length, heads, width)
        out, sizes = y.numpy(), (groups, n_state, chunk)

        def work(_: int, low: int, high: int) -> None:
            ssd_kernels.forward(*inputs, out, products, states, sizes, low, high)

        over_batch(work, batch, x.numel())
        ctx.save_for_backward(x, dt, A, B, C, D)
        ctx.products, ctx.states, ctx.chunk = products, states, chunk
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Any, ...]:
        x, dt, A, B, C, D = saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient itself must be differentiable
            return *again(partial(ssd_chunks, chunk=ctx.chunk), saved, ctx.needs_input_grad, gy), None
        batch, heads = x.shape[0], x.shape[2]
        inputs = (*flat(x), _numpy(dt), _numpy(A), *flat(B), *flat(C), _numpy(D))
        gx, gdt, gb, gc = (torch.empty(v.shape) for v in (x, dt, B, C))
        workers = workers_for(batch, x.numel())
        ga, gskip = np.zeros((2, workers, heads), np.float32)
        grad, out = flat(gy), [v.numpy() for v in (gx, gdt, gb, gc)]
        sizes = (*B.shape[2:], ctx.chunk)

        def work(i: int, low: int, high: int) -> None:
            ssd_kernels.backward(
                *inputs, ctx.products, ctx.states, *grad, *out, ga[i], gskip[i], sizes, low, high
            )

        over_batch(work, batch, x.numel())
        return gx, gdt, torch.from_numpy(ga.sum(0)), gb, gc, torch.from_numpy(gskip.sum(0)), None
