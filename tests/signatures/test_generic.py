"""Generic classes: the synthetic batch, hand-made heads, tiny models against eager attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_cells import tiny_model

from causegrid.errors import InputError
from causegrid.signatures import generic_classes, screen
from causegrid.signatures.generic import (
    class_masses,
    classify,
    fixed_background,
    generic_screens,
    longest_input,
    position_weights,
    repeated_pairs,
)

CLASSES = ["duplicate-token", "first-token", "induction", "local", "previous-token", "self"]


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 200), st.integers(16, 80), st.integers(0, 2**31))
def test_the_pair_stands_once_and_the_query_repeats_it(vocabulary, length, seed):
    batch = repeated_pairs(vocabulary + 2, n=5, length=length, seed=seed, leave_out=(0, 3))
    for tokens, first in zip(batch.tokens, batch.first, strict=True):
        a, b = tokens[first], tokens[first + 1]
        assert a != b and tokens[-1] == a
        assert list(np.flatnonzero(tokens == a)) == [first, length - 1]
        assert list(np.flatnonzero(tokens == b)) == [first + 1]
        assert 1 <= first < length // 2
    assert not np.isin(batch.tokens, [0, 3]).any() and batch.tokens.max() < vocabulary + 2


def test_the_earlier_token_stands_in_the_published_range():
    first = repeated_pairs(1000, n=4000, length=256).first
    assert first.min() == 20 and first.max() == 127


@pytest.mark.parametrize(("size", "length", "words"), [(97, 15, "length 15"), (3, 64, "3 usable")])
def test_impossible_batches_are_refused(size, length, words):
    with pytest.raises(InputError, match=words):
        repeated_pairs(size, n=2, length=length)


def planted(batch):
    """Rows (1, n, 7, L): a head per class that puts 0.9 there, spread over the class's positions; the last is
    uniform."""
    n, length = batch.tokens.shape
    rows = np.full((1, n, 7, length), 0.1 / length, dtype=np.float32)
    for i in range(n):
        a = int(batch.first[i])
        spots = {
            "induction": [a + 1], "duplicate-token": [a], "previous-token": [length - 2], "first-token": [0],
            "self": [length - 1], "local": [length - 3, length - 4, length - 5, length - 6],
        }  # fmt: skip
        for h, name in enumerate(CLASSES):
            for spot in spots[name]:
                rows[0, i, h, spot] += 0.9 / len(spots[name])
    rows[0, :, 6] = 1 / length
    return rows, spots


def scored(batch, rows, rules):
    classes = generic_screens()
    masses = class_masses(rows, position_weights(batch, classes, rules)) / len(batch.tokens)
    return classify(masses, classes, rules, n=len(batch.tokens), length=batch.tokens.shape[1])


@pytest.mark.parametrize("rules", ["paper", "strict"])
def test_every_planted_head_gets_its_own_class(rules):
    batch = repeated_pairs(500, n=60, length=256, seed=2)
    rows, _ = planted(batch)
    table = scored(batch, rows, rules)
    best = table.groupby("head")["best_class"].first()
    assert list(best) == [*CLASSES, "unclassified"]
    chosen = {name: list(own.loc[own["selected"], "head"]) for name, own in table.groupby("class")}
    assert chosen == {name: [i] for i, name in enumerate(CLASSES)}


def test_strict_selectivity_is_the_loops():
    batch = repeated_pairs(97, n=9, length=40, seed=5)
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(40, 0.3), size=(2, 9, 3)).astype(np.float32)
    table = scored(batch, rows, "strict").set_index(["class", "layer", "head"])["selectivity"]
    for layer in range(2):
        for h in range(3):
            masses, background = {name: [] for name in CLASSES}, []
            for i in range(9):
                a, row = int(batch.first[i]), rows[layer, i, h].astype(float)
                masses["induction"].append(row[a + 1])
                masses["duplicate-token"].append(row[a])
                masses["previous-token"].append(row[38])
                masses["first-token"].append(row[0])
                masses["self"].append(row[39])
                masses["local"].append(row[[37, 36, 35, 34]].mean())
                free = set(range(40)) - {a, a + 1, 38, 0, 39, 37, 36, 35, 34}
                background.append(row[sorted(free)].mean())
            for name in CLASSES:
                assert table[name, layer, h] == pytest.approx(np.mean(masses[name]) / np.mean(background))


def test_the_papers_background_caps_induction_near_235():
    batch = repeated_pairs(50_000, n=2000, length=256, seed=0)
    rows = np.zeros((1, 2000, 1, 256), dtype=np.float32)
    rows[0, np.arange(2000), 0, batch.first + 1] = 1  # a perfect induction head
    paper, strict = (scored(batch, rows, r).set_index("class")["selectivity"] for r in ("paper", "strict"))
    assert 200 < paper["induction"] < 270
    assert strict["induction"] > 1e7


def test_the_papers_background_avoids_fixed_targets_only():
    spots = fixed_background(256)
    assert 40 <= len(spots) <= 50
    assert spots.min() >= 1 and spots.max() < 250


def test_previous_token_must_be_the_best_class():
    batch = repeated_pairs(500, n=50, length=256)
    rows = np.full((1, 50, 1, 256), 1e-4, dtype=np.float32)
    rows[..., 254], rows[..., 255] = 0.3, 0.6  # 3000x, but self is higher still
    table = scored(batch, rows, "strict").set_index("class")
    assert table.loc["previous-token", "selectivity"] > 1000
    assert not table.loc["previous-token", "selected"] and table.loc["self", "selected"]
    assert set(table["best_class"]) == {"self"}


@pytest.mark.parametrize("family", ["gpt_neox", "llama_gqa"])
def test_streamed_classes_of_a_tiny_model_equal_eager_attention(family, monkeypatch):
    from causegrid.signatures import generic

    monkeypatch.setattr(generic, "TOKENS_PER_BATCH", 100)  # several batches
    model = tiny_model(family)
    table = generic_classes(model, n=10, length=40, seed=7)
    batch = repeated_pairs(97, n=10, length=40, seed=7)
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.module(input_ids=torch.from_numpy(batch.tokens), output_attentions=True, use_cache=False)
    rows = np.stack([a[:, :, -1].numpy() for a in out.attentions])
    expected = scored(batch, rows, "strict")
    np.testing.assert_allclose(table["selectivity"], expected["selectivity"], rtol=1e-4)
    assert (table["n"] == 10).all() and set(table["class"]) == set(CLASSES)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_length_is_cut_to_the_models_positions_and_says_so(caplog, family):
    with caplog.at_level("WARNING"):
        table = generic_classes(tiny_model(family), n=4, length=256)
    assert (table["length"] == 64).all()
    assert "64 positions" in caplog.text


def test_synthetic_rows_of_a_group_are_cut_as_well():
    from causegrid.studies.pattern.head_groups import synthetic_rows

    assert set(synthetic_rows(tiny_model("llama"), length=256, seed=0).lengths) == {64}


def test_a_length_for_generating_text_is_no_number_of_positions():
    model = tiny_model("mamba")
    model.config = {"max_length": 20}
    assert longest_input(model) is None


def test_a_generic_class_is_a_screen_too():
    model = tiny_model("gpt_neox")
    table = screen(model, None, "induction", n_sequences=6, sequence_length=32)
    own = generic_classes(model, n=6, length=32)
    own = own[own["class"] == "induction"]
    np.testing.assert_array_equal(table["score"], own["selectivity"])
    assert {"layer", "head", "score", "target_mass", "selected", "rules"} <= set(table.columns)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="did you mean 'paper'"):
        generic_classes(tiny_model("gpt_neox"), rules="papers")
    with pytest.raises(InputError, match="no attention"):
        generic_classes(tiny_model("mamba"))
