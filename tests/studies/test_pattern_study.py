"""The pattern-selectivity study end to end on a small random model, and its parts on tables made by hand."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import yaml

from causegrid.errors import InputError
from causegrid.runs import run, summaries
from causegrid.runs.store import open_run
from causegrid.studies.base import studies
from causegrid.studies.pattern.head_groups import default_names, disjoint
from causegrid.studies.pattern.ruled import foreign_text
from causegrid.studies.pattern.stages import competing, subset
from causegrid.studies.pattern.summary import summaries as pattern_summaries

CONFIG = {
    "study": "pattern-selectivity",
    "grid": [{"tasks": ["ioi", "variable-binding"], "groups": ["induction", "previous-token"]}],
    "n_prompts": 32,
    "rules": "paper",
    "generic": {"n": 32, "length": 48},
    "matched_null": {"n": 12, "per_group": 5, "n_prompts": 8, "early_stop": False},
    "n_subsamples": 4,
}


def table_of_screens(**chosen: list[str]) -> pd.DataFrame:
    rows = []
    for name, heads in chosen.items():
        for rank, head in enumerate(heads, 1):
            layer, index = head[1:].split("H")
            rows.append(
                {"screen": name, "layer": int(layer), "head": int(index), "selected": True, "rank": rank}
            )
    return pd.DataFrame(rows)


def test_a_head_of_two_screens_stays_with_the_first():
    table = table_of_screens(movers=["L2H1", "L1H0"], previous=["L1H0", "L0H3"])
    first, second, third = disjoint(table, ["movers", "previous", "nothing"])
    assert first.heads == ("L2H1", "L1H0")
    assert second.heads == ("L0H3",)
    assert second.note == "L1H0 counts in movers"
    assert third.heads == ()
    assert "no head" in third.note


def test_groups_without_heads_do_not_compete():
    table = pd.DataFrame({"group": ["a", "b"], "heads": [["L0H1"], []]})
    assert competing(table) == {"a": ["L0H1"]}


def test_the_null_subset_is_seeded_and_sorted():
    assert subset(10, 20, 0) == list(range(10))
    pick = subset(100, 24, 1)
    assert pick == sorted(set(pick)) == subset(100, 24, 1)
    assert len(pick) == 24
    assert pick != subset(100, 24, 2)


def test_default_groups_fit_the_task():
    assert default_names(["IO", "S1", "S2"])[:2] == ["name-mover", "s-inhibition"]
    assert "binding" in default_names(["binding", "distractor", "query_name"])


@pytest.fixture(scope="module")
def finished(small_lm, tmp_path_factory):
    """A finished run; thresholds lowered so that a random model's screens pick heads at all."""
    from dataclasses import replace

    from causegrid.signatures.screens.base import screens

    kept = {name: screens.get(name) for name in ("induction", "previous-token")}
    for k, name in enumerate(kept):
        screens._things[name] = replace(kept[name], threshold=1.05 + 0.01 * k, must_be_best=True)
    folder = tmp_path_factory.mktemp("pattern")
    study = folder / "study.yaml"
    grid = [{**CONFIG["grid"][0], "models": [str(small_lm)]}]
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid}))
    try:
        outcome = run(study, folder / "out", engine="inline")
    finally:
        screens._things.update(kept)
    assert outcome.failures == ()
    assert outcome.problems == ()
    return open_run(folder / "out")


def test_every_table_is_there(finished):
    for cell in finished.cells():
        assert cell.status == "done"
        assert set(cell.tables()) == {
            "prompts", "dropped", "noise_floor", "spectrum", "classes", "screens", "groups", "picked_again", "effects",
            "singles", "by_variant", "text", "nulls", "null_notes", "bos", "bos_groups", "verdicts",
        }  # fmt: skip


def test_summaries_hold_every_competing_group_under_the_leading_rules(finished):
    found = summaries(finished.folder)
    assert set(found) == {"tasks", "verdicts"} and len(found["tasks"]) == len(finished.cells())
    told = iter(found["verdicts"].to_dict("records"))
    for cell in finished.cells():
        table = cell.table("verdicts").query("leads and kind == 'competing' and metric == 'logit_diff'")
        for row in table.to_dict("records"):
            said = next(told)
            assert said["task"] == cell.config["task"] and said["group"] == row["group"]
            assert said["verdict"] == row["combined"]
            assert said["margin effect"] == f"{row['effect']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
            assert said["heads"] == len(row["heads"]) and said["other rules"] == row["other"]
            assert (said["null"] == "–") == (not row["n_null"] > 0)
    assert next(told, None) is None


def test_summaries_give_the_untouched_model_an_interval_over_the_prompts_measured_on(finished):
    for cell, said in zip(
        finished.cells(), summaries(finished.folder)["tasks"].to_dict("records"), strict=True
    ):
        prompts = cell.table("prompts").query("half == 'measured on'")
        mean, low, high = (float(x) for x in re.findall(r"-?\d+\.\d+", said["margin, logits"]))
        error = prompts["logit_diff"].std(ddof=1) / len(prompts) ** 0.5
        assert said["prompts"] == len(prompts) and mean == pytest.approx(
            prompts["logit_diff"].mean(), abs=0.0051
        )
        assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.25, abs=0.01)
        share, least, most = (float(x) for x in re.findall(r"\d\.\d+", said["top-1"]))
        assert share == pytest.approx(prompts["top1"].mean(), abs=0.0051) and 0 <= least <= share <= most <= 1
        assert most > least


def test_published_rules_choose_and_measure_on_the_same_prompts(finished):
    for cell in finished.cells():
        prompts = cell.table("prompts")
        halves = {half: set(rows["text"]) for half, rows in prompts.groupby("half")}
        assert set(halves) == {"measured on", "reference"}
        assert not halves["reference"] & halves["measured on"]
        n = len(halves["measured on"])
        assert n == 32 and cell.facts["n_chosen_on"] == cell.facts["n_measured_on"] == n
        assert set(cell.table("screens").loc[lambda t: t["screen"] != "induction", "n"]) >= {n}
        assert set(cell.table("effects")["n"]) == {n}
        assert prompts["corrupted"].notna().all()


def test_effects_are_recomputed_from_raw_hooks(finished, small_lm):
    """The zero-ablation effect of one group, by hooks on the plain Hugging Face model."""
    import torch

    from causegrid import model

    cell = finished.cells()[0]
    effects = cell.table("effects")
    row = effects[(effects["mode"] == "zero") & (effects["metric"] == "logit_diff")].iloc[0]
    loaded = model(str(small_lm))
    prompts = cell.table("prompts")
    texts = prompts.loc[prompts["half"] == "measured on", ["text", "answer", "foil"]]
    heads = [(int(h[1:].split("H")[0]), int(h.split("H")[1])) for h in row["heads"]]
    width = 64 // 8
    differences = []
    for text, answer, foil in texts.itertuples(index=False):
        ids = torch.tensor([loaded.tokenizer(text, add_special_tokens=False)["input_ids"]])
        a, f = (loaded.tokenizer.convert_tokens_to_ids(w.strip()) for w in (answer, foil))

        def margin(a=a, f=f, ids=ids):
            with torch.no_grad():
                last = loaded.module(input_ids=ids, use_cache=False).logits[0, -1].float()
            return float(last[a] - last[f])

        clean = margin()
        handles = []
        for layer, head in heads:

            def cut(module, args, head=head):
                z = args[0].clone()
                z[..., head * width : (head + 1) * width] = 0
                return (z, *args[1:])

            handles.append(
                loaded.module.gpt_neox.layers[layer].attention.dense.register_forward_pre_hook(cut)
            )
        differences.append(margin() - clean)
        for handle in handles:
            handle.remove()
    np.testing.assert_allclose(list(row["values"]), differences, atol=1e-5)
    assert row["effect"] == pytest.approx(np.mean(differences), abs=1e-5)


def test_null_draws_match_the_groups_and_leave_competitors_out(finished):
    for cell in finished.cells():
        groups = competing(cell.table("groups"))
        taken = {h for heads in groups.values() for h in heads}
        nulls = cell.table("nulls")
        notes = cell.table("null_notes").set_index("group")
        for name, heads in groups.items():
            mine = nulls[nulls["null_for"] == name]
            layers = sorted(h.split("H")[0] for h in heads)
            assert mine["n"].eq(8).all()
            for draw in mine["heads"]:
                assert sorted(h.split("H")[0] for h in draw) == layers
                assert not set(draw) & set(heads)
                if not notes.loc[name, "contaminated"]:
                    assert not set(draw) & taken
            assert mine["draw"].nunique() == notes.loc[name, "n_null"]


def test_claims_never_claim_from_nothing(finished):
    results = {c["id"]: c["result"] for c in finished.claims() if c["kind"] == "claim"}
    names = ("P1", "P2", "P2-top1", "P2-dense", "P3", "P4", "P5")
    assert results == dict.fromkeys(names, "not enough evidence")


def test_a_cell_without_groups_says_what_to_do(small_lm, tmp_path):
    """Under strict rules no head of a random model is picked: the cell fails with a reason, no verdict appears."""
    study = tmp_path / "study.yaml"
    grid = [{"tasks": ["ioi"], "groups": ["induction"], "models": [str(small_lm)]}]
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid, "rules": "strict"}))
    outcome = run(study, tmp_path / "out", engine="inline")
    assert outcome.n_failed == 1
    assert "picked a head on task" in outcome.failures[0][1]
    assert open_run(tmp_path / "out").cells()[0].table("verdicts") is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"grid": [{"tasks": ["iio"], "models": ["smollm2-135m"]}]}, "ioi"),
        ({"grid": [{"tasks": ["parity"], "models": ["smollm2-135m"]}]}, "prompt task"),
        ({"grid": [{"tasks": ["ioi"], "models": ["smolm2-135m"]}]}, "smollm2-135m"),
        ({"grid": [{"tasks": ["ioi"], "models": ["smollm2-135m"], "groups": ["name-mvoer"]}]}, "name-mover"),
        ({"grid": [{"tasks": ["ioi", "ioi"], "models": ["smollm2-135m"]}]}, "twice"),
    ],
)
def test_a_wrong_name_is_found_before_anything_runs(changes, part, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({**CONFIG, **changes}))
    with pytest.raises(InputError, match=part):
        run(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["state-encoding", "pattern-selectivity"])
def test_examples_parse_and_have_three_cells(name, tmp_path):
    from causegrid.runs.config import load

    file = tmp_path / "x.yaml"
    file.write_text(studies.get(name)().example())
    study, config = load(file)
    assert len(study.cells(config)) >= 3


def planned(tmp_path, **changes):
    from causegrid.runs.config import load

    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump({**CONFIG, **changes}))
    study, config = load(file)
    return study.cells(config)


def test_the_rules_choose_the_deciding_mode(small_lm, tmp_path):
    grid = [{"tasks": ["ioi"], "models": [str(small_lm)]}]
    assert planned(tmp_path, grid=grid, rules="strict")[0].modes == ("mean", "zero")
    assert planned(tmp_path, grid=grid, rules="paper")[0].modes == ("zero", "mean")
    assert planned(tmp_path, grid=grid, rules="strict", modes=["mean", "mean"])[0].modes == ("mean", "zero")


def test_a_changed_prompt_file_or_model_is_another_cell(small_lm, tmp_path):
    import shutil

    from causegrid.runs.cells import cell_id

    file, folder = tmp_path / "mine.jsonl", tmp_path / "model"
    line = '{"prompt": "Mary lives in", "answer": " London", "foil": " Paris", "positions": {"DD": "Mary"}}\n'
    file.write_text(line)
    shutil.copytree(small_lm, folder)
    grid = [{"tasks": [f"prompts:{file}"], "models": [str(folder)]}]
    study = studies.get("pattern-selectivity")()

    def id() -> str:
        return cell_id(study, planned(tmp_path, grid=grid)[0])

    first = id()
    assert id() == first
    file.write_text(line.replace("Mary", "John"))
    second = id()
    assert second != first
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert id() != second


def test_a_screen_the_task_has_no_positions_for(small_lm, tmp_path):
    grid = [{"tasks": ["ioi"], "models": [str(small_lm)], "groups": ["binding"]}]
    with pytest.raises(InputError, match=r"binding.*IO, S1, S2"):
        planned(tmp_path, grid=grid)


def test_a_trained_family_is_no_language_model(tmp_path):
    with pytest.raises(InputError, match="language model"):
        planned(tmp_path, grid=[{"tasks": ["ioi"], "models": ["gru"]}])


def test_no_draws_are_spent_on_a_model_that_fails_the_floor(small_lm, tmp_path, monkeypatch):
    """A random model cannot do the task: strict rules judge nothing and draw no null."""
    from dataclasses import replace

    from causegrid.signatures.screens.base import screens

    for name in ("induction", "previous-token"):
        loose = replace(screens.get(name), threshold=1.05, must_be_best=True)
        monkeypatch.setitem(screens._things, name, loose)
    study = tmp_path / "study.yaml"
    grid = [{**CONFIG["grid"][0], "tasks": ["ioi"], "models": [str(small_lm)]}]
    study.write_text(yaml.safe_dump({**CONFIG, "grid": grid, "rules": "strict"}))
    outcome = run(study, tmp_path / "out", engine="inline")
    assert outcome.failures == ()
    assert outcome.problems == ()
    cell = open_run(tmp_path / "out").cells()[0]
    assert len(cell.table("nulls")) == 0
    assert cell.table("null_notes")["why"].str.contains("does not do the task").all()
    verdicts = cell.table("verdicts")
    assert set(verdicts.loc[verdicts["kind"] == "competing", "verdict"]) == {"not testable"}


def test_a_text_that_a_model_cannot_read_marks_nothing(monkeypatch):
    """Its loss there is that of a guess: neither a rise nor none says anything of ordinary text."""
    text = pd.DataFrame({"group": ["a"], "mode": ["mean"], "clean": [6.5], "ablated": [9.0]})
    said = foreign_text(text, 591)
    assert "6.5 nats a token" in said and "591 tokens (6.38)" in said
    assert foreign_text(text, 1000) == "" and foreign_text(text.iloc[:0], 591) == ""  # ln 1000 = 6.91


def test_a_page_says_how_many_draws_are_behind_a_null_and_corrects_over_all_cells():
    def cell(seed, ps, apart):
        sd = 0.2 if apart > 1 else float("nan")
        rows = [
            {"group": f"g{i}", "metric": m, "kind": "competing", "leads": True, "heads": ["L0H1"], "effect": -1.0,
             "low": -1.5, "high": -0.5, "null_mean": -0.1, "null_sd": sd, "n_null": 99, "n_apart": apart, "p": p,
             "p_holm": 2 * p, "combined": "null", "marks": [], "other": "null"}
            for i, p in enumerate(ps) for m in ("logit_diff", "top1")
        ]  # fmt: skip
        prompts = pd.DataFrame(
            {"half": "measured on", "logit_diff": [1.0, 2.0, 3.0], "top1": [1.0, 0.0, 1.0]}
        )
        tables = {"verdicts": pd.DataFrame(rows), "prompts": prompts}
        facts = {"n_layers": 1, "n_heads": 4, "n_dropped": 0}
        return {"config": {"task": "t", "model": "m", "seed": seed}, "facts": facts, "tables": tables.get}

    found = pattern_summaries([cell(0, [0.01, 0.04], 97), cell(1, [0.03, float("nan")], 1)])["verdicts"]
    assert list(found["null"]) == ["-0.10 ± 0.20 (97 of 99)"] * 2 + ["(1 of 99)"] * 2
    # Benjamini and Hochberg by hand over three p: 3 x .01 / 1, min(3 x .03 / 2, 3 x .04 / 3), 3 x .04 / 3
    assert list(found["p over all cells"]) == ["0.030", "0.040", "0.040", "–"]
    assert list(found["corrected p"]) == ["0.020", "0.080", "0.060", "–"]
