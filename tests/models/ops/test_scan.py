"""The compiled scan and convolution against float64 loops written here, and their edges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from causegrid.models.ops import kernels, team
from causegrid.models.ops.conv import CausalConv, causal_conv
from causegrid.models.ops.scan import reference, selective_scan


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


def with_gradients(scan, values: list[Tensor], weight: Tensor, **options: bool) -> list[Tensor]:
    """y and the gradients of (y * weight).sum(); a seventh value is the gate."""
    leaves = [v.clone().requires_grad_() for v in values]
    gate = dict(gate=leaves[6]) if len(leaves) == 7 else {}
    y = scan(*leaves[:6], **gate, **options)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)]


def fused_loop(
    x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, gate: Tensor
) -> Tensor:
    """The whole of a Mamba block between its projections, one position at a time."""
    dt = torch.log1p(torch.exp(step))
    h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
        y = torch.einsum("ben,bn->be", h, c[:, t]) + skip * x[:, t]
        out.append(y * gate[:, t] / (1 + torch.exp(-gate[:, t])))
    return torch.stack(out, 1)


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
    want = with_gradients(reference, values, weight, signed=signed)
    got = with_gradients(selective_scan, [v.float() for v in values], weight.float(), signed=signed)
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
        want = with_gradients(reference, values, weight)
        got = with_gradients(selective_scan, [v.float() for v in values], weight.float())
    finally:
        torch.set_num_threads(before)
    for w, g in zip(want, got, strict=True):
        assert float((w - g).abs().max()) <= 1e-5 * float(w.abs().max())


@pytest.mark.parametrize("length", [1, 40, kernels.CHUNK + 3])
@pytest.mark.parametrize("width", [32, 21])
def test_softplus_and_gate_inside_equal_a_float64_loop_to_1e_5(length: int, width: int) -> None:
    """B, C and the gate are slices of wider tensors, as in a block."""
    x, _, a, _, _, skip = inputs(3, length, width, 16)
    step = torch.randn(x.shape, dtype=torch.float64) * 2 - 3
    parts = torch.randn(3, length, 40, dtype=torch.float64)
    gate = torch.randn(3, length, 2 * width, dtype=torch.float64)[..., width:]
    values = [x, step, a, parts[..., 8:24], parts[..., 24:], skip, gate]
    weight = torch.randn(x.shape, dtype=torch.float64)
    leaves = [v.clone().requires_grad_() for v in values]
    y = fused_loop(*leaves)
    want = [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)]
    small = [v.float() for v in values]
    for scan in (reference, selective_scan):
        got = with_gradients(scan, small, weight.float(), softplus=True)
        for w, g in zip(want, got, strict=True):
            assert w.shape == g.shape
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


def adjoint(values: list[Tensor], gy: np.ndarray) -> list[np.ndarray]:
    """y and the gradients of one sequence, by the recurrence and its adjoint written out."""
    x, dt, a, b, c, skip = (v.numpy()[0] if v.dim() == 3 else v.numpy() for v in values)
    states = [np.zeros_like(a)]
    for t in range(len(x)):
        states.append(np.exp(dt[t, :, None] * a) * states[-1] + (dt[t] * x[t])[:, None] * b[t])
    y = np.stack([states[t + 1] @ c[t] + skip * x[t] for t in range(len(x))])
    gx, gdt, ga, gb, gc = (np.zeros_like(v) for v in (x, dt, a, b, c))
    carry = np.zeros_like(a)
    for t in reversed(range(len(x))):
        gh = gy[t, :, None] * c[t] + carry
        carry = gh * np.exp(dt[t, :, None] * a)
        q = carry * states[t]
        ga += q * dt[t, :, None]
        gb[t], gc[t] = gh.T @ (dt[t] * x[t]), states[t + 1].T @ gy[t]
        gdt[t], gx[t] = (q * a).sum(1) + x[t] * (gh @ b[t]), dt[t] * (gh @ b[t]) + gy[t] * skip
    return [y[None], gx[None], gdt[None], ga, gb[None], gc[None], (gy * x).sum(0)]


def test_length_4096_at_training_width_equals_the_float64_loop() -> None:
    values = inputs(1, 4096, 256, 16)
    weight = torch.randn(1, 4096, 256, dtype=torch.float64)
    want = adjoint(values, weight[0].numpy())
    got = with_gradients(selective_scan, [v.float() for v in values], weight.float())
    for w, g in zip(want, got, strict=True):
        assert w.shape == g.shape and bool(torch.isfinite(g).all())
        assert np.abs(w - g.numpy()).max() <= 1e-5 * np.abs(w).max()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_grows_linearly_with_length() -> None:
    """Peak memory of a forward and a backward in a process of its own, at 1, 4 and 8 thousand positions."""
    program = """
import torch
from causegrid.models.ops.scan import selective_scan
torch.set_num_threads(1)
for length in (1024, 4096, 8192):
    wide = [torch.rand(1, length, 256, requires_grad=True) for _ in range(3)]
    b, c = (torch.rand(1, length, 16, requires_grad=True) for _ in range(2))
    a = -torch.rand(256, 16)
    y = selective_scan(wide[0], wide[1], a, b, c, torch.rand(256), softplus=True, gate=wide[2])
    torch.autograd.grad(y.sum(), [*wide, b, c])
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    low, middle, high = (1024 * int(line) for line in found.stdout.split())
    activation = 4 * 256  # bytes of one position of one activation; quadratic: 8192 of them more a position
    assert middle > low
    assert (high - middle) / 4096 < 24 * activation


def test_not_a_number_stays_visible() -> None:
    x, dt, a, b, c, skip = inputs(1, 6, 8, 4, dtype=torch.float32)
    dt[0, 2, 3] = float("nan")
    bad = torch.isnan(selective_scan(x, dt, a, b, c, skip))
    assert bad[0, 2:, 3].all()
    assert not bad[0, :2].any()
    assert not bad[..., :3].any()


def test_not_a_number_stays_whatever_bits_it_carries() -> None:
    bad = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    for index in range(6):
        values = inputs(1, 6, 16, 4, dtype=torch.float32)
        values[index] = bad.expand_as(values[index]).contiguous()
        assert torch.isnan(selective_scan(*values)).sum() == torch.isnan(reference(*values)).sum() > 0, index


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
