"""Compiled loops of Mamba-2's matrix form, forward and backward, one sequence, chunk and group at a time.

Everything one chunk needs lies in scratch that fits the cache, and every product is causal: blocks above the
diagonal are skipped.  The decay from s to t is the running product of exp(dt A) that the recurrence itself
applies, so nothing overflows, no quotient is taken and no sums are subtracted; the gradient of dt A adds
only what crosses a position, for the same reason.  What a head carries between chunks is its state (N, P).

Names: n positions of the chunk, s = C B^T, m = decay s, u = dt x.  `x`, `b`, `c` come flat with their strides
(batch, position, head or group): they are slices of wider tensors and are read where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from causegrid.models.ops.lanes import LOG2E, WIDTH, exp2, load, splat, store, total
from causegrid.models.ops.products import FULL, LOWER, LOWER_OUT, UPPER, product

_f32 = np.float32
_jit: Any = numba.njit(cache=True, nogil=True)


def up(n: int, step: int) -> int:
    """`n` rounded up to a multiple of `step`."""
    return -(-n // step) * step


_once: Callable[[Callable[..., Any]], Any] = numba.njit(nogil=True)
_up: Any = _once(up)


@_once
def _clear(rows: Any, first: int, last: int) -> None:
    """rows[first:last] = 0.  (Loops, because an assigned slice takes numba a second to compile.)"""
    for t in range(first, last):
        for p in range(0, rows.shape[1], WIDTH):
            store(rows, (t, p), splat(_f32(0.0)))


@_once
def _copy(out: Any, rows: Any) -> None:
    """out[:] = rows."""
    for t in range(rows.shape[0]):
        for p in range(0, rows.shape[1], WIDTH):
            store(out, (t, p), load(rows, (t, p)))


@_once
def _rows(out: Any, flat: Any, base: int, stride: int, n: int, width: int) -> None:
    """out[:n, :width] = rows of `flat`; the rows up to the next multiple of 4 become zero."""
    whole = width - width % WIDTH
    for t in range(n):
        at = base + t * stride
        for p in range(0, whole, WIDTH):
            store(out, (t, p), load(flat, (at + p,)))
        for p in range(whole, width):
            out[t, p] = flat[at + p]
    _clear(out, n, _up(n, 4))


@_once
def _put(out: Any, i: int, t0: int, e: int, rows: Any, n: int, width: int) -> None:
    """out[i, t0 : t0 + n, e] = rows[:n, :width]."""
    whole = width - width % WIDTH
    for t in range(n):
        for p in range(0, whole, WIDTH):
            store(out, (i, t0 + t, e, p), load(rows, (t, p)))
        for p in range(whole, width):
            out[i, t0 + t, e, p] = rows[t, p]


@_once
def _scaled(out: Any, x: Any, by: Any, n: int) -> None:
    """out[t] = x[t] by[t]; the rows up to the next multiple of 4 become zero."""
    for t in range(n):
        for p in range(0, x.shape[1], WIDTH):
            store(out, (t, p), by[t] * load(x, (t, p)))
    _clear(out, n, _up(n, 4))


@_once
def _turned(out: Any, x: Any, n: int, width: int) -> None:
    """out[p, t] = x[t, p]; the columns up to the next multiple of 16 become zero."""
    for t in range(n):
        for p in range(width):
            out[p, t] = x[t, p]
    for p in range(width):
        for t in range(n, _up(n, WIDTH)):
            out[p, t] = 0.0


@_once
def _dot(a: Any, b: Any, t: int, width: int) -> Any:
    """a[t, :width] . b[t, :width], `width` a multiple of 16."""
    o = splat(_f32(0.0))
    for p in range(0, width, WIDTH):
        o = o + load(a, (t, p)) * load(b, (t, p))
    return total(o)


@_once
def _decays(decay: Any, since: Any, until: Any, step: Any, dt: Any, a: Any) -> None:
    """decay[t, s] from s to t, 0 above the diagonal; `since[t]` from before the chunk; `until[s]` to its end."""
    n, row, product = len(dt), decay.shape[0] - 1, _f32(1.0)
    for t in range(n):
        step[t] = dt[t] * a * _f32(LOG2E)
    for t in range(0, n, WIDTH):
        store(step, (t,), exp2(load(step, (t,))))
    _clear(decay, row, row + 1)
    for t in range(n):
        for s in range(0, t, WIDTH):
            store(decay, (row, s), step[t] * load(decay, (row, s)))
        decay[row, t] = 1.0
        for s in range(0, t + 1, WIDTH):
            store(decay, (t, s), load(decay, (row, s)))
        product *= step[t]
        since[t] = product
    _clear(decay, n, _up(n, 4))
    for t in range(n):
        until[t] = decay[row, t]


def _forward_loop(
    x: Any,
    xs: Any,
    dt: Any,  # (B, L, H)
    a: Any,  # (H,)
    b: Any,
    bs: Any,
    c: Any,
    cs: Any,
    skip: Any,  # (H,)
    y: Any,  # (B, L, H, P), out
    products: Any,  # (B, K, G, rows, columns), out: s of every chunk; empty when not wanted
    states: Any,  # (B, K, H, N, P to 16), out: the state before every chunk; empty when not wanted
    sizes: Any,  # groups, N, chunk
    low: int,
    high: int,
) -> None:
    length, heads, width = y.shape[1:]
    groups, n_state, chunk = sizes
    share = heads // groups
    rows, columns, wide, deep = _up(chunk, 4), _up(chunk, WIDTH), _up(width, WIDTH), _up(n_state, WIDTH)
    keep, carried = products.shape[0] > 0, length > chunk
    bl = np.zeros((rows, deep), np.float32)
    cl = np.zeros((rows, deep), np.float32)
    bt = np.zeros((deep, columns), np.float32)
    spare = np.zeros((rows, columns), np.float32)
    m = np.zeros((rows + 1, columns), np.float32)
    xl = np.zeros((rows, wide), np.float32)
    u = np.zeros((rows, wide), np.float32)
    o = np.zeros((rows, wide), np.float32)
    h = np.zeros((heads, deep, wide), np.float32)
    past = np.zeros((rows, deep), np.float32)
    step, since, until = (
        np.zeros(columns, np.float32),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
    )
    for i in range(low, high):
        for e in range(heads):
            _clear(h[e], 0, deep)
        for k in range((length + chunk - 1) // chunk):
            t0 = k * chunk
            n = min(chunk, length - t0)
            n4 = _up(n, 4)
            for g in range(groups):
                _rows(cl, c, i * cs[0] + t0 * cs[1] + g * cs[2], cs[1], n, n_state)
                _rows(bl, b, i * bs[0] + t0 * bs[1] + g * bs[2], bs[1], n, n_state)
                _turned(bt, bl, n, n_state)
                s = products[i, k, g] if keep else spare
                product(s, cl, bt, n4, columns, n_state, LOWER_OUT, False)
                for e in range(g * share, (g + 1) * share):
                    _decays(m, since, until, step, dt[i, t0 : t0 + n, e], a[e])
                    for t in range(n4):
                        for q in range(0, t + 1, WIDTH):
                            store(m, (t, q), load(m, (t, q)) * load(s, (t, q)))
                    _rows(xl, x, i * xs[0] + t0 * xs[1] + e * xs[2], xs[1], n, width)
                    _scaled(u, xl, dt[i, t0 : t0 + n, e], n)
                    product(o, m, u, n4, wide, n4, LOWER, False)
                    if carried:
                        he = h[e]
                        if keep:
                            _copy(states[i, k, e], he)
                        _scaled(past, cl, since, n)
                        product(o, past, he, n4, wide, n_state, FULL, True)
                        _scaled(past, bl, until, n)
                        for j in range(n_state):
                            for p in range(0, wide, WIDTH):
                                store(he, (j, p), since[n - 1] * load(he, (j, p)))
                        product(he, past.T, u, deep, wide, n, FULL, True)
                    for t in range(n):
                        for p in range(0, wide, WIDTH):
                            store(o, (t, p), load(o, (t, p)) + skip[e] * load(xl, (t, p)))
                    _put(y, i, t0, e, o, n, width)


def _backward_loop(
    x: Any,
    xs: Any,
    dt: Any,
    a: Any,
    b: Any,
    bs: Any,
    c: Any,
    cs: Any,
    skip: Any,
    products: Any,
    states: Any,
    gy: Any,  # flat: gradient of y
    ys: Any,
    gx: Any,  # (B, L, H, P), out
    gdt: Any,  # (B, L, H), out
    gb: Any,  # (B, L, G, N), out
    gc: Any,  # (B, L, G, N), out
    ga: Any,  # (H,), added to
    gskip: Any,  # (H,), added to
    sizes: Any,
    low: int,
    high: int,
) -> None:
    length, heads, width = gx.shape[1:]
    groups, n_state, chunk = sizes
    share = heads // groups
    rows, columns, wide, deep = _up(chunk, 4), _up(chunk, WIDTH), _up(width, WIDTH), _up(n_state, WIDTH)
    carried = length > chunk
    bl = np.zeros((rows, deep), np.float32)
    cl = np.zeros((rows, deep), np.float32)
    gs = np.zeros((rows, columns), np.float32)  # gradient of s, summed over the heads of a group
    m = np.zeros((rows + 1, columns), np.float32)
    gm = np.zeros((rows, columns), np.float32)
    earlier = np.zeros((rows, columns), np.float32)  # 1 below the diagonal
    for t in range(rows):
        earlier[t, :t] = 1.0
    crossing = np.zeros((1, columns), np.float32)  # gm m from each earlier position to this one or later
    xl = np.zeros((rows, wide), np.float32)
    u = np.zeros((rows, wide), np.float32)
    gl = np.zeros((rows, wide), np.float32)
    ut = np.zeros((wide, columns), np.float32)
    gu = np.zeros((rows, wide), np.float32)
    gh = np.zeros((heads, deep, wide), np.float32)  # gradient of the state after the chunk
    turned = np.zeros((wide, deep), np.float32)
    past = np.zeros((rows, deep), np.float32)
    lead = np.zeros((rows, wide), np.float32)
    gbl = np.zeros((rows, deep), np.float32)
    gcl = np.zeros((rows, deep), np.float32)
    step, since, until, gstep = (
        np.zeros(columns, np.float32),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
    )
    for i in range(low, high):
        for e in range(heads):
            _clear(gh[e], 0, deep)
        for k in range((length + chunk - 1) // chunk - 1, -1, -1):
            t0 = k * chunk
            n = min(chunk, length - t0)
            n4 = _up(n, 4)
            for g in range(groups):
                _rows(cl, c, i * cs[0] + t0 * cs[1] + g * cs[2], cs[1], n, n_state)
                _rows(bl, b, i * bs[0] + t0 * bs[1] + g * bs[2], bs[1], n, n_state)
                s = products[i, k, g]
                _clear(gs, 0, rows)
                _clear(gbl, 0, rows)
                _clear(gcl, 0, rows)
                for e in range(g * share, (g + 1) * share):
                    _decays(m, since, until, step, dt[i, t0 : t0 + n, e], a[e])
                    _rows(xl, x, i * xs[0] + t0 * xs[1] + e * xs[2], xs[1], n, width)
                    _rows(gl, gy, i * ys[0] + t0 * ys[1] + e * ys[2], ys[1], n, width)
                    _scaled(u, xl, dt[i, t0 : t0 + n, e], n)
                    _turned(ut, u, n, width)
                    product(gm, gl, ut, n4, columns, width, LOWER_OUT, False)
                    for t in range(n):
                        for q in range(0, t + 1, WIDTH):
                            decay, grad = load(m, (t, q)), load(gm, (t, q))
                            value = decay * load(s, (t, q))
                            store(gs, (t, q), load(gs, (t, q)) + grad * decay)
                            store(gm, (t, q), grad * value)
                            store(m, (t, q), value)
                    _clear(crossing, 0, 1)
                    for t in range(n - 1, -1, -1):  # dt_t A: whatever goes from before t to t or later
                        o = splat(_f32(0.0))
                        for q in range(0, t + 1, WIDTH):
                            more = (load(crossing, (0, q)) + load(gm, (t, q))) * load(earlier, (t, q))
                            store(crossing, (0, q), more)
                            o = o + more
                        gstep[t] = total(o)
                    product(gu, m.T, gl, n4, wide, n, UPPER, False)
                    if carried:
                        he, ghe = states[i, k, e], gh[e]
                        # forward: o += since C h
                        _scaled(lead, gl, since, n)
                        _turned(turned, he, n_state, width)
                        product(past, lead, turned, n4, deep, width, FULL, False)
                        after = _f32(0.0)
                        for t in range(n - 1, -1, -1):
                            after += _dot(past, cl, t, deep)
                            gstep[t] += after
                            for j in range(0, deep, WIDTH):
                                store(gcl, (t, j), load(gcl, (t, j)) + load(past, (t, j)))
                        # forward: h = whole h + B^T (until u)
                        _turned(turned, ghe, n_state, width)
                        product(past, u, turned, n4, deep, width, FULL, False)
                        _scaled(past, past, until, n)
                        whole, before = since[n - 1], _f32(0.0)
                        for j in range(n_state):
                            before += whole * _dot(he, ghe, j, wide)
                        for t in range(n):
                            gstep[t] += before
                            before += _dot(past, bl, t, deep)
                            for j in range(0, deep, WIDTH):
                                store(gbl, (t, j), load(gbl, (t, j)) + load(past, (t, j)))
                        _scaled(past, bl, until, n)
                        product(gu, past, ghe, n4, wide, n_state, FULL, True)
                        for j in range(n_state):
                            for p in range(0, wide, WIDTH):
                                store(ghe, (j, p), whole * load(ghe, (j, p)))
                        product(ghe, cl.T, lead, deep, wide, n, FULL, True)
                    for t in range(n):
                        now = dt[i, t0 + t, e]
                        gdt[i, t0 + t, e] = a[e] * gstep[t] + _dot(gu, xl, t, wide)
                        ga[e] += now * gstep[t]
                        gskip[e] += _dot(gl, xl, t, wide)
                        for p in range(0, wide, WIDTH):
                            store(gu, (t, p), now * load(gu, (t, p)) + skip[e] * load(gl, (t, p)))
                    _put(gx, i, t0, e, gu, n, width)
                _clear(gs, n, n4)
                product(gcl, gs, bl, n4, deep, n4, LOWER, True)
                product(gbl, gs.T, cl, n4, deep, n, UPPER, True)
                _put(gb, i, t0, g, gbl, n, n_state)
                _put(gc, i, t0, g, gcl, n, n_state)


forward = _jit(_forward_loop)
backward = _jit(_backward_loop)
