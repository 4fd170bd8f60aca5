"""Mamba-2's recurrence in all its forms, against float64 loops over sequences, heads and positions."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from causegrid.models.ops import cuda
from causegrid.models.ops.ssd import ssd, ssd_chunks, ssd_steps

FORMS = (ssd, ssd_chunks, ssd_steps)


def recurrence(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The recurrence head by head, position by position, in float64."""
    x, dt, a, b, c, d = (v.double() for v in (x, dt, a, b, c, d))
    batch, length, heads, width = x.shape
    out = []
    for i in range(batch):
        for h in range(heads):
            group = h * b.shape[2] // heads
            state = torch.zeros(width, b.shape[-1], dtype=torch.float64)
            for t in range(length):
                state = torch.exp(dt[i, t, h] * a[h]) * state
                state = state + dt[i, t, h] * torch.outer(x[i, t, h], b[i, t, group])
                out.append(state @ c[i, t, group] + d[h] * x[i, t, h])
    return torch.stack(out).view(batch, heads, length, width).transpose(1, 2)


def inputs(
    length: int, groups: int = 1, *, batch: int = 2, heads: int = 4, width: int = 3, n_state: int = 5
) -> list[Tensor]:
    rng = torch.Generator().manual_seed(length)
    return [
        torch.randn(batch, length, heads, width, generator=rng),
        torch.rand(batch, length, heads, generator=rng),
        -torch.arange(1.0, heads + 1),
        torch.randn(batch, length, groups, n_state, generator=rng),
        torch.randn(batch, length, groups, n_state, generator=rng),
        torch.randn(heads, generator=rng),
    ]


def worst(got: Any, want: Any) -> float:
    """The largest difference, as a fraction of the largest number."""
    return max(
        float((g - w).detach().abs().max() / w.detach().abs().max()) for g, w in zip(got, want, strict=True)
    )


def gradients(form: Any, values: list[Tensor], weight: Tensor, **options: int) -> tuple[Tensor, ...]:
    leaves = [v.detach().clone().requires_grad_() for v in values]
    return torch.autograd.grad((form(*leaves, **options) * weight).sum(), leaves)


@pytest.mark.parametrize("length", [7, 8, 9, 17])
def test_case_20_chunk_borders_and_groups(length: int) -> None:
    values = inputs(length, groups=2)
    want = recurrence(*values)
    for form in FORMS:
        assert float((form(*values, chunk=8) - want).abs().max()) <= 1e-5


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 45), st.sampled_from([1, 2, 4]), st.integers(1, 20), st.integers(1, 35)
)
def test_any_size(length: int, chunk: int, groups: int, width: int, n_state: int) -> None:
    values = inputs(length, groups, width=width, n_state=n_state)
    want = ssd_steps(*(v.double() for v in values))
    assert worst([ssd(*values, chunk=chunk)], [want]) <= 2e-6
    assert worst([ssd_chunks(*values, chunk=chunk)], [want]) <= 2e-6


@pytest.mark.parametrize(
    ("length", "chunk", "sizes"),
    [
        (40, 64, dict(heads=2, width=32, n_state=64)),  # one chunk, the model's own widths
        (37, 16, dict(groups=2, width=17, n_state=20)),  # several, the last one short
        (9, 4, dict(groups=4, width=3, n_state=5)),
    ],
)
def test_gradients_equal_the_recurrences(length: int, chunk: int, sizes: dict[str, int]) -> None:
    values = inputs(length, **sizes)
    weight = torch.randn(values[0].shape)
    want = gradients(recurrence, values, weight)
    for form in FORMS:
        assert worst(gradients(form, values, weight, chunk=chunk), want) <= 1e-5


def test_gradients_of_gradients() -> None:
    values = inputs(11, groups=2)

    def second(values: list[Tensor]) -> tuple[Tensor, ...]:
        leaves = [v.detach().clone().requires_grad_() for v in values]
        first = torch.autograd.grad((ssd(*leaves, chunk=4) ** 2).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), leaves)

    assert worst(second(values), second([v.double() for v in values])) <= 1e-5


def test_slices_are_read_where_they_lie_and_only_what_is_asked_for_gets_a_gradient() -> None:
    x, dt, a, b, c, d = inputs(10, groups=2, width=5)
    wide = torch.cat(
        [x.flatten(2), b.flatten(2), c.flatten(2)], dim=-1
    ).requires_grad_()  # (B, L, 20 + 2 * 10)
    parts = wide.split((20, 10, 10), dim=-1)
    values = [v.unflatten(-1, s) for v, s in zip(parts, ((4, 5), (2, 5), (2, 5)), strict=True)]
    got = ssd(values[0], dt, a, values[1], values[2], d, chunk=4)
    assert torch.equal(got, ssd(x, dt, a, b, c, d, chunk=4))
    (gradient,) = torch.autograd.grad(got.sum(), [wide])
    want = gradients(ssd, [x, dt, a, b, c, d], torch.ones(x.shape), chunk=4)
    assert torch.equal(gradient, torch.cat([want[i].flatten(2) for i in (0, 3, 4)], dim=-1))
    transposed = x.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(ssd(transposed, dt, a, b, c, d, chunk=4), got)


def test_no_overflow_with_strong_decay() -> None:
    x, dt, a, b, c, d = inputs(300)
    values = [v.requires_grad_() for v in (x, 50 * dt, 20 * a, b, c, d)]
    for form in (ssd, ssd_chunks):
        y = form(*values)
        gradients = torch.autograd.grad(y.sum(), values)
        assert all(bool(torch.isfinite(v).all()) for v in (y, *gradients))


def test_a_large_step_leaves_the_small_ones_after_it_exact() -> None:
    values = inputs(100)
    values[1] = torch.full_like(values[1], 1e-3)
    values[1][:, 3] = 1e4  # a cumulative sum would carry on at 1e4, where float32 has no 1e-3
    weight = torch.randn(values[0].shape)
    want = [recurrence(*values)[:, 4:]], gradients(recurrence, values, weight)[3:]
    for form in (ssd, ssd_chunks):
        assert worst([form(*values)[:, 4:]], want[0]) <= 1e-5
        assert worst(gradients(form, values, weight)[3:], want[1]) <= 1e-5


def test_a_sequence_that_is_not_a_number_leaves_the_others_alone() -> None:
    values = inputs(10, batch=3)
    want = ssd(*values, chunk=7)
    values[3] = values[3].clone()
    values[3][1] = float("nan")
    got = ssd(*values, chunk=7)
    assert torch.equal(got[::2], want[::2])
    assert bool(got[1].isnan().all())


def test_long_sequences_keep_memory_linear() -> None:
    def kept(length: int) -> int:
        values = [v.requires_grad_() for v in inputs(length, batch=1, width=16, n_state=16)]
        y = ssd(*values)
        with torch.no_grad():
            assert worst([y], [ssd_steps(*values)]) <= 1e-5
        torch.autograd.backward(y.sum())
        assert all(bool(torch.isfinite(v.grad).all()) for v in values if v.grad is not None)
        return int(y.grad_fn.products.nbytes + y.grad_fn.states.nbytes)

    assert kept(4096) == 4 * kept(1024)


def test_two_threads_equal_one() -> None:
    torch.manual_seed(0)
    values = inputs(40, batch=33, heads=8, width=16, n_state=16)
    weight = torch.randn(values[0].shape)
    one = ssd(*values), *gradients(ssd, values, weight)
    torch.set_num_threads(2)
    try:
        two = ssd(*values), *gradients(ssd, values, weight)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one[i], two[i]) for i in (0, 1, 2, 4, 5))  # y and the gradients of x, dt, B and C
    assert worst(two, one) <= 1e-5  # A's and D's: sums over the batch, in another order


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_use_plain_torch(dtype: torch.dtype) -> None:
    values = [v.to(dtype) for v in inputs(10)]
    assert torch.equal(ssd(*values, chunk=4), ssd_chunks(*values, chunk=4))
    assert ssd(*values).dtype == dtype


@pytest.fixture
def pretend_cuda(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], int]]:
    """A stand-in for mamba-ssm with its signature, and tensors that pass for CUDA's; the calls it got."""
    calls = []

    def mamba_chunk_scan_combined(  # mamba-ssm 2's, up to the arguments used
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Tensor | None = None
    ) -> Tensor:
        assert D is not None
        calls.append((tuple(x.shape), chunk_size))
        return ssd_steps(x, dt, A, B, C, D)

    module = ModuleType("mamba_ssm.ops.triton.ssd_combined")
    module.mamba_chunk_scan_combined = mamba_chunk_scan_combined  # type: ignore[attr-defined]
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cuda, "on_device", lambda v: True)
    monkeypatch.setattr("causegrid.models.ops.ssd.compiled", lambda *v: False)
    return calls


def test_cuda_uses_mamba_ssm_where_it_is_installed(pretend_cuda: list[Any]) -> None:
    values = inputs(10, groups=2)
    want = recurrence(*values)
    assert float((ssd(*values, chunk=24) - want).abs().max()) <= 1e-5
    assert pretend_cuda == [((2, 10, 4, 3), 32)]  # a power of two
    doubles = [v.double() for v in values]  # a dtype its kernels do not take
    assert torch.equal(ssd(*doubles, chunk=4), ssd_chunks(*doubles, chunk=4))
    assert len(pretend_cuda) == 1


def test_cuda_without_mamba_ssm_uses_plain_torch(
    pretend_cuda: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "mamba_ssm"]:
        monkeypatch.delitem(sys.modules, name)
    values = inputs(10)
    assert torch.equal(ssd(*values, chunk=4), ssd_chunks(*values, chunk=4))
    assert not pretend_cuda
