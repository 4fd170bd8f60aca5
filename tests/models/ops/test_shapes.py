"""Shapes the compiled loops do not take: broadcast as plain torch does, or refused, never read out of bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from causegrid.errors import InputError
from causegrid.models.ops.conv import causal_conv
from causegrid.models.ops.gated import GatedNorm
from causegrid.models.ops.norm import rms_norm
from causegrid.models.ops.recurrence import GRU, LSTM
from causegrid.models.ops.scan import selective_scan
from causegrid.models.ops.ssd import ssd

SCAN = dict(x=(3, 5, 16), dt=(3, 5, 16), A=(16, 4), B=(3, 5, 4), C=(3, 5, 4), D=(16,), gate=(3, 5, 16))
SSD = dict(x=(3, 5, 4, 16), dt=(3, 5, 4), A=(4,), B=(3, 5, 2, 4), C=(3, 5, 2, 4), D=(4,))


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    found = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    return found | dict(dt=found["dt"].abs(), A=-found["A"].abs())


def broadcast(function: Any, shapes: Any, name: str, shape: tuple[int, ...], **options: int) -> None:
    """`function` with one argument of `shape` equals itself with that argument repeated to its full shape."""
    got = drawn(shapes | {name: shape})
    full = got | {name: got[name].expand(shapes[name]).contiguous()}
    want = function(**{k: v.double() for k, v in full.items()}, **options)
    torch.testing.assert_close(function(**got, **options).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("dt", (3, 5, 1)), ("dt", (1, 5, 16)), ("A", (1, 4)), ("A", (16, 1)), ("B", (1, 5, 4)), ("B", (3, 5, 1)),
     ("C", (1, 5, 4)), ("D", (1,)), ("gate", (3, 1, 16))],
)  # fmt: skip
def test_the_scan_broadcasts(name: str, shape: tuple[int, ...]) -> None:
    broadcast(selective_scan, SCAN, name, shape)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("dt", (3, 4, 16)), ("dt", (2, 5, 16)), ("A", (8, 4)), ("B", (2, 5, 4)), ("C", (3, 5, 3)), ("D", (8,)),
     ("gate", (3, 5, 8)), ("x", (3, 5, 8))],
)  # fmt: skip
def test_the_scan_refuses(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        selective_scan(**drawn(SCAN | {name: shape}))


@pytest.mark.parametrize("chunk", [2, 5])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("dt", (3, 5, 1)), ("dt", (1, 5, 4)), ("A", (1,)), ("B", (1, 5, 2, 4)), ("C", (3, 1, 2, 4)),
     ("C", (3, 5, 1, 4)), ("D", (1,))],
)  # fmt: skip
def test_mamba_2_broadcasts(name: str, shape: tuple[int, ...], chunk: int) -> None:
    broadcast(ssd, SSD, name, shape, chunk=chunk)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("dt", (3, 4, 4)), ("A", (3,)), ("B", (5, 3, 2, 4)), ("B", (3, 5, 3, 4)), ("C", (3, 5, 4, 2)),
     ("C", (3, 5, 2, 3)), ("D", (3,)), ("x", (2, 5, 4, 16))],
)  # fmt: skip
def test_mamba_2_refuses(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        ssd(**drawn(SSD | {name: shape}))


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [((1, 3, 16), (32, 1, 4), (32,)), ((1, 3, 32), (16, 1, 4), (16,)), ((1, 3, 16), (16, 1, 4), (8,)),
     ((1, 3, 16), (16, 2, 4), (16,)), ((3, 16), (16, 1, 4), (16,))],
)  # fmt: skip
def test_the_convolution_refuses(x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        causal_conv(torch.randn(x), torch.randn(weight), torch.randn(bias))


@pytest.mark.parametrize("weight", [(16,), (1,), (64,), (2, 16)])
def test_the_norm_refuses(weight: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        rms_norm(torch.randn(4, 32), torch.ones(weight))


def test_the_gated_norm_broadcasts_and_refuses() -> None:
    module, x, gate = GatedNorm(32, 2), torch.randn(2, 5, 32), torch.randn(2, 1, 32)
    torch.testing.assert_close(module(x, gate), module(x, gate.expand(2, 5, 32).contiguous()))
    for bad in ((2, 4, 32), (2, 5, 16), (3, 5, 32)):
        with pytest.raises(RuntimeError):
            module(x, torch.randn(bad))
    with pytest.raises(RuntimeError):
        module(torch.randn(2, 5, 64), torch.randn(2, 5, 64))
    torch.testing.assert_close(module(x[0], gate[0]), module(x, gate)[0])  # one sequence without its batch
    with pytest.raises(RuntimeError):
        GatedNorm(40, 3)(torch.randn(2, 5, 40), torch.randn(2, 5, 40))


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_recurrent_modules_refuse_weights_of_other_shapes(kind: type, name: str) -> None:
    module = kind(16, 16, batch_first=True)
    setattr(module, name, nn.Parameter(getattr(module, name).detach()[:32].clone()))
    with pytest.raises(InputError, match="are needed"):
        module(torch.randn(2, 3, 16))
