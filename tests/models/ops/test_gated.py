"""The gated RMS norm against its formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from causegrid.models.ops.gated import GatedNorm


def formula(x: Tensor, gate: Tensor, weight: Tensor, groups: int) -> Tensor:
    v = x * gate / (1 + torch.exp(-gate))
    parts = [part / (part.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() for part in v.chunk(groups, dim=-1)]
    return torch.cat(parts, dim=-1) * weight


def worst(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> float:
    return max(
        float((g - w).detach().abs().max() / w.detach().abs().max()) for g, w in zip(got, want, strict=True)
    )


@pytest.mark.parametrize(("width", "groups"), [(64, 1), (64, 2), (48, 3), (20, 2)])
def test_gated_norm_and_its_gradients(width: int, groups: int) -> None:
    torch.manual_seed(width)
    wide = 4 * torch.randn(3, 7, width + 9)
    leaves = [torch.randn(3, 7, width), wide, torch.randn(width)]
    pull = torch.randn(3, 7, width)

    def both(leaves: list[Tensor], ours: bool) -> tuple[Tensor, ...]:
        x, wide, weight = (v.detach().clone().requires_grad_() for v in leaves)
        gate = wide[..., 5 : 5 + width]  # a slice, read where it lies
        norm = GatedNorm(width, groups)
        norm.weight = torch.nn.Parameter(weight.detach())
        leaves = [x, wide, norm.weight if ours else weight]
        y = norm(x, gate) if ours else formula(x, gate, weight, groups)
        plain = torch.autograd.grad((y * pull).sum(), leaves, retain_graph=True)
        first = torch.autograd.grad((y * pull).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
        return y, *first, *plain, *second

    want = both([v.double() for v in leaves], ours=False)
    assert worst(both(leaves, ours=True), want) <= 1e-5


def test_two_threads_equal_one() -> None:
    torch.manual_seed(0)
    norm = GatedNorm(64, 2)
    x, gate = torch.randn(2, 65, 32, 64)

    def run() -> tuple[Tensor, ...]:
        leaves = [v.clone().requires_grad_() for v in (x, gate)]
        y = norm(leaves[0], leaves[1])
        return y, *torch.autograd.grad((y**2).sum(), [*leaves, norm.weight])

    one = run()
    torch.set_num_threads(2)
    try:
        two = run()
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one[:3], two[:3], strict=True))
    assert worst(two, one) <= 1e-5  # the weight's gradient is a sum over 2080 rows in another order
