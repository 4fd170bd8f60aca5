from __future__ import annotations

from typing import Any

import pytest
import torch
from site_models import OURS, hf, ours, output, tokens, traces

import tiny
from causegrid.errors import InputError
from causegrid.models.record import Model
from causegrid.sites import Site, capture, edit, readout, site, zero

EVERY = [*tiny.CONFIGS, *(f"our {name}" for name in OURS)]


def get(name: str) -> Model:
    return ours(name.removeprefix("our ")) if name.startswith("our ") else hf(name)


@pytest.mark.parametrize("name", EVERY)
def test_residuals_chain_and_start_at_the_embedding(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    every = [f"L{i}.{k}" for i in range(model.n_layers) for k in ("resid_pre", "resid_post")]
    acts = capture(model, ids, ["L-1.resid_post", *every])
    assert torch.equal(acts["L-1.resid_post"], acts["L0.resid_pre"])
    for layer in range(1, model.n_layers):
        assert torch.equal(acts[f"L{layer - 1}.resid_post"], acts[f"L{layer}.resid_pre"])
    assert all(
        not value.requires_grad and value.shape == (*ids.shape, model.d_model) for value in acts.values()
    )


@pytest.mark.parametrize("name", tiny.ATTENTION)
def test_residuals_are_the_hidden_states_transformers_reports(name: str) -> None:
    model = hf(name)
    ids = tokens(model)
    with torch.no_grad():
        states = model.module(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    acts = capture(model, ids, ["L0.resid_pre", "L1.resid_pre"])
    torch.testing.assert_close(acts["L0.resid_pre"], states[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(acts["L1.resid_pre"], states[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [*tiny.ATTENTION, "our transformer"])
def test_parts_sum_to_the_residual(name: str) -> None:
    _parts_sum(name)


def test_case_13_post_norm_parts_sum_to_the_residual() -> None:
    _parts_sum("olmo2")


def _parts_sum(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    kinds = ("resid_pre", "attn_out", "mlp_out", "resid_post")
    for layer in range(model.n_layers):
        pre, attn, mlp, post = capture(model, ids, [Site(layer, k) for k in kinds]).values()
        assert ((pre + attn + mlp - post).abs().max() / post.abs().max()) < 1e-6
        assert attn.abs().max() > 1e-3 and mlp.abs().max() > 1e-6


@pytest.mark.parametrize("name", [n for n in EVERY if "mamba" in n])
def test_mixer_output_is_what_a_mamba_block_adds(name: str) -> None:
    model = get(name)
    pre, mix, post = capture(model, tokens(model), ["L1.resid_pre", "L1.attn_out", "L1.resid_post"]).values()
    torch.testing.assert_close(pre + mix, post, rtol=1e-6, atol=1e-6)


PROJECTION = {
    "gpt2": "transformer.h.1.attn.c_proj",
    "gpt_neox": "gpt_neox.layers.1.attention.dense",
    "our transformer": "blocks.1.attn.proj",
}


@pytest.mark.parametrize("name", [*tiny.ATTENTION, "our transformer"])
def test_z_is_the_projection_input_cut_by_query_head(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    path = PROJECTION.get(name.replace("_sequential", ""), "model.layers.1.self_attn.o_proj")
    seen: list[torch.Tensor] = []
    handle = model.module.get_submodule(path).register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    output(model, ids)
    handle.remove()
    raw = seen[0].detach()
    width = raw.shape[-1] // 4
    assert width == (12 if name == "llama_wide" else 8)
    acts = capture(model, ids, ["L1.z", "L1.z[2]", "L1.z[2]@-1", "L1.z@0"])
    assert torch.equal(acts["L1.z"], torch.stack(raw.split(width, dim=-1), dim=2))
    assert torch.equal(acts["L1.z[2]"], raw[..., 2 * width : 3 * width])
    assert torch.equal(acts["L1.z[2]@-1"], raw[:, -1, 2 * width : 3 * width])
    assert torch.equal(acts["L1.z@0"].flatten(1), raw[:, 0])


@pytest.mark.parametrize("name", EVERY)
def test_case_16_lens_at_the_last_block_is_the_logits(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    last = f"L{model.n_layers - 1}.resid_post"
    seen, expected = readout(model, capture(model, ids, last)[last]), output(model, ids)
    assert seen.dtype == torch.float32
    assert ((seen - expected).abs().max() / expected.abs().max()) < 1e-6


@pytest.mark.parametrize(
    "given",
    ["L1.z[2]", site("L1.z[2]"), ["L1.z[2]"], ("L1.z[2]",), [site("L1.z[2]")], (s for s in ["L1.z[2]"])],
)
def test_case_22_a_string_a_site_a_list_a_tuple_are_the_same(given: Any) -> None:
    model = hf("llama_gqa")
    found = capture(model, tokens(model), given)
    assert list(found) == ["L1.z[2]"]
    assert torch.equal(found["L1.z[2]"], capture(model, tokens(model), "L1.z[2]")["L1.z[2]"])


def test_pattern_shapes() -> None:
    model = hf("gpt_neox")
    acts = capture(model, tokens(model), ["L1.pattern", "L1.pattern[3]", "L1.pattern@-1", "L0.z"])
    assert acts["L1.pattern"].shape == (3, 4, 9)
    assert torch.equal(acts["L1.pattern[3]"], acts["L1.pattern"][:, 3])
    assert torch.equal(acts["L1.pattern@-1"], acts["L1.pattern"][..., -1])
    assert list(acts) == ["L1.pattern", "L1.pattern[3]", "L1.pattern@-1", "L0.z"]


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_our_mamba_convolution_and_scan_input(name: str) -> None:
    model = ours(name)
    conv, scanned = capture(model, tokens(model), ["L1.conv", "L1.ssm_input"]).values()
    assert torch.equal(torch.nn.functional.silu(conv)[..., :64], scanned) and scanned.shape[-1] == 64


def test_hf_mamba_scan_input_is_the_activated_convolution() -> None:
    model = hf("mamba")
    ids = tokens(model)
    mixer = model.module.backbone.layers[0].mixer
    normed = model.module.backbone.layers[0].norm(capture(model, ids, "L0.resid_pre")["L0.resid_pre"])
    with torch.no_grad():
        x = mixer.in_proj(normed).chunk(2, dim=-1)[0].transpose(1, 2)
        expected = torch.nn.functional.silu(mixer.conv1d(x)[..., : ids.shape[1]]).transpose(1, 2)
    torch.testing.assert_close(capture(model, ids, "L0.ssm_input")["L0.ssm_input"], expected)


def test_capture_sees_the_edit_in_force() -> None:
    model = hf("llama")
    with edit(model, zero("L0.z[1]")):
        acts = capture(model, tokens(model), ["L0.z"])
    assert not acts["L0.z"][:, :, 1].any() and acts["L0.z"][:, :, 0].all()


def test_position_out_of_range() -> None:
    model = hf("llama")
    with pytest.raises(InputError, match="has 9 tokens"):
        capture(model, tokens(model), "L0.resid_post@9")


def test_left_padding_and_half_precision() -> None:
    model = hf("gpt2")
    ids = tokens(model, batch=1, length=5)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 5])
    alone, shifted = capture(model, ids, "L1.z"), capture(model, padded, "L1.z", mask=mask)
    torch.testing.assert_close(alone["L1.z"], shifted["L1.z"][:, 4:], rtol=1e-5, atol=1e-5)


def test_capture_leaves_nothing_behind() -> None:
    model = hf("olmoe")
    ids = tokens(model)
    before, found = output(model, ids), traces(model)
    capture(model, ids, ["L0.z", "L0.pattern", "L1.resid_post"])
    assert torch.equal(before, output(model, ids))
    assert model.module.config._attn_implementation == "sdpa"
    assert traces(model) == found
