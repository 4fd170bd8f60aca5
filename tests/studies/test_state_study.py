"""The state-encoding study end to end on a short training run, its marks, and its claims on made-up cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import yaml

from causegrid.runs import run
from causegrid.runs.store import open_run
from causegrid.studies.state.claims import state_claims
from causegrid.studies.state.stages import learned

CONFIG = {
    "study": "state-encoding",
    "grid": [{"tasks": ["parity"], "models": ["gru"]}],
    "training": {"steps": 40, "length": 8, "batch": 32},
    "eval_lengths": [8, 12],
    "n_eval": 40,
    "probing": {"n_train": 40, "n_test": 30},
    "erasing": {"ranks": [1, "full"], "n_random": 5, "n_random_refits": 1},
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
    assert {"training", "behaviour", "training_summary", "probes", "profile_summary", "erasure"} == set(
        cell.tables()
    )
    assert cell.facts["n_params"] == sum(
        int(np.prod(shape)) for shape in _shapes(cell.path / "model.safetensors").values()
    )
    assert cell.table("training")["length"].max() <= 8
    assert sorted(cell.table("probes")["layer"].unique()) == [-1, 0, 1, 2, 3]
    erased = cell.table("erasure")
    assert set(erased["rank"]) == {1}  # two classes: the row space is one direction
    assert erased["n_control"].eq(5).all()


def _shapes(file):
    from safetensors import safe_open

    with safe_open(file, "pt") as weights:
        return {k: weights.get_slice(k).get_shape() for k in weights.keys()}  # noqa: SIM118


def test_behaviour_is_the_saved_models_own(finished):
    """Token accuracy of the saved weights on the study's own test sequences, counted by hand."""
    from causegrid import model, task

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


def test_claims_on_one_cell_are_undecided(finished):
    assert {c["result"] for c in finished[0].claims()} == {"not enough evidence"}
    assert [c["id"] for c in finished[0].claims()] == ["S1", "S2", "S3", "S4", "S5", "S6"]


def cell(model, task="parity", seed=0, reached=40, beyond=0.9, void=True, damaging=1):
    layers = [0, 1, 2, 3]
    tables = {
        "behaviour": pd.DataFrame(
            [{"length": n, "metric": "token", "accuracy": 1.0 if n == 40 else beyond} for n in (40, 80, 120)]
        ),
        "erasure": pd.DataFrame(
            [
                {
                    "layer": x, "label": "state", "length": 40, "rank": 1, "full": True,
                    "beyond_control": x == damaging,
                    "drop": 0.4 if x == damaging else 0.01, "reading": "test void" if void else "candidate necessary",
                }
                for x in layers
            ]
        ),
        "probes": pd.DataFrame(
            [{"layer": x, "label": "state", "length": 40, "accuracy": 0.5 + 0.1 * x} for x in layers]
        ),
        "profile_summary": pd.DataFrame([{"label": "state", "length": 40, "depth_centre": 0.8 + 0.001 * seed}]),
    }  # fmt: skip
    config = {"task": task, "model": model, "seed": seed, "training": {"length": 40}}
    return {
        "id": f"{task}-{model}-{seed}",
        "config": config,
        "facts": {"learned_length": reached},
        "tables": tables.get,
    }


def by_id(cells):
    return {c["id"]: c for c in state_claims(cells)}


def test_best_probe_and_most_damaging_layer():
    assert by_id([cell("gru", seed=s) for s in range(6)])["S3"]["result"] == "supported"
    assert by_id([cell("gru", seed=s, damaging=3) for s in range(6)])["S3"]["result"] == "contradicted"
    assert by_id([cell("gru")])["S3"]["result"] == "not enough evidence"


def test_refit_claim_counts_void_layers():
    assert by_id([cell("gru", seed=s) for s in range(6)])["S4"]["result"] == "supported"
    assert by_id([cell("gru", seed=s, void=False) for s in range(6)])["S4"]["result"] == "contradicted"


def test_out_of_length_order():
    cells = [
        cell(m, seed=s, beyond=b + 0.001 * s)
        for m, b in (("gru", 0.99), ("mamba", 0.8), ("transformer", 0.6))
        for s in range(5)
    ]
    assert by_id(cells)["S6"]["result"] == "supported"
    turned = [
        cell(m, seed=s, beyond=b + 0.001 * s)
        for m, b in (("gru", 0.6), ("mamba", 0.8), ("transformer", 0.99))
        for s in range(5)
    ]
    assert by_id(turned)["S6"]["result"] == "contradicted"


def test_cells_that_did_not_learn_are_left_out_by_name():
    found = by_id([cell("gru", seed=s) for s in range(6)] + [cell("transformer", reached=5, damaging=3)])
    assert "parity transformer seed 0" in found["S3"]["why"]
    assert found["S3"]["measured"] == "6 of 6 cells"


def test_profile_reversal_needs_seeds_and_sees_an_interaction():
    def centre(c, value):
        tables = c["tables"].__self__
        tables["profile_summary"] = tables["profile_summary"].assign(depth_centre=value)
        return c

    cells = [
        centre(cell(m, task=t, seed=s), v + 0.01 * s)
        for m, t, v in (
            ("transformer", "parity", 0.4),
            ("transformer", "dyck", 0.2),
            ("mamba", "parity", 0.9),
            ("mamba", "dyck", 0.3),
        )
        for s in range(5)
    ]
    assert by_id(cells)["S1"]["result"] == "supported"
    assert by_id(cells[:15])["S1"]["result"] == "not enough evidence"


def test_claims_survive_cells_without_the_full_rank():
    one = cell("gru")
    tables = one["tables"].__self__
    tables["erasure"] = tables["erasure"].assign(full=False)
    assert by_id([one])["S3"]["result"] == "not enough evidence"


def test_lengths_the_positions_cannot_take_are_refused_before_training(tmp_path):
    study = tmp_path / "study.yaml"
    grid = [{"tasks": ["parity"], "models": ["transformer"]}]
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid, "eval_lengths": [8, 300]}))
    outcome = run(study, tmp_path / "out", engine="inline")
    assert outcome.n_failed == 1
    assert "256" in outcome.failures[0][1]
    assert open_run(tmp_path / "out").cells()[0].stages == {}


def test_ranks_that_do_not_exist_are_an_error_not_an_empty_table(tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, "erasing": {"ranks": [99], "n_random": 5}}))
    outcome = run(study, tmp_path / "out", engine="inline")
    assert outcome.n_failed == 1
    assert "99" in outcome.failures[0][1]


def test_one_wrong_item_of_a_list_is_one_line(tmp_path):
    from causegrid.errors import InputError

    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, "seeds": [-1]}))
    with pytest.raises(InputError) as refused:
        run(study, tmp_path / "out")
    assert len(str(refused.value).splitlines()) == 1
    assert "-1" in str(refused.value)
