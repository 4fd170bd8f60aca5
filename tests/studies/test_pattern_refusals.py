"""Bad input: each has its own answer, and none yields a verdict by accident."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import tiny
from causegrid import model
from causegrid.errors import InputError
from causegrid.interventions import read_groups
from causegrid.runs import run
from causegrid.runs.store import open_run
from causegrid.signatures.screens.base import screens

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))

CONFIG = {
    "study": "pattern-selectivity",
    "n_prompts": 24,
    "rules": "paper",
    "modes": ["zero"],
    "generic": {"n": 16, "length": 48},
    "matched_null": {"n": 9, "per_group": 5, "n_prompts": 8, "early_stop": False},
    "n_subsamples": 2,
    "singles": "groups",
}


@pytest.fixture
def loose(monkeypatch):
    """Screens so wide that a random model's heads pass."""
    for name in ("induction", "previous-token"):
        wide = replace(screens.get(name), threshold=1.02, must_be_best=True)
        monkeypatch.setitem(screens._things, name, wide)


def filled(tmp_path, **changes):
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, **changes}))
    outcome = run(study, tmp_path / "out", engine="inline")
    return outcome, open_run(tmp_path / "out").cells()[0]


def refused(outcome, cell):
    """The reason of a cell that failed, without a verdict."""
    assert outcome.n_failed == 1 and cell.status == "failed" and cell.table("verdicts") is None
    return outcome.failures[0][1]


def grid(task, model, **block):
    return [{"tasks": [task], "models": [str(model)], **block}]


@pytest.fixture(scope="module")
def mamba(small_lm, tmp_path_factory):
    """A random Mamba with the small model's tokenizer."""
    folder = tmp_path_factory.mktemp("mamba")
    for file in small_lm.glob("*token*"):
        shutil.copy(file, folder)
    n = len(model(str(small_lm)).tokenizer)
    tiny.hf("mamba", vocab_size=n).save_pretrained(folder)
    return folder


def test_a_model_without_attention(mamba, tmp_path):
    why = refused(*filled(tmp_path, grid=grid("ioi", mamba)))
    assert "has no attention heads" in why and "study: state-encoding" in why and "convolution" in why


def test_a_tokenizer_without_the_words(small_lm, tmp_path):
    """It knows the words of IOI and binding, no number and no day."""
    why = refused(*filled(tmp_path, grid=grid("successor", small_lm)))
    assert "runs of six items that are single tokens" in why and "tokenizer" in why


def test_too_few_heads_to_draw_from(small_lm, tmp_path, loose):
    """Two heads a layer: a group that holds one has one other to draw, too few for any p; one that holds both none."""
    folder = tmp_path / "narrow"
    folder.mkdir()
    for file in small_lm.glob("*token*"):
        shutil.copy(file, folder)
    n = len(model(str(small_lm)).tokenizer)
    tiny.hf("gpt_neox", vocab_size=n, num_attention_heads=2).save_pretrained(folder)
    outcome, cell = filled(tmp_path, grid=grid("ioi", folder, groups=["induction", "previous-token"]))
    if outcome.n_failed:
        pytest.fail(outcome.failures[0][1])
    verdicts = cell.table("verdicts")
    strict = verdicts[(verdicts["role"] == "group") & (verdicts["rules"] == "strict")]
    assert len(strict)
    assert set(strict["verdict"]) <= {"not testable", "not testable (draws)"}
    none = verdicts[(verdicts["role"] == "group") & (verdicts["n_null"] == 0)]
    assert set(none["verdict"]) <= {"not testable", "not testable (draws)"}


def prompts_file(tmp_path):
    from causegrid.tasks.words import NAMES

    lines = []
    for i in range(20):
        name, other = NAMES[i], NAMES[i + 1]
        text = f"Then {' and '.join([name] * (1 + i % 3))} went to the store , {other} gave a to"
        lines.append(json.dumps({"prompt": text, "answer": name, "foil": other}))
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(lines))
    return file, len(lines)


def test_prompts_of_unequal_length_are_measured_without_padding(small_lm, tmp_path, loose):
    file, n = prompts_file(tmp_path)
    changes = {
        "modes": ["zero", "mean"],
        "grid": grid(f"prompts:{file}", small_lm, groups=["induction", "previous-token"]),
    }
    outcome, cell = filled(tmp_path, **changes)
    assert outcome.failures == ()
    prompts = cell.table("prompts")
    assert prompts["n_tokens"].nunique() > 1 and len(prompts) == n
    effects = cell.table("effects")
    measured = prompts[prompts["half"] == "measured on"].reset_index(drop=True)
    loaded = model(str(small_lm))
    import torch

    row = effects[(effects["metric"] == "answer_prob") & (effects["mode"] == "zero")].iloc[0]
    for i in (0, len(measured) - 1):
        ids = loaded.tokenizer(measured["text"][i], add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            last = loaded.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        answer = loaded.tokenizer.convert_tokens_to_ids(measured["answer"][i].strip())
        assert list(row["clean"])[i] == pytest.approx(float(last.softmax(-1)[answer]), abs=1e-5)


def test_groups_of_another_model(small_lm):
    given = {"_model": "EleutherAI/pythia-1b", "mine": ["L0H1"]}
    with pytest.raises(InputError, match="belong to model 'EleutherAI/pythia-1b'"):
        read_groups(given, model(str(small_lm)))
    with pytest.raises(InputError, match="no head L9H1"):
        read_groups({"mine": ["L9H1"]}, model(str(small_lm)))


@pytest.mark.parametrize(
    ("unions", "part"),
    [([["induction", "inducton"]], "not among the groups"), ([["induction"]], "two screens or more")],
)
def test_a_union_is_checked_before_anything_runs(small_lm, tmp_path, unions, part):
    study = tmp_path / "study.yaml"
    block = grid("ioi", small_lm, groups=["induction", "previous-token"], unions=unions)
    study.write_text(yaml.safe_dump({**CONFIG, "grid": block}))
    with pytest.raises(InputError, match=part):
        run(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()
