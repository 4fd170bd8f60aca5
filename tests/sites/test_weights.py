from __future__ import annotations

import pytest
import torch
from site_models import hf, ours, output, tokens
from torch import nn

import tiny
from causegrid.errors import InputError
from causegrid.sites import substitute


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_substituting_the_convolution_changes_the_model_and_restores_it(name: str) -> None:
    model = hf(name)
    ids = tokens(model)
    clean = output(model, ids)
    mixer = model.module.get_submodule("backbone.layers.1.mixer")
    weight, bias = mixer.conv1d.weight, mixer.conv1d.bias
    bits = weight.detach().clone()
    with substitute(
        mixer, {"conv1d.weight": torch.zeros_like(weight), "conv1d.bias": torch.zeros_like(bias)}
    ):
        assert not mixer.conv1d.weight.any()
        inside = output(model, ids)
    assert not torch.allclose(clean, inside)
    assert mixer.conv1d.weight is weight and mixer.conv1d.bias is bias and torch.equal(weight, bits)
    assert torch.equal(clean, output(model, ids))


def test_recurrent_modules_see_the_new_weight() -> None:
    model = ours("lstm")
    ids = tokens(model)
    block = model.module.blocks[0]
    clean = output(model, ids)
    with substitute(block, {"weight_hh_l0": torch.zeros_like(block.weight_hh_l0)}):
        inside = output(model, ids)
    assert not torch.allclose(clean, inside)
    assert torch.equal(clean, output(model, ids))


def test_restored_after_an_exception_and_the_gradient_flag_kept() -> None:
    linear = nn.Linear(3, 2)
    linear.bias.requires_grad_(False)
    kept = dict(linear.named_parameters())
    with pytest.raises(KeyError), substitute(linear, {"weight": torch.ones(2, 3), "bias": torch.ones(2)}):
        assert linear.weight.requires_grad and not linear.bias.requires_grad
        assert torch.equal(linear(torch.ones(1, 3)), torch.full((1, 2), 4.0))
        raise KeyError
    assert all(dict(linear.named_parameters())[name] is kept[name] for name in kept)


def test_buffers_and_dtypes() -> None:
    norm = nn.BatchNorm1d(2).eval()
    buffer = norm.running_mean
    with substitute(norm, {"running_mean": torch.ones(2, dtype=torch.float64)}):
        assert norm.running_mean.dtype == torch.float32 and norm(torch.ones(1, 2)).abs().max() < 1e-6
    assert norm.running_mean is buffer


def test_shared_storage_is_noticed() -> None:
    module = tiny.hf("llama", tie_word_embeddings=True)
    value = torch.zeros_like(module.lm_head.weight)
    for where, name in ((module, "lm_head.weight"), (module, "model.embed_tokens.weight")):
        with pytest.raises(InputError, match="lm_head"), substitute(where, {name: value}):
            pass
    with (
        pytest.raises(InputError, match="embed_tokens"),
        substitute(module.lm_head, {"weight": value}, root=module),
    ):
        pass
    with substitute(module.lm_head, {"weight": value}, root=module, shared="alone"):
        assert module.model.embed_tokens.weight.any() and not module.lm_head.weight.any()
    assert module.lm_head.weight is module.model.embed_tokens.weight


def test_neighbours_in_one_buffer_are_not_shared_but_overlaps_are() -> None:
    flat = torch.arange(12.0)
    module = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(3)])
    for i, start in enumerate((0, 4, 6)):
        module[i].weight = nn.Parameter(flat[start : start + 4].view(2, 2))
    with substitute(module, {"0.weight": torch.zeros(2, 2)}):
        assert module[1].weight.all()
    with (
        pytest.raises(InputError, match=r"1\.weight, 2\.weight"),
        substitute(module, {"1.weight": torch.zeros(2, 2)}),
    ):
        pass


def test_mistakes_are_named() -> None:
    linear = nn.Linear(3, 2)
    with (
        pytest.raises(InputError, match="did you mean 'weight'"),
        substitute(linear, {"weigth": torch.ones(2, 3)}),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"\(3, 2\).*\(2, 3\)"),
        substitute(linear, {"weight": torch.ones(3, 2)}),
    ):
        pass
