"""Conditions that share what they have in common, against plain hooks and full forwards of each alone."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sweep import Counter, head_conditions, logits_at_query, naive_ablate, raw_blocks

import tiny
from causegrid.errors import InputError, InterventionError
from causegrid.interventions.condition import Condition
from causegrid.interventions.shared_prefix import Step, steps, tree
from causegrid.interventions.sweep import Planner, sweep
from causegrid.sites.address import site
from causegrid.sites.edit import Edit, edit, zero

DEPTH = 5


def deep(tiny_model, family):
    name = "n_layer" if family == "gpt2" else "num_hidden_layers"
    return tiny_model(family, **{name: DEPTH})


def random_sets(n, seed, n_heads=4):
    """Head sets over few layers, so that many begin alike; some hold another as their beginning."""
    rng = np.random.default_rng(seed)
    sets = []
    for _ in range(n):
        layers = sorted(rng.choice(DEPTH, size=int(rng.integers(1, 4)), replace=False))
        sets.append([(int(layer), int(rng.integers(2))) for layer in layers])
    sets += [heads[:1] for heads in sets[: n // 3]]
    return sets


@pytest.mark.parametrize("family", tiny.ATTENTION)
def test_shared_beginnings_equal_plain_hooks_bit_for_bit_at_equal_batch_shapes(
    family, tiny_model, make_prompts
):
    model, prompts = deep(tiny_model, family), make_prompts(6)
    tokens = torch.from_numpy(np.stack(prompts.tokens))
    sets = random_sets(24, seed=1)
    found = [v for _, v in sweep(model, prompts, head_conditions(sets), stack=1, metric=logits_at_query)]
    for heads, values in zip(sets, found, strict=True):
        want = naive_ablate(model.module, tokens, heads, 4)[:, -1].double().numpy()
        assert np.array_equal(values, want), f"{family} {heads}: {np.abs(values - want).max()}"


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("stack", [2, 5, None])
def test_stacks_of_several_parents_and_small_memory_change_rounding_only(
    limit, stack, tiny_model, make_prompts, monkeypatch
):
    if limit is not None:
        monkeypatch.setattr("causegrid.interventions.sweep.FORKS", limit)
    model, prompts = deep(tiny_model, "llama_gqa"), make_prompts(7, lengths=(5, 8), seed=2)
    sets = random_sets(40, seed=3)
    found = sweep(model, prompts, head_conditions(sets), stack=stack, chunk=17, metric=logits_at_query)
    for heads, (_, values) in zip(sets, found, strict=True):
        for i, tokens in enumerate(prompts.tokens):
            want = naive_ablate(model.module, torch.from_numpy(tokens)[None], heads, 4)[0, -1]
            np.testing.assert_allclose(values[i], want.numpy(), atol=2e-5, rtol=1e-5)


def test_what_conditions_share_runs_once(tiny_model, make_prompts):
    model, prompts = deep(tiny_model, "llama"), make_prompts(8)
    seen = [Counter(block.mlp) for block in raw_blocks(model.module)]
    planner = Planner(model, prompts, stack=1)
    planner.clean  # noqa: B018
    assert [c.rows for c in seen] == [8] * DEPTH
    for c in seen:
        c.rows = 0
    # the same head of block 1, then a fork at block 3 into two heads and at block 4 into one
    list(planner.run(head_conditions([[(1, 0), (3, 0)], [(1, 0), (3, 1)], [(1, 0), (4, 2)]])))
    # block 0 never; blocks 1 and 2 once; block 3 for two edits and once on the way to block 4
    assert [c.rows for c in seen] == [0, 8, 8, 24, 24]
    for c in seen:
        c.handle.remove()


def test_one_head_index_in_two_layers_is_two_interventions(tiny_model, make_prompts):
    model, prompts = deep(tiny_model, "llama"), make_prompts(4)
    conditions = [Condition(f"L{x}", (zero(f"L{x}.z[1]"),), keys=("zero head 1",)) for x in (1, 2)]
    planner = Planner(model, prompts, metric=logits_at_query)
    found = dict(planner.run(conditions))
    tokens = torch.from_numpy(np.stack(prompts.tokens))
    for layer in (1, 2):
        want = naive_ablate(model.module, tokens, [(layer, 1)], 4)[:, -1].double().numpy()
        np.testing.assert_allclose(found[f"L{layer}"], want, atol=2e-5)
    assert not np.array_equal(found["L1"], found["L2"])


def test_edits_without_keys_share_nothing_and_equal_the_full_run(tiny_model, make_prompts):
    model, prompts = deep(tiny_model, "gpt_neox"), make_prompts(4)
    edits = [
        (zero("L0.z[0]"), Edit(site("L1.resid_post"), lambda x, s=s: x * s), zero("L4.mlp_out"))
        for s in (0.5, 2.0)
    ]
    conditions = [Condition(str(i), e) for i, e in enumerate(edits)]
    found = [v for _, v in sweep(model, prompts, conditions, stack=1, metric=logits_at_query)]
    full = [v for _, v in sweep(model, prompts, conditions, stack=1, reuse=False, metric=logits_at_query)]
    assert all(np.array_equal(a, b) for a, b in zip(found, full, strict=True))
    assert not np.array_equal(*found)


def test_a_wrong_number_of_keys_is_refused(tiny_model, make_prompts):
    bad = Condition("bad", (zero("L0.z[0]"), zero("L1.z[0]")), keys=("one",))
    with pytest.raises(InputError, match="1 keys for 2 edits"):
        list(sweep(tiny_model("llama"), make_prompts(2), [bad]))


def test_progress_is_told_while_a_chunk_runs(tiny_model, make_prompts):
    model, prompts = deep(tiny_model, "llama"), make_prompts(6, lengths=(5, 8))
    seen = []
    run = Planner(model, prompts).run(
        head_conditions(random_sets(12, seed=4)), progress=lambda done, total: seen.append((done, total))
    )
    next(run)
    assert len(seen) > 2 and seen == sorted(set(seen)) and seen[-1] == (16, 16)


def test_an_output_begins_in_the_next_block_and_keeps_its_name():
    edits = [zero("L2.resid_pre"), zero("L1.resid_post"), zero("L4.resid_post"), zero("L-1.resid_post")]
    found = steps(edits, ["a", "b", "c", "d"], n_layers=5)
    assert [(s.start, [str(e.site) for e in s.edits]) for s in found] == [
        (0, ["L-1.resid_post"]),
        (2, ["L2.resid_pre", "L1.resid_post"]),
        (4, ["L4.resid_post"]),
    ]


def test_equal_keys_at_an_output_and_at_the_next_input_are_two_interventions(tiny_model, make_prompts):
    model, prompts = deep(tiny_model, "llama"), make_prompts(4)
    conditions = [
        Condition("out", (Edit(site("L0.resid_post"), lambda x: x * 0.5),), keys=("k",)),
        Condition("in", (Edit(site("L1.resid_pre"), lambda x: x.roll(1, -1)),), keys=("k",)),
    ]
    found = dict(sweep(model, prompts, conditions, stack=1, metric=logits_at_query))
    alone = [
        next(sweep(model, prompts, [c], reuse=False, stack=1, metric=logits_at_query))[1] for c in conditions
    ]
    assert np.array_equal(found["out"], alone[0]) and np.array_equal(found["in"], alone[1])


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "olmo2", "mamba"])
@pytest.mark.parametrize("where", ["output of 1", "input of 2", "outer edit"])
def test_hooks_of_others_act_once(family, where, tiny_model, make_prompts):
    model, prompts = deep(tiny_model, family), make_prompts(4)
    torch.manual_seed(0)
    shift = torch.randn(model.d_model)
    blocks = raw_blocks(model.module)

    def after(_, __, out):
        return (out[0] + shift, *out[1:]) if isinstance(out, tuple) else out + shift

    def before(_, args, kwargs):
        if args:
            return (args[0] + shift, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"] + shift}

    kind = "resid_post" if family == "mamba" else "attn_out"
    conditions = [
        Condition(
            str(x), (Edit(site(f"L{x}.{kind}"), lambda v: v * 0.5), zero("L4.resid_post@0")), ("half", "z")
        )
        for x in (1, 2, 3)
    ]
    conditions.append(Condition("post", (Edit(site("L1.resid_post"), lambda v: v * 0.5),), ("half",)))
    scope = (
        edit(model, Edit(site("L1.resid_post"), lambda v: v + shift))
        if where == "outer edit"
        else nullcontext()
    )
    handle = None
    if where == "output of 1":
        handle = blocks[1].register_forward_hook(after)
    elif where == "input of 2":
        handle = blocks[2].register_forward_pre_hook(before, with_kwargs=True)
    with scope:
        found = dict(sweep(model, prompts, conditions, stack=1, metric=logits_at_query))
        full = dict(sweep(model, prompts, conditions, stack=1, reuse=False, metric=logits_at_query))
    if handle is not None:
        handle.remove()
    plain = dict(sweep(model, prompts, conditions, stack=1, reuse=False, metric=logits_at_query))
    for name, values in full.items():
        assert np.array_equal(found[name], values), name
        assert not np.array_equal(values, plain[name])


def test_a_block_that_writes_into_its_input_spoils_nothing(tiny_model, make_prompts, monkeypatch):
    model, prompts = deep(tiny_model, "llama"), make_prompts(4)
    block = raw_blocks(model.module)[3]
    forward = block.forward

    def in_place(hidden, *args, **kwargs):
        return hidden.copy_(forward(hidden, *args, **kwargs))

    monkeypatch.setattr(block, "forward", in_place)
    conditions = head_conditions([[(3, h)] for h in range(3)])
    found = [v for _, v in sweep(model, prompts, conditions, stack=1, metric=logits_at_query)]
    full = [v for _, v in sweep(model, prompts, conditions, stack=1, reuse=False, metric=logits_at_query)]
    assert all(np.array_equal(a, b) for a, b in zip(found, full, strict=True))


def test_keys_that_cannot_be_compared_are_refused_and_a_list_of_edits_will_do(tiny_model, make_prompts):
    model, prompts = tiny_model("llama"), make_prompts(2)
    with pytest.raises(InputError, match="unhashable"):
        list(sweep(model, prompts, [Condition("bad", (zero("L0.z[0]"),), keys=([1],))]))
    listed = Condition("list", [zero("L0.z[0]")])
    given = Condition("tuple", (zero("L0.z[0]"),))
    (_, a), (_, b) = sweep(model, prompts, [listed, given])
    assert np.array_equal(a, b)


@pytest.mark.parametrize("stack", [1, 2])
def test_an_edit_that_gives_nothing_is_an_error(stack, tiny_model, make_prompts):
    bad = [Condition(str(i), (Edit(site("L0.z[0]"), lambda x: None),)) for i in range(2)]
    with pytest.raises(InterventionError, match="NoneType"):
        list(sweep(tiny_model("llama"), make_prompts(2), bad, stack=stack))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True), min_size=1, max_size=12))
def test_every_path_of_the_tree_is_one_condition(layer_sets):
    """Walking the tree gives back each condition's edits, in order, and forks only where conditions differ."""
    paths = [
        (i, [Step(x, (zero(f"L{x}.z"),), x) for x in sorted(layers)]) for i, layers in enumerate(layer_sets)
    ]
    found = {}

    def walk(node, before):
        assert not before or node.start > before[-1]
        edited = [*before, *(e.site.layer for e in node.edits)]
        assert node.ends or len(node.children) > 1
        assert len({child.start for child in node.children}) == len(node.children)
        for name in node.ends:
            found[name] = edited
        for child in node.children:
            walk(child, edited)

    for root in tree(paths):
        walk(root, [])
    assert found == {i: sorted(layers) for i, layers in enumerate(layer_sets)}
