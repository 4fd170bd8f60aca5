"""Saved and loaded: the same numbers, and nothing half-written or mixed gets through."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

import tiny
from causegrid.errors import InputError
from causegrid.models import load, model, save, untrained

TASK = SimpleNamespace(kind="state", name="s3", n_tokens=6, n_classes=6)
OWN = ["transformer", "mamba", "mamba2", "lstm", "gru"]
TOKENS = torch.arange(24).reshape(2, 12) % 6


def own(family, seed=0, **options):
    return model(family, task=TASK, seed=seed, d_model=32, n_layers=2, **options)


def refusal(folder) -> str:
    with pytest.raises(InputError) as error:
        load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("family", OWN)
def test_own_families_come_back_the_same(tmp_path, family):
    made = own(family, seed=3)
    with torch.no_grad():  # trained weights: not those the seed gives
        for parameter in made.module.parameters():
            parameter.add_(0.01)
    assert save(made, tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert sorted(f.name for f in (tmp_path / "a" / "b").iterdir()) == ["model.json", "model.safetensors"]
    for back in (load(tmp_path / "a" / "b"), model(tmp_path / "a" / "b")):
        for (name, left), (other, right) in zip(
            made.module.state_dict().items(), back.module.state_dict().items(), strict=True
        ):
            assert name == other and torch.equal(left, right)
        torch.testing.assert_close(back(TOKENS), made(TOKENS), atol=1e-5, rtol=1e-5)
        assert back.config == made.config and back.name == family and back.n_params == made.n_params
        assert not back.module.training


@pytest.mark.parametrize("family", list(tiny.CONFIGS))
def test_hugging_face_models_come_back_the_same(tmp_path, loaded, family):
    made = loaded(family)
    save(made, tmp_path)
    back = load(tmp_path)
    assert (back.name, back.family, back.n_heads, back.head_dim) == (
        made.name,
        made.family,
        made.n_heads,
        made.head_dim,
    )
    torch.testing.assert_close(back([[3, 4, 5]]), made([[3, 4, 5]]), atol=1e-5, rtol=1e-5)
    assert (tmp_path / "config.json").is_file() and not list(tmp_path.glob(".saving-*"))


def test_dtype_is_kept_unless_asked(tmp_path):
    save(own("gru", dtype="float64"), tmp_path)
    assert next(load(tmp_path).module.parameters()).dtype == torch.float64
    assert next(load(tmp_path, dtype="float32").module.parameters()).dtype == torch.float32


def test_saving_over_an_older_model_and_beside_other_files(tmp_path):
    (tmp_path / "cell.json").write_text("{}")
    save(own("mamba", seed=1), tmp_path)
    second = own("lstm", seed=2)
    save(second, tmp_path)
    torch.testing.assert_close(load(tmp_path)(TOKENS), second(TOKENS))
    assert (tmp_path / "cell.json").read_text() == "{}"


def test_a_save_that_fails_leaves_the_older_model(tmp_path):
    first = own("gru", seed=1)
    save(first, tmp_path)
    second = own("gru", seed=2)
    second.config = {**second.config, "note": object()}
    with pytest.raises(InputError, match="config"):
        save(second, tmp_path)
    torch.testing.assert_close(load(tmp_path)(TOKENS), first(TOKENS))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["model.json", "model.safetensors"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="is a file"):
        save(own("gru"), tmp_path / "x")


def test_corrupt_and_mixed_folders(tmp_path):
    assert "no model.json" in refusal(tmp_path)
    save(own("gru", seed=1), tmp_path / "one")
    save(own("gru", seed=2), tmp_path / "two")
    weights, about = tmp_path / "one" / "model.safetensors", tmp_path / "one" / "model.json"
    good = weights.read_bytes()
    flipped = bytearray(good)
    flipped[-5] ^= 1
    for bad in (good[:-4], b"", bytes(flipped), (tmp_path / "two" / "model.safetensors").read_bytes()):
        weights.write_bytes(bad)
        assert "corrupt" in refusal(tmp_path / "one")
    weights.unlink()
    assert "missing" in refusal(tmp_path / "one")
    weights.write_bytes(good)
    text = about.read_text()
    for bad, word in (
        ("{", "cannot be read"),
        ("[]", "everything"),
        ("{}", "lacks"),
        ("\xff\xfe", "cannot be read"),
    ):
        about.write_text(bad, encoding="latin-1")
        assert word in refusal(tmp_path / "one")
    for change, word in (
        ({"format": 99}, "format 99"),
        ({"config": {"n_tokens": 6, "n_out": 6, "d_modle": 32}}, "does not fit"),
        ({"config": {**json.loads(text)["config"], "d_model": 16}}, "do not fit"),
        ({"name": "mamba9", "family": "mamba9"}, "mamba9"),
        ({"n_layers": 7}, "n_layers"),
        ({"dtype": "int7"}, "int7"),
    ):
        about.write_text(json.dumps({**json.loads(text), **change}))
        assert word in refusal(tmp_path / "one")
    about.write_text(text)
    load(tmp_path / "one")


@pytest.mark.parametrize("family", OWN)
def test_untrained_is_the_same_model_with_other_weights(family):
    made = own(family, seed=0)
    state = torch.random.get_rng_state()
    fresh, again, same = untrained(made, seed=5), untrained(made, seed=5), untrained(made, seed=0)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(fresh(TOKENS), again(TOKENS)) and not torch.equal(fresh(TOKENS), made(TOKENS))
    assert torch.equal(same(TOKENS), made(TOKENS))
    assert fresh.n_params == made.n_params and fresh.module is not made.module


@pytest.mark.parametrize("family", list(tiny.CONFIGS))
def test_untrained_hugging_face_model(loaded, family):
    made = loaded(family)
    before = {name: value.clone() for name, value in made.module.state_dict().items()}
    state = torch.random.get_rng_state()
    fresh, again, other = untrained(made, seed=5), untrained(made, seed=5), untrained(made, seed=6)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(fresh([[3, 4, 5]]), again([[3, 4, 5]]))
    assert not torch.equal(fresh([[3, 4, 5]]), other([[3, 4, 5]]))
    shapes = {name: value.shape for name, value in fresh.module.state_dict().items()}
    assert shapes == {name: value.shape for name, value in before.items()}
    assert all(torch.equal(value, before[name]) for name, value in made.module.state_dict().items())
    assert fresh.head_dim == made.head_dim and not fresh.module.training
