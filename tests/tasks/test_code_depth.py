"""Code-Depth against a reader of its own: ast and a stack over the raw text's tokens, file by file."""

from __future__ import annotations

import io
import tokenize

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from causegrid.errors import InputError
from causegrid.tasks import source_code, task
from causegrid.tasks.source_code import CLASSES, read, token_classes

TRICKY = '''# a comment with ( [ {
def f(x, y=(1, 2)):
    """a string with ))) in it"""
    return {"a": [x, f"{x!r}}}" "(", (y,)]}  # ]

'''


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(60):
        lines = [f"x{i} = {'(' * d}{i} + y{')' * d}[{k}]" for k, d in enumerate(rng.integers(0, 5, size=30))]
        (tmp_path / f"m{i}.py").write_text(TRICKY + "\n".join(lines) + "\n")
    (tmp_path / "broken.py").write_text("def f(:\n  (\n")
    (tmp_path / "latin.py").write_bytes(b"# coding: utf-8\nx = '\xff'\n")
    source_code._read.cache_clear()
    return tmp_path


def names(source):
    return [CLASSES[i] for i in token_classes(source)]


def test_brackets_in_strings_and_comments_are_no_brackets():
    found = names(TRICKY)
    assert "".join(c for c in found if c in "([{)]}") == "((" + "))" + "{[" + "()" + "]}"
    assert found.count("comment") == 2 and found[0] == "comment"
    assert found.count("string") == 4  # the docstring, the key, the f-string and the string joined to it
    assert found.count("indent") == found.count("dedent") == 1
    assert [c for c in found if c == "keyword"] == ["keyword", "keyword"]  # def, return


def test_depth_equals_a_stack_over_the_raw_tokens(folder):
    made = task("code-depth", corpus=str(folder))
    batch = made.sample(50, 40, seed=1, split="train")
    texts = {}
    for path in folder.glob("m*.py"):
        stack, depths, kinds = [], [], []
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in (tokenize.NL, tokenize.ENDMARKER) or "FSTRING" in tokenize.tok_name[token.type]:
                continue
            if token.type == tokenize.OP and token.string in "([{":
                stack.append(token.string)
            elif token.type == tokenize.OP and token.string in ")]}":
                assert "([{".index(stack.pop()) == ")]}".index(token.string)
            depths.append(len(stack))
            kinds.append(token.string if token.string in tuple("()[]{}") else None)
        texts[path.name] = (kinds, depths)
    shown = [[CLASSES[t] if t < 6 else None for t in row] for row in batch.tokens.tolist()]
    for row, depth in zip(shown, batch.labels["depth"].tolist(), strict=True):
        places = [
            depths[s : s + 40]
            for kinds, depths in texts.values()
            for s in range(len(kinds) - 39)
            if kinds[s : s + 40] == row and (s == 0 or depths[s - 1] == 0)
        ]
        assert depth in places


def test_windows_start_at_depth_zero_and_depth_is_clipped(folder):
    deep = task("code-depth", corpus=str(folder), max_depth=2).sample(200, 30, seed=0, split="train")
    full = task("code-depth", corpus=str(folder)).sample(200, 30, seed=0, split="train")
    assert np.array_equal(deep.tokens, full.tokens)
    assert full.labels["depth"].max() > 2 and full.labels["depth"][:, 0].max() <= 1
    assert np.array_equal(deep.labels["depth"], np.minimum(full.labels["depth"], 2))
    both = task("code-depth", corpus=str(folder), indentation=True).sample(200, 30, seed=0, split="train")
    assert (both.labels["depth"] >= 0).all()


def test_no_test_window_comes_from_a_training_file_or_equals_a_training_window(folder):
    made = task("code-depth", corpus=str(folder))
    batches = {split: made.sample(400, 40, seed=3, split=split) for split in ("train", "val", "test")}
    rows = {split: {bytes(r.astype(np.int8)) for r in b.tokens} for split, b in batches.items()}
    assert (
        not rows["train"] & rows["test"]
        and not rows["train"] & rows["val"]
        and not rows["val"] & rows["test"]
    )
    places = [set(made._places(40, split).tolist()) for split in batches]
    assert all(places) and not places[0] & places[2]
    starts = np.concatenate([[0], read(str(folder)).ends])
    files = [set(np.searchsorted(starts, list(p), side="right").tolist()) for p in places]
    assert not files[0] & files[1] and not files[0] & files[2] and not files[1] & files[2]


def test_samples_are_a_function_of_seed_and_split(folder):
    made = task("code-depth", corpus=str(folder))
    a, b = (made.sample(8, 40, seed=(4, 1), split="test") for _ in range(2))
    assert np.array_equal(a.tokens, b.tokens)
    assert not np.array_equal(a.tokens, made.sample(8, 40, seed=(4, 2), split="test").tokens)


def test_files_that_do_not_tokenise_are_counted_and_the_digest_follows_the_tokens(folder):
    corpus = read(str(folder))
    assert corpus.skipped == 2 and len(corpus.ends) == 60
    before = corpus.digest
    (folder / "m0.py").write_text("a = 1\n")
    source_code._read.cache_clear()
    assert read(str(folder)).digest != before
    (folder / "m0.py").write_text("bb = 2\n")  # other text, the same classes
    source_code._read.cache_clear()
    again = read(str(folder)).digest
    (folder / "m0.py").write_text("a = 1\n")
    source_code._read.cache_clear()
    assert read(str(folder)).digest == again


def test_parquet_with_codesearchnet_columns(tmp_path):
    rows = {
        "func_code_string": [f"def f{i}(a, b):\n    return g([a, {i}], (b,))\n" for i in range(5)]
        + ["def (", "x"],
        "language": ["python"] * 6 + ["go"],
        "func_name": ["f"] * 7,
    }
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    corpus = read(str(tmp_path / "train.parquet"))
    assert corpus.skipped == 1 and len(corpus.ends) == 1  # the five have equal classes
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no column of source"):
        read(str(tmp_path / "other.parquet"))
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read(str(tmp_path / "bad.parquet"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"corpus": "stdlibb"}, "stdlib"),
        ({"corpus": "nowhere/x.parquet"}, "cannot be read as Parquet|no folder"),
        ({"corpus": "nowhere/folder"}, "no folder"),
    ],
)
def test_unknown_corpora_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        task("code-depth", **options).sample(2, 8, seed=0, split="train")


def test_lengths_no_file_has_and_bad_options_are_refused(folder):
    with pytest.raises(InputError, match="5000 tokens"):
        task("code-depth", corpus=str(folder)).sample(2, 5000, seed=0, split="train")
    with pytest.raises(InputError, match="max_depth"):
        task("code-depth", max_depth=0)
    with pytest.raises(InputError, match="more than 256 classes"):
        task("code-depth", max_depth=500)


def test_the_hub_corpus_without_its_extra_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    source_code._read.cache_clear()
    with pytest.raises(InputError, match=r"causegrid\[code\]"):
        read("code-search-net")


def test_the_standard_library_is_shallow_as_known():
    """Shares of depth 0, 1, 2, 3 in the standard library are near the published .62 .33 .044 .005."""
    corpus = read("stdlib")
    step = np.where(corpus.codes < 3, 1, np.where(corpus.codes < 6, -1, 0))
    share = np.bincount(np.cumsum(step), minlength=4) / len(step)
    assert corpus.skipped < 5 and len(corpus.codes) > 500_000
    np.testing.assert_allclose(share[:4], [0.62, 0.33, 0.044, 0.005], atol=0.05)
