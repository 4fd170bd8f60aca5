"""Clean and corrupted twins against walkers of their own: one changed token, legal, another label at the readout."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causegrid.errors import InputError
from causegrid.tasks import source_code, task
from causegrid.tasks.base import StateTask
from causegrid.tasks.pairs import pairs
from causegrid.tasks.source_code import CLASSES


def brackets(tokens, k):
    """Depth and top after each token with a stack; fails on a closing bracket that does not match."""
    stack, depth, top = [], [], []
    for token in tokens:
        if token < k:
            stack.append(token)
        else:
            assert stack and stack.pop() == token - k
        depth.append(len(stack))
        top.append(stack[-1] + 1 if stack else 0)
    return depth, top


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["parity", "s3", "z6", "s4", "a4", "d5", "z2"]),
    st.integers(3, 45),
    st.data(),
    st.integers(0, 50),
)
def test_groups_change_one_token_and_every_later_state(name, length, data, seed):
    position = data.draw(st.one_of(st.none(), st.integers(0, length - 1)))
    made = task(name)
    found = pairs(made, 6, length, seed=seed, position=position)
    at = length // 2 if position is None else position
    assert found.position == at and found.readout == length - 1 and len(found) == 6
    differs = found.clean != found.corrupt
    assert np.array_equal(differs, np.arange(length)[None] == np.full((6, 1), at))
    assert found.corrupt.min() >= 0 and found.corrupt.max() < made.n_tokens
    for tokens, labels in ((found.clean, found.labels_clean), (found.corrupt, found.labels_corrupt)):
        for row, states in zip(tokens.tolist(), labels["state"].tolist(), strict=True):
            now = 0
            for token, state in zip(row, states, strict=True):
                now = int(made.table[now, token])
                assert now == state
    same = found.labels_clean["state"] == found.labels_corrupt["state"]
    assert same[:, :at].all() and not same[:, at:].any()


def test_the_sign_differs_exactly_where_the_elements_signs_do():
    made = task("s3")
    signs = np.array([round(np.linalg.det(np.eye(3)[list(p)])) for p in sorted(permutations(range(3)))])
    found = pairs(made, 60, 20, seed=1)
    odd = signs[found.clean[:, 10]] != signs[found.corrupt[:, 10]]
    differs = found.labels_clean["sign"] != found.labels_corrupt["sign"]
    assert np.array_equal(differs[:, 10:], np.repeat(odd[:, None], 10, axis=1)) and 0 < odd.mean() < 1
    both = pairs(made, 30, 20, seed=1, label="sign")
    assert (both.labels_clean["sign"][:, -1] != both.labels_corrupt["sign"][:, -1]).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.sampled_from([4, 10]), st.integers(6, 44), st.integers(0, 50))
def test_dyck_twins_are_legal_and_keep_every_other_move(k, max_depth, length, seed):
    found = pairs(task("dyck", k=k, max_depth=max_depth), 5, length, seed=seed, position=length - 5)
    at = length - 5
    for tokens, labels in ((found.clean, found.labels_clean), (found.corrupt, found.labels_corrupt)):
        for i, row in enumerate(tokens.tolist()):
            depth, top = brackets(row, k)
            assert max(depth) <= max_depth
            assert depth == labels["depth"][i].tolist() and top == labels["top"][i].tolist()
    assert np.array_equal(found.clean[:, :at], found.corrupt[:, :at])
    first, second = found.clean < k, found.corrupt < k
    assert (first[:, at] != second[:, at]).all() and np.array_equal(first[:, at + 1 :], second[:, at + 1 :])
    opened = first[:, at + 1 :]  # later opening types stay, closing ones follow
    assert np.array_equal(found.clean[:, at + 1 :][opened], found.corrupt[:, at + 1 :][opened])
    shift = found.labels_clean["depth"][:, at:] - found.labels_corrupt["depth"][:, at:]
    assert (abs(shift) == 2).all()


def test_dyck_twins_for_the_top_label_may_change_the_type_alone():
    found = pairs(task("dyck", k=4), 60, 12, seed=0, position=9, label="top")
    assert (found.labels_clean["top"][:, -1] != found.labels_corrupt["top"][:, -1]).all()
    flat = found.labels_clean["depth"][:, -1] == found.labels_corrupt["depth"][:, -1]
    assert 0 < flat.mean() < 1


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    rng = np.random.default_rng(0)
    for i in range(150):
        rows = []
        for depth in rng.integers(1, 4, size=12):
            inner = ", ".join(rng.choice(["a", "'s'", "[b, c]", "-3", "f(x)"], size=9))
            rows.append(
                f"x{i} = {'(' * depth}{'a, ' * (depth + 1)}{'f(x), ' * (i % 2)}[{inner}]{')' * depth}"
            )
        (folder / f"m{i}.py").write_text("\n".join(rows) + "\n")
    source_code._read.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAUSEGRID_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield str(folder)


def test_code_twins_exchange_a_bracket_and_an_operator(code):
    found = pairs(task("code-depth", corpus=code, max_depth=3), 60, 24, seed=0, least=20)
    assert (found.clean != found.corrupt).sum(axis=1).tolist() == [1] * len(found)
    kinds = set()
    for clean, corrupt in zip(found.clean[:, 12].tolist(), found.corrupt[:, 12].tolist(), strict=True):
        one, two = sorted(("bracket" if c < 6 else CLASSES[c]) for c in (clean, corrupt))
        assert (one, two) == ("bracket", "operator")
        kinds.add((clean < 3, 3 <= clean < 6, corrupt < 3, 3 <= corrupt < 6))
    assert len(kinds) == 4  # opening and closing, either way
    for tokens, labels in ((found.clean, found.labels_clean), (found.corrupt, found.labels_corrupt)):
        for row, depths in zip(tokens.tolist(), labels["depth"].tolist(), strict=True):
            stack = []
            for code_, depth in zip(row, depths, strict=True):
                if code_ < 3:
                    stack.append(code_)
                elif code_ < 6:
                    assert stack and stack.pop() == code_ - 3
                elif CLASSES[code_] in ("newline", "indent", "dedent"):
                    assert not stack
                assert depth == min(len(stack), 3)
    assert (found.labels_clean["depth"][:, -1] != found.labels_corrupt["depth"][:, -1]).all()


def test_twins_were_never_trained_on():
    """All 2^20 sequences of parity at length 20, seen often enough: no twin of a test pair is among them."""
    made = task("parity")
    seen = {r.tobytes() for s in range(4) for r in made.sample(50_000, 20, seed=s, split="train").tokens}
    found = pairs(made, 300, 20, seed=0)
    assert len({r.tobytes() for r in found.clean}) == 300
    assert not any(r.tobytes() in seen for r in (*found.clean, *found.corrupt))
    others = pairs(made, 300, 20, seed=0, split="train")
    assert sum(r.tobytes() in seen for r in others.corrupt) > 20


def test_pairs_are_a_function_of_the_seed():
    a, b, c = (pairs(task("dyck"), 5, 16, seed=s) for s in ((3, 1), (3, 1), (3, 2)))
    assert np.array_equal(a.corrupt, b.corrupt) and np.array_equal(a.clean, b.clean)
    assert not np.array_equal(a.clean, c.clean)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"position": 9}, "position 9 is out of range"),
        ({"readout": -9}, "readout -9 is out of range"),
        ({"position": 5, "readout": 2}, "before the changed position"),
        ({"label": "sing"}, "did you mean 'sign'"),
        ({"split": "tset"}, "did you mean 'test'"),
        ({"n": 0}, "at least 1 pair"),
        ({"length": 1}, "2 tokens"),
        ({"seed": -1}, "not a seed"),
    ],
)
def test_bad_input_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        pairs(task("s3"), **{"n": 4, "length": 8, "seed": 0, **options})


def test_too_few_twins_are_counted_and_named(code):
    with pytest.raises(InputError, match=r"only 0 of .* position 0 .*'depth' at 5") as caught:
        pairs(task("dyck"), 5, 6, seed=0, position=0)  # the first token always opens
    assert "\n" not in str(caught.value)
    rare = pairs(task("code-depth", corpus=code), 5000, 24, seed=0, least=3)
    assert 3 <= len(rare) < 5000


def test_a_task_without_twins_says_so():
    class Bare(StateTask):
        name, n_tokens, labels = "bare", 2, {"state": 2}

        def sample(self, n, length, *, seed, split):
            return task("parity").sample(n, length, seed=seed, split=split)

    with pytest.raises(InputError, match="no corrupted twins"):
        pairs(Bare(), 2, 8, seed=0)
    with pytest.raises(InputError, match="labels_of"):
        Bare().labels_of(np.zeros((1, 2), dtype=np.int64))
