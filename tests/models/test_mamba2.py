"""Our Mamba-2 against transformers' with the same weights, and its chunked form against the recurrence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from causegrid.errors import InputError
from causegrid.models.mamba import from_hf
from causegrid.models.mamba2 import make, ssd, ssd_steps


def recurrence(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The recurrence head by head, position by position, in float64."""
    x, dt, a, b, c = (v.double() for v in (x, dt, a, b, c))
    batch, length, heads, width = x.shape
    y = torch.zeros(batch, length, heads, width, dtype=torch.float64)
    for i in range(batch):
        for h in range(heads):
            group = h * b.shape[2] // heads
            state = torch.zeros(width, b.shape[-1], dtype=torch.float64)
            for t in range(length):
                state = torch.exp(dt[i, t, h] * a[h]) * state
                state = state + dt[i, t, h] * torch.outer(x[i, t, h], b[i, t, group])
                y[i, t, h] = state @ c[i, t, group]
    return y


def inputs(length: int, groups: int, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    heads, width, n_state, batch = 4, 3, 5, 2
    return [
        torch.randn(batch, length, heads, width, generator=rng),
        torch.rand(batch, length, heads, generator=rng),
        -torch.arange(1.0, heads + 1),
        torch.randn(batch, length, groups, n_state, generator=rng),
        torch.randn(batch, length, groups, n_state, generator=rng),
    ]


@pytest.mark.parametrize("length", [7, 8, 9, 17])
def test_case_20_chunk_borders_and_groups(length: int) -> None:
    values = inputs(length, groups=2)
    want = recurrence(*values)
    assert float((ssd(*values, chunk=8) - want).abs().max()) <= 1e-5
    assert float((ssd_steps(*values) - want).abs().max()) <= 1e-5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 24), st.sampled_from([1, 2, 4]))
def test_any_length_and_chunk(length: int, chunk: int, groups: int) -> None:
    values = inputs(length, groups, seed=length)
    assert torch.allclose(ssd(*values, chunk=chunk), ssd_steps(*values), atol=1e-5)


def test_gradients_equal_the_recurrences() -> None:
    values = [v.double().requires_grad_() for v in inputs(11, groups=2)]
    weight = torch.randn(2, 11, 4, 3, dtype=torch.float64)
    want = torch.autograd.grad((recurrence(*values) * weight).sum(), values)
    got = torch.autograd.grad((ssd(*values, chunk=4) * weight).sum(), values)
    assert all(torch.allclose(w, g) for w, g in zip(want, got, strict=True))


def test_no_overflow_with_strong_decay() -> None:
    x, dt, a, b, c = inputs(300, groups=1)
    values = [v.requires_grad_() for v in (x, 50 * dt, 20 * a, b, c)]
    y = ssd(*values)
    gradients = torch.autograd.grad(y.sum(), values)
    assert all(bool(torch.isfinite(v).all()) for v in (y, *gradients))


def test_logits_equal_transformers() -> None:
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "mamba2",
        vocab_size=11,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=16,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=8,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    hf = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    sizes = dict(d_model=32, n_layers=2, n_state=16, head_dim=8, n_groups=2, chunk=8)
    module = make("mamba2", n_tokens=11, n_out=11, **sizes).module
    module.load_state_dict(from_hf(hf.state_dict()))
    for length in (1, 2, 3, 5, 8, 9, 40):
        tokens = torch.randint(11, (2, length))
        with torch.no_grad():
            want = hf(tokens).logits
            assert torch.allclose(module(tokens), want, atol=1e-4, rtol=1e-4), length
            assert torch.allclose(module(tokens, last=True), want[:, -1], atol=1e-4, rtol=1e-4)


def test_the_state_can_be_edited_through_the_swapped_form() -> None:
    model = make("mamba2", n_tokens=5, n_out=3, d_model=32, n_layers=1, n_state=8, head_dim=16, conv=False)
    tokens = torch.randint(5, (2, 6))
    want = model.module(tokens)
    states: list[Tensor] = []

    def stepwise(*args: Tensor, **options: int) -> Tensor:
        return ssd_steps(*args, **options, on_state=lambda t, h: states.append(h) or h)

    model.module.blocks[0].mixer.ssd = stepwise
    assert torch.allclose(model.module(tokens), want, atol=1e-6)
    assert [tuple(h.shape) for h in states] == [(2, 4, 16, 8)] * 6


def test_size_config_and_refusal() -> None:
    model = make("mamba2", n_tokens=8, n_out=8)
    assert 460_000 < model.n_params < 480_000
    again = make("again", **model.config)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    )
    with pytest.raises(InputError, match="n_groups 3"):
        make("mamba2", n_tokens=8, n_out=8, n_groups=3)
