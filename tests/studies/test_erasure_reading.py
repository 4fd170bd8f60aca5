"""The erasure table on networks whose answer is known by construction, and the reading table itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from known_states import WIDE, known

from causegrid import model as built
from causegrid import task
from causegrid.errors import InputError
from causegrid.interventions.erasure import erased_behaviour
from causegrid.signatures.activations import collect, fit_probes
from causegrid.studies.state.beyond import beyond_table
from causegrid.studies.state.erasure import erasure_table, reading
from causegrid.studies.state.fitted import fit_subspaces

SIZES = dict(length=40, n_train=400, n_test=300)


def readings(model, **changes):
    table = erasure_table(
        model, task("parity"), bases=["probe"], ranks=[1], n_random=19, seed=3, **{**SIZES, **changes}
    )
    return table.set_index("layer")


def test_one_direction_that_is_read_is_candidate_necessary():
    table = readings(known({0: 0.1}, {0: 1.0}))
    assert table["reading"].tolist() == [
        "not readable",
        "not readable",
        "candidate necessary",
        "candidate necessary",
    ]
    assert table.loc[1, "probe"] == pytest.approx(1.0)
    assert table.loc[1, "accuracy"] < 0.6 < table.loc[1, "control_low"]
    assert table.loc[1, "refit_high"] < 0.56
    assert table.loc[1, "matched_accuracy"] > 0.9  # as much variance, taken elsewhere, does no harm


def test_two_directions_of_different_noise_are_void_at_rank_one():
    model = known({0: 0.1, 1: WIDE}, {0: 1.0, 1: 1.0})
    table = readings(model)
    assert table.loc[1, "reading"] == table.loc[2, "reading"] == "test void"
    assert table.loc[1, "refit_low"] > 0.6


def test_both_directions_erased_are_candidate_necessary():
    model = known({0: 0.1, 1: WIDE}, {0: 1.0, 1: 1.0})
    found = collect(model, task("parity"), seed=3, **SIZES)
    sample = task("parity").sample(300, 40, seed=3, split="test")
    both = np.eye(16)[:, :2]
    accuracy = erased_behaviour(model, sample.tokens, sample.labels["state"], "L1.resid_post", [None, both],
                                found.train.x[1].mean(0)).mean(1)  # fmt: skip
    assert accuracy[0] > 0.98
    assert accuracy[1] < 0.6


def test_a_state_that_is_there_but_not_read_is_readable_not_used():
    table = readings(known({0: 0.1}, {0: 1.0}, aside=True))
    assert table.loc[1, "reading"] == table.loc[2, "reading"] == "readable, not used"
    assert table.loc[1, "drop"] == 0.0


def test_clean_accuracy_is_the_models_own():
    model = known({0: 0.1}, {0: 1.0})
    sample = task("parity").sample(SIZES["n_test"], 40, seed=3, split="test")
    own = (model(sample.tokens).argmax(-1).numpy() == sample.labels["state"]).mean()
    assert readings(model)["clean"].unique() == pytest.approx([own])


def test_probes_given_are_used():
    model = known({0: 0.1}, {0: 1.0})
    found = collect(model, task("parity"), seed=3, **SIZES)
    table = readings(model, activations=found, probes=fit_probes(found, "state"))
    assert table["reading"].tolist() == readings(model)["reading"].tolist()


BASE = dict(
    probe_low=1.0, refit_low=0.49, refit_high=0.51, baseline=0.5, clean=1.0, task_accuracy=0.5, task_low=0.48,
    control_low=0.97,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "candidate necessary"),
        # below chance: the erased task rose, the random subspaces raised it further, its interval is wide
        (dict(clean=0.238, task_accuracy=0.254, task_low=0.212, control_low=0.279), "inconclusive"),
        ({"task_accuracy": 0.99, "task_low": 0.985}, "readable, not used"),
        ({"task_accuracy": 0.98, "task_low": 0.975}, "inconclusive"),  # inside the controls, but not holding
        (
            {"task_accuracy": 0.995, "task_low": 0.99, "control_low": 0.999},
            "readable, not used",
        ),  # holds, whatever
        ({"refit_low": 0.6, "refit_high": 0.7}, "test void"),
        ({"refit_low": 0.6, "refit_high": 0.7, "task_accuracy": 1.0, "task_low": 1.0}, "test void"),
        ({"refit_low": 0.51, "refit_high": 0.55}, "inconclusive"),  # cannot tell whether it was removed
        ({"probe_low": 0.515}, "not readable"),
    ],
)
def test_the_reading_table(changes, expected):
    assert reading(**{**BASE, **changes}) == expected


def test_directions_are_fitted_until_they_settle():
    """A tenfold tighter fit of our own barely turns the direction; the quick fit is farther off."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    found = collect(known({0: 0.4, 1: WIDE}, {0: 1.0}), task("parity"), seed=3, **SIZES)
    scaler = StandardScaler().fit(found.train.x[1])
    tight = LogisticRegression(tol=1e-9, max_iter=5000).fit(
        scaler.transform(found.train.x[1]), found.train.y["state"]
    )
    true = tight.coef_[0] / scaler.scale_

    def turned(probes) -> float:
        weight = probes[1].weight[1] - probes[1].weight[0]
        return 1 - abs(weight @ true) / np.linalg.norm(weight) / np.linalg.norm(true)

    settled = turned(fit_probes(found, "state", directions=True))
    assert settled < 1e-6
    assert settled < turned(fit_probes(found, "state"))


@pytest.fixture(scope="module")
def few():
    return collect(known({0: 0.1}, {0: 1.0}), task("parity"), length=12, n_train=40, n_test=30, seed=3)


def test_subspaces_of_more_ranks_serve_both_tables(few):
    model, common = known({0: 0.1}, {0: 1.0}), dict(activations=few, n_random=3, seed=3)
    every = fit_subspaces(few, ranks=(1, 2, 4, "full"))
    asked = dict(bases=("principal", "inlp", "probe"), ranks=("full", 2))
    table = erasure_table(model, task("parity"), subspaces=every, **asked, **common)
    own = erasure_table(model, task("parity"), **asked, **common)
    order = ["layer", "basis", "rank"]
    pd.testing.assert_frame_equal(
        table.sort_values(order, ignore_index=True), own.sort_values(order, ignore_index=True)
    )
    assert {(b, r) for b, r in zip(own["basis"], own["rank"], strict=True) if b != "inlp"} == {
        ("principal", 1),
        ("principal", 2),
        ("probe", 1),
    }
    longer = beyond_table(model, task("parity"), subspaces=every, lengths=(14,), n_test=20, **asked, **common)
    assert len(longer) == (own["layer"] >= 0).sum() and set(longer["mark"]) == {""}


def test_lengths_that_learned_positions_cannot_take_are_marked():
    small = built("transformer:positions=learned", task=task("parity"), seed=0, d_model=16, n_layers=1)
    found = collect(small, task("parity"), length=12, n_train=40, n_test=30, seed=3)
    table = beyond_table(
        small, task("parity"), activations=found, bases=["probe"], ranks=[1], lengths=(16, 5000), n_test=30,
        n_random=3, seed=3,
    )  # fmt: skip
    fits, refused = table[table["length"] == 16], table[table["length"] == 5000]
    assert len(fits) == len(refused) == len(found.layers) - 1  # blocks
    assert set(fits["mark"]) == {""} and not fits["accuracy"].isna().any() and (fits["reading"] != "").all()
    assert refused["mark"].str.contains("5000").all() and refused["mark"].nunique() == 1
    assert refused[["clean", "accuracy", "probe", "refit", "baseline"]].isna().all(axis=None)
    assert set(refused["reading"]) == {""} and set(refused["n_control"]) == {0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bases": ["probes"]}, "did you mean 'probe'"),
        ({"bases": []}, "no kind of subspace"),
        ({"ranks": [17]}, "1 to 16"),
        ({"ranks": ["most"]}, "'most'"),
        ({"ranks": [2], "bases": ["probe"]}, "2 classes"),
        ({"n_random": 0}, "at least 1 random"),
        ({"label": "parity"}, "state"),
    ],
)
def test_bad_input_is_named(few, changes, words):
    model = known({0: 0.1}, {0: 1.0})
    for table in (erasure_table, beyond_table):
        with pytest.raises(InputError) as caught:
            table(model, task("parity"), activations=few, **changes)
        assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_of_a_single_class_is_refused(few, split):
    rows = getattr(few, split)
    one = replace(few, **{split: replace(rows, y={"state": np.ones_like(rows.y["state"])})})
    with pytest.raises(InputError, match="single class"):
        erasure_table(known({0: 0.1}, {0: 1.0}), task("parity"), activations=one)


def test_lengths_beyond_are_checked(few):
    for lengths in ((), (0,)):
        with pytest.raises(InputError, match="lengths"):
            beyond_table(known({0: 0.1}, {0: 1.0}), task("parity"), activations=few, lengths=lengths)


def test_a_model_that_cannot_do_its_task_shows_nothing_by_holding():
    numbers = dict(probe_low=0.9, refit_low=0.48, refit_high=0.51, baseline=0.5, control_low=0.4)
    assert reading(**numbers, clean=0.45, task_accuracy=0.45, task_low=0.44) == "inconclusive"
    assert reading(**numbers, clean=0.95, task_accuracy=0.95, task_low=0.94) == "readable, not used"


def test_a_length_with_a_single_class_keeps_its_rows_and_says_why():
    """Dyck's first depth is always 1: nothing can be probed at length 1."""
    dyck = task("dyck")
    net = built("gru", task=dyck, seed=0, d_model=8, n_layers=1)
    found = collect(net, dyck, length=8, n_train=30, n_test=20)
    table = beyond_table(
        net, dyck, activations=found, bases=("probe",), ranks=(1,), lengths=(1, 9), n_test=20, n_random=2
    )
    short = table[table["length"] == 1]
    assert short["mark"].str.contains("single class").all() and short["accuracy"].isna().all()
    assert table.loc[table["length"] == 9, "accuracy"].notna().all()
