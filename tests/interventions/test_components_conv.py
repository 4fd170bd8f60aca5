"""Removing the convolution: weights that really change, counted, and put back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from causegrid.errors import InputError, InterventionError
from causegrid.interventions.convolution import conv_means, remove_conv
from causegrid.models.record import models

FAMILIES = ["hf mamba", "hf mamba2", "mamba", "mamba2"]


@pytest.fixture(scope="module")
def ssm(wrapped):
    made = {}
    for name in FAMILIES:
        family = name.removeprefix("hf ")
        if name.startswith("hf"):
            made[name] = wrapped(tiny.hf(family), family)
        else:
            sizes = dict(n_tokens=97, n_out=97, d_model=32, n_layers=2, n_state=8)
            extra = dict(head_dim=8, n_groups=2) if family == "mamba2" else {}
            made[name] = models.get(family)(family, seed=0, **sizes, **extra)
        with torch.no_grad():  # kernels and biases large enough to matter
            for key, parameter in made[name].module.named_parameters():
                if "conv1d" in key:
                    parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


def mixers(model):
    root = model.module.backbone.layers if hasattr(model.module, "backbone") else model.module.blocks
    return [block.mixer for block in root]


def tokens(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(3, 97, (3, 9)))


def oracle(model, layers, change):
    """Logits after writing into the convolution's own storage, put back by hand."""
    saved = {k: v.clone() for k, v in model.module.state_dict().items()}
    with torch.no_grad():
        for layer in layers:
            change(mixers(model)[layer].conv1d)
        out = model(tokens())
        model.module.load_state_dict(saved)
    return out


def identity(conv):
    conv.weight.zero_()
    conv.weight[:, 0, -1] = 1
    conv.bias.zero_()


def zero(conv):
    conv.weight.zero_()
    conv.bias.zero_()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("mode", "change"), [("identity", identity), ("zero", zero)])
@pytest.mark.parametrize("layers", [0, [1], None])
def test_case_1_the_convolution_is_removed_counted_and_restored(name, mode, change, layers, ssm):
    model = ssm[name]
    before = model(tokens())
    parameters = {k: (id(v), v.clone()) for k, v in model.module.named_parameters()}
    chosen = [0, 1] if layers is None else np.atleast_1d(layers).tolist()
    with remove_conv(model, layers, mode) as log:
        inside = model(tokens())
    assert not torch.equal(inside, before)
    assert torch.equal(inside, oracle(model, chosen, change))
    assert list(log.layers) == chosen and log.total == len(chosen)
    assert torch.equal(model(tokens()), before)
    for key, parameter in model.module.named_parameters():
        assert parameters[key][0] == id(parameter) and torch.equal(parameters[key][1], parameter)


@pytest.mark.parametrize("name", FAMILIES)
def test_identity_hands_the_current_token_through(name, ssm):
    model = ssm[name]
    x = torch.randn(2, mixers(model)[0].conv1d.weight.shape[0], 6)
    weight = torch.zeros_like(mixers(model)[0].conv1d.weight)
    with remove_conv(model, 0, "identity"):
        weight = mixers(model)[0].conv1d.weight.detach().clone()
        model(tokens())
    padded = torch.nn.functional.pad(x, (weight.shape[-1] - 1, 0))
    assert torch.equal(torch.nn.functional.conv1d(padded, weight, groups=weight.shape[0]), x)


@pytest.mark.parametrize("name", FAMILIES)
def test_means_are_those_of_the_convolutions_output(name, ssm):
    model = ssm[name]
    found = conv_means(model, tokens(5), batch=2)
    for layer in (0, 1):
        mixer = mixers(model)[layer]
        projected = []
        handle = mixer.in_proj.register_forward_hook(lambda _, __, out, p=projected: p.append(out))
        model(tokens(5))
        handle.remove()
        x = projected[0].double().detach().numpy()  # (B, L, P)
        kernel = mixer.conv1d.weight[:, 0].double().detach().numpy()
        channels, taps = kernel.shape
        start = 0 if mixer.A_log.dim() == 2 else x.shape[-1] - mixer.A_log.numel() - channels
        x = x[..., start : start + channels]
        out = np.zeros_like(x)
        for t in range(x.shape[1]):
            for k in range(taps):
                if t - (taps - 1) + k >= 0:
                    out[:, t] += kernel[:, k] * x[:, t - (taps - 1) + k]
        out += mixer.conv1d.bias.double().detach().numpy()
        np.testing.assert_allclose(found[layer].numpy(), out.mean((0, 1)), atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_mean_replaces_the_output_by_a_constant(name, ssm):
    model = ssm[name]
    before = model(tokens())
    means = conv_means(model, tokens(5))

    def constant(conv, layer=0):
        conv.weight.zero_()
        conv.bias.copy_(means[0])

    with remove_conv(model, 0, "mean", tokens=tokens(5)) as log:
        inside = model(tokens())
    assert log.total == 1
    torch.testing.assert_close(inside, oracle(model, [0], constant), atol=1e-6, rtol=1e-6)
    assert torch.equal(model(tokens()), before)


def test_a_removal_that_did_not_run_is_an_error(ssm):
    with pytest.raises(InterventionError, match="L0: 0"), remove_conv(ssm["mamba"], 0):
        pass

    def half_run():
        with remove_conv(ssm["mamba"]):
            mixers(ssm["mamba"])[0](torch.zeros(1, 3, 32))

    with pytest.raises(InterventionError, match="L1: 0"):
        half_run()


def test_the_weights_are_back_after_an_exception(ssm):
    model = ssm["hf mamba2"]
    before = model(tokens())
    with pytest.raises(ValueError, match="mine"), remove_conv(model):
        model(tokens())
        raise ValueError("mine")
    assert torch.equal(model(tokens()), before)


def test_what_cannot_be_removed_is_refused(ssm, tiny_model):
    with pytest.raises(InputError, match="2 layers"), remove_conv(ssm["mamba"], 2):
        pass
    with pytest.raises(InputError, match="no convolution"), remove_conv(tiny_model("llama")):
        pass
    with pytest.raises(InputError, match="'identity'"), remove_conv(ssm["mamba"], 0, "identiti"):
        pass
    with pytest.raises(InputError, match="reference tokens"), remove_conv(ssm["mamba"], 0, "mean"):
        pass
    bare = models.get("mamba")("mamba", n_tokens=9, n_out=3, d_model=16, n_layers=1, conv=False)
    with pytest.raises(InputError, match="conv=False"), remove_conv(bare):
        pass
