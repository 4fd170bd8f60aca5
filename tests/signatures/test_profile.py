"""Baselines against plain dictionaries, collected states against hooks, profiles and their summaries."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_cells import Toy, prompt_set, tiny_model

from causegrid.errors import InputError
from causegrid.evidence.effects import bootstrap_mean
from causegrid.models import model as make
from causegrid.signatures import Probe, collect, fit_probes, probe_profile, profile_of, profile_summary
from causegrid.signatures.baselines import (
    control_labels,
    lookup_accuracy,
    no_model_baselines,
    shuffled_accuracies,
)
from causegrid.signatures.standard import standard

COLUMNS = [
    "layer", "label", "length", "accuracy", "low", "high", "balanced", "n_train", "n_test",
    "baseline_majority", "baseline_position", "baseline_token", "baseline_token_pair",
    "baseline_untrained", "baseline_shuffled", "baseline_control",
]  # fmt: skip


def table_oracle(train, test):
    """Best lookup table by dictionaries: lists of (key, label)."""
    per_key = defaultdict(Counter)
    for key, label in train:
        per_key[key][label] += 1

    def best(counter):
        return min(counter, key=lambda label: (-counter[label], label))

    overall = best(Counter(label for _, label in train))
    return np.mean([(best(per_key[key]) if key in per_key else overall) == label for key, label in test])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 3)), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(-1, 12), st.integers(0, 5)), min_size=1, max_size=40),
)
def test_lookup_accuracy_is_the_dictionaries(train, test):
    (tk, ty), (vk, vy) = (np.array(pairs).T for pairs in (train, test))
    assert lookup_accuracy(tk, ty, vk, vy) == pytest.approx(table_oracle(train, test))


@pytest.fixture(scope="module")
def model():
    return tiny_model("gpt_neox")


@pytest.fixture(scope="module")
def states(model):
    return collect(model, Toy(), length=24, n_train=60, n_test=30, seed=0)


def test_collected_states_are_the_blocks_own_outputs(model, states):
    tokens = Toy().sample(60, 24, seed=0, split="train").tokens
    seen = {}
    hooks = [
        block.register_forward_hook(
            lambda _m, args, out, i=i: (
                seen.update({i - 1: args[0]} if i == 0 else {})
                or seen.update({i: out if isinstance(out, torch.Tensor) else out[0]})
            )
        )
        for i, block in enumerate(model.module.gpt_neox.layers)
    ]
    with torch.no_grad():
        model.module(input_ids=torch.from_numpy(tokens), use_cache=False)
    for hook in hooks:
        hook.remove()
    assert states.layers == [-1, 0, 1]
    for layer in states.layers:
        np.testing.assert_allclose(states.train.x[layer].reshape(60, 24, -1), seen[layer].numpy(), atol=1e-5)
    rows = states.train
    np.testing.assert_array_equal(rows.token.reshape(60, 24), tokens)
    np.testing.assert_array_equal(rows.y["parity"].reshape(60, 24), np.cumsum(tokens, axis=1) % 2)
    assert (rows.previous.reshape(60, 24)[:, 0] == -1).all()
    np.testing.assert_array_equal(rows.previous.reshape(60, 24)[:, 1:], tokens[:, :-1])


def test_thinned_rows_are_rows_of_the_whole(model, states):
    thin = collect(model, Toy(), length=24, n_train=60, n_test=30, seed=0, n_positions=5)
    assert len(thin.train.token) == 300 and len(thin.test.token) == 150
    for rows, whole in ((thin.train, states.train), (thin.test, states.test)):
        assert len(set(zip(rows.sequence, rows.position, strict=True))) == len(rows.token)
        index = rows.sequence * 24 + rows.position
        np.testing.assert_allclose(rows.x[1], whole.x[1][index], atol=1e-5)
        np.testing.assert_array_equal(rows.y["parity"], whole.y["parity"][index])
        np.testing.assert_array_equal(rows.previous, whole.previous[index])
    assert set(thin.train.position) == set(range(24))


def test_baselines_are_lookup_tables_over_the_right_keys(states):
    got = no_model_baselines(states, "before")
    keys = {
        "majority": lambda r: np.zeros(len(r.token)),
        "position": lambda r: r.position,
        "token": lambda r: r.token,
        "token_pair": lambda r: list(zip(r.previous, r.token, strict=True)),
    }
    for name, key in keys.items():
        pairs = [
            [(k if np.isscalar(k) else tuple(k), y) for k, y in zip(key(r), r.y["before"], strict=True)]
            for r in (states.train, states.test)
        ]
        assert got[name] == pytest.approx(table_oracle(*pairs)), name
    assert got["token_pair"] == 1.0 and got["token"] < 0.8


def test_control_labels_are_a_function_of_token_and_bucket_with_every_class(states):
    train, test = control_labels(states, 2, seed=0)
    by_key = defaultdict(set)
    for rows, labels in ((states.train, train), (states.test, test)):
        for token, position, label in zip(rows.token, rows.position, labels, strict=True):
            by_key[token, position // 10].add(label)
    assert len(by_key) == 6 and all(len(v) == 1 for v in by_key.values())
    assert Counter(next(iter(v)) for v in by_key.values()) == {0: 3, 1: 3}
    assert not np.array_equal(train, control_labels(states, 2, seed=1)[0])
    assert not np.array_equal(train, control_labels(states, 2, seed=0, draw=1)[0])


def test_shuffled_labels_leave_only_the_label_distribution():
    rng = np.random.default_rng(0)
    y = (rng.random(4000) < 0.3).astype(int)
    x = (rng.normal(size=(4000, 6)) + 4 * y[:, None]).astype(np.float32)
    assert Probe().fit(x[:2000], y[:2000]).accuracy(x[2000:], y[2000:]) > 0.99
    draws = shuffled_accuracies(standard(x[:2000]), y[:2000], x[2000:], y[2000:], 0, n=3)
    assert draws.shape == (3,)
    assert draws == pytest.approx(0.7, abs=0.03)


def test_interval_covers_the_mean_and_resamples_sequences():
    """Positions within a sequence agree: the interval is as wide as the number of *sequences* makes it."""
    rng = np.random.default_rng(0)
    values = (rng.random(200) < 0.6).astype(float)
    low, high = bootstrap_mean(values, seed=1)
    error = values.std() / np.sqrt(200)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.25 * error)


def test_profile_of_a_tiny_model(model, states):
    profile = probe_profile(model, Toy(), length=24, n_train=60, n_test=30, untrained=False)
    assert list(profile.columns[: len(COLUMNS)]) == COLUMNS
    assert list(profile["layer"]) == [-1, 0, 1] * 2
    assert list(profile["label"].unique()) == ["parity", "before"]
    assert ((profile["low"] <= profile["accuracy"]) & (profile["accuracy"] <= profile["high"])).all()
    assert profile["baseline_untrained"].isna().all()
    assert (profile["n_train"] == 60).all() and (profile["n_test"] == 30).all()
    probe = fit_probes(states, "parity")[1]
    row = profile[(profile["layer"] == 1) & (profile["label"] == "parity")].iloc[0]
    assert row["accuracy"] == probe.accuracy(states.test.x[1], states.test.y["parity"])
    assert row["selectivity"] == row["accuracy"] - row["baseline_control"]
    again = profile_of(states)
    pd.testing.assert_frame_equal(again, profile[profile["label"] == "parity"].reset_index(drop=True))


def test_shuffled_and_control_baselines_are_means_of_their_own_draws(states):
    """Each draw fitted alone, on its own copy of the features; the columns hold mean, smallest and largest."""
    seen = []
    row = profile_of(states, "parity", seed=3, progress=lambda *at: seen.append(at)).iloc[2]
    x, x_test = states.train.x[1], states.test.x[1]
    control = []
    for draw in range(5):
        train, test = control_labels(states, 2, seed=3, draw=draw)
        control.append((Probe().fit(x.copy(), train).predict(x_test) == test).mean())
    rng, shuffled = np.random.default_rng([3, 1]), []
    for _ in range(5):
        fit = Probe().fit(x.copy(), rng.permutation(states.train.y["parity"]))
        shuffled.append((fit.predict(x_test) == states.test.y["parity"]).mean())
    for name, draws in (("control", control), ("shuffled", shuffled)):
        got = row[[f"baseline_{name}", f"{name}_low", f"{name}_high"]].tolist()
        assert got == pytest.approx([np.mean(draws), min(draws), max(draws)])
        assert min(draws) < max(draws)
    assert row["n_draws"] == 5 and seen == [(1, 3), (2, 3), (3, 3)]


def test_untrained_baseline_is_the_other_models_probe(model):
    sizes = dict(length=16, n_train=60, n_test=30)
    other = tiny_model("gpt_neox", seed=9)
    profile = probe_profile(model, Toy(), labels="parity", untrained=other, **sizes)
    swapped = probe_profile(other, Toy(), labels=["parity"], untrained=False, **sizes)
    np.testing.assert_array_equal(profile["baseline_untrained"], swapped["accuracy"])


@pytest.mark.parametrize("family", ["gru", "transformer"])
def test_profile_of_our_families_makes_its_own_untrained_model(family):
    own = make(family, task=Toy(), seed=0)
    profile = probe_profile(own, Toy(), labels="parity", length=12, n_train=40, n_test=20)
    assert list(profile["layer"]) == list(range(-1, own.n_layers))
    assert profile["baseline_untrained"].between(0.3, 1).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: probe_profile(m, Toy(), labels="party"), "did you mean 'parity'"),
        (lambda m: probe_profile(m, prompt_set(), length=8), "no states"),
        (lambda m: collect(m, Toy(), n_train=0), "n_train is 0"),
        (lambda m: collect(m, Toy(), n_positions=0), "n_positions is 0"),
        (lambda m: collect(m, type("Big", (Toy,), {"n_tokens": 500})()), "97 tokens"),
    ],
)
def test_bad_input_is_named(model, call, words):
    with pytest.raises(InputError, match=words):
        call(model)


def profile_table(accuracies, base=0.5, label="x", **others):
    table = {
        "layer": np.arange(-1, len(accuracies) - 1),
        "label": label,
        "length": 40,
        "accuracy": accuracies,
        "baseline_majority": 0.3,
        "baseline_position": base,
        "baseline_token": 0.2,
        "baseline_token_pair": 0.1,
        "baseline_untrained": 0.99,
        **others,
    }
    return pd.DataFrame(table)


@pytest.mark.parametrize(
    ("accuracies", "total", "share", "centre"),
    [
        ([0.5, 0.5, 0.5, 0.5, 1.0], 1.0, 1.0, 1.0),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 1.0, 0.0, 0.0),
        ([0.5, 0.6, 0.7, 0.8, 0.9], 0.8, 0.25, 0.625),
        ([0.4, 0.3, 0.5, 0.75, 0.75], 0.5, 0.0, 0.75),  # below the base is no gain
        ([0.5, 0.9, 0.7, 0.7, 0.9], 0.8, 1 / 3, 0.5),  # drops are clipped
        ([0.5, 0.51, 0.52, 0.52, 0.52], 0.04, np.nan, np.nan),
    ],
)
def test_summary_by_hand(accuracies, total, share, centre):
    row = profile_summary(profile_table(accuracies)).iloc[0]
    assert row["base"] == 0.5
    np.testing.assert_allclose(
        [row["total_gain"], row["last_block_share"], row["depth_centre"]], [total, share, centre], atol=1e-9
    )


def test_summary_keeps_labels_and_lengths_apart_and_wants_every_layer():
    both = pd.concat([profile_table([0.5, 0.5, 1.0]), profile_table([0.5, 1.0, 1.0], label="y")])
    summary = profile_summary(both.sample(frac=1, random_state=0)).set_index("label")
    assert summary.loc["x", "depth_centre"] == 1 and summary.loc["y", "depth_centre"] == 0.5
    perfect = profile_summary(profile_table([1.0, 1.0, 1.0], base=1.0)).iloc[0]
    assert perfect["total_gain"] == 0 and np.isnan(perfect["depth_centre"])
    with pytest.raises(InputError, match="layers must be"):
        profile_summary(both[both["layer"] != 0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0, 0.95))
def test_summary_lies_in_its_bounds(accuracies, base):
    row = profile_summary(profile_table(accuracies, base=max(base, 0.3))).iloc[0]
    assert 0 <= row["total_gain"] <= 1
    assert np.isnan(row["depth_centre"]) == (row["total_gain"] < 0.05)
    if row["total_gain"] >= 0.05:
        assert -1e-9 <= row["depth_centre"] <= 1 + 1e-9 and -1e-9 <= row["last_block_share"] <= 1 + 1e-9
