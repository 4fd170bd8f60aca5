"""Vectors of channels in compiled code, against numpy in float64."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from causegrid.models.ops.lanes import (
    LOG2E,
    WIDTH,
    below,
    compiled,
    exp2,
    load,
    padded,
    sigmoid,
    softplus,
    splat,
    store,
    total,
)


@numba.njit
def functions(x, out):
    for i in range(0, x.shape[0], WIDTH):
        v = load(x, (i,))
        dt, slope = softplus(v)
        store(out, (0, i), exp2(v * LOG2E))
        store(out, (1, i), dt)
        store(out, (2, i), slope)
        store(out, (3, i), sigmoid(v))


def evaluated(x: np.ndarray) -> np.ndarray:
    out = np.empty((4, len(x)), np.float32)
    functions(x, out)
    return out


def test_exponentials_are_accurate_relative_to_their_own_size() -> None:
    x = np.linspace(-80, 80, 1 << 16).astype(np.float32)
    wide = x.astype(np.float64)
    want = np.stack([np.exp(wide), np.logaddexp(0, wide), 1 / (1 + np.exp(-wide)), 1 / (1 + np.exp(-wide))])
    error = np.abs(evaluated(x) / want - 1)
    near = np.abs(x) < 2
    assert error[:, near].max() < 5e-7
    assert error.max() < 1e-5  # rounding of the argument: up to 80 x 6e-8


def test_the_ends_saturate_and_not_a_number_stays() -> None:
    x = np.zeros(WIDTH, np.float32)
    x[:5] = np.nan, np.inf, -np.inf, 1e4, -1e4
    power, dt, slope, s = evaluated(x)
    assert np.isnan([v[0] for v in (power, dt, slope, s)]).all()
    assert power[[1, 3]].min() > 1e38 and power[[2, 4]].max() < 1e-37
    assert dt[1] == np.inf and dt[3] == 1e4 and dt[[2, 4]].max() < 1e-37
    assert (slope[[1, 3]] == 1).all() and (s[[1, 3]] == 1).all() and s[[2, 4]].max() < 1e-37
    assert power[5] == 1 and slope[5] == s[5] == 0.5


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00081, 0x7FD55555])
def test_not_a_number_stays_whatever_bits_it_carries(bits: int) -> None:
    x = np.full(WIDTH, bits, np.uint32).view(np.float32)
    assert np.isnan(evaluated(x)).all()


def test_powers_of_two_are_exact_to_the_ends() -> None:
    k = np.arange(-126, 128)
    t = np.pad(k, (0, -len(k) % WIDTH)).astype(np.float32)
    out = np.empty_like(t)
    powers(t, out)
    assert np.array_equal(out[: len(k)], np.ldexp(np.float32(1), k))


@numba.njit
def powers(t, out):
    for i in range(0, t.shape[0], WIDTH):
        store(out, (i,), exp2(load(t, (i,))))


@numba.njit
def arithmetic(x, y, out):
    a, b = load(x, (1, 2)), load(y, (0,))
    store(out, (0, 0), a + b)
    store(out, (1, 0), 2 - a)
    store(out, (2, 0), a * 0.5)
    store(out, (3, 0), a / b)
    store(out, (4, 0), below(a, b, 1.0, b))
    store(out, (5, 0), splat(np.float32(3)))
    return total(a)


def test_arithmetic_mixes_scalars_and_reads_strided_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2 * WIDTH)).astype(np.float32)[:, WIDTH // 2 : 3 * WIDTH // 2 + 4]
    y = rng.normal(size=WIDTH).astype(np.float32) + 4
    out = np.empty((6, WIDTH), np.float32)
    found = arithmetic(x, y, out)
    a = x[1, 2 : 2 + WIDTH]
    want = np.stack([a + y, 2 - a, a * np.float32(0.5), a / y, np.where(a < y, 1, y), np.full(WIDTH, 3)])
    assert np.array_equal(out, want.astype(np.float32))
    assert abs(found - a.astype(np.float64).sum()) < 1e-5


def test_padding_adds_zeros_and_leaves_whole_widths_where_they_lie() -> None:
    whole = torch.randn(2, 3, 4 * WIDTH)[..., WIDTH : 3 * WIDTH]
    assert padded(whole).__array_interface__["data"][0] == whole.data_ptr()
    part = torch.randn(2, WIDTH + 1)
    assert padded(part).shape == (2, 2 * WIDTH)
    assert (
        np.array_equal(padded(part)[:, : WIDTH + 1], part.numpy()) and not padded(part)[:, WIDTH + 1 :].any()
    )
    assert padded(torch.randn(WIDTH, 5).t()).strides[-1] == 4
    assert compiled(part, None) and not compiled(part.double()) and not compiled(part.to("meta"))
