"""Behaviour under erasure against a plain forward hook."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from causegrid.errors import InputError
from causegrid.interventions.erasure import erased_behaviour
from causegrid.interventions.subspaces import leace, random_basis
from causegrid.models.record import models
from causegrid.sites.capture import capture


@pytest.fixture(scope="module")
def states(wrapped):
    made = {"hf gpt_neox": wrapped(tiny.hf("gpt_neox"), "gpt_neox")}
    for family in ("mamba", "mamba2", "transformer", "lstm", "gru"):
        made[family] = models.get(family)(family, n_tokens=6, n_out=6, d_model=32, n_layers=3)
    for model in made.values():
        torch.manual_seed(3)
        with torch.no_grad():
            for name, parameter in model.module.named_parameters():
                if name.startswith("head"):
                    parameter.copy_(torch.randn(parameter.shape))
    return made


def data(model, n=5, length=8):
    rng = np.random.default_rng(0)
    return rng.integers(0, min(model.n_tokens, 97), (n, length)), rng.integers(0, 6, (n, length))


@pytest.mark.parametrize("family", ["hf gpt_neox", "mamba", "mamba2", "transformer"])
@pytest.mark.parametrize("mode", ["mean", "origin"])
def test_it_equals_a_plain_hook_at_the_block(family, mode, states):
    model = states[family]
    ids, labels = data(model)
    blocks = model.module.gpt_neox.layers if family.startswith("hf") else model.module.blocks
    mean = torch.randn(32, generator=torch.Generator().manual_seed(0))
    bases = [random_basis(32, r, r) for r in (1, 8, 20)]
    for layer in range(model.n_layers):
        found = erased_behaviour(
            model, ids, labels, f"L{layer}.resid_post", [None, *bases], mean, mode=mode, batch=2
        )
        assert found.shape == (4, 5)
        for i, q in enumerate([None, *bases]):

            def hook(_, __, out, q=q):
                x = (out[0] if isinstance(out, tuple) else out).double()
                if q is not None:
                    centre = mean.double() if mode == "mean" else 0.0
                    x = centre + (x - centre) @ (torch.eye(32).double() - q.double() @ q.double().T)
                x = x.float()
                return (x, *out[1:]) if isinstance(out, tuple) else x

            handle = blocks[layer].register_forward_hook(hook)
            predicted = model(ids).argmax(-1).numpy()
            handle.remove()
            np.testing.assert_allclose(found[i], (predicted == labels).mean(1), atol=1e-12)


@pytest.mark.parametrize("family", ["mamba", "mamba2", "transformer", "lstm", "gru"])
def test_every_own_family_takes_it_and_stays_as_it_was(family, states):
    model = states[family]
    ids, labels = data(model)
    before = model(ids)
    clean = (before.argmax(-1).numpy() == labels).mean(1)
    everything = np.eye(32)
    for layer in range(-1, model.n_layers):
        found = erased_behaviour(model, ids, labels, f"L{layer}.resid_post", [None, everything], np.zeros(32))
        np.testing.assert_allclose(found[0], clean)
        if layer == model.n_layers - 1:  # nothing left but the mean: one prediction everywhere
            spread = erased_behaviour(
                model, ids, np.zeros_like(labels), f"L{layer}.resid_post", [everything], np.zeros(32)
            )
            assert set(spread.ravel()) <= {0.0, 1.0}
    assert torch.equal(model(ids), before)


def test_leace_is_a_basis_too(states):
    model = states["transformer"]
    ids, labels = data(model, n=30)
    x = capture(model, ids, "L1.resid_post")["L1.resid_post"]
    eraser = leace(x.flatten(0, 1), labels.ravel())
    found = erased_behaviour(model, ids, labels, "L1.resid_post", [None, eraser])
    assert found.shape == (2, 30) and not np.array_equal(found[0], found[1])


def test_bad_input_is_refused(states):
    model = states["mamba"]
    ids, labels = data(model)
    q = random_basis(32, 2, 0)
    for where, word in (
        ("L0.attn_out", "block outputs"),
        ("L3.resid_post", "3 layers"),
        ("L0.resid_post@1", "block"),
    ):
        with pytest.raises(InputError, match=word):
            erased_behaviour(model, ids, labels, where, [q], np.zeros(32))
    with pytest.raises(InputError, match="labels of shape"):
        erased_behaviour(model, ids, labels[:, :3], "L0.resid_post", [q], np.zeros(32))
    with pytest.raises(InputError, match="needs the mean"):
        erased_behaviour(model, ids, labels, "L0.resid_post", [q])
    with pytest.raises(InputError, match=r"\(32, rank\)"):
        erased_behaviour(model, ids, labels, "L0.resid_post", [np.eye(8, 2)], np.zeros(8))
    with pytest.raises(InputError, match="orthonormal"):
        erased_behaviour(model, ids, labels, "L0.resid_post", [q * 2], np.zeros(32))
