"""Activation patching against plain hooks, and the cells whose answer is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from causegrid.errors import InputError
from causegrid.interventions.patching import patch_recovery

N, LENGTH, CHANGED = 12, 7, 3


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    clean = rng.integers(3, 97, (N, LENGTH))
    corrupt = clean.copy()
    corrupt[:, CHANGED] = (clean[:, CHANGED] + 40) % 90 + 3
    return clean, corrupt


def differences(module, ids, labels, hook=None, where=None):
    handle = where.register_forward_hook(hook) if hook else None
    with torch.no_grad():
        out = module(input_ids=torch.from_numpy(ids), use_cache=False).logits[:, -1].double().numpy()
    if handle:
        handle.remove()
    rows = np.arange(len(ids))
    return out[rows, labels[0]] - out[rows, labels[1]]


@pytest.fixture(scope="module")
def setting(wrapped, pairs):
    module = tiny.hf("gpt_neox_sequential")
    clean, corrupt = pairs
    with torch.no_grad():
        a = module(input_ids=torch.from_numpy(clean)).logits[:, -1]
        b = module(input_ids=torch.from_numpy(corrupt)).logits[:, -1]
    labels = ((a - b).argmax(-1).numpy(), (b - a).argmax(-1).numpy())
    return wrapped(module, "gpt_neox"), clean, corrupt, labels


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("position", [CHANGED, LENGTH - 1])
def test_recovery_equals_plain_hooks(layer, position, setting):
    model, clean, corrupt, labels = setting
    block = model.module.gpt_neox.layers[layer]
    kept = {}

    def keep(_, __, out):
        kept["x"] = (out[0] if isinstance(out, tuple) else out).clone()

    def patch(_, __, out):
        x = (out[0] if isinstance(out, tuple) else out).clone()
        x[:, position] = kept["x"][:, position]
        return (x, *out[1:]) if isinstance(out, tuple) else x

    top = differences(model.module, clean, labels, keep, block)
    bottom = differences(model.module, corrupt, labels)
    patched = differences(model.module, corrupt, labels, patch, block)
    ok = top - bottom >= 0.5
    table = patch_recovery(model, clean, corrupt, f"L{layer}.resid_post@{position}", *labels, batch=5)
    row = table.iloc[0]
    want = (patched - bottom)[ok].mean() / (top - bottom)[ok].mean()
    assert row.recovery == pytest.approx(want, abs=1e-5)
    assert row.n == ok.sum() and row.left_out == (~ok).sum() and row.position == position
    assert row.low - 1e-9 <= row.recovery <= row.high + 1e-9


def test_known_cells_are_what_they_must_be_and_marked(setting):
    model, clean, corrupt, labels = setting
    where = [
        "L1.resid_post@-1",
        "L0.resid_post",
        f"L0.resid_post@{CHANGED - 1}",
        f"L1.resid_post@{CHANGED}",
        "L0.attn_out",
    ]
    table = patch_recovery(model, clean, corrupt, where, *labels)
    np.testing.assert_allclose(table.recovery[:4], [1, 1, 0, 0], atol=1e-5)
    assert list(table.mark[:4]) == ["by construction"] * 4 and table.mark[4] == ""


def test_a_grid_at_once_equals_one_site_at_a_time(setting):
    model, clean, corrupt, labels = setting
    where = [f"L{layer}.{kind}@{p}" for layer in (0, 1) for kind in ("resid_pre", "mlp_out") for p in (3, 6)]
    together = patch_recovery(model, clean, corrupt, where, *labels)
    for i, one in enumerate(where):
        alone = patch_recovery(model, clean, corrupt, one, *labels)
        assert together.recovery[i] == alone.recovery[0] and together.site[i] == one


def test_pairs_that_do_not_move_are_left_out_and_counted(setting):
    model, clean, corrupt, labels = setting
    still = corrupt.copy()
    still[:4] = clean[:4]
    table = patch_recovery(model, clean, still, "L0.resid_post@3", *labels)
    assert table.left_out[0] >= 4 and table.n[0] + table.left_out[0] == N
    with pytest.raises(InputError, match="none of the 12 pairs"):
        patch_recovery(model, clean, clean, "L0.resid_post@3", *labels)


def test_bad_input_is_refused(setting):
    model, clean, corrupt, labels = setting
    with pytest.raises(InputError, match="differ in shape"):
        patch_recovery(model, clean, corrupt[:, :4], "L0.resid_post@3", *labels)
    with pytest.raises(InputError, match="readout 9"):
        patch_recovery(model, clean, corrupt, "L0.resid_post@3", *labels, readout=9)
    with pytest.raises(InputError, match="one per pair"):
        patch_recovery(model, clean, corrupt, "L0.resid_post@3", labels[0][:3], labels[1])
    with pytest.raises(InputError, match="position 9"):
        patch_recovery(model, clean, corrupt, "L0.resid_post@9", *labels)
