"""The zoo's classes, tokenizer, training loop and cache, on toys of two layers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from causegrid.errors import InputError
from causegrid.models import load, model, save
from causegrid.models.zoo import CLASSES, KEPT, fresh, keep, tokenizer_of
from causegrid.models.zoo_training import train_language

WORDS = ["Mary", "John", "lives", "in", "London", "Paris", "year", "17", "5", "12", "the"]
TOKENIZER = tokenizer_of(WORDS)
TOY = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=32)


def rows(step: int) -> tuple[Any, Any, Any]:
    """Two batches in turn, of words repeated: 4 rows of 12."""
    rng = np.random.default_rng((7, step % 2))
    half = rng.integers(5, len(TOKENIZER), size=(4, 6))
    ids = np.concatenate([half, half], axis=1)
    weights = np.ones((4, 12), dtype=np.float32)
    kinds = np.full((4, 12), -1)
    kinds[:, 7:] = 1
    return ids, weights, kinds


def weights_of(made: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in made.module.state_dict().items()}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
def test_a_text_of_words_is_a_token_each_and_comes_back(words: list[str]) -> None:
    text = " ".join(words)
    ids = TOKENIZER(text)["input_ids"]
    assert len(ids) == len(words) and TOKENIZER.unk_token_id not in ids
    assert TOKENIZER.decode(ids) == text


def test_a_word_is_the_same_token_wherever_it_stands_and_a_year_is_two() -> None:
    ids = TOKENIZER("Mary lives in London. Mary, year 1705 1712 12")["input_ids"]
    shown = TOKENIZER.convert_ids_to_tokens(ids)
    assert shown == [
        "▁Mary",
        "▁lives",
        "▁in",
        "▁London",
        ".",
        "▁Mary",
        ",",
        "▁year",
        "▁17",
        "05",
        "▁17",
        "12",
        "▁12",
    ]
    assert TOKENIZER("Zurich")["input_ids"] == [TOKENIZER.unk_token_id]


@pytest.mark.parametrize("name", CLASSES)
def test_sizes_and_seed(name: str) -> None:
    made, same, other = (fresh(name, TOKENIZER, seed=s) for s in (0, 0, 1))
    assert (made.n_layers, made.n_heads, made.head_dim) == (6, 16, 8)
    assert made.family == CLASSES[name][0]
    assert 0.7e6 < made.n_params < 1.5e6
    first, again, differs = weights_of(made), weights_of(same), weights_of(other)
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], differs[k]) for k in first)


def test_drawing_weights_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    fresh("zoo-olmo", TOKENIZER, **TOY)
    assert torch.equal(before, torch.get_rng_state())


def test_training_lowers_the_loss_and_counts_what_it_says() -> None:
    made = fresh("zoo-gpt-neox", TOKENIZER, **TOY)
    history = train_language(made, rows, steps=120, lr=3e-3)
    loss = history.drop_duplicates("step")["loss"].to_list()
    assert loss[-1] < loss[0] - 1
    assert list(history["step"]) == [50, 100, 120] and set(history["kind"]) == {1}
    assert list(history["n"]) == [50 * 20, 50 * 20, 20 * 20]
    assert list(history["tokens"]) == [50 * 48, 100 * 48, 120 * 48]
    assert not made.module.training


def test_weights_decide_what_is_learned() -> None:
    """With weight on the last place alone, one step's loss is that place's cross-entropy."""
    made = fresh("zoo-olmo", TOKENIZER, **TOY)
    ids, weights, kinds = rows(1)
    weights[:] = 0
    weights[:, -1] = 2
    with torch.no_grad():
        logits = made.module(input_ids=torch.from_numpy(ids)).logits[:, -2].double()
    wanted = -logits.log_softmax(-1)[torch.arange(4), torch.from_numpy(ids[:, -1])].mean()
    history = train_language(made, lambda _: (ids, weights, kinds), steps=1)
    assert history["loss"].iloc[0] == pytest.approx(float(wanted), abs=1e-4)


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = fresh("zoo-olmoe", TOKENIZER, **TOY)
    wanted = train_language(whole, rows, steps=12)

    class Killed(Exception):
        pass

    def kill(step: int, *_: Any) -> None:
        if step == 8:
            raise Killed

    options = dict(steps=12, checkpoint=tmp_path / "state", checkpoint_every=0.0, run={"seed": 0})
    with pytest.raises(Killed):
        train_language(fresh("zoo-olmoe", TOKENIZER, **TOY), rows, progress=kill, **options)
    seen: list[int] = []
    made = fresh("zoo-olmoe", TOKENIZER, **TOY)
    history = train_language(made, rows, progress=lambda step, *_: seen.append(step), **options)
    assert 1 < seen[0] <= 8 and seen[-1] == 12
    a, b = weights_of(whole), weights_of(made)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert history.drop(columns="seconds").equals(wanted.drop(columns="seconds"))


def test_a_loss_that_is_no_number_is_an_error() -> None:
    made = fresh("zoo-olmo", TOKENIZER, **TOY)
    with torch.no_grad():
        next(made.module.parameters()).fill_(float("nan"))
    with pytest.raises(RuntimeError, match="step 1"):
        train_language(made, rows, steps=2)


def test_snapshots_are_plain_folders_of_that_step(tmp_path: Path) -> None:
    made = fresh("zoo-gpt-neox", TOKENIZER, **TOY)
    train_language(made, rows, steps=6, snapshots=(2, 6), folder=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-2", "step-6"]
    early = fresh("zoo-gpt-neox", TOKENIZER, **TOY)

    class Stop(Exception):
        pass

    def stop(step: int, *_: Any) -> None:
        if step == 2:
            raise Stop

    with pytest.raises(Stop):
        train_language(early, rows, steps=6, progress=stop)
    for folder, same in (("step-2", early), ("step-6", made)):
        found = weights_of(model(tmp_path / folder))
        assert all(torch.equal(found[k], v) for k, v in weights_of(same).items())


def test_kept_models_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAUSEGRID_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="run `causegrid zoo` first"):
        model("zoo-olmo:seed=1")
    assert KEPT["zoo-olmo"].digest(seed=1) == ""
    made = fresh("zoo-olmo", TOKENIZER, seed=1, **TOY)
    save(made, tmp_path / "cell")
    (tmp_path / "cell" / "history.parquet").write_text("not part of a model")
    for _ in range(2):  # again in its place
        folder = keep(tmp_path / "cell", "zoo-olmo", 1)
    assert not (folder / "history.parquet").exists() and len(list(folder.parent.iterdir())) == 1
    found = model("zoo-olmo:seed=1")
    assert found.name == "zoo-olmo:seed=1" and found.tokenizer("Mary lives")["input_ids"] == [
        *TOKENIZER("Mary lives")["input_ids"]
    ]
    a, b = weights_of(found), weights_of(made)
    assert all(torch.equal(a[k], b[k]) for k in b)
    assert len(KEPT["zoo-olmo"].digest(seed=1)) == 16
    with pytest.raises(InputError, match="seed 0 has not been trained"):
        model("zoo-olmo")
    for bad in ("zoo-olmo:sed=1", "zoo-olmo:seed=-1", "zoo-olmo:seed=x"):
        with pytest.raises(InputError, match="seed"):
            model(bad)


def test_a_folder_of_the_zoo_loads_without_its_name(tmp_path: Path) -> None:
    made = fresh("zoo-gpt-neox", TOKENIZER, **TOY)
    save(made, tmp_path)
    ids = [[random.Random(0).randrange(len(TOKENIZER)) for _ in range(9)]]
    assert torch.equal(load(tmp_path)(ids), made(ids))
