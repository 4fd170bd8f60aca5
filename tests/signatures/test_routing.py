"""Routing of small mixtures against plain hooks and loops; what changes and what cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_cells import prompt_set, tiny_model

from causegrid.errors import InputError
from causegrid.interventions.metrics import METRICS
from causegrid.signatures.routing import LayerRoutes, changed, prompt_routes, routes_table, routing
from causegrid.sites import zero
from causegrid.studies.pattern.experts import expert_effects, most_used

PROMPTS = prompt_set(7)


def by_hand(chosen, experts=4, seed=0):
    rng = np.random.default_rng(seed)
    ids = [np.array(c) for c in chosen]
    return LayerRoutes(
        logits=[rng.normal(size=(len(c), experts)).astype(np.float32) for c in ids],
        weights=[rng.uniform(size=c.shape).astype(np.float32) for c in ids],
        chosen=ids,
    )


def plain(model, tokens, layer):
    """(logits, weights, chosen) of one prompt run alone, from the MLP's input."""
    seen = []
    mlp = model.module.get_submodule(f"model.layers.{layer}.mlp")
    handle = mlp.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()[0]))
    with torch.no_grad():
        model.module(input_ids=torch.as_tensor(tokens)[None], use_cache=False)
    handle.remove()
    scores = seen[0] @ mlp.gate.weight.detach().T
    weights, chosen = scores.softmax(-1).topk(2, dim=-1)
    return scores.numpy(), weights.numpy(), chosen.numpy()


def test_use_is_a_loop_over_prompts_tokens_and_choices():
    one = by_hand([[[0, 1], [1, 2]], [[3, 0], [0, 1], [2, 0]]])
    table = routing({5: one}).set_index(["where", "expert"])
    for expert in range(4):
        for where in ("query", "all"):
            share = weight = 0.0
            for chosen, weights in zip(one.chosen, one.weights, strict=True):
                places = range(len(chosen)) if where == "all" else [len(chosen) - 1]
                for at in places:
                    for k in range(2):
                        if chosen[at][k] == expert:
                            share += 1 / len(places) / 2
                            weight += weights[at][k] / len(places) / 2
            row = table.loc[where, expert]
            assert (row["share"], row["weight"]) == pytest.approx((share, weight))
            assert row["low"] <= row["share"] <= row["high"] and row["layer"] == 5 and row["n"] == 2
    assert table.groupby("where")["share"].sum().to_numpy() == pytest.approx([2, 2])


def test_a_decision_is_a_set():
    before = by_hand([[[0, 1], [1, 2]], [[3, 0], [0, 1], [2, 0]]])
    after = by_hand([[[1, 0], [1, 3]], [[3, 0], [2, 1], [0, 2]]])
    found = changed({2: before}, {2: after})[2]
    np.testing.assert_allclose(found["query"], [1, 0])
    np.testing.assert_allclose(found["all"], [1 / 2, 1 / 3])
    with pytest.raises(InputError, match="same prompts"):
        changed({2: before}, {2: by_hand([[[0, 1]]])})


def test_routes_are_those_of_each_prompt_run_alone():
    model = tiny_model("olmoe")
    routes = prompt_routes(model, PROMPTS, batch_size=2)
    table = routes_table(routes).set_index(["prompt", "layer", "position"])
    assert len(table) == 2 * PROMPTS.lengths.sum()
    for layer in (0, 1):
        for i, tokens in enumerate(PROMPTS.tokens):
            scores, weights, chosen = plain(model, tokens, layer)
            np.testing.assert_allclose(routes[layer].logits[i], scores, atol=1e-4)
            np.testing.assert_allclose(routes[layer].weights[i], weights, atol=1e-4)
            np.testing.assert_array_equal(routes[layer].chosen[i], chosen)
            row = table.loc[(i, layer, len(tokens) - 1)]
            assert row["query"] and list(row["chosen"]) == list(chosen[-1])
            assert not table.loc[(i, layer, 0)]["query"]


def test_an_edit_changes_routes_above_it_only():
    model = tiny_model("mixtral")
    clean = prompt_routes(model, PROMPTS)
    heads = [zero(f"L1.z[{h}]") for h in range(4)]
    found = changed(clean, prompt_routes(model, PROMPTS, edits=lambda index: heads))
    assert not found[0]["all"].any()
    assert found[1]["all"].any()
    assert not any(
        v.any() for one in changed(clean, prompt_routes(model, PROMPTS)).values() for v in one.values()
    )


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen2_moe"])
def test_expert_effects_are_those_of_the_naive_loop(family):
    model = tiny_model(family)
    use = routing(prompt_routes(model, PROMPTS))
    table = expert_effects(model, PROMPTS, use, batch_size=3)
    layers = [1] if family == "qwen2_moe" else [0, 1]
    assert sorted(set(table["group"])) == [f"L{x}E{e}" for x in layers for e in range(4)]
    for (layer, expert), rows in table[table["metric"] == "logit_diff"].groupby(["layer", "expert"]):
        gate = model.module.get_submodule(f"model.layers.{layer}.mlp.gate")
        hit = []

        def cut(_m, _a, out, expert=expert, hit=hit):
            hit.append(int((out[2] == expert).sum()))
            return out[0], torch.where(out[2] == expert, 0.0, out[1]), out[2]

        for i, tokens in enumerate(PROMPTS.tokens):
            ids = torch.as_tensor(tokens)[None]
            with torch.no_grad():
                clean = model.module(input_ids=ids, use_cache=False).logits[0, -1]
                handle = gate.register_forward_hook(cut)
                after = model.module(input_ids=ids, use_cache=False).logits[0, -1]
                handle.remove()
            want = float((after[5] - after[6]) - (clean[5] - clean[6]))
            assert rows["values"].iloc[0][i] == pytest.approx(want, abs=1e-4)
        assert rows["tokens"].iloc[0] == sum(hit)
        assert rows["share"].iloc[0] == pytest.approx(
            use.set_index(["layer", "expert", "where"])["share"][layer, expert, "all"]
        )
    assert set(table["metric"]) == set(METRICS) and (table["mode"] == "zero").all()


def test_the_most_used_stand_beside_experts_of_like_use():
    model = tiny_model("olmoe", num_experts=8)
    use = routing(prompt_routes(model, PROMPTS))
    share = use[use["where"] == "all"].set_index(["layer", "expert"])["share"]
    assert most_used(use, 5) == {x: sorted(range(8), key=lambda e: (-share[x, e], e))[:5] for x in (0, 1)}
    table = expert_effects(model, PROMPTS, use, top=5)
    margin = table[table["metric"] == "logit_diff"].set_index(["layer", "expert"])
    assert len(margin) == 10
    for (layer, expert), row in margin.iterrows():
        like = [
            float(margin.loc[(x, e), "effect"])
            for x, e in margin.index
            if x == layer and e != expert and 0.5 <= share[x, e] / share[layer, expert] <= 2
        ]
        assert row["n_null"] == len(like)
        if len(like) < 3:
            assert np.isnan(row["p"])
        else:
            below, above = (sum(sign * v >= sign * row["effect"] for v in like) for sign in (-1, 1))
            assert row["p"] == pytest.approx(min(1, 2 * (1 + min(below, above)) / (1 + len(like))))
            assert row["null_mean"] == pytest.approx(np.mean(like))


def test_a_dense_model_has_no_routes():
    with pytest.raises(InputError, match="no experts"):
        prompt_routes(tiny_model("llama"), PROMPTS)
