"""Participation ratio over checkpoints of a model trained here, against loops; the integral; resuming."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_cells import prompt_set, tiny_model

from causegrid.errors import InputError
from causegrid.models import model
from causegrid.signatures.spectrum import participation_ratio, pr_integrals, pr_over_checkpoints
from causegrid.studies.pattern.checkpoints import (
    Checkpoint,
    check_checkpoints,
    measured_checkpoints,
    save_checkpoints,
)

PROMPTS = prompt_set(12)
STEPS, TOKENS = (0, 2, 5, 9), 8 * 10  # tokens of one step


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """[(folder, tokens seen)] of a small GPT-NeoX saved on its way."""
    module = tiny_model("gpt_neox").module.train()
    step = torch.optim.AdamW(module.parameters(), lr=1e-2)
    ids = torch.randint(3, 97, (8, 10), generator=torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("checkpoints")
    saved = []
    for at in range(max(STEPS) + 1):
        if at in STEPS:
            module.save_pretrained(folder / f"step{at}")
            saved.append((str(folder / f"step{at}"), at * TOKENS))
        step.zero_grad()
        module(input_ids=ids, labels=ids).loss.backward()
        step.step()
    return saved


def query_outputs(made, layer, head):
    """(n, d_h): the head's slice of the output projection's input at each prompt's last position."""
    rows = []
    dense = made.module.get_submodule(f"gpt_neox.layers.{layer}.attention.dense")
    handle = dense.register_forward_pre_hook(
        lambda _m, args: rows.append(args[0][0, -1, 8 * head : 8 * head + 8])
    )
    for tokens in PROMPTS.tokens:
        with torch.no_grad():
            made.module(input_ids=torch.as_tensor(tokens)[None], use_cache=False)
    handle.remove()
    return torch.stack(rows).double().numpy()


def test_every_checkpoint_and_its_integral(trained):
    table = pr_over_checkpoints(
        ((folder, seen, model(folder)) for folder, seen in trained), PROMPTS, n_subsamples=6, seed=3
    )
    assert len(table) == 4 * 2 * 4
    rng = np.random.default_rng(3)
    halves = [np.sort(rng.permutation(12)[:6]) for _ in range(6)]
    integrals = pr_integrals(table).set_index(["layer", "head"])
    moved = 0.0
    for layer, head in ((0, 1), (1, 3)):
        ratios, sub = [], []
        for folder, seen in trained:
            z = query_outputs(model(folder), layer, head)
            s2 = np.linalg.svd(z, compute_uv=False) ** 2
            p = s2 / s2.sum()
            ratios.append(math.exp(-sum(x * math.log(x) for x in p if x > 0)))
            sub.append([participation_ratio(z[h]) for h in halves])
            row = table[
                (table["revision"] == folder) & (table["layer"] == layer) & (table["head"] == head)
            ].iloc[0]
            assert row["tokens"] == seen and row["pr"] == pytest.approx(ratios[-1], rel=1e-4)
            np.testing.assert_allclose(row["halves"], sub[-1], rtol=1e-4)
            assert row["low"] <= row["pr"] + 1e-9 and row["high"] >= row["pr"] - 1e-9

        def area(values):  # step 0 left out
            total = 0.0
            for i in (1, 2):
                width = math.log(trained[i + 1][1]) - math.log(trained[i][1])
                total += width * (max(values[i] - 1, 0) + max(values[i + 1] - 1, 0)) / 2
            return total

        row = integrals.loc[(layer, head)]
        assert row["integral"] == pytest.approx(area(ratios), rel=1e-4)
        each = [area([s[k] for s in sub]) for k in range(6)]
        low, high = np.quantile(np.array(each) - np.mean(each), [0.025, 0.975])
        assert (row["low"], row["high"]) == pytest.approx(
            (row["integral"] + low, row["integral"] + high), rel=1e-3
        )
        assert row["mean"] == pytest.approx(np.mean(sub[-1]), rel=1e-4)
        assert row["spread"] == pytest.approx(np.std(sub[-1], ddof=1), rel=1e-3)
        assert row["n_checkpoints"] == 3
        moved += abs(ratios[-1] - ratios[0])
    assert moved > 0.01  # training did something


def test_one_checkpoint_has_a_mean_and_a_spread_and_no_integral():
    made = tiny_model("gpt_neox")
    table = pr_integrals(pr_over_checkpoints([("here", 5e9, made)], PROMPTS))
    assert table[["integral", "low", "high"]].isna().all().all()
    assert (table["spread"] > 0).all() and (table["mean"] >= 1).all() and (table["n_checkpoints"] == 1).all()
    with pytest.raises(InputError, match=r"ascending.*'b' with 1e"):
        pr_over_checkpoints([("a", 2e9, made), ("b", 1e9, made)], PROMPTS)
    with pytest.raises(InputError, match="different numbers of heads"):
        pr_over_checkpoints(
            [("a", 1, made), ("b", 2, tiny_model("gpt_neox", num_attention_heads=2))], PROMPTS
        )
    with pytest.raises(InputError, match="no checkpoints"):
        pr_over_checkpoints([], PROMPTS)


def test_a_killed_stage_goes_on_at_the_checkpoint_it_had_reached(tmp_path):
    given = [Checkpoint(revision=f"step{i}", tokens=i) for i in (1, 2, 3)]
    calls = []

    def measure(one):
        calls.append(one.name)
        if calls == ["step1", "step2"]:
            raise KeyboardInterrupt
        return pd.DataFrame({"revision": [one.name], "halves": [[1.0, 2.0]]})

    with pytest.raises(KeyboardInterrupt):
        measured_checkpoints(given, measure, tmp_path / "kept")
    tables = measured_checkpoints(given, measure, tmp_path / "kept")
    assert calls == ["step1", "step2", "step2", "step3"]
    assert [t["revision"].iloc[0] for t in tables] == ["step1", "step2", "step3"]
    assert sorted(f.name for f in (tmp_path / "kept").iterdir()) == [f"000{i}.parquet" for i in range(3)]


def test_a_half_written_checkpoint_is_measured_again(tmp_path):
    class Torn:
        def to_parquet(self, file):
            file.write_bytes(b"PAR1 and then")
            raise KeyboardInterrupt

    given = [Checkpoint(revision="step1", tokens=1)]
    with pytest.raises(KeyboardInterrupt):
        measured_checkpoints(given, lambda one: Torn(), tmp_path)
    (table,) = measured_checkpoints(given, lambda one: pd.DataFrame({"revision": [one.name]}), tmp_path)
    assert table["revision"].tolist() == ["step1"]


def test_two_checkpoints_at_the_same_place_of_training_are_refused():
    given = [Checkpoint(revision=name, tokens=5) for name in ("a", "b")]
    with pytest.raises(InputError, match="ascending order of tokens seen: 'b' with 5 follows 'a' with 5"):
        check_checkpoints("org/name", given)


def test_mistakes_are_named_before_anything_runs(trained, tmp_path):
    folder = trained[0][0]
    with pytest.raises(InputError, match="ascending"):
        check_checkpoints(
            "org/name", [Checkpoint(revision="b", tokens=2), Checkpoint(revision="a", tokens=1)]
        )
    with pytest.raises(InputError, match="holds no model"):
        check_checkpoints("org/name", [Checkpoint(folder=str(tmp_path), tokens=2)])
    for name in (folder, "smollm2-135m"):
        with pytest.raises(InputError, match=r"no Hugging Face id.*'step1'"):
            check_checkpoints(name, [Checkpoint(revision="step1", tokens=2)])
    check_checkpoints(folder, [Checkpoint(folder=folder, tokens=2)])
    for wrong in (
        {"tokens": 1},
        {"tokens": 1, "revision": "a", "folder": "b"},
        {"tokens": -1, "revision": "a"},
    ):
        with pytest.raises(ValueError):
            Checkpoint(**wrong)


def test_a_revision_that_is_not_there_is_one_line_that_names_it(trained):
    for name in (trained[0][0], "smollm2-135m"):
        with pytest.raises(InputError, match="'step7'"):
            model(name, revision="step7")
    with pytest.raises(InputError, match="'nobody/nothing' at revision 'step7'") as caught:
        model("nobody/nothing", revision="step7")
    assert "\n" not in str(caught.value) and "cannot be reached" in str(caught.value)


def test_the_hubs_answer_about_a_revision_is_passed_on():
    from causegrid.models.hub import unreachable

    class RevisionNotFoundError(Exception):
        pass

    error = OSError("a long text")
    error.__cause__ = RevisionNotFoundError()
    assert str(unreachable("org/name", error, "step7")).startswith(
        "cannot load model 'org/name' at revision 'step7': it has no such revision"
    )


class Cell:
    """What the stage `checkpoints` needs of a cell and its folder, in memory."""

    def __init__(self, folder, checkpoints):
        self.cell = SimpleNamespace(
            model="org/name", dtype="bfloat16", checkpoints=checkpoints, n_subsamples=4, seed=7
        )
        self.model = tiny_model("gpt_neox")
        self.parts = SimpleNamespace(chosen=PROMPTS, measured=prompt_set(9, seed=5))
        self.folder, self.tables, self.released = folder, {}, 0
        self.told = []

    def release(self):
        self.released += 1

    def scratch(self, name):
        return self.folder / name

    def save_table(self, name, table):
        self.tables[name] = table

    def progress(self, done, total, what):
        self.told.append((done, total))


def test_a_stage_measures_each_checkpoint_on_the_prompts_that_chose(tmp_path, monkeypatch):
    asked = []

    def placed(name, *, dtype, revision):
        asked.append((name, dtype, revision))
        return tiny_model("gpt_neox", seed=len(asked))

    monkeypatch.setattr("causegrid.studies.placement.placed", placed)
    given = [Checkpoint(revision="step1", tokens=10), Checkpoint(folder="dir", tokens=30)]
    cell = Cell(tmp_path, given)
    save_checkpoints(cell, cell)
    assert asked == [("org/name", "bfloat16", "step1"), ("dir", "bfloat16", None)]
    made = [(c.name, c.tokens, tiny_model("gpt_neox", seed=i + 1)) for i, c in enumerate(given)]
    want = pr_over_checkpoints(made, PROMPTS, n_subsamples=4, seed=7)
    found = cell.tables["checkpoints"]
    for column in ("revision", "tokens", "layer", "head", "pr", "low", "high"):
        assert found[column].tolist() == pytest.approx(want[column].tolist()) if column in (
            "pr", "low", "high"
        ) else found[column].tolist() == want[column].tolist()  # fmt: skip
    assert set(cell.tables) == {"checkpoints", "pr_integral"} and len(cell.tables["pr_integral"]) == 2 * 4
    assert cell.told == [(1, 2), (2, 2)] and cell.released == 1


@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 3}, {"num_attention_heads": 2}, {"vocab_size": 101}]
)
def test_a_checkpoint_of_another_size_is_refused(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(
        "causegrid.studies.placement.placed", lambda *_, **__: tiny_model("gpt_neox", **changes)
    )
    cell = Cell(tmp_path, [Checkpoint(revision="step1", tokens=10)])
    with pytest.raises(
        InputError, match=r"'step1' has . layers of . heads and \d+ tokens, 'org/name' has 2 of 4"
    ):
        save_checkpoints(cell, cell)
