"""The study that trains the zoo, on a model of one layer and a few steps; the floor on models made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from causegrid.errors import InputError
from causegrid.models import model
from causegrid.models import zoo as classes
from causegrid.models.record import Model
from causegrid.runs import run
from causegrid.runs.config import load
from causegrid.runs.store import open_run
from causegrid.studies.tiny_zoo.rows import KINDS, OTHER, TrainingRows
from causegrid.studies.tiny_zoo.stages import capability
from causegrid.studies.zoo import TASKS
from causegrid.tasks import task
from causegrid.tasks.training_text import LINK, SHORT, vocabulary
from causegrid.zoo import capabilities, put_back

TOKENIZER = classes.tokenizer_of(vocabulary())
ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CAUSEGRID_CACHE", str(tmp_path / "cache"))
    sizes = dict(classes.SIZES, num_hidden_layers=1, hidden_size=16, num_attention_heads=2)
    monkeypatch.setattr(classes, "SIZES", sizes)
    return tmp_path


def study_of(folder: Path, **changes: Any) -> Any:
    data = {
        "study": "zoo",
        "grid": [{"models": ["zoo-olmo"], "seeds": [1], "checkpoints": [1, 3]}],
        "training": {"steps": 4, "batch": 2, "length": 24},
        "n_eval": 16,
        **changes,
    }
    file = folder / "zoo.yaml"
    file.write_text(yaml.safe_dump(data))
    return load(file)


def test_a_cell_trains_evaluates_and_keeps(small: Path) -> None:
    outcome = run(study_of(small), small / "out", engine="inline")
    assert outcome.n_done == 1 and not outcome.failures
    (cell,) = open_run(small / "out").cells()
    steps = cell.table("checkpoints")
    assert list(steps["step"]) == [1, 3] and list(steps["tokens_seen"]) == [48, 144]
    for folder in steps["folder"]:
        assert model(cell.path / folder).n_layers == 1
    table = cell.table("capability")
    whole = table[table["variant"] == "all"]
    assert list(whole["task"]) == list(TASKS) and set(whole["n"]) == {16}
    assert set(table[~table["passes"]]["state"]) <= {"not testable"}
    assert cell.facts["tokens_seen"] == 4 * 48
    named, saved = model("zoo-olmo:seed=1"), model(cell.path)
    assert torch.equal(named([[5, 6, 7]]), saved([[5, 6, 7]]))
    assert run(study_of(small), small / "out", engine="inline").n_cached == 1
    assert not put_back(small / "out")
    for file in (small / "cache" / "zoo" / "zoo-olmo-seed1").iterdir():
        file.unlink()
    assert put_back(small / "out") == ["zoo-olmo:seed=1"]
    assert model("zoo-olmo:seed=1").n_layers == 1
    assert set(capabilities(small / "out")["model"]) == {"zoo-olmo"}


def test_what_cannot_be_trained_is_refused_before_anything_runs(small: Path) -> None:
    for grid, message in (
        ([{"models": ["zoo-olm"]}], "did you mean"),
        ([{"models": ["zoo-olmo"], "checkpoints": [5]}], "step 5 of 4"),
        ([{"models": ["zoo-olmo"]}, {"models": ["zoo-olmo"], "seeds": [1]}], "twice"),
    ):
        with pytest.raises(InputError, match=message):
            run(study_of(small, grid=grid), small / "none", engine="inline")
    assert not (small / "none").exists()


def test_the_file_that_ships_is_the_example(small: Path) -> None:
    study, config = load(ROOT / "studies" / "zoo.yaml")
    assert study.example() == (ROOT / "studies" / "zoo.yaml").read_text(encoding="utf-8")
    cells = study.cells(config)
    assert sorted((c.model, c.seed) for c in cells) == [
        (m, s) for m in sorted(classes.CLASSES) for s in (0, 1)
    ]
    assert [len(c.checkpoints) for c in cells if (c.model, c.seed) == ("zoo-gpt-neox", 0)] == [8]


def test_rows_are_a_function_of_seed_and_step_and_weigh_what_follows() -> None:
    rows = TrainingRows(TOKENIZER, steps=100, batch=6, length=32, seed=0)
    ids, weights, kinds = rows(7)
    again = TrainingRows(TOKENIZER, steps=100, batch=6, length=32, seed=0)(7)
    assert all(np.array_equal(a, b) for a, b in zip((ids, weights, kinds), again, strict=True))
    assert not np.array_equal(ids, rows(8)[0])
    assert not np.array_equal(ids, TrainingRows(TOKENIZER, steps=100, batch=6, length=32, seed=1)(7)[0])
    assert ids.shape == weights.shape == kinds.shape == (6, 32)
    assert set(np.unique(weights)) == {0, np.float32(OTHER), 1}
    assert np.array_equal(weights == 0, ids == TOKENIZER.eos_token_id)
    assert np.array_equal(kinds >= 0, weights == 1)


def test_rows_hold_the_lines_in_order_and_mark_their_answers() -> None:
    rows = TrainingRows(TOKENIZER, steps=100, batch=6, length=32, seed=3)
    ids, _, kinds = rows(50)
    texts = rows.texts(50)
    found = [t for row in ids for t in TOKENIZER.decode(row).split("<line>")]
    shown = [t.strip() for t in found if t.strip()]
    for text, wanted in zip(shown, [t for t in texts if any(t.startswith(s) for s in shown)], strict=False):
        assert wanted.startswith(text)
    for row, kind in zip(ids, kinds, strict=True):
        for at in np.flatnonzero(kind == KINDS.index("binding")):
            before = TOKENIZER.decode(row[:at]).split("<line>")[-1]
            city = TOKENIZER.decode(row[at : at + 1])
            said = [
                before.removesuffix(link.rstrip()) for link in (LINK, " in") if before.endswith(link.rstrip())
            ]
            person = (said[0] if said else before).split()[-1]
            assert any(f"{person}{link}{city.strip()}." in before for link in (LINK, *SHORT)), before


class Oracle(torch.nn.Module):
    """Gives every prompt's answers logit 1 in a share of the prompts, its foils in the rest."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.anything = torch.nn.Parameter(torch.zeros(1))
        self.said: dict[tuple[int, ...], list[int]] = {}
        for name in TASKS:
            prompts = task(name).prompts(TOKENIZER, 20, seed=0)
            for i, (ids, answers, foils) in enumerate(
                zip(prompts.tokens, prompts.answers, prompts.foils, strict=True)
            ):
                knows = int((i + 1) * share) > int(i * share)
                self.said[tuple(ids)] = list(answers if knows else foils)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(*tokens.shape, len(TOKENIZER))
        for i, row in enumerate(tokens.tolist()):
            out[i, -1, self.said[tuple(row)]] = 1.0
        return out


def known(share: float) -> Model:
    sizes = dict(n_layers=1, d_model=1, n_tokens=len(TOKENIZER), n_out=len(TOKENIZER))
    return Model(name="oracle", family="oracle", module=Oracle(share), tokenizer=TOKENIZER, **sizes)


def test_the_floor_passes_a_model_that_knows_and_no_other() -> None:
    table = capability(known(1.0), n=20, seed=0)
    assert (
        table["passes"][table["n"] > 1].all()
        and (table["top1"] == 1).all()
        and (table["restricted"] == 1).all()
    )
    assert np.allclose(table["margin"], 1) and set(table["state"][table["passes"]]) == {"testable"}
    part = capability(known(0.7), n=20, seed=0)
    whole = part[part["variant"] == "all"]
    assert (whole["margin"] > 0).all() and not whole["passes"].any()
    assert set(whole["state"]) == {"not testable"}
    assert np.allclose(whole["restricted"], 0.7) and np.allclose(whole["margin"], 0.4)
    sums = part[part["variant"] != "all"].groupby("task")["n"].sum()
    assert dict(sums) == dict(zip(whole["task"], whole["n"], strict=True))
