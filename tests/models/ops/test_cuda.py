"""Dispatch to mamba-ssm's and causal-conv1d's kernels, with stand-ins that implement their signatures.

The stand-ins take the documented layouts (B, E, L) and refuse others; no CUDA device is involved, so what is
checked is which function is called, in which layout and with which arguments, and not the kernels.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from causegrid.models.mamba import make
from causegrid.models.ops import cuda, lanes
from causegrid.models.ops.conv import causal_conv
from causegrid.models.ops.scan import reference, selective_scan

calls: list[str] = []


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor:
    """u, delta, z (B, E, L), A (E, N), B, C (B, N, L), D (E,) -> (B, E, L)."""
    calls.append("scan")
    batch, width, length = u.shape
    assert delta.shape == u.shape and A.shape[0] == width and A.dtype == torch.float32
    assert B.shape == C.shape == (batch, A.shape[1], length) and not return_last_state
    assert all(v.stride(-1) == 1 for v in (u, delta, B, C))
    delta = delta if delta_bias is None else delta + delta_bias[:, None]
    delta = F.softplus(delta) if delta_softplus else delta
    h = torch.zeros(batch, width, A.shape[1])
    out = []
    for t in range(length):
        h = torch.exp(delta[..., t, None] * A) * h + (delta * u)[..., t, None] * B[:, None, :, t]
        out.append((h * C[:, None, :, t]).sum(-1))
    y = torch.stack(out, -1)
    y = y if D is None else y + D[:, None] * u
    return y if z is None else y * F.silu(z)


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """x (B, E, L), weight (E, K), bias (E,) -> (B, E, L)."""
    calls.append("conv")
    assert x.shape[1] == weight.shape[0] and weight.dim() == 2 and activation is None
    y = F.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=x.shape[1])
    return y[..., : x.shape[-1]]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """As on a CUDA device: the compiled CPU kernels decline, tensors say they are there."""
    monkeypatch.setattr(cuda, "on_device", lambda v: True)
    for module in ("scan", "conv", "norm"):
        monkeypatch.setattr(f"causegrid.models.ops.{module}.compiled", lambda *v: False)
    calls.clear()
    yield calls


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, on_gpu: list[str]) -> list[str]:
    names = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.selective_scan_interface", "causal_conv1d")
    modules = {name: types.ModuleType(name) for name in names}
    modules[names[2]].selective_scan_fn = selective_scan_fn  # type: ignore[attr-defined]
    modules["causal_conv1d"].causal_conv1d_fn = causal_conv1d_fn  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return on_gpu


def values(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    x, step, gate = (torch.randn(2, 7, 12, dtype=dtype) for _ in range(3))
    b, c = (torch.randn(2, 7, 5, dtype=dtype) for _ in range(2))
    return [x, step, -torch.rand(12, 5), b, c, torch.randn(12), gate]


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_scan_goes_to_mamba_ssm(installed: list[str], softplus: bool, gated: bool) -> None:
    *given, gate = values()
    given[1] = given[1] if softplus else given[1].abs()
    options = dict(softplus=softplus, gate=gate if gated else None)
    got = selective_scan(*given, **options)
    assert installed == ["scan"]
    torch.testing.assert_close(got, reference(*given, **options), rtol=1e-5, atol=1e-5)


def test_what_mamba_ssm_does_not_take_goes_to_the_loop(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    *given, _ = values()
    assert torch.equal(selective_scan(*given, signed=True), reference(*given, signed=True))
    wide = [v.double() for v in given]
    assert torch.equal(selective_scan(*wide), reference(*wide))
    mixed = [given[0].half(), *given[1:]]
    selective_scan(*mixed)
    monkeypatch.setattr(cuda, "on_device", lambda v: False)
    selective_scan(*given)
    assert installed == []


def test_without_the_packages_the_loop_runs(on_gpu: list[str]) -> None:
    for name in ("mamba_ssm", "causal_conv1d"):
        if name in sys.modules or cuda._find(name, "__name__") is not None:
            pytest.skip(f"{name} is installed here")
    *given, _ = values()
    assert torch.equal(selective_scan(*given), reference(*given))


def test_a_package_that_cannot_import_its_own_parts_says_so(
    on_gpu: list[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "causal_conv1d.py").write_text("import kernels_that_were_never_built\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "causal_conv1d", raising=False)
    with pytest.raises(ModuleNotFoundError, match="never_built"):
        causal_conv(torch.randn(1, 3, 4), torch.randn(4, 1, 3), torch.randn(4))


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
def test_the_convolution_goes_to_causal_conv1d_for_the_widths_it_has(installed: list[str], taps: int) -> None:
    x, weight, bias = torch.randn(2, 9, 12)[..., :6], torch.randn(6, 1, taps), torch.randn(6)
    got = causal_conv(x, weight, bias)
    assert installed == (["conv"] if taps in (2, 3, 4) else [])
    padded = F.pad(x.transpose(1, 2), (taps - 1, 0))
    want = F.conv1d(padded, weight, bias, groups=6).transpose(1, 2)
    torch.testing.assert_close(got, want)


def test_a_model_takes_both_and_its_gradients_agree(installed: list[str], monkeypatch) -> None:
    module = make("mamba", n_tokens=5, n_out=3, d_model=16, n_layers=2).module
    tokens = torch.randint(5, (2, 8))

    def run() -> list[Tensor]:
        out = module(tokens)
        return [out.detach(), *torch.autograd.grad(out.pow(2).sum(), list(module.parameters()))]

    there = run()
    assert installed == ["conv", "scan"] * 2
    for name in ("scan", "conv", "norm"):
        monkeypatch.setattr(f"causegrid.models.ops.{name}.compiled", lanes.compiled)
    here = run()
    assert len(installed) == 4
    for a, b in zip(there, here, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
