from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from causegrid.errors import InputError
from causegrid.tasks import task, tasks


def walk_points(perms, row):
    """Where each point is after applying the permutations of a row one after the other."""
    where = list(range(len(perms[0])))
    for token in row:
        where = [perms[token][p] for p in where]
        yield tuple(where)


@pytest.mark.parametrize("name, n", [("s3", 3), ("s4", 4), ("s2", 2)])
def test_symmetric_groups_compose_in_the_order_read(name, n):
    perms = sorted(permutations(range(n)))
    batch = task(name).sample(20, 15, seed=3, split="train")
    for tokens, states in zip(batch.tokens, batch.labels["state"], strict=True):
        assert [perms[s] for s in states] == list(walk_points(perms, tokens))


def test_sign_is_the_determinant():
    perms = sorted(permutations(range(4)))
    signs = [round(np.linalg.det(np.eye(4)[list(p)])) for p in perms]
    batch = task("s4").sample(10, 12, seed=0, split="val")
    state, sign = batch.labels["state"], batch.labels["sign"]
    assert np.array_equal(np.where(sign == 1, -1, 1), np.array(signs)[state])
    assert list(task("s4").labels) == ["state", "sign"] and task("s4").n_classes == 24


def test_alternating_group_is_the_even_permutations():
    perms = [p for p in sorted(permutations(range(4))) if np.linalg.det(np.eye(4)[list(p)]) > 0]
    made = task("a4")
    assert made.n_tokens == made.n_classes == 12
    batch = made.sample(10, 9, seed=1, split="train")
    for tokens, states in zip(batch.tokens, batch.labels["state"], strict=True):
        assert [perms[s] for s in states] == list(walk_points(perms, tokens))


@pytest.mark.parametrize("n", [3, 4, 5])
def test_dihedral_group_moves_the_corners_of_a_polygon(n):
    moves = [tuple((i + k) % n for i in range(n)) for k in range(n)]
    moves += [tuple(-(i + k) % n for i in range(n)) for k in range(n)]
    batch = task(f"d{n}").sample(10, 14, seed=1, split="train")
    for tokens, states in zip(batch.tokens, batch.labels["state"], strict=True):
        assert [moves[s] for s in states] == list(walk_points(moves, tokens))


def test_parity_and_cyclic_groups_are_running_sums():
    bits = task("parity").sample(50, 33, seed=2, split="test")
    assert np.array_equal(bits.labels["state"], np.bitwise_xor.accumulate(bits.tokens, axis=1))
    z6 = task("z6").sample(50, 33, seed=2, split="test")
    assert np.array_equal(z6.labels["state"], np.cumsum(z6.tokens, axis=1) % 6)
    assert task("parity").n_tokens == 2 and task("z6").n_classes == task("s3").n_classes == 6


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["z2", "z7", "s3", "s4", "a4", "a5", "d1", "d2", "d5", "s5"]), st.integers(0, 10**6))
def test_every_table_is_a_group(name, seed):
    table = task(name).table
    order = len(table)
    a, b, c = np.random.default_rng(seed).integers(0, order, 3)
    assert table[table[a, b], c] == table[a, table[b, c]]
    assert table[0, a] == table[a, 0] == a  # element 0 is the identity
    assert sorted(table[a]) == sorted(table[:, a]) == list(range(order))


def test_only_the_control_commutes():
    s3, z6 = task("s3").table, task("z6").table
    assert not np.array_equal(s3, s3.T) and np.array_equal(z6, z6.T)


def test_tokens_and_late_states_are_uniform():
    batch = task("s3").sample(4000, 20, seed=0, split="train")
    assert chisquare(np.bincount(batch.tokens[:, 7], minlength=6)).pvalue > 1e-4
    assert chisquare(np.bincount(batch.labels["state"][:, 19], minlength=6)).pvalue > 1e-4


@pytest.mark.parametrize(
    "name, words",
    [
        ("z0", ("z0", "'z2'")),
        ("z1", ("order 1", "'z2'")),
        ("s1", ("order 1", "'s2'")),
        ("a2", ("order 1", "'a3'")),
        ("s6", ("6! = 720", "120")),
        ("a6", ("6!/2 = 360", "120")),
        ("d61", ("2 x 61", "120")),
        ("z121", ("order 121", "120")),
        ("s" + "9" * 5000, ("over the limit of 120",)),
    ],
)
def test_groups_too_small_or_too_large_are_refused(name, words):
    with pytest.raises(InputError) as caught:
        task(name)
    assert all(w in str(caught.value) for w in words) and "\n" not in str(caught.value)


def test_names_with_leading_zeros_are_unknown():
    with pytest.raises(InputError, match="did you mean 'z6'"):
        task("z06")


def test_registered_names_and_orders():
    assert {"parity", "s3", "z6", "z<n>", "s<n>", "a<n>", "d<n>", "dyck"} <= set(tasks.names())
    assert [task(n).n_classes for n in ("z120", "s5", "a5", "d60", "d2")] == [120, 120, 60, 120, 4]
    assert np.array_equal(task("z2").table, task("parity").table)


@pytest.mark.parametrize("length", [1, 2, 7, 64, 121])
def test_any_length(length):
    batch = task("s3").sample(3, length, seed=0, split="train")
    perms = sorted(permutations(range(3)))
    assert batch.tokens.shape == (3, length)
    assert [perms[s] for s in batch.labels["state"][1]] == list(walk_points(perms, batch.tokens[1]))
