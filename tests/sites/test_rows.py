from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from site_models import OURS, hf, ours, output, tokens

import tiny
from causegrid.errors import InputError
from causegrid.models import transformer
from causegrid.models.record import Model
from causegrid.sites import full_patterns, query_rows


def eager(name: str, ids: torch.Tensor, **extra: torch.Tensor) -> torch.Tensor:
    """The oracle: another copy of the model, loaded eager, and the weights it reports itself."""
    module = tiny.hf(name)
    module.set_attn_implementation("eager")
    with torch.no_grad():
        weights = module(input_ids=ids, output_attentions=True, use_cache=False, **extra).attentions
    return torch.stack(weights)


@pytest.mark.parametrize("name", ["gpt_neox", "olmo2", "olmoe", "llama_gqa"])
def test_case_02_rows_under_the_default_attention_equal_eager(name: str) -> None:
    _rows_equal_eager(name)


@pytest.mark.parametrize("name", sorted(set(tiny.ATTENTION) - {"gpt_neox", "olmo2", "olmoe", "llama_gqa"}))
def test_rows_of_the_other_families_equal_eager(name: str) -> None:
    _rows_equal_eager(name)


def _rows_equal_eager(name: str) -> None:
    model = hf(name)
    assert model.module.config._attn_implementation == "sdpa"
    ids = tokens(model)
    clean = output(model, ids)
    rows = query_rows(model, ids)
    assert rows.shape == (2, 3, 4, 9) and rows.dtype == torch.float32 and not rows.requires_grad
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 4), rtol=0, atol=1e-6)
    torch.testing.assert_close(rows, eager(name, ids)[..., -1, :], rtol=0, atol=1e-6)
    full = full_patterns(model, ids)
    assert not full.triu(1).any()
    torch.testing.assert_close(full.sum(-1), torch.ones(2, 3, 4, 9), rtol=0, atol=1e-5)
    assert model.module.config._attn_implementation == "sdpa"
    assert torch.equal(clean, output(model, ids))


def test_case_12_fused_query_key_value_of_neox() -> None:
    model = hf("gpt_neox")
    ids = tokens(model)
    attention = model.module.get_submodule("gpt_neox.layers.0.attention")
    fused: list[torch.Tensor] = []
    handle = attention.query_key_value.register_forward_hook(lambda _m, _a, out: fused.append(out.detach()))
    output(model, ids)
    handle.remove()
    per_head = fused[0].view(3, 9, 4, 3, 8)  # each head's own q, k, v side by side
    q, k = per_head[..., 0, :].transpose(1, 2), per_head[..., 1, :].transpose(1, 2)
    cos, sin = model.module.gpt_neox.rotary_emb(q, torch.arange(9)[None])
    width = cos.shape[-1]

    def turn(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., :width].chunk(2, dim=-1)
        return torch.cat([x[..., :width] * cos + torch.cat([-b, a], -1) * sin, x[..., width:]], dim=-1)

    scores = (turn(q) @ turn(k).mT) / 8**0.5
    expected = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(full_patterns(model, ids)[0], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(query_rows(model, ids)[0], expected[:, :, -1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama_gqa", "olmo2", "mistral"])
@settings(max_examples=5, deadline=None)
@given(pads=st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_left_padding_gives_padded_keys_exactly_zero(name: str, pads: list[int]) -> None:
    model = hf(name)
    ids = tokens(model)
    mask = torch.tensor([[0] * pad + [1] * (9 - pad) for pad in pads])
    rows = query_rows(model, ids.where(mask == 1, 0), mask=mask)
    for i, pad in enumerate(pads):
        assert not rows[:, i, :, :pad].any()
        alone = query_rows(model, ids[i : i + 1, pad:])
        torch.testing.assert_close(rows[:, i, :, pad:], alone[:, 0], rtol=0, atol=2e-6)


def test_sliding_window_is_respected() -> None:
    module = tiny.hf("mistral", sliding_window=4)
    model = Model(**{**vars(hf("mistral")), "module": module})
    ids = tokens(model)
    rows = query_rows(model, ids)
    assert not rows[..., :5].any() and (rows[..., 5:] > 0).all()
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 4), rtol=0, atol=1e-6)


def test_an_eager_model_stays_eager() -> None:
    module = tiny.hf("llama")
    module.set_attn_implementation("eager")
    model = Model(**{**vars(hf("llama")), "module": module})
    rows = query_rows(model, tokens(model))
    assert module.config._attn_implementation == "eager"
    torch.testing.assert_close(rows, query_rows(hf("llama"), tokens(model)), rtol=0, atol=1e-6)
    with pytest.raises(InputError):
        query_rows(model, [[999]])
    assert module.config._attn_implementation == "eager"


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_our_transformer(positions: str) -> None:
    model = transformer.make("t", n_tokens=11, n_out=5, d_model=32, n_layers=2, positions=positions)
    ids = tokens(model)
    kept = [block.attn.attend for block in model.module.blocks]
    clean = output(model, ids)
    rows, full = query_rows(model, ids), full_patterns(model, ids)
    assert rows.shape == (2, 3, 4, 9)
    torch.testing.assert_close(rows, full[..., -1, :], rtol=0, atol=1e-6)
    attention = model.module.blocks[0].attn
    with torch.no_grad():
        normed = model.module.blocks[0].norm1(_embedded(model, ids))
        q, k, _ = attention.qkv(normed).chunk(3, dim=-1)
    if positions == "learned":
        q, k = (v.unflatten(-1, (4, 8)).transpose(1, 2) for v in (q, k))
        scores = (q @ k.mT) / 8**0.5
        expected = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(-1)
        torch.testing.assert_close(full[0], expected, rtol=0, atol=1e-6)
    assert [block.attn.attend for block in model.module.blocks] == kept
    assert torch.equal(clean, output(model, ids))


def _embedded(model: Model, ids: torch.Tensor) -> torch.Tensor:
    embedded = model.module.embed(ids)
    return (
        embedded
        if model.module.positions is None
        else embedded + model.module.positions.weight[: ids.shape[1]]
    )


@pytest.mark.parametrize(
    "model", [hf("mamba"), hf("mamba2"), *(ours(n) for n in OURS[1:])], ids=lambda m: m.name
)
def test_models_without_attention_say_what_runs_instead(model: Model) -> None:
    with pytest.raises(InputError, match=r"no attention.*probe"):
        query_rows(model, tokens(model))


def test_rows_cost_about_a_plain_forward() -> None:
    module = tiny.hf(
        "llama", hidden_size=128, num_attention_heads=4, intermediate_size=512, num_hidden_layers=4
    )
    model = Model(**{**vars(hf("llama")), "module": module, "n_layers": 4, "d_model": 128})
    ids = tokens(model, batch=16, length=60)

    def best(run: object) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            run()  # type: ignore[operator]
            times.append(time.process_time() - start)
        return min(times)

    plain = best(lambda: output(model, ids, logits_to_keep=1))
    assert best(lambda: query_rows(model, ids)) < 3 * plain + 0.02
