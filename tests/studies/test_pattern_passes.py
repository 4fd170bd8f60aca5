"""What `plan` says a cell will run and hold, against cells that run: rows counted at the embedding, measured peaks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import yaml
from transformers import AutoTokenizer

import tiny
from causegrid.runs import run
from causegrid.runs.store import open_run
from causegrid.signatures.screens.base import screens
from causegrid.studies.pattern import stages
from causegrid.studies.pattern.footprint import footprint
from causegrid.studies.pattern.passes import sizes
from causegrid.studies.pattern_selectivity import PatternSelectivity, PatternSelectivityConfig
from causegrid.tasks.words import NAMES as PEOPLE
from peaks import peak_of

STUDY = PatternSelectivity()
NAMES = ("induction", "previous-token")
CONFIG = {
    "study": "pattern-selectivity",
    "n_prompts": 32,
    "generic": {"n": 32, "length": 48},
    "matched_null": {"n": 9, "per_group": 2, "n_prompts": 8, "early_stop": False},
    "n_subsamples": 2,
}
OF = {  # the parts of the plan that a stage runs
    "prompts": ["clean"],
    "signatures": ["signatures"],
    "effects": ["groups", "single heads", "ordinary text"],
    "null": ["null draws"],
    "routing": ["routing", "experts"],
    "verdicts": [],
    "checkpoints": ["checkpoints"],
}


@pytest.fixture(scope="module")
def mixture(small_lm, tmp_path_factory):
    tokenizer = AutoTokenizer.from_pretrained(small_lm)
    folder = tmp_path_factory.mktemp("olmoe")
    size = {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 64}
    tiny.hf("olmoe", vocab_size=len(tokenizer), **size).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def counted(monkeypatch):
    """Stage -> rows through the embedding, of cells whose screens pick heads and which pass the floor."""
    rows, at = Counter(), [""]
    loads = stages.placed

    def placed(*args, **kwargs):
        made = loads(*args, **kwargs)
        embed = made.module.get_input_embeddings()
        embed.register_forward_hook(lambda _m, args, _o: rows.update({at[0]: args[0].shape[0]}))
        return made

    monkeypatch.setattr(stages, "placed", placed)
    monkeypatch.setattr("causegrid.studies.placement.placed", placed)  # of checkpoints
    monkeypatch.setattr(stages, "task_floor", lambda *_, **__: "")
    for name in OF:
        monkeypatch.setattr(stages.PatternStages, name, during(at, name, getattr(stages.PatternStages, name)))
    for k, name in enumerate(NAMES):
        wide = replace(screens.get(name), threshold=1.03 + 0.02 * k, must_be_best=True)
        monkeypatch.setitem(screens._things, name, wide)
    return rows


def during(at, name, own):
    def one(work, context):
        at[0] = name
        own(work, context)

    return one


def ran(folder, **changes):
    """The cell that was filled, as its study plans it."""
    config = CONFIG | changes
    (folder / "study.yaml").write_text(yaml.safe_dump(config))
    outcome = run(folder / "study.yaml", folder / "out", engine="inline")
    assert outcome.failures == () and outcome.problems == ()
    filled = open_run(folder / "out").cells()[0]
    assert filled.table("null_notes")["n_null"].gt(0).all()
    (cell,) = STUDY.cells(PatternSelectivityConfig.model_validate(config))
    return cell, filled


@pytest.mark.parametrize("rules", ["strict", "paper"])
@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_no_stage_runs_more_than_was_planned(small_lm, mixture, counted, tmp_path, kind, rules):
    folder = str(small_lm if kind == "dense" else mixture)
    block = {"tasks": ["ioi"], "models": [folder], "groups": list(NAMES)}
    if kind == "mixture":
        block["checkpoints"] = [{"folder": folder, "tokens": 1}, {"folder": folder, "tokens": 2}]
    cell, _ = ran(tmp_path, grid=[block], rules=rules, experts=3)
    planned = footprint(cell).passes
    assert set(planned) == {part for name in set(counted) | {"null"} for part in OF[name]}
    for name, parts in OF.items():
        assert counted[name] <= sum(planned.get(part, 0) for part in parts), name
    assert sum(counted.values()) <= footprint(cell).n_passes <= 3 * sum(counted.values())


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_memory_is_that_of_a_measured_peak(small_lm, mixture, counted, tmp_path, kind):
    """The largest of the stages' peaks, the weights in it: a half to all of what is said."""
    block = {
        "tasks": ["ioi"],
        "models": [str(small_lm if kind == "dense" else mixture)],
        "groups": list(NAMES),
    }
    cells = []
    peak = peak_of(lambda: cells.append(ran(tmp_path, grid=[block], experts=3)[0]))
    assert 1 / 3 < footprint(cells[0]).memory / peak < 3, (footprint(cells[0]), peak)


def planned(name, **changes):
    config = CONFIG | {"grid": [{"tasks": [name], "models": ["nobody/nothing"]}]} | changes
    return STUDY.cells(PatternSelectivityConfig.model_validate(config))[0]


def test_a_task_of_few_prompts_is_planned_with_those_there_are():
    """Successor has 138 runs of five items: asked for 512, a half is 69 or so, one or two fewer in odd kinds."""
    found = sizes(planned("successor", n_prompts=512))
    assert (found.chosen, found.measured, set(found.lengths)) == (70, 68, {5})
    assert found.batches == [(64, 5), (4, 5)]
    assert sizes(planned("variable-binding", n_prompts=100)).batches == [(50, 13)]
    paper = sizes(planned("ioi", n_prompts=40, rules="paper", modes=["zero", "mean"]))
    assert (paper.chosen, paper.measured, paper.reference) == (40, 40, 40)
    assert sizes(planned("ioi", n_prompts=40, rules="paper", modes=["zero"])).reference == 0


def test_own_prompts_may_each_have_another_length(tmp_path):
    lines = [{"prompt": f"{name} lives in", "answer": "London", "foil": "Paris"} for name in PEOPLE[:20]]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert sizes(planned(f"prompts:{file}")).batches == [(1, 3)] * 10
    lines[0]["answer"] = "New York"  # two words, one token of some tokenizer
    file.write_text("\n".join(map(json.dumps, lines)))
    found = sizes(planned(f"prompts:{file}"))
    assert (found.chosen, found.measured, found.alike) == (16, 16, False)  # 32 asked


def test_configs_of_the_hub_are_fetched_where_it_answers_and_only_asked_once(monkeypatch):
    from causegrid.models import hub, outline

    asked, shapes = [], tiny.hf("olmoe")

    def answer(name, *, fetch=False):
        asked.append((name, fetch))
        return shapes if fetch else None

    monkeypatch.setattr(outline, "outline", answer)
    for answers, size in ((False, "memory not known"), (True, "parameters in about")):
        outline.outlined.cache_clear()
        monkeypatch.setattr(hub, "reachable", lambda answers=answers: answers)
        cell = planned("ioi")
        assert size in STUDY.cost(cell) and size in STUDY.cost(cell)
        assert ("experts" in footprint(cell).passes) == answers
    assert asked == [("nobody/nothing", f) for f in (False, False, True)]
    outline.outlined.cache_clear()


def test_an_unreachable_hub_is_asked_for_a_moment_once(monkeypatch):
    """Without a network huggingface_hub would try again for 20 s, for each model."""
    import huggingface_hub

    from causegrid.models import hub

    asked = []

    class Session:
        def head(self, url, timeout):
            asked.append(timeout)
            raise OSError("no network")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    hub.reachable.cache_clear()
    try:
        assert not hub.reachable() and not hub.reachable()
    finally:
        hub.reachable.cache_clear()
    assert asked == [hub.MOMENT] and hub.MOMENT <= 3
