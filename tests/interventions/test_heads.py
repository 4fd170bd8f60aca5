"""Head ablation against raw torch hooks; the table's columns; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from causegrid.errors import InputError
from causegrid.headnames import head
from causegrid.interventions.groups import Group
from causegrid.interventions.heads import (
    Ablator,
    ablate_heads,
    all_heads_in_layers,
    keep_only,
    singles,
)
from causegrid.interventions.metrics import METRICS
from causegrid.interventions.sweep import Planner
from causegrid.interventions.text import ordinary_text_loss, windows
from causegrid.sites import zero
from causegrid.tasks import PromptTask

PROJECTIONS = {
    "gpt2": "transformer.h.{}.attn.c_proj",
    "gpt_neox": "gpt_neox.layers.{}.attention.dense",
    "llama": "model.layers.{}.self_attn.o_proj",
}


def projection(module, layer):
    return module.get_submodule(PROJECTIONS[module.config.model_type].format(layer))


def raw_inputs(module, tokens, n_layers=2):
    """Inputs of every attention output projection, (B, L, width) by layer, by plain hooks."""
    found, handles = {}, []
    for layer in range(n_layers):
        handles.append(
            projection(module, layer).register_forward_pre_hook(
                lambda _, args, layer=layer: found.__setitem__(layer, args[0].clone())
            )
        )
    with torch.no_grad():
        module(input_ids=torch.as_tensor(tokens), use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def raw_ablated(module, tokens, heads, value, n_heads=4):
    """Query-position logits with the heads' columns set to value(layer, columns), by plain hooks."""
    handles = []
    for layer in {head(h)[0] for h in heads}:

        def hook(_, args, layer=layer):
            x = args[0].clone()
            width = x.shape[-1] // n_heads
            for h in [head(name)[1] for name in heads if head(name)[0] == layer]:
                columns = slice(h * width, (h + 1) * width)
                x[..., columns] = value(layer, columns)
            return (x, *args[1:])

        handles.append(projection(module, layer).register_forward_pre_hook(hook))
    with torch.no_grad():
        out = module(input_ids=torch.as_tensor(tokens), use_cache=False).logits[:, -1]
    for handle in handles:
        handle.remove()
    return out.numpy()


def margins(logits, prompts):
    return np.array(
        [
            row[a].mean() - row[f].mean()
            for row, a, f in zip(logits, prompts.answers, prompts.foils, strict=True)
        ]
    )


def margin_effect(table, group):
    row = table[(table.group == group) & (table.metric == "logit_diff")].iloc[0]
    return np.array(row["clean"]) + np.array(row["values"])


GROUP = ["L0H3", "L1H0", "L1H2"]


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama_gqa", "llama_wide"])
def test_zero_equals_raw_hooks(family, tiny_model, make_prompts):
    model, prompts = tiny_model(family), make_prompts(9)
    table = ablate_heads(model, prompts, {"g": GROUP}, mode="zero")
    want = margins(raw_ablated(model.module, np.stack(prompts.tokens), GROUP, lambda *_: 0.0), prompts)
    np.testing.assert_allclose(margin_effect(table, "g"), want, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama_gqa"])
def test_mean_is_per_position_over_the_reference_when_all_lengths_are_equal(family, tiny_model, make_prompts):
    model, prompts, reference = tiny_model(family), make_prompts(6), make_prompts(11, seed=5)
    table = ablate_heads(model, prompts, {"g": GROUP}, mode="mean", reference=reference, batch=4)
    z = raw_inputs(model.module, np.stack(reference.tokens))
    means = {layer: x.mean(0) for layer, x in z.items()}  # (L, width)
    raw = raw_ablated(model.module, np.stack(prompts.tokens), GROUP, lambda layer, c: means[layer][:, c])
    np.testing.assert_allclose(margin_effect(table, "g"), margins(raw, prompts), atol=2e-5)


def test_mean_is_pooled_over_positions_when_lengths_differ(tiny_model, make_prompts):
    model = tiny_model("llama_gqa")
    prompts, reference = make_prompts(6, lengths=(5, 7)), make_prompts(10, lengths=(7, 5, 6), seed=5)
    table = ablate_heads(model, prompts, {"g": GROUP}, mode="mean", reference=reference)
    tokens = [raw_inputs(model.module, t[None]) for t in reference.tokens]
    means = {layer: torch.cat([x[layer][0] for x in tokens]).mean(0) for layer in (0, 1)}
    want = np.concatenate(
        [
            margins(
                raw_ablated(model.module, t[None], GROUP, lambda layer, c: means[layer][c]),
                prompts.subset([i]),
            )
            for i, t in enumerate(prompts.tokens)
        ]
    )
    np.testing.assert_allclose(margin_effect(table, "g"), want, atol=2e-5)


def test_resample_takes_another_prompt_of_the_same_length_position_by_position(tiny_model, make_prompts):
    model = tiny_model("gpt_neox")
    prompts, reference = make_prompts(6, lengths=(5, 7)), make_prompts(6, lengths=(7, 5), seed=5)
    ablator = Ablator(model, prompts, reference=reference, seed=3, stack=2, batch=2)
    table = ablator.table({"g": GROUP}, "resample")
    found = margin_effect(table, "g")
    donors_used = []
    for i, tokens in enumerate(prompts.tokens):
        options = []
        for donor in [t for t in reference.tokens if len(t) == len(tokens)]:
            z = raw_inputs(model.module, donor[None])
            raw = raw_ablated(model.module, tokens[None], GROUP, lambda layer, c, z=z: z[layer][:, :, c])
            options.append(margins(raw, prompts.subset([i]))[0])
        nearest = int(np.abs(np.array(options) - found[i]).argmin())
        donors_used.append(nearest)
        assert abs(options[nearest] - found[i]) < 2e-5
    assert len(set(donors_used)) > 1
    again = Ablator(model, prompts, reference=reference, seed=3).table({"g": GROUP}, "resample")
    np.testing.assert_allclose(margin_effect(again, "g"), found, atol=1e-5)
    other = Ablator(model, prompts, reference=reference, seed=4).table({"g": GROUP}, "resample")
    assert not np.allclose(margin_effect(other, "g"), found, atol=1e-4)


def test_resample_without_any_prompt_of_the_length_is_refused(tiny_model, make_prompts):
    prompts, reference = make_prompts(1, lengths=(5,)), make_prompts(3, lengths=(7,), seed=5)
    with pytest.raises(InputError, match="equal length"):
        ablate_heads(tiny_model("llama"), prompts, {"g": GROUP}, mode="resample", reference=reference)


def test_the_table_is_tidy_and_paired(tiny_model, make_prompts):
    model, prompts = tiny_model("llama"), make_prompts(8)
    table = ablate_heads(model, prompts, {"a": ["L0H1"], "b": "L1H1,L0H2"}, mode="zero")
    columns = "group heads mode metric n baseline ablated effect low high clean values n_heads flag noise"
    assert set(columns.split()) <= set(table.columns)
    assert list(table.metric) == list(METRICS) * 2
    assert table.heads[5] == ["L1H1", "L0H2"] and table.n_heads[5] == 2
    for row in table.itertuples():
        assert len(row.clean) == len(row.values) == row.n == 8
        assert np.isclose(row.baseline, np.mean(row.clean))
        assert np.isclose(row.effect, np.mean(row.values)) and np.isclose(
            row.ablated - row.baseline, row.effect
        )
        assert row.low - 1e-12 <= row.effect <= row.high + 1e-12
    null = ablate_heads(model, prompts, [["L0H1"], ["L1H0"]], mode="zero", intervals=False)
    assert list(null.group.unique()) == ["draw-0000", "draw-0001"] and null.low.isna().all()
    assert null["effect"].iloc[0] == table["effect"].iloc[0]


def test_a_metric_no_prompt_has_gets_no_row(tiny_model, make_prompts):
    table = ablate_heads(tiny_model("llama"), make_prompts(4, foils=False), {"a": ["L0H1"]}, mode="zero")
    assert set(table.metric) == {"top1", "answer_prob", "answer_rank"}


def test_an_effect_of_exactly_zero_is_flagged(wrapped, make_prompts):
    import tiny

    module = tiny.hf("llama")
    with torch.no_grad():
        module.model.layers[1].self_attn.o_proj.weight[:, 8:16] = 0  # L1H1 writes nothing
    model = wrapped(module, "llama")
    table = ablate_heads(model, make_prompts(6), {"dead": ["L1H1"], "live": ["L1H2"]}, mode="zero", stack=1)
    assert set(table[table.group == "dead"].flag) == {"exactly zero"}
    assert set(table[table.group == "live"].flag) == {""}  # top1 may not move, the margin does


@pytest.mark.parametrize("stack", [1, 2, None])
@pytest.mark.parametrize("family", ["gpt_neox", "llama_gqa", "olmoe"])
def test_case_17_bf16_drift_is_no_effect(family, stack, wrapped, make_prompts):
    import tiny

    module = tiny.hf(family)
    with torch.no_grad():  # z of L1H1 is zero: its value vectors are
        if family == "gpt_neox":
            attention = module.gpt_neox.layers[1].attention
            fused = attention.query_key_value
            width = 8
            rows = slice(1 * 3 * width + 2 * width, 2 * 3 * width)
            fused.weight[rows] = 0
            fused.bias[rows] = 0
            heads = ["L1H1"]
        else:
            attention = module.model.layers[1].self_attn
            attention.v_proj.weight[:8] = 0  # key-value head 0
            heads = ["L1H0"]
    model = wrapped(module.to(torch.bfloat16), family)
    prompts = make_prompts(24, lengths=(7, 9), seed=2)
    table = ablate_heads(model, prompts, {"dead": heads, "also": heads}, mode="zero", stack=stack, batch=8)
    for row in table.itertuples():
        assert np.abs(row.values).max() <= row.noise
        assert row.flag in ("exactly zero", "within noise")


def test_case_23_a_head_the_model_does_not_have(tiny_model, make_prompts):
    for bad in ("L0H4", "L0H12", "L2H0"):
        with pytest.raises(InputError, match=rf"{bad}.*4 heads.*2 layers"):
            ablate_heads(tiny_model("llama_gqa"), make_prompts(2), {"g": [bad]}, mode="zero")


def test_a_model_without_heads_says_what_can_be_done(tiny_model, make_prompts):
    with pytest.raises(InputError, match=r"no attention heads.*erase.*convolution"):
        ablate_heads(tiny_model("mamba"), make_prompts(2), {"g": ["L0H0"]}, mode="zero")


@pytest.mark.parametrize(
    ("groups", "word"),
    [
        ("L0H1", "dict"),
        (["L0H1", "L1H0"], "head lists"),
        ({}, "no groups"),
        ({"g": []}, "no heads"),
        ({"g": ["L0H1", "L0H1"]}, "twice"),
        ({"g": ["3.1"]}, "L3H1"),
    ],
)
def test_bad_groups_are_refused(groups, word, tiny_model, make_prompts):
    with pytest.raises(InputError, match=word):
        ablate_heads(tiny_model("llama"), make_prompts(2), groups, mode="zero")


def test_bad_settings_are_refused(tiny_model, make_prompts):
    model, prompts = tiny_model("llama"), make_prompts(4)
    with pytest.raises(InputError, match="zero, mean, resample"):
        ablate_heads(model, prompts, {"g": GROUP}, mode="zeros")
    with pytest.raises(InputError, match="reference="):
        ablate_heads(model, prompts, {"g": GROUP}, mode="mean")
    with pytest.raises(InputError, match="1 of 3 reference"):
        mixed = make_prompts(4).subset([0, 1, 2])
        ablate_heads(model, make_prompts(4).subset([2, 3]), {"g": GROUP}, reference=mixed)
    with pytest.raises(InputError, match="another model or other prompts"):
        ablate_heads(
            model, prompts, {"g": GROUP}, mode="zero", planner=Planner(model, make_prompts(4, seed=9))
        )


class Words(PromptTask):
    """A prompt task of `total` random prompts; the tokenizer is not used."""

    def __init__(self, make, total):
        self.name, self._make, self._total = "words", make, total

    def prompts(self, tokenizer, n, *, seed=0, bos="none"):
        return self._make(min(n, self._total), seed=seed)


@pytest.mark.parametrize(
    ("total", "n", "want"), [(500, 20, (20, 20)), (500, 300, (300, 100)), (30, 20, (15, 15))]
)
def test_a_task_gives_prompts_and_a_reference_apart(total, n, want, wrapped, make_prompts):
    import tiny

    model = wrapped(tiny.hf("llama"), "llama")
    model.tokenizer = object()
    ablator = Ablator(model, Words(make_prompts, total), n=n)
    assert (len(ablator.prompts), len(ablator.reference)) == want
    assert not set(ablator.prompts.texts) & set(ablator.reference.texts)


def test_a_shared_planner_runs_equal_head_sets_once_but_not_across_modes(tiny_model, make_prompts):
    model, prompts, reference = tiny_model("llama"), make_prompts(4), make_prompts(6, seed=5)
    planner = Planner(model, prompts)
    runs = [
        ablate_heads(model, prompts, {"g": GROUP}, mode=m, reference=r, planner=planner)
        for m, r in (
            ("zero", None),
            ("mean", reference),
            ("mean", make_prompts(6, seed=6)),
            ("resample", reference),
            ("zero", None),
        )
    ]
    values = [margin_effect(t, "g") for t in runs]
    assert np.array_equal(values[0], values[4])
    assert all(not np.allclose(values[i], values[j]) for i in range(4) for j in range(i))


def test_helpers(tiny_model):
    model = tiny_model("llama")
    assert keep_only(model, ["L0H0", "L0H2", "L1H1"]) == ["L0H1", "L0H3", "L1H0", "L1H2", "L1H3"]
    assert all_heads_in_layers(model, "L1H2,L1H0") == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert singles(["L1H2", "L0H0"]) == {"L1H2": ["L1H2"], "L0H0": ["L0H0"]}
    with pytest.raises(InputError, match="all heads"):
        keep_only(model, [f"L{layer}H{h}" for layer in range(2) for h in range(4)])
    group = Group(name="g", heads=("L0H1",))
    assert keep_only(model, group.heads)[0] == "L0H0"


class Letters:
    """A tokenizer: one token per character."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [3 + ord(c) % 90 for c in text]}


def test_ordinary_text_fits_the_models_positions(wrapped):
    import tiny

    model = wrapped(tiny.hf("llama", max_position_embeddings=16), "llama")
    model.tokenizer = Letters()
    texts = ["abcdefghijklmnopqrstuvwxyz", "the quick brown fox"]
    stream = np.array(Letters()(" ".join(texts))["input_ids"])
    tokens = windows(model, texts)
    np.testing.assert_array_equal(tokens, stream[: 16 * (len(stream) // 16)].reshape(-1, 16))
    found = ordinary_text_loss(model, zero("L0.z[1]"), texts)
    assert found.n_tokens == 15 * len(tokens) and found.clean != found.ablated
    model.module.config.max_position_embeddings = 1
    with pytest.raises(InputError, match="positions of 'tiny-llama'"):
        windows(model, texts)


def test_text_loss_under_ablation(wrapped, make_prompts):
    import tiny

    module = tiny.hf("llama")
    model = wrapped(module, "llama")
    model.tokenizer = Letters()
    texts = ["abcdefghijklmnopqrstuvwxyz", "the quick brown fox jumps over it"]
    reference = make_prompts(6, lengths=(7,), seed=5)
    ablator = Ablator(model, make_prompts(4), reference=reference)
    table = ablator.text_loss({"g": GROUP}, "mean", texts)
    z = raw_inputs(module, np.stack(reference.tokens))
    means = {layer: x.mean((0, 1)) for layer, x in z.items()}
    stream = np.array(Letters()(" ".join(texts))["input_ids"])[:32]

    def loss(heads):
        handles = []
        for layer in (0, 1) if heads else ():

            def hook(_, args, layer=layer):
                x = args[0].clone()
                for h in [head(name)[1] for name in heads if head(name)[0] == layer]:
                    x[..., 8 * h : 8 * h + 8] = means[layer][8 * h : 8 * h + 8]
                return (x,)

            handles.append(projection(module, layer).register_forward_pre_hook(hook))
        with torch.no_grad():
            p = module(input_ids=torch.from_numpy(stream)[None]).logits[0].double().log_softmax(-1).numpy()
        for handle in handles:
            handle.remove()
        return -np.mean([p[i, stream[i + 1]] for i in range(31)])

    row = table.iloc[0]
    assert row.clean == pytest.approx(loss([]), abs=1e-5)
    assert row.ablated == pytest.approx(loss(GROUP), abs=1e-5)
    assert row.increase == pytest.approx(row.ablated - row.clean)
    with pytest.raises(InputError, match="resample"):
        ablator.text_loss({"g": GROUP}, "resample")
