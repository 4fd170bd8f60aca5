"""The verb `causegrid verdict` beside a cell of the study: the same prompts, draws, verdicts and guards."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from causegrid import model, task, verbs
from causegrid.errors import InputError
from causegrid.runs import run
from causegrid.runs.store import open_run
from causegrid.signatures.screens.base import screens

N = 140
NAMES = ("induction", "previous-token", "duplicate-token")


@pytest.fixture(scope="module")
def doable(small_lm, tmp_path_factory):
    """Prompts whose answer is what the random model says and whose foil is far from it: it does this task."""
    lm = model(str(small_lm))
    drawn = task("ioi").prompts(lm.tokenizer, 160, seed=0)
    lines = []
    for text, ids in zip(drawn.texts, drawn.tokens, strict=True):
        with torch.no_grad():
            last = lm.module(input_ids=torch.tensor(np.asarray(ids)[None])).logits[0, -1]
        order = [int(i) for i in last.argsort(descending=True) if lm.tokenizer.decode([int(i)]).isalpha()]
        answer, foil = (lm.tokenizer.decode([order[at]]) for at in (0, len(order) // 2))
        lines.append(json.dumps({"prompt": text, "answer": answer, "foil": foil}))
    file = tmp_path_factory.mktemp("doable") / "doable.jsonl"
    file.write_text("\n".join(lines))
    return f"prompts:{file}"


@pytest.fixture
def loose(monkeypatch):
    """Screens so wide that a random model's heads pass, on a synthetic batch that takes no time."""
    for k, name in enumerate(NAMES):
        wide = replace(screens.get(name), threshold=1.03 + 0.01 * k, must_be_best=True)
        monkeypatch.setitem(screens._things, name, wide)
    monkeypatch.setattr(verbs, "SEQUENCES", 32)
    monkeypatch.setattr(verbs, "LENGTH", 48)


def by_verb(name, lm, rules, groups=None, **changes):
    options = {"n_null": 99, "mode": None, "n": N, "bos": "none", "seed": 3} | changes
    return verbs.verdict(name, str(lm), groups=groups, rules=rules, **options)


def by_study(name, lm, rules, folder):
    study = folder / "study.yaml"
    config = {"study": "pattern-selectivity", "grid": [{"tasks": [name], "models": [str(lm)]}], "seeds": [3]}
    config |= {"n_prompts": N, "rules": rules, "generic": {"n": 32, "length": 48}, "n_subsamples": 2}
    study.write_text(yaml.safe_dump(config | {"singles": "groups"}))
    outcome = run(study, folder / "out", engine="inline")
    assert outcome.failures == () and outcome.problems == ()
    return open_run(folder / "out").cells()[0]


def assert_same(mine: pd.DataFrame, theirs: pd.DataFrame) -> None:
    assert set(mine) == {*theirs, "null_note"}
    for column in theirs:
        own, wanted = mine[column].tolist(), theirs[column].tolist()
        if mine[column].dtype.kind == "f":
            assert own == pytest.approx(wanted, rel=1e-4, abs=1e-6, nan_ok=True), column
        else:
            assert [list(x) if isinstance(x, list | np.ndarray) else x for x in own] == [
                list(x) if isinstance(x, list | np.ndarray) else x for x in wanted
            ], column


@pytest.mark.parametrize("rules", ["strict", "paper"])
@pytest.mark.parametrize("does", [True, False], ids=["does the task", "fails the floor"])
def test_verb_and_study_give_the_same_table(small_lm, doable, loose, tmp_path, rules, does):
    name = doable if does else "ioi"
    cell = by_study(name, small_lm, rules, tmp_path)
    table = cell.table("verdicts")
    theirs = table[table["leads"].astype(bool) & (table["role"] == "group")].reset_index(drop=True)
    said: list[str] = []
    mine = by_verb(name, small_lm, rules, tell=said.append)
    assert_same(mine, theirs)
    assert mine["group"].nunique() > 1 and set(mine["rules"]) == {rules}
    assert (mine.loc[mine["kind"] == "competing", "n_null"] > 0).all() == does
    assert mine.loc[mine["n_null"] > 0, "null_prompts"].eq(64).all()
    measured = cell.facts["n_measured_on"]
    assert set(mine["n"]) == {measured} and f"measured on {measured}" in said[0]
    if rules == "paper":  # all that choose measure, as published
        assert measured == cell.facts["n_chosen_on"] > N // 2
    else:
        assert measured == N // 2
    if not does:  # under the published rules too: they would rank groups of a model that cannot do the task
        assert set(mine["verdict"]) == set(mine["combined"]) == set(mine["other"]) == {"not testable"}
        assert mine["null_note"].str.contains("does not do the task").all()


@pytest.mark.parametrize("rules", ["strict", "paper"])
def test_a_group_without_draws_has_no_verdict(small_lm, doable, tmp_path, rules):
    """5 of 8 heads of a layer: no other 5 exist.  The published rules alone would rule on it without a null."""
    file = tmp_path / "groups.json"
    heads = {"wide": [f"L1H{h}" for h in range(5)], "two": ["L2H1", "L2H3"]}
    file.write_text(json.dumps({name: {"heads": h} for name, h in heads.items()}))
    found = by_verb(doable, small_lm, rules, file, n=40).set_index(["group", "metric"])
    wide, two = found.loc["wide"], found.loc["two"]
    assert set(wide["verdict"]) == set(wide["combined"]) == {"not testable (draws)"}
    assert wide["null_note"].str.contains("only 3 are left to draw from").all()
    assert wide["n_null"].eq(0).all() and two["n_null"].gt(0).all()
    assert wide["reason"].str.contains("layer 1").all() and not wide["reason"].str.contains("nan").any()


@pytest.mark.parametrize(("rules", "part"), [("strict", "no second half"), ("paper", "no reference")])
def test_a_single_prompt_is_refused(small_lm, tmp_path, rules, part):
    file = tmp_path / "one.jsonl"
    line = {"prompt": "Then Mary went to the store , John gave a to", "answer": "Mary", "foil": "John"}
    file.write_text(json.dumps(line))
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"a": ["L1H0", "L2H0"]}))
    with pytest.raises(InputError, match=part):
        by_verb(f"prompts:{file}", small_lm, rules, groups)


@pytest.mark.parametrize(
    ("target", "word"), [("nowhere", "unknown target position 'nowhere'"), ("", "target position")]
)
def test_a_target_the_task_does_not_have_is_refused_before_anything_is_ablated(
    small_lm, doable, tmp_path, monkeypatch, target, word
):
    def never(*_, **__):
        raise AssertionError("ablated before the groups were checked")

    monkeypatch.setattr(verbs.Ablator, "table", never)
    file = tmp_path / "groups.json"
    file.write_text(json.dumps({"mine": {"heads": ["L0H1", "L1H2"], "target": target}}))
    with pytest.raises(InputError, match=word):
        by_verb(doable, small_lm, "strict", groups=file)
