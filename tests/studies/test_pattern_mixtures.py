"""The pattern-selectivity study whole on small models of the published classes, saved to disk and loaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml
from transformers import AutoTokenizer

import tiny
from causegrid.interventions.heads import Ablator
from causegrid.models import model
from causegrid.runs import run
from causegrid.runs.store import open_run
from causegrid.signatures.routing import changed, prompt_routes
from causegrid.signatures.screens.base import screens
from causegrid.studies.pattern.prompt_sets import subset
from causegrid.studies.pattern.routing import null_heads, routing_changes
from causegrid.tasks import task

CLASSES = ("olmo", "olmoe", "mixtral", "qwen2_moe")
ROUTED = {"olmoe": [0, 1, 2], "mixtral": [0, 1, 2], "qwen2_moe": [1, 2]}  # its first layer is dense
CONFIG = {
    "study": "pattern-selectivity",
    "n_prompts": 16,
    "rules": "paper",
    "modes": ["zero"],
    "dtype": "bfloat16",
    "experts": 3,
    "generic": {"n": 32, "length": 48},
    "matched_null": {"n": 4, "per_group": 2, "n_prompts": 8, "early_stop": False},
    "n_subsamples": 3,
}


@pytest.fixture(scope="module")
def folders(small_lm, tmp_path_factory):
    tokenizer = AutoTokenizer.from_pretrained(small_lm)
    made = {}
    for family in CLASSES:
        made[family] = tmp_path_factory.mktemp(family)
        heads = {"num_attention_heads": 8, "num_key_value_heads": 8 if family.startswith("olmo") else 4}
        module = tiny.hf(family, vocab_size=len(tokenizer), num_hidden_layers=3, hidden_size=64, **heads)
        module.save_pretrained(made[family])
        tokenizer.save_pretrained(made[family])
    return made


@pytest.fixture(scope="module")
def finished(folders, tmp_path_factory):
    """family -> its finished cell; thresholds lowered so that random models' screens pick heads at all."""
    kept = {name: screens.get(name) for name in ("induction", "previous-token")}
    for k, name in enumerate(kept):
        screens._things[name] = replace(kept[name], threshold=1.05 + 0.01 * k, must_be_best=True)
    folder = tmp_path_factory.mktemp("run")
    grid = [{"tasks": ["ioi"], "models": [str(folders[f]) for f in CLASSES], "groups": list(kept)}]
    grid.append(
        {
            "tasks": ["variable-binding"],
            "models": [str(folders["olmoe"])],
            "groups": list(kept),
            "checkpoints": [
                {"folder": str(folders["olmoe"]), "tokens": 100},
                {"folder": str(folders["olmoe"]), "tokens": 300},
            ],
        }
    )
    (folder / "study.yaml").write_text(yaml.safe_dump({**CONFIG, "grid": grid}))
    able = pytest.MonkeyPatch()  # random models fail every floor, and without draws there is less to look at
    able.setattr("causegrid.studies.pattern.stages.task_floor", lambda *_, **__: "")
    try:
        outcome = run(folder / "study.yaml", folder / "out", engine="inline")
    finally:
        screens._things.update(kept)
        able.undo()
    assert outcome.failures == () and outcome.problems == ()
    cells = open_run(folder / "out").cells()
    return {
        (c.config["task"], next(f for f in CLASSES if str(folders[f]) == c.config["model"])): c for c in cells
    }


def test_mixtures_have_their_tables_and_dense_models_none(finished):
    own = {"routing", "routes", "expert_effects", "routing_changes"}
    for (_, family), cell in finished.items():
        assert cell.status == "done"
        assert own & set(cell.tables()) == (set() if family == "olmo" else own)
        if family == "olmo":
            continue
        use, routes, experts = (cell.table(n) for n in ("routing", "routes", "expert_effects"))
        assert sorted(set(use["layer"])) == sorted(set(experts["layer"])) == ROUTED[family]
        both = 2 * len(ROUTED[family])
        assert use.groupby(["layer", "where"])["share"].sum().to_numpy() == pytest.approx(np.full(both, 2.0))
        if family == "mixtral":  # its weights are normalised over the chosen
            assert use.groupby(["layer", "where"])["weight"].sum().to_numpy() == pytest.approx(
                np.full(6, 1.0), abs=1e-2
            )
        assert set(experts.groupby("layer")["expert"].nunique()) == {3}
        assert (experts.loc[experts["metric"] == "logit_diff", "effect"] != 0).any()
        prompts = cell.table("prompts")
        lengths = prompts.loc[prompts["half"] == "measured on", "n_tokens"].to_numpy()
        numbers = sorted(set(routes["prompt"]))
        assert numbers == subset(len(lengths), 8, cell.config["seed"])  # numbers among the measured prompts
        assert len(routes) == len(ROUTED[family]) * lengths[numbers].sum()


def test_changes_stand_beside_the_effect_and_the_null(finished):
    cell = finished["ioi", "olmoe"]
    table, effects = cell.table("routing_changes"), cell.table("effects")
    measured = cell.table("prompts").query("half == 'measured on'")
    on = subset(len(measured), 8, cell.config["seed"])
    assert set(table["group"]) == set(effects.loc[effects["role"] == "group", "group"])
    for row in table.itertuples():
        want = effects[(effects["group"] == row.group) & (effects["mode"] == row.mode)]
        values = want.loc[want["metric"] == "logit_diff", "values"].iloc[0]
        assert row.effect == pytest.approx(float(np.mean([values[i] for i in on])), abs=1e-12)
        lowest = min(int(h[1 : h.index("H")]) for h in want["heads"].iloc[0])
        assert row.layer == -1 or row.layer >= lowest
        assert 0 <= row.low <= row.share <= row.high <= 1 and row.n == 8
        assert row.n_null >= 1 and row.null_low <= row.null_mean <= row.null_high
    assert table["share"].max() > 0


def test_changes_are_those_of_ablating_by_hand(folders):
    import pandas as pd

    made = model(folders["mixtral"])
    prompts = task("ioi").prompts(made.tokenizer, 6)
    ablator = Ablator(made, prompts)
    heads = ["L1H0", "L1H5", "L2H2"]
    effects = pd.DataFrame(
        {"group": ["g"], "mode": ["zero"], "metric": ["logit_diff"], "values": [[-1.5] * 6]}
    )
    draws = [["L1H1", "L1H2", "L2H0"], ["L1H3", "L1H4", "L2H1"]]
    own = ["L1H0", "L1H2", "L2H0"]  # a draw with a head of the group is no reference
    heads_of = [own, own, draws[0], draws[0], draws[1], draws[1]]
    nulls = pd.DataFrame({"null_for": "g", "draw": np.repeat(["o", "a", "b"], 2), "heads": heads_of})
    assert null_heads(nulls, "g", heads, 5) == draws and null_heads(nulls, "g", heads, 1) == draws[:1]
    table = routing_changes(ablator, {"g": heads}, effects, nulls, modes=["zero"])
    clean = prompt_routes(made, prompts)

    def by_hand(members):
        handles = []
        for layer in (1, 2):
            own = [int(h[3:]) for h in members if h.startswith(f"L{layer}H")]

            def cut(_m, args, own=own):
                z = args[0].clone()
                for h in own:
                    z[..., 8 * h : 8 * h + 8] = 0
                return (z,)

            o_proj = made.module.model.layers[layer].self_attn.o_proj
            handles.append(o_proj.register_forward_pre_hook(cut))
        try:
            return changed(clean, prompt_routes(made, prompts))
        finally:
            for handle in handles:
                handle.remove()

    own, *null = (by_hand(h) for h in (heads, *draws))
    assert not own[0]["all"].any()
    for where in ("query", "all"):
        rows = table[table["where"] == where].set_index("layer")
        assert list(rows.index) == [1, 2, -1]
        for layer in (1, 2):
            assert rows.loc[layer, "share"] == pytest.approx(own[layer][where].mean())
            drawn = [n[layer][where].mean() for n in null]
            assert rows.loc[layer, "null_mean"] == pytest.approx(np.mean(drawn))
            assert rows.loc[layer, "null_low"] == pytest.approx(min(drawn))
            assert rows.loc[layer, "null_high"] == pytest.approx(max(drawn))
        assert rows.loc[-1, "share"] == pytest.approx(rows.loc[[1, 2], "share"].mean())
        assert (rows["effect"] == -1.5).all() and (rows["n_null"] == 2).all()


def test_every_mode_and_group_has_its_own_change_null_and_effect(folders):
    """Two modes and two groups together give what each gives alone."""
    import pandas as pd

    made = model(folders["olmoe"])
    reference, prompts = task("ioi").prompts(made.tokenizer, 12).halves()
    ablator = Ablator(made, prompts, reference=reference)
    groups = {"low": ["L0H0", "L0H5"], "high": ["L1H2", "L2H3"]}
    nulls = pd.DataFrame(
        {"null_for": ["low", "high"], "draw": ["a", "b"], "heads": [["L0H1", "L0H2"], ["L1H6", "L2H7"]]}
    )
    effects = pd.DataFrame(
        [{"group": g, "mode": m, "metric": metric, "values": [100.0 * i + 10 * j + k] * len(prompts)}
         for i, g in enumerate(groups) for j, m in enumerate(("zero", "mean"))
         for k, metric in enumerate(("top1", "logit_diff"))]
    )  # fmt: skip
    table = routing_changes(ablator, groups, effects, nulls, modes=["zero", "mean"])
    by = {key: rows.reset_index(drop=True) for key, rows in table.groupby(["group", "mode"], sort=False)}
    for (group, mode), rows in by.items():
        alone = routing_changes(ablator, {group: groups[group]}, effects, nulls, modes=[mode])
        pd.testing.assert_frame_equal(rows, alone)
        want = effects[(effects["group"] == group) & (effects["mode"] == mode)]
        assert set(rows["effect"]) == {want.loc[want["metric"] == "logit_diff", "values"].iloc[0][0]}
        assert set(rows["n_null"]) == {1}
        np.testing.assert_array_equal(rows["null_low"], rows["null_high"])
        own = changed(
            prompt_routes(made, prompts),
            prompt_routes(made, prompts, edits=ablator.conditions({"x": groups[group]}, mode)[0].on),
        )
        for row in rows[rows["layer"] >= 0].itertuples():
            assert row.share == pytest.approx(own[row.layer][row.where].mean())
    assert by["high", "zero"]["share"].tolist() != by["high", "mean"]["share"].tolist()


def test_checkpoints_of_a_cell(finished):
    cell = finished["variable-binding", "olmoe"]
    table, integral = cell.table("checkpoints"), cell.table("pr_integral")
    assert sorted(set(table["tokens"])) == [100, 300] and len(integral) == 3 * 8
    own = cell.table("spectrum")
    np.testing.assert_allclose(table.loc[table["tokens"] == 300, "pr"], own["pr"], rtol=1e-5)
    np.testing.assert_allclose(
        integral["integral"], np.maximum(own["pr"] - 1, 0) * np.log(3), rtol=1e-5, atol=1e-9
    )
