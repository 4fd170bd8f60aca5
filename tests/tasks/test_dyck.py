import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from causegrid.errors import InputError
from causegrid.tasks import task


def parse(tokens, k):
    """Depth and top after each token, with a stack; fails when a closing bracket does not match."""
    stack, depth, top = [], [], []
    for token in tokens:
        if token < k:
            stack.append(token)
        else:
            assert stack.pop() == token - k
        depth.append(len(stack))
        top.append(stack[-1] + 1 if stack else 0)
    return depth, top


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(2, 12),
    st.integers(1, 70),
    st.integers(0, 9),
    st.sampled_from(["train", "test"]),
)
def test_labels_equal_a_stack_parser(k, max_depth, length, seed, split):
    batch = task("dyck", k=k, max_depth=max_depth).sample(5, length, seed=seed, split=split)
    for i, tokens in enumerate(batch.tokens.tolist()):
        depth, top = parse(tokens, k)
        assert depth == batch.labels["depth"][i].tolist()
        assert top == batch.labels["top"][i].tolist()
        assert max(depth) <= max_depth


def test_sizes_and_names():
    made = task("dyck")
    assert (made.n_tokens, dict(made.labels), made.label) == (4, {"depth": 11, "top": 3}, "depth")
    assert dict(task("dyck", k=8).labels) == {"depth": 11, "top": 9} and task("dyck", k=8).n_tokens == 16


def test_moves_follow_the_rules():
    batch = task("dyck").sample(3000, 120, seed=5, split="train")
    depth = batch.labels["depth"]
    before, after = depth[:, :-1], depth[:, 1:]
    assert depth.max() == 10 and np.all(depth[:, 0] == 1)
    assert np.all(after[before == 0] == 1) and np.all(after[before == 10] == 9)
    for level in range(1, 10):
        here = before == level
        up = np.mean(after[here] > level)
        assert abs(up - 0.5) < 5 * 0.5 / np.sqrt(here.sum())
    opened = batch.tokens[batch.tokens < 2]
    assert chisquare(np.bincount(opened)).pvalue > 1e-4


def test_small_walks_have_their_exact_probabilities():
    """All walks of 6 moves with depth at most 2, against the chain's own probabilities."""
    chances = {}
    for moves in product((1, -1), repeat=6):
        depth, chance = 0, 1.0
        for move in moves:
            options = [1] if depth == 0 else [-1] if depth == 2 else [1, -1]
            chance *= (move in options) / len(options)
            depth += move
        if chance:
            chances[moves] = chance
    batch = task("dyck", k=1, max_depth=2).sample(20_000, 6, seed=0, split="train")
    rows = [tuple(r) for r in np.where(batch.tokens == 0, 1, -1).tolist()]
    assert set(rows) == set(chances)
    counts = [rows.count(m) for m in chances]
    assert chisquare(counts, np.array(list(chances.values())) * len(rows)).pvalue > 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"k": 0},
        {"k": 2.5},
        {"max_depth": 0},
        {"k": True},
        {"k": 1, "max_depth": 1},
        {"k": 256},
        {"max_depth": 10**9},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(InputError, match="dyck"):
        task("dyck", **options)


def test_the_published_setting_is_made_quickly():
    """k = 8, depth 10, up to 1401 tokens, as the published files have it."""
    made = task("dyck:k=8")
    start = time.perf_counter()
    batch = made.sample(64, 1401, seed=0, split="train")
    assert time.perf_counter() - start < 2
    for i in (0, 63):
        depth, top = parse(batch.tokens[i].tolist(), 8)
        assert depth == batch.labels["depth"][i].tolist() and top == batch.labels["top"][i].tolist()
    assert batch.labels["depth"].max() == 10 and made.n_tokens == 16


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(2, 12), st.integers(1, 50), st.integers(0, 9))
def test_labels_of_tokens_are_the_samples_own(k, max_depth, length, seed):
    made = task("dyck", k=k, max_depth=max_depth)
    batch = made.sample(4, length, seed=seed, split="train")
    again = made.labels_of(batch.tokens)
    assert all(np.array_equal(again[name], batch.labels[name]) for name in made.labels)
