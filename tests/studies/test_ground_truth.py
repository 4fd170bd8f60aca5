"""The study's erasing stages on networks whose answer is known: hand-set LSTMs, and a state in two directions."""

from __future__ import annotations

import numpy as np
import pytest
from known_states import known
from planted_lstm import UP, planted

from causegrid import task
from causegrid.studies.state.stages import StateStages
from causegrid.studies.state_encoding import StateEncoding, StateEncodingConfig

LENGTH = 40


class Folder:
    """What a stage needs of a cell's folder, in memory."""

    def __init__(self) -> None:
        import pandas as pd

        self.tables = {"training_summary": pd.DataFrame({"learned_length": [LENGTH]})}

    def table(self, name):
        return self.tables[name]

    def save_table(self, name, table):
        self.tables[name] = table

    def progress(self, done, total, what=""):
        assert 1 <= done <= total and what


def stages(model, seed, bases=("probe", "inlp", "leace")):
    """The tables of the erasing stages of one cell."""
    config = StateEncodingConfig.model_validate(
        {
            "study": "state-encoding",
            "grid": [{"tasks": ["parity"], "models": ["lstm"], "seeds": [seed]}],
            "probing": {"n_train": 400, "n_test": 200},
            "erasing": {
                "bases": bases,
                "ranks": ["full"],
                "n_random": 19,
                "n_random_refits": 1,
                "beyond": {"lengths": [60], "ranks": ["full"], "n_test": 200, "n_random": 9},
            },
        }
    )
    (cell,) = StateEncoding().cells(config)
    work, folder = StateStages(cell), Folder()
    work._model = model
    work.erase(folder)
    work.beyond(folder)
    return folder.tables["erasure"], folder.tables["erasure_beyond"]


def readings(table, kind):
    return table[table["basis"] == kind].set_index("layer")["reading"].to_dict()


def test_the_hand_set_lstm_computes_parity_in_one_unit():
    model = planted(0)
    sample = task("parity").sample(50, 120, seed=1, split="test")
    from causegrid import capture

    unit = capture(model, sample.tokens, "L2.resid_post")["L2.resid_post"][:, :, 0].numpy()
    np.testing.assert_allclose(unit, UP * sample.labels["state"], atol=1e-5)
    np.testing.assert_array_equal(model(sample.tokens).argmax(-1).numpy(), sample.labels["state"])


@pytest.mark.parametrize(("seed", "width", "blocks"), [(0, 16, 3), (1, 32, 2), (2, 16, 4), (3, 48, 3)])
def test_a_state_in_one_direction_of_one_layer(seed, width, blocks):
    """Readable there and only there, erased to chance by that direction, candidate necessary."""
    last = blocks - 1
    table, longer = stages(planted(seed, width, blocks, (last,)), seed)
    for kind in ("probe", "inlp", "leace"):
        for found in (table, longer):
            read = readings(found, kind)
            assert read.pop(last) == "candidate necessary", kind
            assert set(read.values()) == {"not readable"}, kind
    there = table[table["layer"] == last]
    assert there["accuracy"].max() < 0.55 < 0.99 < there["clean"].min()
    assert there["probe"].min() == 1.0 and there["refit"].max() < 0.55


@pytest.mark.parametrize(("seed", "width"), [(0, 16), (1, 32)])
def test_a_state_that_nothing_reads_is_readable_not_used(seed, width):
    """The lower switch is an auxiliary head's: the last block computes the state again, from the tokens."""
    table, longer = stages(planted(seed, width, 3, (1, 2)), seed)
    for kind in ("probe", "inlp", "leace"):
        for found in (table, longer):
            assert [readings(found, kind)[layer] for layer in (0, 1, 2)] == [
                "not readable",
                "readable, not used",
                "candidate necessary",
            ], kind
    assert table.loc[table["layer"] == 1, "drop"].abs().max() == 0.0


@pytest.mark.parametrize(
    ("seed", "width", "quiet"), [(3, 16, 0.1), (4, 32, 0.1), (5, 16, 0.05), (6, 24, 0.08)]
)
def test_two_directions_of_very_different_noise(seed, width, quiet):
    """Void when the best direction is erased, candidate necessary when INLP has removed both."""
    model = known({0: quiet, 1: 1.0}, {0: 1.0, 1: 1.0}, width=width, seed=seed)
    table, longer = stages(model, seed, ("probe", "inlp"))
    for found in (table, longer):
        for layer in (1, 2):
            assert readings(found, "probe")[layer] == "test void"
            assert readings(found, "inlp")[layer] == "candidate necessary"
    both = table[(table["basis"] == "inlp") & (table["layer"] == 1)].iloc[0]
    assert both["removed"] and both["iterations"] >= 2 and both["accuracy"] < 0.55
    single = table[(table["basis"] == "probe") & (table["layer"] == 1)].iloc[0]
    assert single["refit_low"] > 0.7
