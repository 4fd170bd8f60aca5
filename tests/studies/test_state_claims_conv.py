"""S5, both experiments, on made-up paired cells: Holm against statsmodels, p by enumerating signs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from made_cells import Claims, made
from statsmodels.stats.multitest import multipletests

MATTERS = {"s3": -0.13, "parity": -0.07, "dyck": 0.0}
SPREAD = (0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005)


def trained_without(changes, n=7, **bare):
    cells = []
    for task, change in changes.items():
        for s in range(n):
            cells.append(made("mamba", task, s, beyond=0.8, at_trained=0.8))
            value = 0.8 + change + SPREAD[s]
            cells.append(made("mamba:conv=false", task, s, beyond=value, at_trained=value, **bare))
    return cells


def removed_after(changes, n=7, **other):
    return [
        made("mamba", task, s, conv={"identity": change + SPREAD[s], "zero": -0.5, "mean": 0.3}, **other)
        for task, change in changes.items()
        for s in range(n)
    ]


EXPERIMENTS = pytest.mark.parametrize(
    ("id", "make"), [("S5", trained_without), ("S5-post-hoc", removed_after)]
)


def sign_flips(values):
    values = np.array(values)
    means = np.array([np.mean(values * s) for s in product([1, -1], repeat=len(values))])
    seen = values.mean()
    return min(1.0, 2 * min((means >= seen - 1e-12).mean(), (means <= seen + 1e-12).mean()))


@EXPERIMENTS
def test_supported_contradicted_and_open(id, make):
    assert Claims(make(MATTERS))[id]["result"] == "supported"
    assert Claims(make({k: -v for k, v in MATTERS.items()}))[id]["result"] == "contradicted"
    assert Claims(make({"s3": -0.13, "parity": -0.07, "dyck": -0.1}))[id]["result"] == "contradicted"
    assert Claims(make({"s3": -0.13, "parity": 0.0, "dyck": 0.0}))[id]["result"] == "not enough evidence"
    assert Claims(make({"s3": -0.13, "parity": -0.07}))[id]["result"] == "not enough evidence"


@EXPERIMENTS
def test_that_dyck_is_spared_needs_evidence_too(id, make):
    """Three seeds find nothing significant whatever they lose, and a wide interval does not exclude a loss."""
    few = [
        c for c in make({**MATTERS, "dyck": -0.6}) if c["config"]["task"] != "dyck" or c["config"]["seed"] < 3
    ]
    claim = Claims(few)[id]
    assert claim["result"] == "not enough evidence" and "that it is spared is not shown" in claim["why"]
    close = Claims(make({**MATTERS, "dyck": -0.006}))[id]
    assert close["result"] == "supported" and "spared" not in close["why"]
    wide = Claims(make({**MATTERS, "dyck": -0.011}))[id]  # down to -2.4 pp by its interval
    assert wide["result"] == "not enough evidence"


@EXPERIMENTS
def test_what_is_known_of_two_tasks_is_said_with_its_cells(id, make):
    claim = Claims(make({"s3": -0.13, "parity": -0.07}, n=3))[id]
    assert "Beyond it: s3 -13.0 pp" in claim["why"] and "cannot give a Holm p below 0.5." in claim["why"]
    assert "Change of token accuracy, its mean over the length used and longer ones" in claim["why"]
    assert "s3 -13.0 pp" in claim["measured"] and "s3-mamba-0" in claim["cells"]


@EXPERIMENTS
def test_holm_over_tasks_and_the_least_attainable(id, make):
    claim = Claims(make(MATTERS))[id]
    raw = [sign_flips([change + e for e in SPREAD]) for change in MATTERS.values()]
    expected = multipletests(raw, method="holm")[1]
    for task, p in zip(MATTERS, expected, strict=True):
        said = next(part for part in claim["measured"].split("; ") if part.startswith(task))
        assert f"Holm p {p:.2g}, n 7" in said and f"{100 * MATTERS[task]:+.1f} pp" in said
    six = Claims(make(MATTERS, n=6))[id]
    assert six["result"] == "not enough evidence"
    assert f"cannot give a Holm p below {3 * 2 / 64:.2g}" in six["why"]


def test_not_learning_without_the_convolution_counts_and_is_named():
    cells = trained_without(MATTERS, learned=0)
    claim = Claims(cells)["S5"]
    assert claim["result"] == "supported"
    assert "Counted though not learned, as their partner did: s3 mamba:conv=false seeds 0, 1" in claim["why"]
    neither = [{**c, "facts": {**c["facts"], "learned_length": 0}} for c in cells]
    claim = Claims(neither)["S5"]
    assert claim["result"] == "not enough evidence" and claim["cells"] == []
    assert "Not learned, left out: s3 mamba seeds" in claim["why"]


def test_pairs_that_learned_less_are_counted_and_named():
    claim = Claims(trained_without(MATTERS, learned=24))["S5"]
    assert claim["result"] == "supported"
    assert "counted at it and beyond all the same: to 24: s3 mamba:conv=false seeds 0, 1" in claim["why"]
    assert "all the same" not in Claims(trained_without(MATTERS))["S5"]["why"]


def test_only_cells_with_their_pair_count():
    cells = [c for c in trained_without(MATTERS) if c["id"] != "s3-mamba:conv=false-3"]
    claim = Claims(cells)["S5"]
    assert "n 6" in claim["measured"] and "s3-mamba-3" not in claim["cells"]


def test_the_other_modes_stand_beside_and_never_decide():
    why = Claims(removed_after(MATTERS))["S5-post-hoc"]["why"]
    assert "Mode zero: s3 -50.0 pp" in why and "Mode mean: s3 +30.0 pp" in why


def test_after_training_each_task_is_looked_at_where_it_was_learned():
    cells = removed_after({"parity": -0.07, "dyck": 0.0})
    s3 = [
        made("mamba", "s3", s, learned=60, trained=80, conv={"identity": -0.13 + SPREAD[s]}) for s in range(7)
    ]
    other = made("mamba", "s3", 7, learned=40, trained=80, conv={"identity": 0.9})
    claim = Claims([*cells, *s3, other])["S5-post-hoc"]
    assert claim["result"] == "supported" and "s3: 60." in claim["why"]
    assert "s3 -13.0 pp" in claim["measured"]
    assert "Learned a shorter length, left out: to 40: s3 mamba seed 7." in claim["why"]
    assert "parity: 40, 60, 80, 100 and 120." in claim["why"]  # s3 did not learn its 80, and is kept to 60
    assert "Beyond it: parity -7.0 pp" in claim["why"] and other["id"] not in claim["cells"]


def test_after_training_unlearned_and_variant_cells_are_left_out():
    decoys = [made("mamba", "s3", 9, learned=4, conv={"identity": 0.9})]
    decoys += [made("mamba:conv=false", "s3", s, conv={"identity": 0.9}) for s in range(7)]
    claim = Claims([*removed_after(MATTERS), *decoys])["S5-post-hoc"]
    assert claim["result"] == "supported" and "s3 -13.0 pp" in claim["measured"]
    assert "Not learned, left out: s3 mamba seed 9." in claim["why"]
