"""What a fine-tuned cell's stages take: told from shapes, held against what they are measured to hold."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import tiny
from causegrid.errors import InputError
from causegrid.models import finetuning, memory, save
from causegrid.models.finetuning import merged
from causegrid.models.memory import gigabytes
from causegrid.models.outline import outlined
from causegrid.studies.state import beyond as state_beyond
from causegrid.studies.state import stages as state_stages
from causegrid.studies.state.footprint import COPIES, needs, require_room, sentence
from causegrid.studies.state.stages import StateStages
from causegrid.studies.state_encoding import StateEncoding, StateEncodingConfig
from causegrid.tasks import task

LENGTH = 16
ERASING = {"bases": ["probe", "leace"], "ranks": ["full"], "n_random": 2, "n_random_refits": 1}
BEYOND = {"lengths": [24, 28], "ranks": ["full"], "n_test": 200, "n_random": 2}
SIZES = {
    "training": {"steps": 1, "length": LENGTH, "batch": 8},
    "eval_lengths": [LENGTH],
    "probing": {"n_train": 300, "n_test": 100},
    "erasing": {**ERASING, "beyond": BEYOND},
    "components": {"kinds": ["mlp"], "n": 64},
    "patching": {"kinds": ["resid_post"], "n_pairs": 50, "grid": False},
    "fine_tuning": {"method": "lora", "rank": 2},
}


def a_cell(name, **changes):
    grid = [{"tasks": ["parity"], "models": [str(name)]}]
    config = StateEncodingConfig.model_validate({"study": "state-encoding", "grid": grid, **SIZES, **changes})
    return StateEncoding().cells(config)[0]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Activations of this model are large beside its weights, as a real model's are."""
    folder = tmp_path_factory.mktemp("wide")
    changes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 4}
    tiny.hf("llama_gqa", **changes).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def learned(wide, tmp_path_factory):
    """(stages, context) of a cell whose model learned to one length less than it was trained at."""
    folder = tmp_path_factory.mktemp("cell")
    stages = StateStages(a_cell(wide))
    save(merged(stages.fine_tunable()), folder)
    context = SimpleNamespace(
        find=lambda name: folder / name,
        table=lambda name: pd.DataFrame([{"learned_length": LENGTH - 1}]),
        save_table=lambda name, table: None,
        progress=lambda *facts: None,
    )
    return stages, context


def arrays_of(work):
    """Largest number of bytes held in numpy's arrays while `work()` ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def told(wide, stage, fits):
    """Bytes of the activations that a stage is said to hold, `fits` copies of a layer's training rows left out."""
    found = {need.stage: need for need in needs(a_cell(wide), outlined(str(wide)), task("parity"))}
    return found[stage].host - fits * 4 * 128 * 300 * LENGTH


def test_probing_holds_the_activations_it_is_said_to(wide, learned, monkeypatch):
    """Of both lengths, and the untrained model's of one: fits apart, which are a stub here."""
    monkeypatch.setattr(state_stages, "profile_of", lambda *found, **settings: pd.DataFrame({"layer": [0]}))
    monkeypatch.setattr(state_stages, "profile_summary", lambda profile: profile)
    stages, context = learned
    assert arrays_of(lambda: stages.probe(context)) == pytest.approx(told(wide, "probe", COPIES), rel=0.1)


def test_lengths_beyond_hold_the_activations_they_are_said_to(wide, learned, monkeypatch):
    nothing = {layer: [] for layer in range(4)}
    row = {"layer": 0, "label": "state", "length": 0, "iterations": None, "removed": None}
    monkeypatch.setattr(StateStages, "subspaces", lambda self, context, length: nothing)
    monkeypatch.setattr(state_beyond, "chosen", lambda fitted, *found, **asked: {0: [None]})
    monkeypatch.setattr(state_beyond, "erased_layer", lambda *found, **settings: [row])
    _, context = learned
    stages = StateStages(a_cell(wide))
    assert arrays_of(lambda: stages.beyond(context)) == pytest.approx(told(wide, "beyond", COPIES), rel=0.1)


def test_the_fullest_stage_is_told_and_refused(wide, monkeypatch):
    parity, cpu = task("parity"), torch.device("cpu")
    cell, shapes = a_cell(wide), outlined(str(wide))
    stages = {need.stage: need for need in needs(cell, shapes, parity)}
    assert list(stages) == ["train", "probe", "erase", "beyond", "components", "patch"]
    most = stages["beyond"].total
    assert most == max(need.total for need in stages.values()) > 2 * stages["train"].total
    assert f"{gigabytes(most)} (stage beyond; training {gigabytes(stages['train'].total)})" in sentence(
        cell, parity
    )
    assert sentence(cell, parity) in StateEncoding().cost(cell)
    monkeypatch.setattr(memory, "available_bytes", lambda device: most - 1)
    with pytest.raises(
        InputError, match=r"stage 'beyond' on .* needs about [\d.]+ GB .*n_train.*erasing\.beyond"
    ):
        require_room(cell, shapes, parity, cpu)
    require_room(a_cell(wide, erasing={**ERASING, "beyond": None}), shapes, parity, cpu)
    large = a_cell(wide, training={"steps": 1, "length": LENGTH, "batch": 1 << 12})
    with pytest.raises(InputError, match=r"fine-tuning .* smaller batch"):
        require_room(large, shapes, parity, cpu)
    assert "stage" not in sentence(large, parity)


def test_a_cell_is_refused_before_any_weight_is_read(wide, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("weights were read")

    cell = a_cell(wide)
    most = max(need.total for need in needs(cell, outlined(str(wide)), task("parity")))
    monkeypatch.setattr(memory, "available_bytes", lambda device: most - 1)
    monkeypatch.setattr(finetuning, "model", never)
    with pytest.raises(InputError, match="stage 'beyond'"):
        StateStages(cell).fine_tunable()


def test_activations_are_the_machines_where_the_model_is_on_a_gpu(wide, monkeypatch):
    cell, shapes = a_cell(wide), outlined(str(wide))
    stages = needs(cell, shapes, task("parity"))
    free = {"cuda": max(need.model for need in stages), "cpu": max(need.host for need in stages)}
    monkeypatch.setattr(memory, "available_bytes", lambda device: free[device.type])
    require_room(cell, shapes, task("parity"), torch.device("cuda"))
    for kind in free:
        with monkeypatch.context() as patch, pytest.raises(InputError, match=f"are free on {kind}"):
            patch.setitem(free, kind, free[kind] - 1)
            require_room(cell, shapes, task("parity"), torch.device("cuda"))
