"""The Transformer: its size, its attention against a formula written here, its positional schemes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from causegrid.errors import InputError
from causegrid.models.transformer import make, rotate, sinusoids


def test_size_at_eight_tokens_and_classes() -> None:
    model = make("transformer", n_tokens=8, n_out=8)
    assert model.n_params == 828_168
    assert (model.n_layers, model.d_model, model.n_heads, model.head_dim) == (4, 128, 4, 32)
    assert not model.is_hf


def test_config_builds_the_same_weights_again_and_the_seed_matters() -> None:
    first = make("transformer", n_tokens=5, n_out=3, seed=1, d_model=32, n_layers=2, positions="rope")
    again = make("other", **first.config)
    other = make("other", **{**first.config, "seed": 2})
    for (name, a), b in zip(
        first.module.state_dict().items(), again.module.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name
    assert not torch.equal(first.module.embed.weight, other.module.embed.weight)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "none"])
def test_causal_and_last(positions: str) -> None:
    module = make("t", n_tokens=7, n_out=4, d_model=32, n_layers=2, positions=positions).module
    tokens = torch.randint(7, (3, 11))
    full = module(tokens)
    assert full.shape == (3, 11, 4)
    assert torch.allclose(module(tokens[:, :6]), full[:, :6], atol=1e-6)
    assert torch.allclose(module(tokens, last=True), full[:, -1], atol=1e-6)


def test_only_the_scheme_none_is_blind_to_order() -> None:
    tokens = torch.tensor([[1, 2, 3]])
    swapped = torch.tensor([[2, 1, 3]])
    for positions, blind in (("learned", False), ("sinusoidal", False), ("rope", False), ("none", True)):
        torch.manual_seed(0)
        module = make("t", n_tokens=7, n_out=4, d_model=32, n_layers=1, positions=positions).module
        with torch.no_grad():
            for p in module.blocks.parameters():
                p.add_(torch.randn_like(p) * 0.2)
        same = torch.allclose(module(tokens, last=True), module(swapped, last=True), atol=1e-6)
        assert same is blind, positions


def test_attention_is_softmax_of_scaled_products_and_can_be_swapped() -> None:
    module = make("t", n_tokens=7, n_out=4, d_model=32, n_layers=2).module
    tokens = torch.randint(7, (2, 9))
    want = module(tokens)
    seen: list[Tensor] = []

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
        seen.append(scores.softmax(-1))
        return seen[-1] @ v

    for block in module.blocks:
        block.attn.attend = plain
    assert torch.allclose(module(tokens), want, atol=1e-6)
    assert [tuple(s.shape) for s in seen] == [(2, 4, 9, 9)] * 2


def test_z_is_the_input_of_the_projection() -> None:
    module = make("t", n_tokens=7, n_out=4, d_model=32, n_layers=1).module
    seen: dict[str, Tensor] = {}
    module.blocks[0].attn.proj.register_forward_pre_hook(lambda m, a: seen.update(z=a[0]))
    module.blocks[0].attn.attend = lambda q, k, v: torch.arange(4.0)[None, :, None, None].expand_as(v)
    module(torch.randint(7, (1, 3)))
    assert torch.equal(seen["z"][0, 0], torch.arange(4.0).repeat_interleave(8))


def test_rotary_scores_depend_on_distance_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = rotate(q.expand(1, 1, 10, 8))[0, 0], rotate(k.expand(1, 1, 10, 8))[0, 0]
    scores = turned_q @ turned_k.T
    for distance in range(-4, 5):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5)
    assert sinusoids(4, 6).shape == (4, 6)


def test_refusals_name_the_limit() -> None:
    module = make("t", n_tokens=7, n_out=4, d_model=32, n_layers=1, max_length=16).module
    with pytest.raises(InputError, match=r"length 17 .* 16 learned positions"):
        module(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(InputError, match="did you mean 'rope'"):
        make("t", n_tokens=7, n_out=4, positions="ropes")
    with pytest.raises(InputError, match="3 heads"):
        make("t", n_tokens=7, n_out=4, n_heads=3)


@pytest.mark.parametrize(
    ("scheme", "alike"), [("rope", True), ("none", True), ("learned", False), ("sinusoidal", False)]
)
def test_without_absolute_positions_a_run_of_one_token_looks_the_same_however_long(
    scheme: str, alike: bool
) -> None:
    """An average of equal values is that value: nothing can be counted from the start, whatever the weights."""
    model = make("transformer", n_tokens=2, n_out=2, seed=3, positions=scheme)
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        out = model(torch.ones(1, 16, dtype=torch.long))  # (1, L, n_out)
    apart = (out - out[:, :1]).abs().max().item()
    assert (apart < 1e-4) == alike, apart
