"""The planner against a naive loop of raw torch hooks and full forwards, which shares no code with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from causegrid.errors import InputError, InterventionError
from causegrid.interventions.condition import Condition
from causegrid.interventions.sweep import Planner, sweep
from causegrid.sites.address import site
from causegrid.sites.edit import Edit, replace, zero

PROJECTION = {"gpt2": "attn.c_proj", "gpt_neox": "attention.dense"}


def raw_blocks(module):
    for path in ("transformer.h", "gpt_neox.layers", "model.layers", "backbone.layers"):
        try:
            return module.get_submodule(path)
        except AttributeError:
            continue
    raise AssertionError(type(module))


def raw_projection(module, layer):
    path = PROJECTION.get(module.config.model_type, "self_attn.o_proj")
    return raw_blocks(module)[layer].get_submodule(path)


def naive_ablate(module, tokens, heads, n_heads):
    """Full logits (B, L, V) with some heads' slices of the projection input set to zero, by plain hooks."""
    handles = []
    for layer in {layer for layer, _ in heads}:
        mine = [h for other, h in heads if other == layer]

        def hook(_, args, mine=mine):
            x = args[0].clone()
            width = x.shape[-1] // n_heads
            for h in mine:
                x[..., h * width : (h + 1) * width] = 0
            return (x, *args[1:])

        handles.append(raw_projection(module, layer).register_forward_pre_hook(hook))
    with torch.no_grad():
        out = module(input_ids=tokens, use_cache=False).logits
    for handle in handles:
        handle.remove()
    return out


def logits_at_query(logits, index):
    """A metric that keeps the raw logits, so that equality is of every number."""
    return logits.double()


def head_conditions(heads_list):
    out = []
    for heads in heads_list:
        edits = tuple(zero(f"L{layer}.z[{h}]") for layer, h in heads)
        out.append(Condition(str(heads), edits, keys=tuple(("zero", h) for _, h in heads)))
    return out


HEADS = [[(0, 1)], [(1, 3)], [(0, 0), (1, 2)], [(1, 0), (1, 1)], [(0, 2), (0, 3), (1, 1)], [(1, 3)]]


@pytest.mark.parametrize("family", tiny.ATTENTION)
def test_the_sweep_equals_plain_hooks_bit_for_bit_at_equal_batch_shapes(family, tiny_model, make_prompts):
    model, prompts = tiny_model(family), make_prompts(8)
    tokens = torch.from_numpy(np.stack(prompts.tokens))
    found = [v for _, v in sweep(model, prompts, head_conditions(HEADS), stack=1, metric=logits_at_query)]
    for heads, values in zip(HEADS, found, strict=True):
        want = naive_ablate(model.module, tokens, heads, 4)[:, -1].double().numpy()
        assert np.array_equal(values, want), f"{family} {heads}: {np.abs(values - want).max()}"


@pytest.mark.parametrize("family", tiny.ATTENTION)
def test_stacked_and_ragged_sweeps_equal_plain_hooks_to_rounding(family, tiny_model, make_prompts):
    model, prompts = tiny_model(family), make_prompts(7, lengths=(5, 8, 6), seed=1)
    found = sweep(model, prompts, head_conditions(HEADS), batch=2, stack=3, chunk=4, metric=logits_at_query)
    for heads, (_, values) in zip(HEADS, found, strict=True):
        for i, tokens in enumerate(prompts.tokens):
            want = naive_ablate(model.module, torch.from_numpy(tokens)[None], heads, 4)[0, -1]
            np.testing.assert_allclose(values[i], want.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", tiny.ATTENTION)
@pytest.mark.parametrize("kind", ["z", "attn_out", "mlp_out", "resid_post"])
def test_a_last_mlp_at_the_query_alone_equals_full_forwards(family, kind, tiny_model, make_prompts):
    model, prompts = tiny_model(family), make_prompts(6, lengths=(5, 7))
    spot = "L1.z[2]" if kind == "z" else f"L1.{kind}"
    shift = Edit(site(spot), lambda x: x * 0.5 + 0.25, "shift")
    conditions = [Condition(str(i), (zero(f"L0.z[{i}]"), shift)) for i in range(3)]
    conditions += [Condition("below", (zero("L0.mlp_out"),))]
    planner = Planner(model, prompts, metric=logits_at_query)
    found = [planner.clean, *(v for _, v in planner.run(conditions))]
    full = Planner(model, prompts, stack=1, reuse=False, metric=logits_at_query)
    want = [full.clean, *(v for _, v in full.run(conditions))]
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)
    for i, tokens in enumerate(prompts.tokens):
        raw = clean_logits(model, torch.from_numpy(tokens)[None])[0]
        np.testing.assert_allclose(found[0][i], raw, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "rows"), [({}, 1), ({"stack": 3}, 1), ({"stack": 1}, 7), ({"reuse": False}, 7)]
)
def test_which_planners_run_the_last_mlp_at_the_query_alone(
    options, rows, tiny_model, make_prompts, monkeypatch
):
    model, prompts = tiny_model("llama"), make_prompts(4)
    mlp, seen = type(raw_blocks(model.module)[1].mlp), []
    own = mlp.forward

    def forward(self, x):
        seen.append((self is raw_blocks(model.module)[1].mlp, x.shape[1]))
        return own(self, x)

    monkeypatch.setattr(mlp, "forward", forward)
    list(sweep(model, prompts, head_conditions([[(0, 1)], [(1, 0)]]), **options))
    assert {length for last, length in seen if last} == {rows}
    assert {length for last, length in seen if not last} == {7}


@pytest.mark.parametrize("family", ["gpt2", "llama_gqa", "mamba", "mamba2"])
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize(
    "where",
    ["L-1.resid_post", "L0.resid_post", "L0.resid_post@2", "L1.resid_pre", "L1.resid_post", "L1.attn_out"],
)
def test_edits_at_any_site_equal_plain_hooks(family, reuse, where, tiny_model, make_prompts):
    model, prompts = tiny_model(family), make_prompts(4)
    tokens = torch.from_numpy(np.stack(prompts.tokens))
    spot = site(where)
    block = raw_blocks(model.module)[max(spot.layer, 0)]
    mixer = {"gpt2": "attn", "llama": "self_attn"}.get(model.family, "mixer")
    module = block.get_submodule(mixer) if spot.kind == "attn_out" else block

    def halve(x):
        x = x.clone()
        if spot.position is None:
            return x * 0.5 + 0.25
        x[:, spot.position] = x[:, spot.position] * 0.5 + 0.25
        return x

    def after(_, __, out):
        return (halve(out[0]), *out[1:]) if isinstance(out, tuple) else halve(out)

    def before(_, args, kwargs):
        return ((halve(args[0]), *args[1:]), kwargs)

    if spot.kind == "resid_pre" or spot.layer == -1:
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = module.register_forward_hook(after)
    with torch.no_grad():
        want = model.module(input_ids=tokens, use_cache=False).logits[:, -1].double().numpy()
    handle.remove()
    condition = Condition("halved", (Edit(spot, lambda x: x * 0.5 + 0.25, "halve"),))
    found = dict(sweep(model, prompts, [condition], reuse=reuse, stack=1, metric=logits_at_query))
    assert np.array_equal(found["halved"], want)
    assert not np.array_equal(want, clean_logits(model, tokens))


def clean_logits(model, tokens):
    with torch.no_grad():
        return model.module(input_ids=tokens, use_cache=False).logits[:, -1].double().numpy()


def test_edits_of_one_condition_apply_in_order_over_the_same_boundary(tiny_model, make_prompts):
    model, prompts = tiny_model("gpt_neox"), make_prompts(4)
    twice = Edit(site("L0.resid_post"), lambda x: x * 2.0)
    plus = Edit(site("L1.resid_pre"), lambda x: x + 1.0)
    found = [
        next(sweep(model, prompts, [Condition("c", e)], reuse=r, stack=1, metric=logits_at_query))[1]
        for e in ((twice, plus), (plus, twice))
        for r in (True, False)
    ]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_case_14_clean_ablated_clean(tiny_model, make_prompts):
    model, prompts = tiny_model("llama"), make_prompts(6)
    tokens = torch.from_numpy(np.stack(prompts.tokens))
    before = clean_logits(model, tokens)
    first = Planner(model, prompts, stack=1, metric=logits_at_query).clean
    ablated = dict(sweep(model, prompts, head_conditions([[(0, 1)]]), metric=logits_at_query))
    second = Planner(model, prompts, stack=1, metric=logits_at_query).clean
    assert np.array_equal(first, before) and np.array_equal(second, before)
    assert np.array_equal(clean_logits(model, tokens), before)
    assert not np.array_equal(next(iter(ablated.values())), before)


def test_conditions_that_differ_by_prompt_get_their_own_values(tiny_model, make_prompts):
    model, prompts = tiny_model("gpt_neox"), make_prompts(6, lengths=(5, 7))
    table = torch.randn(6, 32)

    def edits(index):
        return (replace("L0.resid_post@-1", table[torch.from_numpy(index)]),)

    found = dict(sweep(model, prompts, [Condition("own", edits)], batch=2, metric=logits_at_query))["own"]
    for i, tokens in enumerate(prompts.tokens):
        block = raw_blocks(model.module)[0]

        def hook(_, __, out, i=i):
            hidden = (out[0] if isinstance(out, tuple) else out).clone()
            hidden[:, -1] = table[i]
            return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

        handle = block.register_forward_hook(hook)
        want = clean_logits(model, torch.from_numpy(tokens)[None])[0]
        handle.remove()
        np.testing.assert_allclose(found[i], want, atol=1e-5)


class Counter:
    """Counts the prompts a block has seen."""

    def __init__(self, module):
        self.rows = 0
        self.handle = module.register_forward_hook(self)

    def __call__(self, _, args, out):
        self.rows += (out[0] if isinstance(out, tuple) else out).shape[0]


def test_equal_keys_run_once_and_lower_blocks_not_again(tiny_model, make_prompts):
    model, prompts = tiny_model("llama"), make_prompts(8)
    low, high = Counter(raw_blocks(model.module)[0].mlp), Counter(raw_blocks(model.module)[1].mlp)
    planner = Planner(model, prompts, stack=2)
    conditions = head_conditions([[(1, h)] for h in (0, 1, 2)]) + head_conditions([[(1, 0)], [(1, 1)]])
    first = list(planner.run(conditions))
    assert (low.rows, high.rows) == (8, 8 + 3 * 8)
    again = list(planner.run(reversed(conditions)))
    assert (low.rows, high.rows) == (8, 8 + 3 * 8)
    assert [n for n, _ in again] == [n for n, _ in reversed(first)]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(reversed(first), again, strict=True))
    low.handle.remove(), high.handle.remove()


def test_conditions_without_a_key_are_never_merged(tiny_model, make_prompts):
    model, prompts = tiny_model("llama"), make_prompts(4)
    conditions = [Condition("a", (zero("L0.z[0]"),)), Condition("b", (zero("L0.z[1]"),))]
    found = dict(sweep(model, prompts, conditions))
    assert not np.array_equal(found["a"], found["b"])


def test_a_caller_may_stop_early_and_nothing_more_is_computed(tiny_model, make_prompts):
    model, prompts = tiny_model("llama"), make_prompts(4)
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield Condition("c", (zero("L1.z[0]"),), keys=(len(taken),))

    run = Planner(model, prompts).run(endless(), chunk=5)
    assert len([next(run) for _ in range(7)]) == 7
    run.close()
    assert len(taken) == 10
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_residuals_over_the_memory_limit_are_recomputed_with_the_same_result(
    tiny_model, make_prompts, monkeypatch
):
    model, prompts = tiny_model("gpt_neox"), make_prompts(8)
    want = dict(sweep(model, prompts, head_conditions(HEADS), batch=2, metric=logits_at_query))
    monkeypatch.setattr("causegrid.interventions.sweep.KEPT_RESIDUALS", 1)
    found = dict(sweep(model, prompts, head_conditions(HEADS), batch=2, metric=logits_at_query))
    assert all(np.array_equal(found[name], want[name]) for name in want)


def test_progress_counts_conditions(tiny_model, make_prompts):
    seen = []
    list(
        sweep(
            tiny_model("llama"),
            make_prompts(2),
            head_conditions(HEADS),
            progress=lambda d, t: seen.append((d, t)),
        )
    )
    assert seen == [(i + 1, len(HEADS)) for i in range(len(HEADS))]


def test_a_stacked_edit_that_changes_shape_is_an_error(tiny_model, make_prompts):
    bad = [Condition(str(i), (Edit(site("L0.z[0]"), lambda x: x[:, :1]),)) for i in range(2)]
    for stack in (1, 2):
        with pytest.raises(InterventionError, match="shape"):
            list(sweep(tiny_model("llama"), make_prompts(2), bad, stack=stack))


def test_an_edit_that_never_fires_is_an_error(tiny_model, make_prompts, monkeypatch):
    model = tiny_model("gpt_neox")
    attention = raw_blocks(model.module)[1].attention
    dense = attention.dense

    def unhooked(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)

    monkeypatch.setattr(type(dense), "__call__", unhooked)
    with pytest.raises(InterventionError, match="fired zero times"):
        list(sweep(model, make_prompts(2), head_conditions([[(1, 0)]])))


@pytest.mark.parametrize(
    ("edits", "word"),
    [((), "no edits"), ((zero("L0.z[4]"),), "4 heads"), ((zero("L7.resid_post"),), "2 layers")],
)
def test_bad_conditions_are_refused(edits, word, tiny_model, make_prompts):
    with pytest.raises(InputError, match=word):
        list(sweep(tiny_model("llama"), make_prompts(2), [Condition("bad", edits)]))


def test_prompts_for_another_tokenizer_are_refused(tiny_model, make_prompts):
    with pytest.raises(InputError, match="another tokenizer"):
        Planner(tiny_model("llama"), make_prompts(4, vocab=5000))


def test_noise_floor_is_zero_or_rounding_in_float32(tiny_model, make_prompts):
    planner = Planner(tiny_model("llama"), make_prompts(9), batch=4)
    floor = planner.noise_floor
    assert floor.shape == (5,) and (floor >= 0).all() and floor[1] < 1e-4 and floor[0] == 0
