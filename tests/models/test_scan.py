"""The compiled scan and convolution against float64 loops written here, and their edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from causegrid.models import kernels, team
from causegrid.models.conv import CausalConv, causal_conv
from causegrid.models.scan import reference, selective_scan


def inputs(
    batch: int, length: int, width: int, states: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=dtype)

    x, b, c, skip = (
        normal(batch, length, width),
        normal(batch, length, states),
        normal(batch, length, states),
        normal(width),
    )
    dt = torch.rand(batch, length, width, generator=rng, dtype=dtype) * 0.3
    a = -8 * torch.rand(width, states, generator=rng, dtype=dtype)
    return [x, dt, a, b, c, skip]


def loop(values: list[Tensor], signed: bool) -> np.ndarray:
    x, dt, a, b, c, skip = (v.numpy() for v in values)
    batch, length, width = x.shape
    y = np.zeros((batch, length, width))
    for i in range(batch):
        for e in range(width):
            h = np.zeros(a.shape[1])
            for t in range(length):
                keep = np.exp(dt[i, t, e] * a[e])
                h = (2 * keep - 1 if signed else keep) * h + dt[i, t, e] * x[i, t, e] * b[i, t]
                y[i, t, e] = h @ c[i, t] + skip[e] * x[i, t, e]
    return y


def with_gradients(scan, values: list[Tensor], weight: Tensor, signed: bool) -> list[Tensor]:
    leaves = [v.clone().requires_grad_() for v in values]
    y = scan(*leaves, signed=signed)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)]


@pytest.mark.parametrize("signed", [False, True])
def test_the_reference_is_the_recurrence(signed: bool) -> None:
    values = inputs(2, 9, 3, 4)
    assert np.allclose(
        reference(*values, signed=signed).numpy(), loop(values, signed), rtol=1e-12, atol=1e-12
    )


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 2 * kernels.CHUNK + 1),
    st.integers(1, 40),
    st.integers(1, 17),
    st.booleans(),
)
def test_the_kernel_equals_the_loop_in_value_and_gradient(
    batch: int, length: int, width: int, states: int, signed: bool
) -> None:
    values = inputs(batch, length, width, states, seed=length)
    weight = torch.randn(
        batch, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    want = with_gradients(reference, values, weight, signed)
    got = with_gradients(selective_scan, [v.float() for v in values], weight.float(), signed)
    for w, g in zip(want, got, strict=True):
        assert g.dtype == torch.float32
        assert float((w - g).abs().max()) <= 1e-5 * max(1.0, float(w.abs().max()))


@pytest.mark.parametrize("threads", [1, 2])
def test_training_size_wider_than_one_block_of_lanes_on_one_and_two_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = inputs(16, 40, 300, 16)
        assert team.workers_for(16, values[0].numel()) == threads
        weight = torch.ones(16, 40, 300, dtype=torch.float64)
        want = with_gradients(reference, values, weight, False)
        got = with_gradients(selective_scan, [v.float() for v in values], weight.float(), False)
    finally:
        torch.set_num_threads(before)
    for w, g in zip(want, got, strict=True):
        assert float((w - g).abs().max()) <= 1e-5 * float(w.abs().max())


def test_no_overflow_at_length_4096_and_strong_decay() -> None:
    x, dt, a, b, c, skip = inputs(1, 4096, 5, 16, dtype=torch.float32)
    dt, a = dt * 100, a * 100  # decays down to exp(-24000)
    leaves = [v.requires_grad_() for v in (x, dt, a, b, c, skip)]
    y = selective_scan(*leaves)
    gradients = torch.autograd.grad(y.sum(), leaves)
    assert all(bool(torch.isfinite(v).all()) for v in (y, *gradients))
    want = reference(*(v.detach().double() for v in leaves))
    assert float((y.detach() - want).abs().max()) <= 1e-5 * float(want.abs().max())


def test_not_a_number_stays_visible() -> None:
    x, dt, a, b, c, skip = inputs(1, 6, 8, 4, dtype=torch.float32)
    dt[0, 2, 3] = float("nan")
    bad = torch.isnan(selective_scan(x, dt, a, b, c, skip))
    assert bad[0, 2:, 3].all()
    assert not bad[0, :2].any()
    assert not bad[..., :3].any()


def test_float64_and_second_derivatives_use_the_loop() -> None:
    values = [v.requires_grad_() for v in inputs(1, 3, 2, 2)]
    assert torch.equal(selective_scan(*values), reference(*values))
    small = [v.detach().float().requires_grad_() for v in values]

    def penalty(scan, leaves: list[Tensor]) -> list[Tensor]:
        first = torch.autograd.grad(scan(*leaves).pow(2).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))

    for w, g in zip(penalty(reference, values), penalty(selective_scan, small), strict=True):
        assert torch.allclose(w.float(), g, rtol=1e-3, atol=1e-4)


def test_the_state_can_be_seen_and_edited() -> None:
    values = inputs(2, 5, 3, 4)
    seen: list[Tensor] = []

    def keep(t: int, h: Tensor) -> Tensor:
        seen.append(h)
        return h

    assert torch.equal(reference(*values, on_state=keep), reference(*values))
    assert len(seen) == 5
    cut = [v[:, 3:] if v.dim() == 3 else v for v in values]
    rest = reference(*cut, initial=seen[2])
    assert torch.allclose(rest, reference(*values)[:, 3:])
    zeroed = reference(*values, on_state=lambda t, h: h * 0 if t == 2 else h)
    assert torch.allclose(zeroed[:, 3:], reference(*cut))


def test_without_gradients_no_state_is_kept() -> None:
    values = inputs(1, 20, 4, 3, dtype=torch.float32)
    y = selective_scan(*values)
    assert not y.requires_grad
    tracked = selective_scan(values[0].requires_grad_(), *values[1:])
    assert tracked.requires_grad
    assert torch.equal(y, tracked)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 20), st.integers(1, 5))
def test_the_convolution_equals_torchs(batch: int, length: int, width: int, taps: int) -> None:
    torch.manual_seed(length)
    leaves = [
        v.double().requires_grad_()
        for v in (torch.randn(batch, length, width), torch.randn(width, 1, taps), torch.randn(width))
    ]
    padded = F.pad(leaves[0].transpose(1, 2), (taps - 1, 0))
    want = F.conv1d(padded, leaves[1], leaves[2], groups=width).transpose(1, 2)
    weight = torch.randn_like(want)
    small = [v.detach().float().requires_grad_() for v in leaves]
    got = causal_conv(*small)
    assert torch.allclose(want.float(), got, atol=1e-5)
    pairs = zip(
        torch.autograd.grad((want * weight).sum(), leaves),
        torch.autograd.grad((got * weight.float()).sum(), small),
        strict=True,
    )
    assert all(torch.allclose(w.float(), g, rtol=1e-4, atol=1e-4) for w, g in pairs)


def test_the_convolution_takes_strided_input_and_the_identity_kernel_is_the_identity() -> None:
    conv = CausalConv(6, 4)
    x = torch.randn(2, 7, 12)[..., :6]
    assert torch.allclose(conv(x), conv(x.contiguous()))
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[:, 0, -1] = 1
        assert torch.equal(conv(x), x)
    first = torch.autograd.grad(conv(x.requires_grad_()).pow(2).sum(), x, create_graph=True)[0]
    assert torch.allclose(torch.autograd.grad(first.sum(), x)[0], torch.full((2, 7, 6), 2.0))
