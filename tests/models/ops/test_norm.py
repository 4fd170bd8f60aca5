"""The compiled RMS norm and the narrow linear layer against their formulas in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from causegrid.models import mamba
from causegrid.models.ops.narrow import NarrowLinear
from causegrid.models.ops.norm import RMSNorm, rms_norm


def formula(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 128), (4, 21), (1,), (300, 500)])
def test_the_norm_and_its_gradients(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    leaves = [v.double().requires_grad_() for v in (torch.randn(shape) * 3, torch.randn(shape[-1]))]
    small = [v.detach().float().requires_grad_() for v in leaves]
    weight = torch.randn(shape, dtype=torch.float64)
    want, got = formula(*leaves), rms_norm(*small)
    assert got.shape == want.shape
    assert float((got - want).detach().abs().max()) <= 1e-5 * float(want.detach().abs().max())
    pairs = zip(
        torch.autograd.grad((want * weight).sum(), leaves),
        torch.autograd.grad((got * weight.float()).sum(), small),
        strict=True,
    )
    for w, g in pairs:
        assert float((w - g).abs().max()) <= 1e-5 * float(w.abs().max()) + 1e-6


def test_the_module_holds_torchs_parameter_and_can_be_differentiated_twice() -> None:
    module, torchs = RMSNorm(16), torch.nn.RMSNorm(16, eps=1e-5)
    with torch.no_grad():
        torchs.weight.copy_(torch.linspace(0.5, 2, 16))
    module.load_state_dict(torchs.state_dict())
    x = torch.randn(3, 16, requires_grad=True)
    torch.testing.assert_close(module(x), torchs(x))
    assert torch.equal(module.double()(x.double()), torchs.double()(x.double()))
    module, torchs = module.float(), torchs.float()

    def second(norm: torch.nn.Module) -> Tensor:
        first = torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.pow(2).sum(), x)[0]

    torch.testing.assert_close(second(module), second(torchs), rtol=1e-4, atol=1e-4)


def test_a_narrow_layer_is_a_linear_layer() -> None:
    torch.manual_seed(0)
    ours, torchs = NarrowLinear(3, 20), torch.nn.Linear(3, 20)
    ours.load_state_dict(torchs.state_dict())
    wide = torch.randn(2, 5, 7, requires_grad=True)
    assert torch.equal(ours(wide[..., :3]), torchs(wide[..., :3]))
    weight = torch.randn(2, 5, 20)
    pairs = zip(
        torch.autograd.grad((ours(wide[..., :3]) * weight).sum(), [wide, *ours.parameters()]),
        torch.autograd.grad((torchs(wide[..., :3]) * weight).sum(), [wide, *torchs.parameters()]),
        strict=True,
    )
    for got, want in pairs:
        torch.testing.assert_close(got, want)
    ours, x = ours.double(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(ours, x)


def test_a_narrow_layer_is_a_linear_layer_under_autocast() -> None:
    torch.manual_seed(0)
    ours, torchs = NarrowLinear(3, 20), torch.nn.Linear(3, 20)
    ours.load_state_dict(torchs.state_dict())
    found = []
    for layer in (ours, torchs):
        x = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        found.append([y, *torch.autograd.grad(y.float().pow(2).sum(), [x, *layer.parameters()])])
    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)
    assert ours.to("meta")(torch.empty(2, 3, device="meta")).shape == (2, 20)  # a device without autocast


def test_our_mamba_trains_under_autocast() -> None:
    module = mamba.make("m", n_tokens=5, n_out=5, d_model=32, n_layers=2, seed=0).module
    tokens = torch.arange(14).view(2, 7) % 5

    def gradient() -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])

    loss = module(tokens).pow(2).sum()
    want = gradient()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(tokens)
    loss = y.float().pow(2).sum()
    assert torch.nn.functional.cosine_similarity(gradient(), want, dim=0) > 0.99
