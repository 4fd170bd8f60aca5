"""From a name to a model, and the one line for every name that is none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

import causegrid as cg
from causegrid.errors import InputError
from causegrid.models import Model, model, models, save

TASK = SimpleNamespace(kind="state", name="dyck", n_tokens=4, n_classes=11)


def refusal(*args, **kwargs) -> str:
    with pytest.raises(InputError) as error:
        model(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_families_take_their_sizes_from_the_task_and_weights_from_the_seed():
    first, again, other = (cg.model("mamba", task=TASK, seed=s, n_layers=1) for s in (0, 0, 1))
    assert isinstance(first, Model)
    assert (first.n_tokens, first.n_out, first.n_layers) == (4, 11, 1)
    tokens = [[0, 1, 2, 3]]
    assert first(tokens).shape == (1, 4, 11)
    assert torch.equal(first(tokens), again(tokens)) and not torch.equal(first(tokens), other(tokens))
    half = model("gru", task=TASK, dtype="bfloat16")
    assert next(half.module.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["transformer", "mamba", "mamba2", "lstm", "gru"])
def test_last_of_own_families_is_the_last_position(family):
    from causegrid.models import logits

    made = model(family, task=TASK, d_model=32, n_layers=2)
    tokens = torch.arange(20).reshape(2, 10) % 4
    torch.testing.assert_close(
        logits(made, tokens, last=True), logits(made, tokens)[:, -1], atol=1e-5, rtol=1e-5
    )
    ones = torch.ones_like(tokens)
    assert torch.equal(logits(made, tokens, mask=ones), logits(made, tokens))
    with pytest.raises(InputError, match="equal length only"):
        logits(made, tokens, mask=ones.index_fill(1, torch.tensor([0]), 0))


def test_families_need_a_state_task():
    assert "task('s3')" in refusal("mamba")
    assert "'ioi'" in refusal("lstm", task=SimpleNamespace(kind="prompt", name="ioi"))
    assert "'s3'" in refusal("lstm", task="s3")


def test_unknown_options_name_the_nearest():
    message = refusal("transformer", task=TASK, n_head=2)
    assert "'n_head'" in message and "did you mean 'n_heads'" in message
    assert "n_tokens" not in message.split("allowed are")[1]
    assert "smollm2-135m" in refusal("smollm2-135m", layers=3)


def test_unknown_names_name_the_nearest():
    message = refusal("transfromer", task=TASK)
    assert "did you mean 'transformer'" in message and "org/name" in message
    for name in ("./not/there", "not/there/", "/nowhere", "~/nowhere-at-all", "a/b/c", "gpt2", ""):
        assert f"unknown model {name!r}" in refusal(name)


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list[str]:
    """Names that came to be loaded from the hub, in a folder that holds `models/gru` alone."""
    import huggingface_hub.constants

    names = []

    def load(where, **_):
        names.append(where)
        raise InputError("asked the hub")

    monkeypatch.setattr("causegrid.models.resolve.load_pretrained", load)
    monkeypatch.setattr("causegrid.models.hub.reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "gru").mkdir(parents=True)
    return names


@pytest.mark.parametrize("name", ["models/gr", "./models/gr", "models/sub/../gr", "~/models/gr"])
def test_a_mistyped_folder_is_refused_before_the_hub_is_asked(asked, monkeypatch, tmp_path, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models" / "sub").mkdir()
    message = refusal(name)
    assert f"unknown model {name!r}" in message and "did you mean" in message and "gru'?" in message
    assert asked == []


def test_an_id_of_the_hub_is_still_asked_for(asked):
    for name in ("owner/gr", "models/nothing-like-it"):
        assert refusal(name) == "asked the hub"
    assert refusal("models/gr", revision="main") == "asked the hub"
    assert asked == ["owner/gr", "models/nothing-like-it", "models/gr"]


def test_a_folder_without_the_name_is_said_where_the_hub_does_not_answer(asked, monkeypatch):
    monkeypatch.setattr("causegrid.models.hub.reachable", lambda: False)
    assert "'models' holds none of that name, and the hub cannot be reached" in refusal(
        "models/nothing-like-it"
    )
    assert refusal("owner/gr") == "asked the hub" and asked == ["owner/gr"]


def test_an_id_in_the_cache_is_no_mistyped_folder(asked, tmp_path):
    at = tmp_path / "hub" / "models--models--gr"
    (at / "refs").mkdir(parents=True)
    (at / "refs" / "main").write_text("c0ffee")
    (at / "snapshots" / "c0ffee").mkdir(parents=True)
    (at / "snapshots" / "c0ffee" / "config.json").write_text("{}")
    assert refusal("models/gr") == "asked the hub"


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    assert "is a file" in refusal(tmp_path / "model.safetensors")


def test_folders_of_both_kinds(disk, tmp_path, monkeypatch):
    assert model(disk("llama")).family == "llama"
    save(model("gru", task=TASK, d_model=16), tmp_path / "org" / "gru-mine")
    assert model(tmp_path / "org" / "gru-mine").family == "gru"
    monkeypatch.chdir(tmp_path)
    assert model("org/gru-mine").d_model == 16  # a folder comes before a Hugging Face id
    assert "n_layers" in refusal("org/gru-mine", n_layers=3)
    assert "attn_implementation" in refusal(disk("llama"), attention="eager")


def test_a_registered_name_comes_before_a_folder(tmp_path, monkeypatch):
    (tmp_path / "gru").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model("gru", task=TASK).family == "gru"


def test_a_runs_cell_is_a_model(disk, tmp_path):
    cell = tmp_path / "cells" / "abc"
    cell.mkdir(parents=True)
    about = cell / "cell.json"
    about.write_text(json.dumps({"config": {"model": "gru", "task": "dyck"}}))
    assert "no trained model" in refusal(cell)
    save(model("gru", task=TASK, d_model=16), cell)
    assert model(cell).d_model == 16
    other = tmp_path / "cells" / "def"
    other.mkdir()
    (other / "cell.json").write_text(json.dumps({"config": {"model": str(disk("olmo2"))}}))
    assert model(other).family == "olmo2"
    (other / "cell.json").write_text("{")
    assert "cell" in refusal(other)


def test_cells_that_name_each_other_are_no_model(disk, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for cell, named in ((one, one), (two, disk("olmo2"))):
        cell.mkdir()
        (cell / "cell.json").write_text(json.dumps({"config": {"model": str(named)}}))
    assert f"cell {str(one)!r} names no model" in refusal(one)
    (one / "cell.json").write_text(json.dumps({"config": {"model": str(two)}}))
    assert model(one).family == "olmo2"
    (two / "cell.json").write_text(json.dumps({"config": {"model": str(one)}}))
    assert f"leads back to {str(one)!r}" in refusal(one)


def test_registry_tells_families_from_ready_models():
    assert {"transformer", "mamba", "mamba2", "lstm", "gru", "smollm2-135m"} <= set(models.names())
    assert models.get("smollm2-135m").trainable is False
