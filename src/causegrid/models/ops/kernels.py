"""Compiled loops for the CPU: selective scan, causal depthwise convolution and RMS norm, with gradients.

numba, because it needs no compiler at install time.  Arrays in, arrays out; autograd lives in `scan.py`,
`conv.py` and `norm.py`.  Every kernel holds `lanes.WIDTH` channels in one value and takes arrays whose last
axis is a whole number of them (the callers pad), works on a range of the batch and releases the GIL, so that
`team.over_batch` can give each thread a range.

The scan goes through a sequence in chunks of `CHUNK` positions.  Forward, it stores the state before each
chunk but the first; backward, it runs forward again inside one chunk, keeping states and decays in scratch
that stays in the L2 cache, and then back.  So no state of a sequence up to `CHUNK` long is ever written to
memory, and of a longer one a 1 / CHUNK.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from causegrid.models.ops.lanes import LN2, LOG2E, WIDTH, exp2, load, sigmoid, softplus, splat, store, total

Floats = NDArray[np.float32]

CHUNK = 64

_f32 = np.float32
_jit: Any = numba.njit(cache=True, nogil=True)


def _scan_forward(
    x: Floats,  # (B, L, E)
    step: Floats,  # (B, L, E), the step before its softplus where `soft`
    a: Floats,  # (N, E)
    b: Floats,  # (B, L, N)
    c: Floats,  # (B, L, N)
    skip: Floats,  # (E,)
    gate: Floats,  # (B, L, E), before its SiLU; read where `gated`
    y: Floats,  # (B, L, E), out
    states: Floats,  # (B, ceil(L / CHUNK) - 1, N, E), out: the state before each chunk but the first
    soft: bool,
    gated: bool,
    scale: Any,  # decay = scale exp(dt A) - shift
    shift: Any,
    low: int,
    high: int,
) -> None:
    length, width, n_state = x.shape[1], x.shape[2], a.shape[0]
    keep = states.shape[0] > 0
    rates = a * _f32(LOG2E)
    h = np.empty((n_state, width), np.float32)
    for i in range(low, high):
        h[:] = 0.0
        for t0 in range(0, length, CHUNK):
            if keep and t0 > 0:
                states[i, t0 // CHUNK - 1] = h
            for e in range(0, width, WIDTH):
                for t in range(t0, min(t0 + CHUNK, length)):
                    dt = load(step, (i, t, e))
                    if soft:
                        dt, _ = softplus(dt)
                    xt = load(x, (i, t, e))
                    u = dt * xt
                    out = load(skip, (e,)) * xt
                    for n in range(n_state):
                        decay = scale * exp2(dt * load(rates, (n, e))) - shift
                        hn = decay * load(h, (n, e)) + b[i, t, n] * u
                        store(h, (n, e), hn)
                        out = out + c[i, t, n] * hn
                    if gated:
                        z = load(gate, (i, t, e))
                        out = out * (z * sigmoid(z))
                    store(y, (i, t, e), out)


def _scan_backward(
    x: Floats,
    step: Floats,
    a: Floats,
    b: Floats,
    c: Floats,
    skip: Floats,
    gate: Floats,
    states: Floats,
    gy: Floats,  # (B, L, E), gradient of y
    gx: Floats,  # (B, L, E), out
    gstep: Floats,  # (B, L, E), out
    gb: Floats,  # (B, L, N), added to
    gc: Floats,  # (B, L, N), added to
    ggate: Floats,  # (B, L, E), out
    ga: Floats,  # (N, E), added to
    gskip: Floats,  # (E,), added to
    soft: bool,
    gated: bool,
    scale: Any,
    shift: Any,
    low: int,
    high: int,
) -> None:
    length, width, n_state = x.shape[1], x.shape[2], a.shape[0]
    size = min(CHUNK, length)
    rates = a * _f32(LOG2E)
    hs = np.empty((size + 1, n_state, WIDTH), np.float32)  # states of one chunk, the one before it first
    decays = np.empty((size, n_state, WIDTH), np.float32)
    steps = np.empty((size, WIDTH), np.float32)  # dt, and its derivative by the step
    slopes = np.empty((size, WIDTH), np.float32)
    outs = np.empty((size, WIDTH), np.float32)  # y before the gate
    carry = np.empty((n_state, width), np.float32)  # gradient reaching h_t from the positions after t
    for i in range(low, high):
        carry[:] = 0.0
        for k in range((length - 1) // CHUNK, -1, -1):
            t0 = k * CHUNK
            m = min(CHUNK, length - t0)
            for e in range(0, width, WIDTH):
                for n in range(n_state):
                    store(hs, (0, n, 0), load(states, (i, k - 1, n, e)) if k > 0 else splat(_f32(0.0)))
                for j in range(m):
                    dt = load(step, (i, t0 + j, e))
                    if soft:
                        dt, slope = softplus(dt)
                        store(slopes, (j, 0), slope)
                    store(steps, (j, 0), dt)
                    xt = load(x, (i, t0 + j, e))
                    u = dt * xt
                    out = load(skip, (e,)) * xt
                    for n in range(n_state):
                        decay = scale * exp2(dt * load(rates, (n, e))) - shift
                        hn = decay * load(hs, (j, n, 0)) + b[i, t0 + j, n] * u
                        store(decays, (j, n, 0), decay)
                        store(hs, (j + 1, n, 0), hn)
                        out = out + c[i, t0 + j, n] * hn
                    store(outs, (j, 0), out)
                for j in range(m - 1, -1, -1):
                    t = t0 + j
                    g = load(gy, (i, t, e))
                    if gated:
                        z = load(gate, (i, t, e))
                        s = sigmoid(z)
                        store(ggate, (i, t, e), g * load(outs, (j, 0)) * s * (1.0 + z * (1.0 - s)))
                        g = g * (z * s)
                    xt = load(x, (i, t, e))
                    dt = load(steps, (j, 0))
                    u = dt * xt
                    store(gskip, (e,), load(gskip, (e,)) + g * xt)
                    over_a = splat(_f32(0.0))
                    over_b = splat(_f32(0.0))
                    for n in range(n_state):
                        gh = g * c[i, t, n] + load(carry, (n, e))  # gradient of h_t
                        back = gh * load(decays, (j, n, 0))
                        q = (back + shift * gh) * load(hs, (j, n, 0))  # gradient of dt A
                        store(carry, (n, e), back)
                        store(ga, (n, e), load(ga, (n, e)) + q * dt)
                        over_a = over_a + q * load(rates, (n, e))
                        over_b = over_b + gh * b[i, t, n]
                        gb[i, t, n] += total(gh * u)
                        gc[i, t, n] += total(g * load(hs, (j + 1, n, 0)))
                    store(gx, (i, t, e), dt * over_b + g * load(skip, (e,)))
                    gdt = LN2 * over_a + xt * over_b
                    if soft:
                        gdt = gdt * load(slopes, (j, 0))
                    store(gstep, (i, t, e), gdt)


def _conv_forward(x: Floats, weight: Floats, bias: Floats, y: Floats, low: int, high: int) -> None:
    """y_t = bias + sum_k weight_k x_(t - K + 1 + k); x, y (B, L, E), weight (K, E), bias (E,)."""
    length, width, taps = x.shape[1], x.shape[2], weight.shape[0]
    for i in range(low, high):
        for t in range(length):
            for e in range(0, width, WIDTH):
                out = load(bias, (e,))
                for back in range(min(taps, t + 1)):
                    out = out + load(weight, (taps - 1 - back, e)) * load(x, (i, t - back, e))
                store(y, (i, t, e), out)


def _conv_backward(
    x: Floats, weight: Floats, gy: Floats, gx: Floats, gw: Floats, gbias: Floats, low: int, high: int
) -> None:
    """gx (B, L, E) is written; gw (K, E) and gbias (E,) are added to."""
    length, width, taps = x.shape[1], x.shape[2], weight.shape[0]
    for i in range(low, high):
        for t in range(length):
            for e in range(0, width, WIDTH):
                out = splat(_f32(0.0))
                xt = load(x, (i, t, e))
                for ahead in range(min(taps, length - t)):
                    g = load(gy, (i, t + ahead, e))
                    out = out + load(weight, (taps - 1 - ahead, e)) * g
                    store(gw, (taps - 1 - ahead, e), load(gw, (taps - 1 - ahead, e)) + xt * g)
                store(gx, (i, t, e), out)
                store(gbias, (e,), load(gbias, (e,)) + load(gy, (i, t, e)))


def _norm_forward(
    x: Floats, weight: Floats, eps: Any, share: Any, y: Floats, inverse: Floats, low: int, high: int
) -> None:
    """y = x weight / rms(x) by row: x, y (R, d), inverse (R,) out; `share` is 1 / the width before padding."""
    width = x.shape[1]
    for i in range(low, high):
        squares = splat(_f32(0.0))
        for e in range(0, width, WIDTH):
            v = load(x, (i, e))
            squares = squares + v * v
        r = _f32(1.0) / np.sqrt(total(squares) * share + eps)
        inverse[i] = r
        for e in range(0, width, WIDTH):
            store(y, (i, e), load(x, (i, e)) * r * load(weight, (e,)))


def _norm_backward(
    x: Floats,
    weight: Floats,
    share: Any,
    inverse: Floats,
    gy: Floats,
    gx: Floats,
    gw: Floats,
    low: int,
    high: int,
) -> None:
    """gx (R, d) is written, gw (d,) added to."""
    width = x.shape[1]
    for i in range(low, high):
        r = inverse[i]
        along = splat(_f32(0.0))
        for e in range(0, width, WIDTH):
            along = along + load(gy, (i, e)) * load(weight, (e,)) * load(x, (i, e))
        slide = total(along) * share * r * r * r
        for e in range(0, width, WIDTH):
            v, g = load(x, (i, e)), load(gy, (i, e))
            store(gx, (i, e), g * load(weight, (e,)) * r - v * slide)
            store(gw, (e,), load(gw, (e,)) + g * v * r)


scan_forward = _jit(_scan_forward)
scan_backward = _jit(_scan_backward)
conv_forward = _jit(_conv_forward)
conv_backward = _jit(_conv_backward)
norm_forward = _jit(_norm_forward)
norm_backward = _jit(_norm_backward)
