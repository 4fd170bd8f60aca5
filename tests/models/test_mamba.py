"""Our Mamba against transformers' with the same weights, and its options."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from causegrid.models.mamba import from_hf, make
from causegrid.models.ops import scan


def theirs() -> torch.nn.Module:
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "mamba",
        vocab_size=11,
        hidden_size=48,
        num_hidden_layers=2,
        state_size=16,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    module = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return module


def test_logits_equal_transformers_at_short_and_long_lengths() -> None:
    hf = theirs()
    module = make("mamba", n_tokens=11, n_out=11, d_model=48, n_layers=2).module
    module.load_state_dict(from_hf(hf.state_dict()))  # strict: no weight left over on either side
    for length in (1, 2, 3, 5, 40, 64):
        tokens = torch.randint(11, (2, length))
        with torch.no_grad():
            want = hf(tokens).logits
            assert float(want.std()) > 0.1
            assert torch.allclose(module(tokens), want, atol=1e-4, rtol=1e-4), length


def test_last_is_the_last_position_and_the_model_is_causal() -> None:
    module = make("mamba", n_tokens=5, n_out=3, d_model=32, n_layers=2).module
    tokens = torch.randint(5, (2, 12))
    full = module(tokens)
    assert full.shape == (2, 12, 3)
    assert torch.allclose(module(tokens, last=True), full[:, -1], atol=1e-6)
    assert torch.allclose(module(tokens[:, :7]), full[:, :7], atol=1e-6)


def test_size_and_config() -> None:
    model = make("mamba", n_tokens=8, n_out=8)
    assert 460_000 < model.n_params < 480_000
    assert model.config["rank"] == 8
    again = make("again", **model.config)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    )


def test_convolution_hooks_fire_and_the_scan_can_be_swapped() -> None:
    module = make("mamba", n_tokens=5, n_out=3, d_model=32, n_layers=2).module
    tokens = torch.randint(5, (2, 6))
    fired: list[str] = []
    mixer = module.blocks[1].mixer
    for name in ("conv1d", "act", "dt_proj"):
        getattr(mixer, name).register_forward_hook(lambda m, a, o, name=name: fired.append(name))
    want = module(tokens)
    assert fired == ["conv1d", "act", "dt_proj"]
    for block in module.blocks:
        block.mixer.scan = scan.reference
    assert torch.allclose(module(tokens), want, atol=1e-6)


def test_trained_without_convolution_keeps_silu_and_sees_earlier_tokens_only_through_the_state() -> None:
    model = make("mamba", n_tokens=5, n_out=3, d_model=32, n_layers=1, conv=False)
    assert not any("conv1d" in name for name in model.module.state_dict())
    assert isinstance(model.module.blocks[0].mixer.act, torch.nn.SiLU)
    assert model.config["conv"] is False
    model.module.blocks[0].mixer.scan = lambda x, dt, a, b, c, d, **_: d * x  # the state cut off
    tokens = torch.tensor([[1, 2, 3], [4, 0, 3]])
    assert torch.allclose(model.module(tokens)[0, 2], model.module(tokens)[1, 2])


@pytest.mark.parametrize("signed", [False, True])
def test_signed_decays_reach_below_zero(signed: bool) -> None:
    """With x_0 = 1 only and huge steps, the state after t steps carries the sign of decay^t."""
    x = torch.zeros(1, 4, 1)
    x[0, 0] = 1
    one = torch.ones(1, 4, 1)
    y = scan.selective_scan(x, 50 * one, torch.tensor([[-1.0]]), one, one, torch.zeros(1), signed=signed)[
        0, :, 0
    ]
    assert torch.allclose(y / 50, torch.tensor([1.0, -1, 1, -1] if signed else [1.0, 0, 0, 0]), atol=1e-6)
    assert make("m", n_tokens=2, n_out=2, d_model=16, signed=signed).module.blocks[0].mixer.signed is signed
