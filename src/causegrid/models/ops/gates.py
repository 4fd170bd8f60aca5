"""Compiled recurrences of the GRU and the LSTM on CPU: all steps of a range of the batch, there and back.

Rows of a batch do not meet in a recurrence, so each thread takes its rows through every step and nothing
waits for anything.  Arrays are time first, (L, B, ...), gates in torch's order.  A step's product with the
recurrent weights is done here, `lanes.WIDTH` units of two or four rows at a time, and the gates are applied to
the sums while they are in registers.  For that the weights come packed: `pack` puts the columns of one
register block next to each other.  Rows beyond the last are the last one again, computed twice.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from causegrid.models.ops.lanes import LOG2E, WIDTH, exp2, load, splat, store

Floats = NDArray[np.float32]

_jit: Any = numba.njit(cache=True, nogil=True)
_inline: Any = numba.njit(cache=True, inline="always")


def _sigmoid_lanes(s: Any) -> Any:
    return 1.0 / (1.0 + exp2(s * (-LOG2E)))


def _tanh_lanes(s: Any) -> Any:
    return 1.0 - 2.0 / (1.0 + exp2(s * (2.0 * LOG2E)))


_sigmoid: Any = _inline(_sigmoid_lanes)
_tanh: Any = _inline(_tanh_lanes)


def _gru_forward(
    gates: Floats,  # (L, B, 4 d): input parts of r, z, n; on return r, z, n and n's recurrent part
    weight: Floats,  # (d / WIDTH, d, 3 WIDTH), packed
    bias: Floats,  # (d,), of n's recurrent part
    states: Floats,  # (L + 1, B, d), the first given, the others out
    low: int,
    high: int,
) -> None:
    length, d = gates.shape[0], states.shape[2]
    for t in range(length):
        for u in range(0, d, WIDTH):
            w = weight[u // WIDTH]
            for i in range(low, high, 2):
                second = min(i + 1, high - 1)
                r0 = z0 = n0 = r1 = z1 = n1 = splat(np.float32(0.0))
                for k in range(d):
                    h0, h1 = states[t, i, k], states[t, second, k]
                    part = load(w, (k, 0))
                    r0 = r0 + h0 * part
                    r1 = r1 + h1 * part
                    part = load(w, (k, WIDTH))
                    z0 = z0 + h0 * part
                    z1 = z1 + h1 * part
                    part = load(w, (k, 2 * WIDTH))
                    n0 = n0 + h0 * part
                    n1 = n1 + h1 * part
                _gru_gates(gates, bias, states, t, i, u, r0, z0, n0)
                if second > i:
                    _gru_gates(gates, bias, states, t, second, u, r1, z1, n1)


def _gru_gates_lanes(
    gates: Any, bias: Any, states: Any, t: int, i: int, u: int, r: Any, z: Any, n: Any
) -> None:
    d = bias.shape[0]
    r = _sigmoid(r + load(gates, (t, i, u)))
    z = _sigmoid(z + load(gates, (t, i, d + u)))
    own = n + load(bias, (u,))
    n = _tanh(load(gates, (t, i, 2 * d + u)) + r * own)
    store(gates, (t, i, u), r)
    store(gates, (t, i, d + u), z)
    store(gates, (t, i, 2 * d + u), n)
    store(gates, (t, i, 3 * d + u), own)
    store(states, (t + 1, i, u), n + z * (load(states, (t, i, u)) - n))


_gru_gates: Any = _inline(_gru_gates_lanes)


def _gru_backward(
    gates: Floats,  # (L, B, 4 d)
    weight: Floats,  # (d / WIDTH, 3 d, WIDTH), packed
    states: Floats,  # (L + 1, B, d)
    gout: Floats,  # (L, B, d): gradient of the states from above
    carry: Floats,  # (B, d): zero; on return the gradient of the first state
    ggates: Floats,  # (L, B, 4 d), out: of n's input part, r, z, n's recurrent part
    low: int,
    high: int,
) -> None:
    length, d = gates.shape[0], states.shape[2]
    for t in range(length - 1, -1, -1):
        for i in range(low, high):
            for u in range(0, d, WIDTH):
                r, z = load(gates, (t, i, u)), load(gates, (t, i, d + u))
                n, own = load(gates, (t, i, 2 * d + u)), load(gates, (t, i, 3 * d + u))
                g = load(carry, (i, u)) + load(gout, (t, i, u))
                gn = g * (1.0 - z) * (1.0 - n * n)
                store(ggates, (t, i, u), gn)
                store(ggates, (t, i, d + u), gn * own * r * (1.0 - r))
                store(ggates, (t, i, 2 * d + u), g * (load(states, (t, i, u)) - n) * z * (1.0 - z))
                store(ggates, (t, i, 3 * d + u), gn * r)
                store(carry, (i, u), g * z)
        _times(carry, ggates[t, :, d:], weight, low, high, True)


def _times_loop(out: Floats, a: Floats, weight: Floats, low: int, high: int, add: bool) -> None:
    """out (B, d) = a (B, K) @ W (K, d), or += with `add`; weight (d / WIDTH, K, WIDTH) is W packed."""
    depth = weight.shape[1]
    for block in range(weight.shape[0]):
        u, w = block * WIDTH, weight[block]
        for i in range(low, high, 4):
            i1, i2, i3 = min(i + 1, high - 1), min(i + 2, high - 1), min(i + 3, high - 1)
            o0 = o1 = o2 = o3 = splat(np.float32(0.0))
            if add:
                o0, o1 = load(out, (i, u)), load(out, (i1, u))
                o2, o3 = load(out, (i2, u)), load(out, (i3, u))
            for k in range(depth):
                row = load(w, (k, 0))
                o0 = o0 + a[i, k] * row
                o1 = o1 + a[i1, k] * row
                o2 = o2 + a[i2, k] * row
                o3 = o3 + a[i3, k] * row
            store(out, (i, u), o0)
            store(out, (i1, u), o1)
            store(out, (i2, u), o2)
            store(out, (i3, u), o3)


_times: Any = _jit(_times_loop)


def _lstm_forward(
    gates: Floats,  # (L, B, 4 d): input parts of i, f, g, o; on return the gates
    weight: Floats,  # (d / WIDTH, d, 4 WIDTH), packed
    cells: Floats,  # (L + 1, B, d), the first given, the others out
    states: Floats,  # (L + 1, B, d), the same
    low: int,
    high: int,
) -> None:
    length, d = gates.shape[0], states.shape[2]
    for t in range(length):
        for u in range(0, d, WIDTH):
            w = weight[u // WIDTH]
            for i in range(low, high):
                a = f = g = o = splat(np.float32(0.0))
                for k in range(d):
                    h = states[t, i, k]
                    a = a + h * load(w, (k, 0))
                    f = f + h * load(w, (k, WIDTH))
                    g = g + h * load(w, (k, 2 * WIDTH))
                    o = o + h * load(w, (k, 3 * WIDTH))
                a = _sigmoid(a + load(gates, (t, i, u)))
                f = _sigmoid(f + load(gates, (t, i, d + u)))
                g = _tanh(g + load(gates, (t, i, 2 * d + u)))
                o = _sigmoid(o + load(gates, (t, i, 3 * d + u)))
                store(gates, (t, i, u), a)
                store(gates, (t, i, d + u), f)
                store(gates, (t, i, 2 * d + u), g)
                store(gates, (t, i, 3 * d + u), o)
                c = f * load(cells, (t, i, u)) + a * g
                store(cells, (t + 1, i, u), c)
                store(states, (t + 1, i, u), o * _tanh(c))


def _lstm_backward(
    gates: Floats,  # (L, B, 4 d)
    weight: Floats,  # (d / WIDTH, 4 d, WIDTH), packed
    cells: Floats,  # (L + 1, B, d)
    gout: Floats,  # (L, B, d): gradient of the states from above
    grec: Floats,  # (B, d): zero; on return the gradient of the first state
    carry: Floats,  # (B, d): gradient of the last cell; on return of the first
    ggates: Floats,  # (L, B, 4 d), out: of i, f, g, o
    low: int,
    high: int,
) -> None:
    length, d = gates.shape[0], grec.shape[1]
    for t in range(length - 1, -1, -1):
        for i in range(low, high):
            for u in range(0, d, WIDTH):
                a, f = load(gates, (t, i, u)), load(gates, (t, i, d + u))
                g, o = load(gates, (t, i, 2 * d + u)), load(gates, (t, i, 3 * d + u))
                c = _tanh(load(cells, (t + 1, i, u)))
                gh = load(grec, (i, u)) + load(gout, (t, i, u))
                gc = load(carry, (i, u)) + gh * o * (1.0 - c * c)
                store(ggates, (t, i, u), gc * g * a * (1.0 - a))
                store(ggates, (t, i, d + u), gc * load(cells, (t, i, u)) * f * (1.0 - f))
                store(ggates, (t, i, 2 * d + u), gc * a * (1.0 - g * g))
                store(ggates, (t, i, 3 * d + u), gh * c * o * (1.0 - o))
                store(carry, (i, u), gc * f)
        _times(grec, ggates[t], weight, low, high, False)


gru_forward: Any = _jit(_gru_forward)
gru_backward: Any = _jit(_gru_backward)
lstm_forward: Any = _jit(_lstm_forward)
lstm_backward: Any = _jit(_lstm_backward)


def pack_forward(weight: Tensor) -> Floats:
    """(G d, d) as torch keeps it -> (d / WIDTH, d, G WIDTH): for WIDTH units, input by input, all gates."""
    d = weight.shape[1]
    cut = weight.detach().view(-1, d // WIDTH, WIDTH, d)  # (G, blocks, WIDTH, d)
    packed: Floats = cut.permute(1, 3, 0, 2).contiguous().view(d // WIDTH, d, -1).numpy()
    return packed


def pack_backward(weight: Tensor) -> Floats:
    """(G d, d) -> (d / WIDTH, G d, WIDTH)."""
    cut = weight.detach().view(weight.shape[0], -1, WIDTH)  # (G d, blocks, WIDTH)
    packed: Floats = cut.permute(1, 0, 2).contiguous().numpy()
    return packed
