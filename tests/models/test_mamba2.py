"""Our Mamba-2 against transformers' with the same weights; its recurrence is tested in test_ssd.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from causegrid.errors import InputError
from causegrid.models.mamba import from_hf
from causegrid.models.mamba2 import make, ssd_steps


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


def test_gradients_equal_the_same_model_in_float64() -> None:
    module = make("mamba2", n_tokens=5, n_out=3, d_model=32, n_layers=2, n_groups=2, head_dim=16).module
    tokens, labels = torch.randint(5, (3, 70)), torch.randint(3, (3 * 70,))

    def gradients(module: torch.nn.Module) -> list[Tensor]:
        loss = torch.nn.functional.cross_entropy(module(tokens).flatten(0, 1), labels)
        return list(torch.autograd.grad(loss, list(module.parameters())))

    got = gradients(module)
    want = gradients(module.double())  # plain torch throughout
    for a, b in zip(got, want, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


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
