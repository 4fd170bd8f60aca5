"""Compiled loops for the CPU: selective scan and causal depthwise convolution, forward and backward.

numba, because it needs no compiler at install time.  Arrays in, arrays out; autograd lives in `scan.py`
and `conv.py`.  Every inner loop runs over channels, which lie next to each other in memory, and writes
one array only: LLVM vectorises such a loop, and leaves one that writes several scalar (3x slower, measured
on the backward pass).  The exponential is a polynomial because numba without SVML calls libm once per
element.  Kernels release the GIL and work on a range of the batch; `over_batch` gives each of torch's
threads one range, so torch's own thread count is honoured and no second thread pool exists.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]

CHUNK = 8  # positions between stored states: the backward scratch of one chunk stays in the L2 cache
LANES = 256  # channels worked on together, for the same reason
_SMALL = 1 << 17  # batch x positions x channels below which a second thread costs more than it brings

_f32 = np.float32
# sums may be reordered and contracted, but NaN and infinity stay what they are
_fast = {"reassoc", "contract", "nsz", "arcp"}
_jit: Any = numba.njit(cache=True, fastmath=_fast, nogil=True)


def over_batch(kernel: Callable[[int, int, int], None], batch: int, size: int) -> int:
    """Run `kernel(worker, low, high)` over `batch` rows, on torch's thread count; returns the workers used.

    `size` is the number of elements of one activation, below which one thread does it all.
    """
    workers = workers_for(batch, size)
    if workers == 1:
        kernel(0, 0, batch)
        return 1
    edges = [batch * i // workers for i in range(workers + 1)]
    with ThreadPoolExecutor(workers - 1) as pool:
        jobs = [pool.submit(kernel, i, edges[i], edges[i + 1]) for i in range(1, workers)]
        kernel(0, edges[0], edges[1])
        for job in jobs:
            job.result()
    return workers


def workers_for(batch: int, size: int) -> int:
    """Workers `over_batch` uses for this batch and activation size: fixed for a fixed thread count."""
    return 1 if size < _SMALL else max(1, min(torch.get_num_threads(), batch))


def _exp_loop(x: Any) -> Any:
    """exp(x) in float32 for |x| < 87, relative error under 2e-7: 2^k times a polynomial on [-1/2, 1/2)."""
    t = min(max(x * _f32(1.4426950408889634), _f32(-126.0)), _f32(127.0))
    k = np.floor(t + _f32(0.5))
    f = t - k
    p = _f32(1.5403530393381609e-4)
    p = p * f + _f32(1.3333558146428443e-3)
    p = p * f + _f32(9.6181291076284772e-3)
    p = p * f + _f32(5.5504108664821580e-2)
    p = p * f + _f32(2.4022650695910071e-1)
    p = p * f + _f32(6.9314718055994531e-1)
    p = p * f + _f32(1.0)
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


_exp: Any = numba.njit(inline="always", fastmath=_fast)(_exp_loop)


def _scan_forward_loop(
    x: Floats,  # (B, L, E)
    dt: Floats,  # (B, L, E)
    a: Floats,  # (N, E)
    b: Floats,  # (B, L, N)
    c: Floats,  # (B, L, N)
    skip: Floats,  # (E,)
    y: Floats,  # (B, L, E), out
    states: Floats,  # (B, ceil(L / CHUNK), N, E), out: the state before each chunk; empty when not wanted
    scale: Any,
    shift: Any,
    low: int,
    high: int,
) -> None:
    length, width, n_state = x.shape[1], x.shape[2], a.shape[0]
    keep = states.shape[0] > 0
    h = np.empty((n_state, LANES), np.float32)
    al = np.empty((n_state, LANES), np.float32)
    dl = np.empty(LANES, np.float32)
    u = np.empty(LANES, np.float32)
    out = np.empty(LANES, np.float32)
    for e0 in range(0, width, LANES):
        w = min(LANES, width - e0)
        for n in range(n_state):
            for e in range(w):
                al[n, e] = a[n, e0 + e]
        for i in range(low, high):
            h[:] = 0.0
            for t in range(length):
                if keep and t % CHUNK == 0:
                    for n in range(n_state):
                        for e in range(w):
                            states[i, t // CHUNK, n, e0 + e] = h[n, e]
                for e in range(w):
                    dl[e] = dt[i, t, e0 + e]
                for e in range(w):
                    u[e] = x[i, t, e0 + e] * dl[e]
                for e in range(w):
                    out[e] = x[i, t, e0 + e] * skip[e0 + e]
                for n in range(n_state):
                    bn = b[i, t, n]
                    cn = c[i, t, n]
                    for e in range(w):
                        h[n, e] = (scale * _exp(dl[e] * al[n, e]) - shift) * h[n, e] + bn * u[e]
                    for e in range(w):
                        out[e] += cn * h[n, e]
                for e in range(w):
                    y[i, t, e0 + e] = out[e]


def _scan_backward_loop(
    x: Floats,
    dt: Floats,
    a: Floats,
    b: Floats,
    c: Floats,
    skip: Floats,
    states: Floats,
    gy: Floats,  # (B, L, E), gradient of y
    gx: Floats,  # (B, L, E), out
    gdt: Floats,  # (B, L, E), out
    gb: Floats,  # (B, L, N), added to
    gc: Floats,  # (B, L, N), added to
    ga: Floats,  # (N, E), added to
    gskip: Floats,  # (E,), added to
    scale: Any,
    shift: Any,
    low: int,
    high: int,
) -> None:
    length, width, n_state = x.shape[1], x.shape[2], a.shape[0]
    n_chunks = (length + CHUNK - 1) // CHUNK
    hs = np.empty((CHUNK + 1, n_state, LANES), np.float32)  # states of one chunk, the one before it first
    decay = np.empty((CHUNK, n_state, LANES), np.float32)
    carry = np.empty((n_state, LANES), np.float32)  # gradient reaching h_t from the positions after t
    al = np.empty((n_state, LANES), np.float32)
    gal = np.empty((n_state, LANES), np.float32)
    gsl = np.empty(LANES, np.float32)
    xl = np.empty(LANES, np.float32)
    dl = np.empty(LANES, np.float32)
    gl = np.empty(LANES, np.float32)
    u = np.empty(LANES, np.float32)
    g = np.empty(LANES, np.float32)  # gradient of h_t
    q = np.empty(LANES, np.float32)  # gradient of dt_t A through the decay
    over_a = np.empty(LANES, np.float32)
    over_b = np.empty(LANES, np.float32)
    for e0 in range(0, width, LANES):
        w = min(LANES, width - e0)
        for n in range(n_state):
            for e in range(w):
                al[n, e] = a[n, e0 + e]
        gal[:] = 0.0
        gsl[:] = 0.0
        for i in range(low, high):
            carry[:] = 0.0
            for k in range(n_chunks - 1, -1, -1):
                t0 = k * CHUNK
                m = min(CHUNK, length - t0)
                for n in range(n_state):
                    for e in range(w):
                        hs[0, n, e] = states[i, k, n, e0 + e]
                for j in range(m):
                    t = t0 + j
                    for e in range(w):
                        dl[e] = dt[i, t, e0 + e]
                    for e in range(w):
                        u[e] = x[i, t, e0 + e] * dl[e]
                    for n in range(n_state):
                        bn = b[i, t, n]
                        for e in range(w):
                            decay[j, n, e] = scale * _exp(dl[e] * al[n, e]) - shift
                        for e in range(w):
                            hs[j + 1, n, e] = decay[j, n, e] * hs[j, n, e] + bn * u[e]
                for j in range(m - 1, -1, -1):
                    t = t0 + j
                    for e in range(w):
                        xl[e] = x[i, t, e0 + e]
                    for e in range(w):
                        dl[e] = dt[i, t, e0 + e]
                    for e in range(w):
                        gl[e] = gy[i, t, e0 + e]
                    for e in range(w):
                        u[e] = xl[e] * dl[e]
                    for e in range(w):
                        gsl[e] += gl[e] * xl[e]
                    over_a[:] = 0.0
                    over_b[:] = 0.0
                    for n in range(n_state):
                        bn = b[i, t, n]
                        cn = c[i, t, n]
                        for e in range(w):
                            g[e] = gl[e] * cn + carry[n, e]
                        for e in range(w):
                            q[e] = g[e] * (decay[j, n, e] + shift) * hs[j, n, e]
                        for e in range(w):
                            carry[n, e] = g[e] * decay[j, n, e]
                        for e in range(w):
                            over_a[e] += q[e] * al[n, e]
                        for e in range(w):
                            gal[n, e] += q[e] * dl[e]
                        for e in range(w):
                            over_b[e] += g[e] * bn
                        sum_b = _f32(0.0)
                        for e in range(w):
                            sum_b += g[e] * u[e]
                        sum_c = _f32(0.0)
                        for e in range(w):
                            sum_c += gl[e] * hs[j + 1, n, e]
                        gb[i, t, n] += sum_b
                        gc[i, t, n] += sum_c
                    for e in range(w):
                        gx[i, t, e0 + e] = dl[e] * over_b[e] + gl[e] * skip[e0 + e]
                    for e in range(w):
                        gdt[i, t, e0 + e] = over_a[e] + xl[e] * over_b[e]
        for n in range(n_state):
            for e in range(w):
                ga[n, e0 + e] += gal[n, e]
        for e in range(w):
            gskip[e0 + e] += gsl[e]


def _conv_forward_loop(x: Floats, weight: Floats, bias: Floats, y: Floats, low: int, high: int) -> None:
    """y_t = bias + sum_k weight_k x_(t - K + 1 + k); x, y (B, L, E), weight (K, E), bias (E,)."""
    length, width, taps = x.shape[1], x.shape[2], weight.shape[0]
    for i in range(low, high):
        for t in range(length):
            for e in range(width):
                y[i, t, e] = bias[e] + weight[taps - 1, e] * x[i, t, e]
            for back in range(1, min(taps, t + 1)):
                for e in range(width):
                    y[i, t, e] += weight[taps - 1 - back, e] * x[i, t - back, e]


def _conv_backward_loop(
    x: Floats, weight: Floats, gy: Floats, gx: Floats, gw: Floats, gbias: Floats, low: int, high: int
) -> None:
    """gx (B, L, E) is written; gw (K, E) and gbias (E,) are added to."""
    length, width, taps = x.shape[1], x.shape[2], weight.shape[0]
    for i in range(low, high):
        for t in range(length):
            for e in range(width):
                gbias[e] += gy[i, t, e]
            for e in range(width):
                gx[i, t, e] = weight[taps - 1, e] * gy[i, t, e]
            for ahead in range(1, min(taps, length - t)):
                for e in range(width):
                    gx[i, t, e] += weight[taps - 1 - ahead, e] * gy[i, t + ahead, e]
            for back in range(min(taps, t + 1)):
                for e in range(width):
                    gw[taps - 1 - back, e] += gy[i, t, e] * x[i, t - back, e]


scan_forward = _jit(_scan_forward_loop)
scan_backward = _jit(_scan_backward_loop)
conv_forward = _jit(_conv_forward_loop)
conv_backward = _jit(_conv_backward_loop)
