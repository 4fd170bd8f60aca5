"""The state-encoding study end to end on a short training run and its marks."""

from __future__ import annotations

import json
import re
from typing import get_args

import numpy as np
import pytest
import yaml

from causegrid import model, task
from causegrid.errors import InputError
from causegrid.runs import run
from causegrid.runs.store import open_run
from causegrid.studies.state.stages import learned
from causegrid.studies.state_encoding import Part, Place, StateEncoding, StateEncodingConfig

CONFIG = {
    "study": "state-encoding",
    "grid": [{"tasks": ["parity"], "models": ["gru"]}],
    "training": {"steps": 40, "length": 8, "batch": 32},
    "eval_lengths": [8, 12],
    "n_eval": 40,
    "probing": {"n_train": 40, "n_test": 30},
    "erasing": {
        "ranks": [1, "full"],
        "n_random": 5,
        "n_random_refits": 1,
        "beyond": {"lengths": [12], "n_test": 30, "n_random": 5},
    },
    "components": {"n": 20},
    "patching": {"n_pairs": 8},
}


@pytest.mark.parametrize(
    ("length", "mark"),
    [
        (40, "learned"),
        (44, "learned"),
        (39, "learned to 39"),
        (8, "learned to 8"),
        (7, "not learned"),
        (0, "not learned"),
    ],
)
def test_learned_marks(length, mark):
    assert learned(length, 40) == mark


def manifest(cell):
    return json.loads((cell / "cell.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    study = folder / "study.yaml"
    study.write_text(yaml.safe_dump(CONFIG))
    outcome = run(study, folder / "out", engine="inline")
    assert outcome.failures == ()
    assert outcome.problems == ()
    return open_run(folder / "out"), study


def test_tables_and_facts(finished):
    cell = finished[0].cells()[0]
    assert {
        *("training", "behaviour", "training_summary", "probes", "profile_summary", "erasure"),
        *("erasure_beyond", "components", "patching"),
    } == set(cell.tables())
    assert cell.facts["n_params"] == sum(
        int(np.prod(shape)) for shape in _shapes(cell.path / "model.safetensors").values()
    )
    assert cell.table("training")["length"].max() <= 8
    assert sorted(cell.table("probes")["layer"].unique()) == [-1, 0, 1, 2, 3]
    erased = cell.table("erasure")
    assert set(erased.loc[erased["basis"] == "probe", "rank"]) == {1}  # two classes: one direction
    assert set(cell.table("erasure_beyond")["fitted_length"]) == {8}
    assert {"state", "forget_gate"} & set(cell.table("components")["kind"])
    assert (
        cell.table("patching")["recovery"].notna().any()
        or (cell.table("patching")["mark"] == "nothing to recover").any()
    )
    assert erased.loc[erased["rank"] > 0, "n_control"].eq(5).all()


def _shapes(file):
    from safetensors import safe_open

    with safe_open(file, "pt") as weights:
        return {k: weights.get_slice(k).get_shape() for k in weights.keys()}  # noqa: SIM118


def test_behaviour_is_the_saved_models_own(finished):
    """Token accuracy of the saved weights on the study's own test sequences, counted by hand."""
    cell = finished[0].cells()[0]
    row = cell.table("behaviour").query("length == 12 and metric == 'token'").iloc[0]
    loaded = model(str(cell.path))
    sample = task("parity").sample(400, 12, seed=99, split="test")
    right = (loaded(sample.tokens).argmax(-1).numpy() == sample.labels["state"]).mean()
    assert right == pytest.approx(row["accuracy"], abs=0.1)


def test_a_second_run_computes_nothing(finished):
    run_, study = finished
    outcome = run(study, run_.folder, engine="inline")
    assert (outcome.n_done, outcome.n_cached) == (0, 1)


def test_a_block_states_its_own_analysis(tmp_path):
    bare = {"tasks": ["parity"], "models": ["gru"], "seeds": [1], "erasing": None, "patching": None}
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(CONFIG | {"grid": [*CONFIG["grid"], bare]}))
    run(study, tmp_path / "out", engine="inline", until="train")
    names = {c["config"]["seed"]: c["stage_names"] for c in map(manifest, (tmp_path / "out").glob("cells/*"))}
    assert names == {
        0: ["train", "probe", "erase", "beyond", "components", "patch"],
        1: ["train", "probe", "components"],
    }
    again = CONFIG | {"grid": [*CONFIG["grid"], bare | {"seeds": [1, 0]}]}
    study.write_text(yaml.safe_dump(again))
    with pytest.raises(InputError, match="'parity' with model 'gru' and seed 0 twice"):
        run(study, tmp_path / "other", engine="inline")


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"erasing": {"bases": ["probe"], "ranks": [4]}}, r"rank of 4 .*'parity'.*ranks 1 to 1"),
        ({"erasing": {"bases": ["probe"], "beyond": {"ranks": [2, 3]}}}, r"rank of 2, 3 .*'parity'"),
        ({"fine_tuning": {"method": "lora"}}, "fine_tuning is set"),
        ({"training": {"length": 7}}, "greater than or equal to 8|at least 8"),
    ],
)
def test_a_grid_that_says_nothing_sensible_is_refused(tmp_path, over, said):
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(CONFIG | over))
    with pytest.raises(InputError, match=said):
        run(study, tmp_path / "out", engine="inline")
    assert not (tmp_path / "out").exists()


def test_claims_on_one_cell_are_undecided(finished):
    found = finished[0].claims()
    assert {c["result"] for c in found if c["kind"] == "claim"} == {"not enough evidence"}
    assert {"S1", "S2", "S3", "S4", "S5", "S5-post-hoc", "S6", "V2"} <= {c["id"] for c in found}


def test_lengths_the_positions_cannot_take_are_refused_before_training(tmp_path):
    study = tmp_path / "study.yaml"
    grid = [{"tasks": ["parity"], "models": ["transformer"]}]
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid, "eval_lengths": [8, 300]}))
    with pytest.raises(InputError, match="256 learned positions, the longest length is 300"):
        run(study, tmp_path / "out", engine="inline")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (
            {"erasing": {"bases": ["principal"], "ranks": [999], "n_random": 5, "beyond": None}},
            "rank 999 .* 1 to 128",
        ),
        ({"erasing": {"beyond": {"ranks": [998]}}}, "rank 998 .* 1 to 128"),
        ({"components": {"kinds": ["conv"], "n": 20}}, "unknown component 'conv'.*reset_gate"),
        ({"patching": {"kinds": ["mlp_out"], "n_pairs": 8}}, "mlp"),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_before_training(tmp_path, over, said):
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, **over}))
    outcome = run(study, tmp_path / "out", engine="inline")
    assert outcome.n_failed == 1
    assert re.search(said, outcome.failures[0][1])
    assert open_run(tmp_path / "out").cells()[0].stages == {}


@pytest.mark.parametrize(("part", "like"), [("components", "conv"), ("patching", "resid_post")])
def test_kinds_that_no_model_has_are_refused_with_the_file(tmp_path, part, like):
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, part: {"kinds": [like + "x"]}}))
    with pytest.raises(InputError, match=rf"{part}.kinds.0 -> '{like}x'.*did you mean '{like}'"):
        run(study, tmp_path / "out")
    study.write_text(yaml.safe_dump({**CONFIG, part: {"kinds": []}}))
    with pytest.raises(InputError, match=f"{part}.kinds"):
        run(study, tmp_path / "out")


def test_the_study_file_names_every_kind_there_is():
    from causegrid.interventions.components import components
    from causegrid.studies.state.patching import KINDS

    made = [model(name, task=task("parity")) for name in ("transformer", "mamba", "mamba2", "lstm", "gru")]
    assert {kind for one in made for kind in components(one)} | {"mlp_gate"} == set(_words(Part))
    assert set(KINDS) == set(_words(Place))


def _words(kinds):
    return [word for kind in get_args(kinds) for word in (_words(kind) or [kind])]


def test_one_wrong_item_of_a_list_is_one_line(tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, "seeds": [-1]}))
    with pytest.raises(InputError) as refused:
        run(study, tmp_path / "out")
    assert len(str(refused.value).splitlines()) == 1
    assert "-1" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mamba:n_layers=0", "n_layers must be a whole number of at least 1"),
        ("transformer:max_length=4", "4 learned positions, the longest length is 12"),
        ("transformer:n_heads=3", "3 heads"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_in_the_plan(name, words):
    grid = [{"tasks": ["parity"], "models": [name]}]
    with pytest.raises(InputError, match=words):
        StateEncoding().cells(StateEncodingConfig.model_validate(CONFIG | {"grid": grid}))
    fine = [
        {
            "tasks": ["parity"],
            "models": ["transformer:max_length=12", "transformer:positions=rope,max_length=4"],
        }
    ]
    assert len(StateEncoding().cells(StateEncodingConfig.model_validate(CONFIG | {"grid": fine}))) == 2
