import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causegrid.errors import InputError
from causegrid.tasks import task
from causegrid.tasks.splits import SPLITS, split_of, stream

NAMES = ("parity", "s3", "z6", "dyck")


def rows(batch):
    return {r.tobytes() for r in batch.tokens.astype(np.int8)}


@pytest.mark.parametrize("name, options", [("parity", {}), ("dyck", {"k": 1, "max_depth": 4}), ("z3", {})])
def test_no_training_sequence_is_ever_tested(name, options):
    """Short spaces, where unguarded samples would share many sequences; also across seeds."""
    made = task(name, **options)
    train = rows(made.sample(60_000, 20, seed=0, split="train")) | rows(
        made.sample(60_000, 20, seed=1, split="train")
    )
    val = rows(made.sample(20_000, 20, seed=0, split="val"))
    test = rows(made.sample(20_000, 20, seed=(1, 7), split="test"))
    assert not train & test and not train & val and not val & test
    assert len(test) > 300


def test_the_guard_is_needed():
    """The same amounts without the hash do overlap: the test above can fail."""
    rng = np.random.default_rng(0)
    a, b = ({r.tobytes() for r in rng.integers(0, 2, (n, 20), dtype=np.int8)} for n in (120_000, 20_000))
    assert len(a & b) > 1000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [6, 40])
def test_a_function_of_seed_and_split(name, length):
    made = task(name)
    for split in SPLITS:
        first, again = (made.sample(50, length, seed=4, split=split) for _ in range(2))
        assert np.array_equal(first.tokens, again.tokens)
        assert all(np.array_equal(first.labels[k], again.labels[k]) for k in made.labels)
    drawn = [made.sample(50, length, seed=s, split=p).tokens for s in (4, 5, (4, 0)) for p in SPLITS]
    assert len({t.tobytes() for t in drawn}) == 9


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10**9))
def test_membership_depends_on_the_row_alone(length, seed):
    codes = np.random.default_rng(seed).integers(0, 9, (12, length))
    order = np.random.default_rng(seed + 1).permutation(12)
    assert np.array_equal(split_of(codes)[order], split_of(codes[order]))
    assert split_of(codes[3:4])[0] == split_of(codes)[3]
    assert np.array_equal(split_of(codes.astype(np.int32)[:, :]), split_of(np.asfortranarray(codes)))


def test_shares_are_six_one_one_eighths():
    codes = np.random.default_rng(0).integers(0, 2, (80_000, 40))
    shares = np.bincount(split_of(codes), minlength=3) / 80_000
    assert np.allclose(shares, [0.75, 0.125, 0.125], atol=0.005)


def test_rejection_keeps_the_tokens_uniform():
    tokens = task("parity").sample(40_000, 24, seed=0, split="test").tokens
    assert np.all(np.abs(tokens.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(40_000))


@pytest.mark.parametrize("seed", [-1, "a", (), (1, -2), 1.5])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(InputError, match="not a seed"):
        task("parity").sample(2, 8, seed=seed, split="train")


def test_seed_sequences_do_not_collide():
    draws = {stream(s, 0).integers(2**60) for s in (1, (1, 0), (1, 0, 0), (0, 1), 2**32, (0, 2**32))}
    assert len(draws) == 6
    assert stream(7, 0).integers(2**60) == stream((7,), 0).integers(2**60)


def test_bad_sizes_and_splits_are_refused():
    with pytest.raises(InputError, match="did you mean 'train'"):
        task("s3").sample(2, 8, seed=0, split="training")
    for n, length in ((-1, 8), (2, 0)):
        with pytest.raises(InputError, match="cannot sample"):
            task("s3").sample(n, length, seed=0, split="train")
    assert task("s3").sample(0, 40, seed=0, split="test").tokens.shape == (0, 40)


@pytest.mark.parametrize("name", NAMES)
def test_a_training_batch_is_cheap(name):
    made = task(name)
    took = []
    for step in range(60):
        start = time.perf_counter()
        made.sample(64, 40, seed=(0, step), split=SPLITS[step % 3])
        took.append(time.perf_counter() - start)
    assert np.percentile(took, 20) < 2e-3
