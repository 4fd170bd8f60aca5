"""`create_graph=True` where the inputs of an operation come from one another, against float64 loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from causegrid.models.ops.conv import causal_conv
from causegrid.models.ops.gated import GatedNorm
from causegrid.models.ops.norm import rms_norm
from causegrid.models.ops.recurrence import GRU, LSTM
from causegrid.models.ops.scan import selective_scan
from causegrid.models.ops.ssd import ssd

Loss = Callable[[bool, Tensor], Tensor]
E = 16


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def scan(ours: bool, u: Tensor) -> Tensor:
    """One sequence from which the step, B and C are computed too; B and C are the same tensor."""
    h, to_dt, to_b, a = torch.tanh(u), drawn(E, E) / 4, drawn(E, 4) / 4, -drawn(E, 4).abs()
    x, dt, b = h, (h @ to_dt.to(u)).exp() / 4, h @ to_b.to(u)
    if ours:
        return selective_scan(x, dt, a, b, b, torch.ones(E))
    state, out = torch.zeros(len(u), E, 4).to(u), []
    for t in range(u.shape[1]):
        state = torch.exp(dt[:, t, :, None] * a.to(u)) * state
        state = state + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
        out.append((state * b[:, t, None]).sum(-1) + x[:, t])
    return torch.stack(out, 1)


def ssd_(ours: bool, u: Tensor) -> Tensor:
    h = torch.tanh(u)
    dt, b = (h @ (drawn(E, 1) / 4).to(u)).exp() / 4, h @ (drawn(E, 4) / 4).to(u)  # (B, L, 1), (B, L, N)
    if ours:
        x = h[:, :, None]
        dt, b = (x[:, :, 0] @ (drawn(E, 1) / 4)).exp() / 4, (x[:, :, 0] @ (drawn(E, 4) / 4))[:, :, None]
        return ssd(x, dt, -torch.ones(1), b, b, torch.ones(1), chunk=3)[:, :, 0]
    state, out = torch.zeros(len(u), E, 4).to(u), []
    for t in range(u.shape[1]):
        state = torch.exp(-dt[:, t])[..., None] * state + (dt[:, t] * h[:, t])[..., None] * b[:, t, None]
        out.append((state * b[:, t, None]).sum(-1) + h[:, t])
    return torch.stack(out, 1)


def conv(ours: bool, u: Tensor) -> Tensor:
    """The taps and the bias come from the sequence."""
    taps, bias = u.mean((0, 1))[:, None, None] * torch.ones(3).to(u), u.sum((0, 1))  # (E, 1, 3), (E,)
    if ours:
        return causal_conv(u, taps, bias)
    zero = torch.zeros_like(u[:, :2])
    wide = torch.cat([zero, u], 1)
    return bias + sum(taps[:, 0, k] * wide[:, k : k + u.shape[1]] for k in range(3))


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def norm(ours: bool, u: Tensor) -> Tensor:
    """One weight, made from the input, used twice."""
    weight, form = u.mean((0, 1)).exp(), rms_norm if ours else rms
    return form(form(u, weight) + u, weight)


def gated(ours: bool, u: Tensor) -> Tensor:
    gate = torch.tanh(u)
    if ours:
        return GatedNorm(E, 1)(u, gate)
    return rms(u * gate / (1 + torch.exp(-gate)), torch.ones(E).to(u))


def chained(kind: type) -> Loss:
    """Two calls, the second from the state of the first; a bias made from the input reaches it by two ways."""

    def loss(ours: bool, u: Tensor) -> Tensor:
        torch.manual_seed(0)
        module: Any = kind(E, E, batch_first=True)
        bias = u[0].flatten()[: len(module.bias_hh_l0)]
        if ours:
            del module.bias_hh_l0
            module.bias_hh_l0 = bias
            return module(u[:, 3:], module(u[:, :3])[1])[0]
        weights = [module.weight_ih_l0.to(u), module.weight_hh_l0.to(u), module.bias_ih_l0.to(u), bias]
        zero = torch.zeros(1, len(u), E).to(u)
        fixed = weights, True, 1, 0.0, False, False, True
        if kind is GRU:
            return torch.gru(u[:, 3:], torch.gru(u[:, :3], zero, *fixed)[1], *fixed)[0]
        return torch.lstm(u[:, 3:], torch.lstm(u[:, :3], (zero, zero), *fixed)[1:], *fixed)[0]

    return loss


CASES: dict[str, Loss] = dict(
    scan=scan,
    ssd=ssd_,
    conv=conv,
    norm=norm,
    gated=gated,
    gru=chained(GRU),
    lstm=chained(LSTM),
)


@pytest.mark.parametrize("name", CASES)
def test_the_first_and_second_gradient_when_inputs_depend_on_one_another(name: str) -> None:
    loss, start = CASES[name], drawn(2, 7, E)

    def gradients(ours: bool, u: Tensor) -> list[Tensor]:
        u = u.clone().requires_grad_()
        (plain,) = torch.autograd.grad(loss(ours, u).pow(3).sum(), u)
        (first,) = torch.autograd.grad(loss(ours, u).pow(3).sum(), u, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(3).sum(), u)
        return [plain, first.detach(), second]

    for got, want in zip(gradients(True, start), gradients(False, start.double()), strict=True):
        assert got.dtype == torch.float32
        assert float((got - want).abs().max() / want.abs().max()) <= 1e-5
