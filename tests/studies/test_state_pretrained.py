"""The state-encoding study on pretrained models: fine-tuned, probed, erased, taken apart, patched.

The models are small random ones of the classes the ready-made study files name, loaded from disk as a user's are.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import tiny
from causegrid import model, task
from causegrid.errors import InputError
from causegrid.runs import run
from causegrid.runs.config import load as read_study
from causegrid.runs.store import open_run
from causegrid.studies.state.stages import StateStages

READY = Path(__file__).parents[2] / "studies"
CONFIG = {
    "study": "state-encoding",
    "training": {"steps": 24, "length": 8, "batch": 16, "lr": 0.003},
    "eval_lengths": [8, 10],
    "n_eval": 24,
    "probing": {"n_train": 24, "n_test": 20},
    "erasing": {
        "bases": ["probe", "inlp", "leace"],
        "ranks": [1, "full"],
        "n_random": 2,
        "n_random_refits": 1,
        "beyond": {"lengths": [10], "ranks": ["full"], "n_test": 20, "n_random": 2},
    },
    "components": {"n": 20},
    "patching": {"n_pairs": 8, "grid": False},
}
TABLES = {"training", "behaviour", "training_summary", "probes", "profile_summary", "erasure"}
TABLES |= {"erasure_beyond", "components", "patching"}
WAYS = {"mamba": ("full", "head"), "gpt_neox": ("lora", "head"), "llama_gqa": ("lora", "tokens")}
TASKS = {"gpt_neox": "dyck"}  # with a second label; parity elsewhere


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for family in WAYS:
        made[family] = tmp_path_factory.mktemp(family)
        tiny.hf(family).save_pretrained(made[family])
    return made


@pytest.fixture(scope="module")
def finished(folders, tmp_path_factory):
    """Family -> (its finished cell, the study file, the run's folder)."""
    made = {}
    for family, (method, readout) in WAYS.items():
        here = tmp_path_factory.mktemp("study")
        study = here / "study.yaml"
        grid = [{"tasks": [TASKS.get(family, "parity")], "models": [str(folders[family])]}]
        tuning = {"method": method, "readout": readout, "rank": 2}
        study.write_text(yaml.safe_dump({**CONFIG, "grid": grid, "fine_tuning": tuning}))
        outcome = run(study, here / "out", engine="inline")
        assert outcome.failures == ()
        made[family] = open_run(here / "out").cells()[0], study, here / "out"
    return made


@pytest.mark.parametrize("family", WAYS)
def test_the_whole_study(finished, family):
    cell = finished[family][0]
    assert set(cell.tables()) == TABLES
    assert sorted(cell.table("probes")["layer"].unique()) == [-1, 0, 1]
    for name in ("erasure", "erasure_beyond", "components", "patching"):
        assert len(cell.table(name)), name
    assert set(cell.table("probes")["label"]) == set(task(cell.config["task"]).labels)
    erased = cell.table("erasure")
    assert set(erased["basis"]) == {"probe", "inlp", "leace"}
    assert 1 in set(erased.loc[erased["basis"] == "probe", "rank"])
    assert set(erased.loc[erased["basis"] == "inlp", "iterations"].notna()) == {True}
    assert cell.config["fine_tuning"]["method"] == WAYS[family][0]
    assert "model" in cell.config["digests"]


@pytest.mark.parametrize("family", WAYS)
def test_the_cell_is_a_model(finished, family):
    """The cell's folder gives the fine-tuned model, whose accuracy is the one in the cell's table: counted on
    the plain module, task ids exchanged for vocabulary ids by hand."""
    cell = finished[family][0]
    made = model(str(cell.path))
    readout = made.readout
    asked = task(cell.config["task"])
    sample = asked.sample(24, 10, seed=(0, 10), split="test")
    ids = torch.tensor(readout.inputs)[torch.from_numpy(sample.tokens)]
    with torch.no_grad():
        logits = made.module(input_ids=ids).logits
    said = (logits if readout.outputs is None else logits[..., list(readout.outputs)]).argmax(-1).numpy()
    row = cell.table("behaviour").query("length == 10 and metric == 'token'").iloc[0]
    assert row["accuracy"] == pytest.approx(np.mean(said == sample.labels[asked.label]), abs=1e-9)


def test_a_second_run_computes_nothing(finished):
    _, study, out = finished["llama_gqa"]
    outcome = run(study, out, engine="inline")
    assert (outcome.n_done, outcome.n_cached) == (0, 1)


def _cells(folder, **changes):
    study = folder / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, **changes}))
    found, config = read_study(study)
    return found.cells(config)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gpt_neox", {"components": {"kinds": ["conv"], "n": 20}}, "unknown component 'conv'"),
        ("gpt_neox", {"patching": {"kinds": ["state"], "n_pairs": 8}}, "state"),
        ("mamba", {"components": {"kinds": ["attention"], "n": 20}}, "unknown component 'attention'"),
        ("mamba", {"erasing": {"bases": ["principal"], "ranks": [64]}}, "rank 64 does not exist"),
    ],
)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_a_later_stage_would_refuse_is_refused_before_training(
    folders, tmp_path, monkeypatch, family, changes, words, method
):
    def never(*args, **kwargs):
        raise AssertionError("it was trained")

    monkeypatch.setattr("causegrid.studies.state.stages.train", never)
    grid = [{"tasks": ["parity"], "models": [str(folders[family])]}]
    tuning = {"method": method, "readout": "head", "rank": 2}
    (cell,) = _cells(tmp_path, grid=grid, fine_tuning=tuning, **changes)
    with pytest.raises(InputError, match=words):
        StateStages(cell).train(SimpleNamespace(scratch=lambda name: tmp_path / name))


def test_other_weights_are_another_cell(folders, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(folders["gpt_neox"], copied)
    grid = [{"tasks": ["parity"], "models": [str(copied)]}]
    first = _cells(tmp_path, grid=grid)[0].digests
    tiny.hf("gpt_neox", seed=1).save_pretrained(copied)
    assert _cells(tmp_path, grid=grid)[0].digests != first


def test_families_are_trained_from_scratch_and_others_fine_tuned(folders, tmp_path):
    names = ["gru", "mamba:conv=false", "smollm2-135m", "EleutherAI/pythia-160m", str(folders["mamba"])]
    cells = _cells(tmp_path, grid=[{"tasks": ["parity"], "models": names}])
    assert [c.fine_tuning is None for c in cells] == [True, True, False, False, False]
    assert [bool(c.digests) for c in cells] == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smolm2-135m", "did you mean 'smollm2-135m'"),
        ("gru2", "did you mean 'gru'"),
        ("mamba:con=false", "did you mean 'conv'"),
        (".", "no config.json"),
        ("kept/gr", "did you mean 'kept/gru'"),
    ],
)
def test_models_that_cannot_be_meant(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept" / "gru").mkdir(parents=True)
    with pytest.raises(InputError, match=words):
        _cells(tmp_path, grid=[{"tasks": ["parity"], "models": [name]}])


def test_an_unfinished_cell_is_not_taken_for_the_pretrained_model(finished, tmp_path):
    shutil.copy(finished["llama_gqa"][0].path / "cell.json", tmp_path / "cell.json")
    with pytest.raises(InputError, match="holds no trained model"):
        model(str(tmp_path))


def test_the_plan_says_how_much_memory(folders, tmp_path):
    grid = [{"tasks": ["parity"], "models": [str(folders["llama_gqa"]), "nobody/nowhere-at-all", "gru"]}]
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid}))
    found, config = read_study(study)
    costs = [found.cost(cell) for cell in found.cells(config)]
    assert "full fine-tune of 0.02" in costs[0]
    assert re.search(r"in about [\d.]+ GB( \(stage \w+; training [\d.]+ GB\))?$", costs[0])
    assert "known once" in costs[1]
    assert "fine-tune" not in costs[2]


@pytest.mark.parametrize("name", ["mamba_130m", "pythia", "smollm2"])
def test_ready_made_studies_are_valid(name):
    found, config = read_study(READY / f"state_encoding_{name}.yaml")
    cells = found.cells(config)
    assert {c.task for c in cells} >= {"parity", "dyck"}
    assert all(c.fine_tuning is not None for c in cells)


def test_the_fine_tunes_here_are_those_of_the_ready_made_files():
    """Class, way and what is erased: whoever changes a file is to change what is exercised above."""
    erased = CONFIG["erasing"]
    for name, family in (("mamba_130m", "mamba"), ("pythia", "gpt_neox")):
        found, config = read_study(READY / f"state_encoding_{name}.yaml")
        for cell in found.cells(config):
            assert (cell.fine_tuning.method, cell.fine_tuning.readout) == WAYS[family]
            assert (cell.erasing.bases, cell.erasing.ranks) == (
                tuple(erased["bases"]),
                tuple(erased["ranks"]),
            )
