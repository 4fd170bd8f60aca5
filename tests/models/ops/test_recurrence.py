"""The compiled GRU and LSTM against loops over positions written here in float64, and torch's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from causegrid.models.ops import recurrence
from causegrid.models.ops.recurrence import GRU, LSTM

PAIRS = [pytest.param(GRU, nn.GRU, id="gru"), pytest.param(LSTM, nn.LSTM, id="lstm")]
Loop = Callable[..., tuple[Tensor, ...]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which compiled loops have run."""
    seen: list[str] = []
    for name in ("gru_forward", "gru_backward", "lstm_forward", "lstm_backward"):
        kernel = getattr(recurrence.compiled, name)

        def counted(*args: object, name: str = name, kernel: Callable[..., None] = kernel) -> None:
            seen.append(name)
            kernel(*args)

        monkeypatch.setattr(recurrence.compiled, name, counted)
    return seen


def gru_loop(x: Tensor, h: Tensor, w_in: Tensor, w_rec: Tensor, b_in: Tensor, b_rec: Tensor) -> list[Tensor]:
    """Cho et al. 2014 as torch states it: n sees r times (W_hn h + b_hn); h' = (1 - z) n + z h."""
    out = []
    for t in range(x.shape[1]):
        ir, iz, ia = (x[:, t] @ w_in.T + b_in).chunk(3, dim=1)
        hr, hz, ha = (h @ w_rec.T + b_rec).chunk(3, dim=1)
        r, z = 1 / (1 + (-ir - hr).exp()), 1 / (1 + (-iz - hz).exp())
        h = (1 - z) * (ia + r * ha).tanh() + z * h
        out.append(h)
    return [torch.stack(out, dim=1), h]


def lstm_loop(
    x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_rec: Tensor, b_in: Tensor, b_rec: Tensor
) -> list[Tensor]:
    out = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w_in.T + b_in + h @ w_rec.T + b_rec).chunk(4, dim=1)
        c = c / (1 + (-f).exp()) + g.tanh() / (1 + (-i).exp())
        h = c.tanh() / (1 + (-o).exp())
        out.append(h)
    return [torch.stack(out, dim=1), h, c]


def relative(ours: Tensor, want: Tensor) -> float:
    return ((ours - want).abs().max() / want.abs().max()).item()


def outputs(module: nn.RNNBase, x: Tensor, states: list[Tensor]) -> list[Tensor]:
    given = None if not states else states[0][None] if len(states) == 1 else tuple(s[None] for s in states)
    out, after = module(x, given)
    return [out, *(s[0] for s in (after if isinstance(after, tuple) else (after,)))]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("batch", "length", "width", "d"), [(5, 9, 24, 32), (1, 1, 3, 16), (64, 21, 8, 128)])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_outputs_and_gradients_are_the_float64_loop(
    kind: str, batch: int, length: int, width: int, d: int, threads: int, uses: list[str]
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    module = (GRU if kind == "gru" else LSTM)(width, d, batch_first=True)
    states = [torch.randn(batch, d) for _ in range(1 if kind == "gru" else 2)]
    leaves = [torch.randn(batch, length, width), *states]
    weights = [torch.randn(batch, length, d), *(torch.randn(batch, d) for _ in states)]

    def grown(values: list[Tensor]) -> list[Tensor]:
        return [v.detach().clone().requires_grad_() for v in values]

    ours_in = grown(leaves)
    ours = outputs(module, ours_in[0], ours_in[1:])
    loss = torch.stack([(v * w).sum() for v, w in zip(ours, weights, strict=True)]).sum()
    ours_grad = torch.autograd.grad(loss, [*ours_in, *module.parameters()])

    want_in = grown([v.double() for v in [*leaves, *module.parameters()]])
    want = (gru_loop if kind == "gru" else lstm_loop)(*want_in)
    total = torch.stack([(v * w.double()).sum() for v, w in zip(want, weights, strict=True)]).sum()
    want_grad = torch.autograd.grad(total, want_in)

    for a, b in zip([*ours, *ours_grad], [*want, *want_grad], strict=True):
        assert a.dtype == torch.float32
        assert relative(a.double(), b) < 1e-5
    assert {f"{kind}_forward", f"{kind}_backward"} == set(uses)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_torchs_weights_load_and_give_torchs_results(ours: type, theirs: type, uses: list[str]) -> None:
    theirs_module, module = theirs(16, 32, batch_first=True), ours(16, 32, batch_first=True)
    module.load_state_dict(theirs_module.state_dict())
    x = torch.randn(3, 7, 16)
    for a, b in zip(outputs(module, x, []), outputs(theirs_module, x, []), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    with torch.inference_mode():
        assert torch.allclose(module(x)[0], theirs_module(x)[0], atol=1e-6)
    assert len(uses) == 2


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_gradients_of_gradients(ours: type, theirs: type) -> None:
    found = []
    for kind in (ours, theirs):
        torch.manual_seed(1)
        module = kind(16, 16, batch_first=True)
        x = torch.randn(2, 5, 16, requires_grad=True)
        out, after = module(x)
        last = after[1] if isinstance(after, tuple) else after
        (first,) = torch.autograd.grad((out**3).sum() + (last**2).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), [x, *module.parameters()]))
    for a, b in zip(*found, strict=True):
        assert relative(a, b) < 1e-5


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_what_is_not_compiled_runs_torchs_forward(ours: type, theirs: type, uses: list[str]) -> None:
    x = torch.randn(2, 5, 16)
    cases = [
        (dict(hidden_size=24, batch_first=True), x),
        (dict(hidden_size=16, batch_first=False), x),
        (dict(hidden_size=16, batch_first=True, num_layers=2), x),
        (dict(hidden_size=16, batch_first=True, bidirectional=True), x),
        (dict(hidden_size=16, batch_first=True, bias=False), x),
        (dict(hidden_size=16, batch_first=True), x[0]),
        (dict(hidden_size=16, batch_first=True, dtype=torch.float64), x.double()),
    ]
    for options, given in cases:
        module, other = ours(16, **options), theirs(16, **options)
        other.load_state_dict(module.state_dict())
        assert torch.equal(module(given)[0], other(given)[0]), options
    module = ours(16, 16, batch_first=True)
    if ours is GRU:  # torch has no LSTM under CPU autocast
        with torch.autocast("cpu", dtype=torch.bfloat16):
            module(x)
    with pytest.raises(RuntimeError, match="size"):
        module(x, (torch.zeros(1, 3, 16),) * 2 if ours is LSTM else torch.zeros(1, 3, 16))
    assert not uses


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_loss_of_one_position_and_frozen_weights(ours: type, theirs: type) -> None:
    grads = []
    for kind in (ours, theirs):
        torch.manual_seed(2)
        module = kind(16, 16, batch_first=True).requires_grad_(False)
        x = torch.randn(4, 6, 16, requires_grad=True)
        module(x)[0][:, -1].sum().backward()
        grads.append(x.grad)
    assert relative(*grads) < 1e-5


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_an_output_written_in_place_is_noticed_not_differentiated_wrongly(kind: type) -> None:
    module = kind(16, 16, batch_first=True)
    out, _ = module(torch.randn(2, 5, 16))
    with pytest.raises(RuntimeError, match="modified inplace"):
        out *= 2.0
    with torch.no_grad():
        out *= 2.0
    with pytest.raises(RuntimeError, match="modified inplace"):
        out.sum().backward()


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_the_state_is_not_a_view_of_the_output(kind: type) -> None:
    with torch.no_grad():
        out, after = kind(16, 16, batch_first=True)(torch.randn(2, 5, 16))
        last = (after[0] if isinstance(after, tuple) else after).clone()
        out.zero_()
    assert torch.equal(last, after[0] if isinstance(after, tuple) else after)
    assert last.abs().sum() > 0


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_nan_stays_and_large_inputs_saturate(kind: type) -> None:
    module = kind(16, 16, batch_first=True)
    x = torch.randn(2, 5, 16)
    x[0, 2, 0] = float("nan")
    with torch.no_grad():
        out = module(x)[0]
        assert torch.isfinite(out[1]).all()
        assert torch.isfinite(out[0, :2]).all()
        assert torch.isnan(out[0, 2:]).all()
        assert module(1e6 * torch.randn(2, 5, 16))[0].abs().max() <= 1.0


@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1])
@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_nan_stays_whatever_bits_it_carries(kind: type, bits: int) -> None:
    """`0x7FFFFFFF` and `-1`: NaNs whose payload is all ones, as memory filled with ones holds."""
    bad = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            module = kind(16, 16, batch_first=True)
            getattr(module, name).copy_(bad.expand_as(getattr(module, name)))
            assert torch.isnan(module(x)[0]).all(), name
        x[0, 2] = bad
        out = kind(16, 16, batch_first=True)(x)[0]
    assert torch.isnan(out[0, 2:]).all()
    assert torch.isfinite(out[0, :2]).all() and torch.isfinite(out[1]).all()
