"""Screens on hand-made rows against plain loops, and on tiny models against eager attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_cells import prompt_set, tiny_model

from causegrid.errors import InputError
from causegrid.headnames import head
from causegrid.signatures import (
    Attention,
    attention,
    group_pattern_score,
    pattern_null,
    screen,
    selected_heads,
)
from causegrid.signatures.patterns import fitting, score_screen, screens
from causegrid.signatures.screens import screens as registry

TASK_SCREENS = ["binding", "gt", "name-mover", "s-inhibition", "successor"]


def hand_made(seed=0, n=30, n_layers=2, n_heads=4, sharp=2.0, padding=0.0):
    """Random softmax rows over the toy prompts, with `padding` beyond each prompt's end."""
    prompts = prompt_set(n=n, seed=seed)
    rng = np.random.default_rng(seed)
    width = int(prompts.lengths.max())
    rows = np.full((n_layers, n, n_heads, width), padding, dtype=np.float32)
    for b, length in enumerate(prompts.lengths):
        scores = np.exp(rng.normal(size=(n_layers, n_heads, length)) * sharp)
        rows[:, b, :, :length] = scores / scores.sum(-1, keepdims=True)
    return rows, prompts


def as_attention(rows, prompts):
    return Attention(rows=rows, lengths=prompts.lengths, positions=prompts.positions, task="toy")


def oracle(rows, prompts, name, rules):
    """(score, mass, may be selected) per head by loops over prompts, from MEASURES 2.3."""
    n_layers, n, n_heads, _ = rows.shape
    out = {}
    for layer in range(n_layers):
        for h in range(n_heads):

            def a(position, layer=layer, h=h):
                return np.mean([float(rows[layer, b, h, prompts.positions[position][b]]) for b in range(n)])

            def others(*left_out, layer=layer, h=h):
                per_prompt = []
                for b in range(n):
                    drop = {f(b) for f in left_out}
                    kept = [
                        float(rows[layer, b, h, p])
                        for p in range(prompts.lengths[b])
                        if p not in drop and not (rules == "strict" and p == 0)
                    ]
                    per_prompt.append(np.mean(kept))
                return np.mean(per_prompt)

            def at(position):
                return lambda b: int(prompts.positions[position][b])

            if name == "name-mover":
                mass, foil = a("IO"), max(a("S1"), a("S2"))
                score = mass - foil if rules == "strict" else mass / foil
                may = (mass >= 0.1 and score > 0) if rules == "strict" else True
            elif name == "s-inhibition":
                mass, foil = max(a("S1"), a("S2")), a("IO")
                score = mass - foil if rules == "strict" else mass
                may = mass >= 0.1 and mass / foil >= 2
            elif name == "binding":
                mass = a("binding")
                if rules == "strict":
                    score = mass - a("distractor")
                    may = mass >= 0.1 and score > 0
                else:
                    score, may = mass / others(at("binding"), at("distractor"), at("query_name")), True
            elif name == "gt":
                mass = a("DD")
                score = mass / others(at("DD"), lambda b: int(prompts.positions["DD"][b]) - 1)
                may = mass >= 0.1 or rules == "paper"
            else:
                mass = a("self")
                score = mass / others(at("self"), at("previous"))
                may = mass >= 0.1 or rules == "paper"
            out[layer, h] = score, mass, may
    return out


@pytest.mark.parametrize("rules", ["paper", "strict"])
@pytest.mark.parametrize("name", TASK_SCREENS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_task_screen_is_its_definition(name, rules, seed):
    rows, prompts = hand_made(seed=seed, n=4, n_layers=3, sharp=3.0)
    table = score_screen(as_attention(rows, prompts), name, rules=rules).set_index(["layer", "head"])
    wanted = oracle(rows, prompts, name, rules)
    assert len(table) == len(wanted)
    for key, (score, mass, _) in wanted.items():
        assert table.loc[key, "score"] == pytest.approx(score, rel=1e-5)
        assert table.loc[key, "target_mass"] == pytest.approx(mass, rel=1e-5)
    best = sorted((k for k, v in wanted.items() if v[2]), key=lambda k: -wanted[k][0])[:5]
    ranked = table[table["selected"]].sort_values("rank")
    assert [tuple(k) for k in ranked.index] == best
    assert selected_heads(table.reset_index())[name] == [f"L{k[0]}H{k[1]}" for k in best]


@pytest.mark.parametrize("name", TASK_SCREENS)
@pytest.mark.parametrize("rules", ["paper", "strict"])
def test_case_06_padded_columns_enter_no_score(name, rules):
    clean, prompts = hand_made()
    for filling in (0.7, np.nan):
        dirty, _ = hand_made(padding=filling)
        assert score_screen(as_attention(clean, prompts), name, rules=rules).equals(
            score_screen(as_attention(dirty, prompts), name, rules=rules)
        )
    assert not np.isnan(pattern_null(as_attention(dirty, prompts), "IO", n=50)["p99"]).any()


def test_strict_leaves_position_0_out_of_other_and_paper_does_not():
    rows, prompts = hand_made()
    sink = rows.copy()
    sink[..., 0] += 5.0
    for name in ("gt", "successor"):
        assert np.allclose(*(score_screen(as_attention(r, prompts), name)["score"] for r in (rows, sink)))
        paper = [score_screen(as_attention(r, prompts), name, rules="paper")["score"] for r in (rows, sink)]
        assert (paper[1] < paper[0] / 2).all()


def test_strict_refuses_a_selective_head_that_barely_attends():
    rows, prompts = hand_made(n_layers=1)
    rows[0, :, 0] = 1e-6
    rows[0, np.arange(len(prompts)), 0, prompts.positions["DD"]] = 0.09  # 9e4 times the rest
    both = {r: score_screen(as_attention(rows, prompts), "gt", rules=r) for r in ("paper", "strict")}
    assert both["paper"]["selected"][0] and both["paper"]["rank"][0] == 1
    assert not both["strict"]["selected"][0]


def test_prompts_without_the_position_are_left_out():
    rows, prompts = hand_made(n=6)
    full = as_attention(rows, prompts)
    gone = {**prompts.positions, "DD": np.where(np.arange(6) < 2, -1, prompts.positions["DD"])}
    part = Attention(rows=rows, lengths=prompts.lengths, positions=gone)
    expected = score_screen(full.keep(np.arange(2, 6)), "gt")
    got = score_screen(part, "gt")
    assert got.equals(expected) and (got["n"] == 4).all()
    nowhere = Attention(rows=rows, lengths=prompts.lengths, positions={"DD": np.full(6, -1)})
    with pytest.raises(InputError, match="no prompt"):
        score_screen(nowhere, "gt")


def test_missing_positions_name_those_the_task_has():
    rows, prompts = hand_made()
    lean = Attention(
        rows=rows, lengths=prompts.lengths, positions={"DD": prompts.positions["DD"]}, task="years"
    )
    with pytest.raises(InputError) as caught:
        score_screen(lean, "name-mover")
    assert all(word in str(caught.value) for word in ("IO, S1, S2", "'years'", "DD"))
    assert fitting(lean.positions) == ["gt"] and fitting(prompts.positions) == TASK_SCREENS


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(TASK_SCREENS), st.sampled_from(["paper", "strict"]))
def test_scores_do_not_depend_on_the_order_of_prompts(seed, name, rules):
    rows, prompts = hand_made(seed=seed % 1000, n=9)
    order = np.random.default_rng(seed).permutation(9)
    one = score_screen(as_attention(rows, prompts), name, rules=rules)
    other = score_screen(as_attention(rows[:, order], prompts.subset(order)), name, rules=rules)
    np.testing.assert_allclose(one["score"], other["score"], rtol=1e-9)
    assert list(one["selected"]) == list(other["selected"])
    assert one["selected"].sum() <= 5


def eager_rows(model, tokens):
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.module(input_ids=torch.tensor(tokens)[None], output_attentions=True, use_cache=False)
    model.module.set_attn_implementation("sdpa")
    return np.stack([a[0, :, -1].float().numpy() for a in out.attentions])  # (n_layers, H, L)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama_gqa", "olmo2", "olmoe"])
def test_case_07_ragged_prompts_in_one_call_equal_single_runs(family):
    model, prompts = tiny_model(family), prompt_set(n=7)
    rows = attention(model, prompts, batch_size=2)
    assert rows.rows.dtype == np.float32 and rows.rows.shape == (2, 7, 4, 9)
    for b, tokens in enumerate(prompts.tokens):
        np.testing.assert_allclose(rows.rows[:, b, :, : len(tokens)], eager_rows(model, tokens), atol=2e-6)
        assert not rows.rows[:, b, :, len(tokens) :].any()
    single = [attention(model, prompts.subset([b])) for b in range(7)]
    mean = np.mean([s.at(s.positions["IO"])[:, 0] for s in single], axis=0)
    np.testing.assert_allclose(rows.mass("IO"), mean, atol=1e-6)


def test_many_screens_take_the_rows_once_and_equal_single_ones(monkeypatch):
    from causegrid.sites import rows as rows_module

    model, prompts = tiny_model("gpt_neox"), prompt_set(n=12)
    calls = []
    real = rows_module.query_rows
    monkeypatch.setattr(rows_module, "query_rows", lambda *a, **k: calls.append(1) or real(*a, **k))
    table = screens(model, prompts, rules="paper")
    assert len(calls) == 3  # one batch per length
    assert list(table["screen"].unique()) == TASK_SCREENS
    for name, own in table.groupby("screen"):
        assert own.reset_index(drop=True).equals(screen(model, prompts, name, rules="paper"))
    columns = ["screen", "layer", "head", "score", "target_mass", "selected", "rules"]
    assert set(columns) <= set(table.columns)
    assert table["layer"].dtype.kind == table["head"].dtype.kind == "i"


def test_screens_mixes_task_and_generic_names():
    model = tiny_model("gpt_neox")
    names = ["name-mover", "induction"]
    table = screens(model, prompt_set(n=6), names, n_sequences=8, sequence_length=32)
    assert list(table["screen"].unique()) == names
    assert (table.groupby("screen").size() == 8).all()


class FakeTask:
    """A prompt task that hands out the toy prompts."""

    kind, name, targets = "prompt", "toy", ()

    def prompts(self, tokenizer, n, *, seed=0, bos="none"):
        return prompt_set(n=n, seed=seed)


def test_strict_chooses_heads_on_the_first_half_only():
    model = tiny_model("gpt_neox")
    model.tokenizer = object()
    first, _ = prompt_set(n=12, seed=4).halves()
    strict = screen(model, FakeTask(), "gt", n=12, seed=4)
    assert strict.equals(screen(model, first, "gt")) and (strict["n"] == 6).all()
    assert (screen(model, FakeTask(), "gt", n=12, seed=4, rules="paper")["n"] == 12).all()


def test_bfloat16_rows_are_scored_in_float32():
    table = screens(tiny_model("gpt_neox", dtype=torch.bfloat16), prompt_set(n=9))
    assert np.isfinite(table["score"]).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: screen(m, prompt_set(), "name-movers"), "did you mean 'name-mover'"),
        (lambda m: screen(m, prompt_set(), "gt", rules="strickt"), "did you mean 'strict'"),
        (lambda m: screen(m, FakeTask(), "gt"), "no tokenizer"),
        (lambda m: screen(tiny_model("mamba"), prompt_set(), "gt"), "no attention"),
        (lambda m: attention(m, []), "no prompt"),
        (lambda m: attention(m, [[1, 2], []]), "prompt 1 is empty"),
        (lambda m: group_pattern_score(attention(m, prompt_set()), "L0H4", "IO"), "layers of 4 heads"),
        (lambda m: group_pattern_score(attention(m, prompt_set()), "L0H1", "I0"), "did you mean 'IO'"),
        (lambda m: group_pattern_score(attention(m, prompt_set()), [], "IO"), "no heads"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InputError) as caught:
        call(tiny_model("gpt_neox"))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_registry_holds_the_screens_of_the_definitions():
    generic = {"induction", "duplicate-token", "previous-token", "first-token", "self", "local"}
    assert set(registry.names()) == generic | set(TASK_SCREENS)


def test_null_of_short_prompts_is_the_loops():
    rows, prompts = hand_made(n=20, sharp=1.0)
    draws = 1500
    table = pattern_null(as_attention(rows, prompts), "IO", n=draws, seed=1).set_index(["layer", "head"])
    rng = np.random.default_rng(99)
    for key in table.index:
        layer, h = key
        values = [
            np.mean([rows[layer, b, h, rng.integers(prompts.lengths[b] - 1)] for b in range(20)])
            for _ in range(draws)
        ]
        spread = float(np.std(values))
        assert table.loc[key, "p99"] == pytest.approx(np.quantile(values, 0.99), abs=0.35 * spread)
        real = np.mean([rows[layer, b, h, prompts.positions["IO"][b]] for b in range(20)])
        assert table.loc[key, "score"] == pytest.approx(real, rel=1e-5)
        assert table.loc[key, "beyond"] == (real > table.loc[key, "p99"])


def test_null_never_draws_the_query():
    rows, prompts = hand_made(n=10)
    rows[:] = 0
    rows[:, np.arange(10), :, prompts.lengths - 1] = 1
    result = group_pattern_score(as_attention(rows, prompts), "L0H0,L1H2", "self", n=200)
    assert result["score"] == 1 and result["p99"] == 0 and result["beyond"] is True


def test_group_score_is_of_the_group_alone():
    rows, prompts = hand_made(n=40)
    rows[1, :, 3] *= 0.2
    rows[1, np.arange(40), 3, prompts.positions["IO"]] += 0.8  # L1H3 looks at IO
    own = as_attention(rows, prompts)
    assert group_pattern_score(own, ["L1H3"], "name-mover")["beyond"]
    assert group_pattern_score(own, ["L1H3"], "IO")["score"] > 0.8
    uniform = rows.copy()
    for b, length in enumerate(prompts.lengths):
        uniform[:, b, :, :length] = 1 / length
    flat = group_pattern_score(as_attention(uniform, prompts), ["L0H0", "L0H1"], "IO")
    assert not flat["beyond"]
    pair = group_pattern_score(own, ["L1H3", "L0H0"], "IO")["score"]
    alone = [group_pattern_score(own, [h], "IO")["score"] for h in ("L1H3", "L0H0")]
    assert pair == pytest.approx(np.mean(alone))
    assert head("L1H3") == (1, 3)


def test_two_targets_face_a_null_of_two_draws():
    rows, prompts = hand_made(n=8, sharp=3.0)
    own = as_attention(rows, prompts)
    one = group_pattern_score(own, ["L0H0"], "S1", n=2000)
    two = group_pattern_score(own, ["L0H0"], "s-inhibition", n=2000)
    assert two["score"] == max(group_pattern_score(own, ["L0H0"], s)["score"] for s in ("S1", "S2"))
    assert two["p99"] >= one["p99"]
