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
    """Its config says so: nothing is run, nothing is written."""
    with pytest.raises(InputError, match=r"has no attention heads.*study: state-encoding.*convolution"):
        filled(tmp_path, grid=grid("ioi", mamba))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "word"), [(None, "holds no model"), ("{", "no usable config.json")])
def test_a_folder_without_a_model_is_refused_before_anything_runs(tmp_path, text, word):
    folder = tmp_path / "model"
    folder.mkdir()
    if text is not None:
        (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=word):
        filled(tmp_path, grid=grid("ioi", folder))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"n_prompts": 10**11}, "n_prompts.*100000"),
        ({"generic": {"n": 10**11, "length": 48}}, "generic.n.*100000"),
        ({"matched_null": {"n": 10**11}}, "matched_null.n.*100000"),
        ({"seeds": [2**32]}, "seeds.*4294967295"),
    ],
)
def test_sizes_that_can_only_be_slips_are_refused(small_lm, tmp_path, changes, word):
    with pytest.raises(InputError, match=word):
        filled(tmp_path, grid=grid("ioi", small_lm), **changes)
    assert not (tmp_path / "out").exists()


def test_a_screen_named_twice_is_refused(small_lm, tmp_path):
    with pytest.raises(InputError, match="name screen 'induction' twice"):
        filled(tmp_path, grid=grid("ioi", small_lm, groups=["induction", "previous-token", "induction"]))


def test_no_head_picked_says_which_screens_were_tried_and_which_positions_are_missing(small_lm, tmp_path):
    file, _ = prompts_file(tmp_path)
    why = refused(*filled(tmp_path, grid=grid(f"prompts:{file}", small_lm), rules="strict", modes=["mean"]))
    assert "none of the screens induction, previous-token" in why and "use rules: paper" in why
    assert "name the positions none, too few for" in why and "name-mover (IO, S1, S2)" in why
    (tmp_path / "again").mkdir()
    again = refused(*filled(tmp_path / "again", grid=grid(f"prompts:{file}", small_lm)))
    assert "use rules: paper" not in again and "verdict --groups" in again


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


def test_every_measure_of_heads_names_what_can_be_run_instead(mamba, tmp_path):
    """One sentence, whichever door is knocked at."""
    from causegrid import ablate_heads, screen, task, verbs
    from causegrid.signatures.generic import generic_classes
    from causegrid.signatures.spectrum import spectrum

    made, name, options = model(str(mamba)), str(mamba), {"n": 16, "bos": "none", "seed": 0}
    doors = [
        lambda: screen(made, task("ioi"), "name-mover"),
        lambda: screen(made, task("ioi"), "induction"),
        lambda: generic_classes(made, n=16),
        lambda: spectrum(made, task("ioi").prompts(made.tokenizer, 8)),
        lambda: ablate_heads(made, task("ioi"), {"g": ["L0H0"]}),
        lambda: verbs.screen("ioi", name, "name-mover", rules="strict", **options),
        lambda: verbs.ablate("ioi", name, "L0H0", mode="zero", **options),
        lambda: verbs.verdict("ioi", name, groups=None, n_null=9, mode=None, rules="strict", **options),
        lambda: filled(tmp_path, grid=grid("ioi", mamba)),
    ]
    said = set()
    for door in doors:
        with pytest.raises(InputError) as caught:
            door()
        said.add(str(caught.value))
    (only,) = said
    assert "no attention heads" in only and "instead: `study: state-encoding`" in only
    assert f"causegrid check {mamba}" in only


@pytest.mark.parametrize("name", ["mamba", "lstm", "mamba:conv=false"])
def test_prompt_verbs_ask_for_a_language_model_where_a_family_is_named(name):
    from causegrid import verbs

    options = {"n": 16, "bos": "none", "seed": 0}
    for verb in (
        lambda: verbs.screen("ioi", name, "name-mover", rules="strict", **options),
        lambda: verbs.ablate("ioi", name, "L0H0", mode="zero", **options),
        lambda: verbs.verdict("ioi", name, groups=None, n_null=9, mode=None, rules="strict", **options),
    ):
        with pytest.raises(InputError, match=r"prompts need a language model.*smollm2-135m"):
            verb()


@pytest.mark.parametrize(("n", "rules"), [(1, "strict"), (3, "strict"), (1, "paper")])
def test_prompts_without_a_second_half_are_explained_alike(small_lm, tmp_path, n, rules):
    """Each line of a variant of its own, or one line: there is nothing to measure on, or nothing for the mean."""
    from causegrid import verbs

    file = tmp_path / "variants.jsonl"
    line = '{{"prompt": "{0} lives in", "answer": "London", "foil": "Paris", "variant": "{0}"}}'
    file.write_text("\n".join(line.format(name) for name in ("Mary", "John", "Anna")[:n]))
    task = f"prompts:{file}"
    by_study = refused(*filled(tmp_path, grid=grid(task, small_lm), rules=rules, modes=["zero", "mean"]))
    with pytest.raises(InputError) as caught:
        verbs.verdict(
            task, str(small_lm), groups=None, n_null=9, mode=None, rules=rules, n=16, bos="none", seed=0
        )
    assert str(caught.value) == by_study
    if rules == "strict":
        many = "s" * (n > 1)
        assert f"no second half: {n} usable prompt{many}, and no template variant occurs twice" in by_study
    else:
        assert "no reference for mean ablation: 1 usable prompt, and at least 2" in by_study


def test_a_revision_in_a_name_is_told_where_to_go(tmp_path):
    study = tmp_path / "study.yaml"
    named = "EleutherAI/pythia-160m@step1000"
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid("ioi", named)}))
    for door in (lambda: run(study, tmp_path / "out"), lambda: model(named)):
        with pytest.raises(InputError) as caught:
            door()
        said = str(caught.value)
        assert "revision='step1000'" in said and "checkpoints: [{revision: step1000" in said
        assert "'EleutherAI/pythia-160m'" in said and "alphanumeric" not in said
    assert not (tmp_path / "out").exists()


def test_a_mistyped_folder_is_refused_in_the_plan(tmp_path, monkeypatch):
    """It has the shape of a hub id, and every cell of it would fail."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "pythia").mkdir(parents=True)
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid("ioi", "models/pythi")}))
    with pytest.raises(InputError, match="did you mean 'models/pythia'"):
        run(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()
