"""Code-Depth against a reader of its own: ast and a stack over the raw text's tokens, file by file."""

from __future__ import annotations

import io
import os
import sys
import tokenize
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from causegrid.errors import InputError
from causegrid.tasks import source_cache, source_code, task
from causegrid.tasks.source_code import CLASSES, read, token_classes

TRICKY = '''# a comment with ( [ {
def f(x, y=(1, 2)):
    """a string with ))) in it"""
    return {"a": [x, f"{x!r}}}" "(", (y,)]}  # ]

'''


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Each test its own cache folder."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CAUSEGRID_CACHE", str(place))
    source_code._read.cache_clear()
    yield place / "corpora"
    source_code._read.cache_clear()


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


@pytest.mark.parametrize("cookie", ["rot13", "undefined", "no-such-encoding", "base64"])
def test_a_file_of_an_odd_encoding_is_counted_and_changes_nothing_else(folder, cookie):
    before = fresh(str(folder))
    (folder / "a_first.py").write_text(f"# coding: {cookie}\nx = (1,)\n")
    after = fresh(str(folder))
    assert after.skipped == before.skipped + 1
    assert after.digest == before.digest and np.array_equal(after.codes, before.codes)


def functions(n=400, seed=0):
    """Rows as the mirror of CodeSearchNet on the hub has them: functions of 3 to 6 a file, and bad ones."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        inner = ", ".join(rng.choice(["a", "(b, c)", "{'k': [1]}", "f(x)[0]", "'s)'"], size=12))
        code = f'def f{i}(self, a):\n        """Doc ( of it."""\n        x = [{inner}]\n        return g(x)\n'
        if i % 50 == 7:
            code = "def broken(:\n  (\n"
        rows.append(
            {
                "repository_name": f"someone/repo{i // 20}",
                "func_path_in_repository": f"src/m{i // 4 % 5}.py",
                "func_name": f"C.f{i}",
                "whole_func_string": code,
                "language": "python",
                "func_code_string": code,
                "func_documentation_string": "Doc ( of it.",
                "split_name": "train",
                "func_code_url": "https://example.org",
            }
        )
    return rows


def test_parquet_with_codesearchnet_columns(tmp_path):
    one = functions(1)[0]
    rows = [*functions(), {**one, "language": "go"}, {**one, "func_code_string": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    corpus = read(str(tmp_path / "train.parquet"))
    assert corpus.skipped == 8 + 1  # broken ones and the empty one; the other language is nobody's
    files = {}
    for row in rows[:400]:
        if "broken" not in row["func_code_string"]:
            key = row["repository_name"], row["func_path_in_repository"]
            files.setdefault(key, []).extend(token_classes(row["func_code_string"]))
    starts = np.concatenate([[0], corpus.ends[:-1]])
    got = {tuple(corpus.codes[a:b].tolist()) for a, b in zip(starts, corpus.ends, strict=True)}
    assert got == {tuple(v) for v in files.values()} and len(got) == 100
    batch = task(f"code-depth:corpus={tmp_path / 'train.parquet'}").sample(20, 40, seed=0, split="test")
    assert batch.tokens.shape == (20, 40) and batch.labels["depth"].max() >= 2


def test_parquet_without_file_columns_takes_each_function_as_a_file(tmp_path):
    rows = {"code": [f"x = {'(' * i}1{')' * i}\n" for i in range(1, 6)] * 2, "language": ["python"] * 10}
    pq.write_table(pa.table(rows), tmp_path / "plain.parquet")
    assert len(read(str(tmp_path / "plain.parquet")).ends) == 5  # equal ones count once


def test_parquet_that_is_none_is_refused(tmp_path):
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no column of source"):
        read(str(tmp_path / "other.parquet"))
    pq.write_table(pa.table({"code": [1, 2]}), tmp_path / "numbers.parquet")
    with pytest.raises(InputError, match=r"no Python source that tokenises \(2 skipped\)"):
        read(str(tmp_path / "numbers.parquet"))
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read(str(tmp_path / "bad.parquet"))
    pq.write_table(pa.Table.from_pylist(functions(50)), tmp_path / "torn.parquet")
    whole = (tmp_path / "torn.parquet").read_bytes()
    foot = int.from_bytes(whole[-8:-4], "little") + 8  # the schema stays, the pages are gone
    (tmp_path / "torn.parquet").write_bytes(whole[:4] + b"\0" * (len(whole) - 4 - foot) + whole[-foot:])
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read(str(tmp_path / "torn.parquet"))


def test_the_hub_corpus_is_asked_for_at_its_pinned_revision(monkeypatch, tmp_path):
    """The loader on a stand-in for `datasets` that streams a local Parquet of the same schema."""
    pq.write_table(pa.Table.from_pylist(functions()), tmp_path / "train.parquet")
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return iter(pq.read_table(tmp_path / "train.parquet").to_pylist())

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    corpus = read("code-search-net")
    assert asked == [
        (
            ("claudios/code_search_net", "python"),
            {"revision": "a4ee8053e119ef04ee3d491ffef05bcf2725ae82", "split": "train", "streaming": True},
        )
    ]
    assert corpus.digest == read(str(tmp_path / "train.parquet")).digest and corpus.skipped == 8
    made = task("code-depth:corpus=code-search-net")
    assert made.digest == corpus.digest and made.sample(8, 40, seed=0, split="val").tokens.shape == (8, 40)
    source_code._read.cache_clear()
    monkeypatch.setattr(source_code, "FUNCTIONS", 40)
    assert len(read("code-search-net").ends) == 10 and len(asked) == 2


def test_the_hub_corpus_through_the_real_library(monkeypatch, tmp_path):
    """`datasets` itself, which the extra `dev` brings, on a local folder laid out like the hub's."""
    (tmp_path / "hub" / "python").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(functions()), tmp_path / "hub" / "python" / "train-00000.parquet")
    front = "---\nconfigs:\n- config_name: python\n  data_files:\n  - split: train\n    path: python/train-*\n---\n"
    (tmp_path / "hub" / "README.md").write_text(front)
    monkeypatch.setattr(source_code, "HUB", str(tmp_path / "hub"))
    assert len(read("code-search-net").ends) == 100


def test_a_hub_that_breaks_off_is_one_line(monkeypatch):
    def load_dataset(*args, **options):
        def rows():
            yield functions(1)[0]
            raise ConnectionError("gone\naway")

        return rows()

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(InputError, match="cannot be reached: ConnectionError") as caught:
        read("code-search-net")
    assert "\n" not in str(caught.value)


def fresh(name):
    source_code._read.cache_clear()
    return read(name)


def test_a_tokenised_corpus_is_kept_and_read_back(folder, own_cache, monkeypatch):
    first = fresh(str(folder))
    assert len(list(own_cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(source_code, "token_classes", lambda _: pytest.fail("tokenised again"))
        again = fresh(str(folder))
    for field in ("codes", "ends", "digests"):
        one, two = getattr(first, field), getattr(again, field)
        assert np.array_equal(one, two) and one.dtype == two.dtype
    assert (first.skipped, first.digest) == (again.skipped, again.digest)


def test_a_changed_file_or_interpreter_is_another_corpus(folder, own_cache, monkeypatch):
    before = fresh(str(folder)).digest
    text = (folder / "m0.py").read_text()
    (folder / "m0.py").write_text(text.replace("(", "[").replace(")", "]"))  # the size stays
    os.utime(folder / "m0.py", ns=(1, 1))
    assert fresh(str(folder)).digest != before
    monkeypatch.setattr(sys, "version", "3.99")
    fresh(str(folder))
    assert len(list(own_cache.iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "folder", "other"])
def test_a_damaged_cache_is_built_again(damage, folder, own_cache):
    want = fresh(str(folder))
    (kept,) = own_cache.iterdir()
    raw = kept.read_bytes()
    if damage == "cut":
        kept.write_bytes(raw[: len(raw) // 2])
    elif damage == "noise":
        middle = len(raw) // 2
        kept.write_bytes(
            raw[:middle] + bytes(255 - b for b in raw[middle : middle + 50]) + raw[middle + 50 :]
        )
    elif damage == "empty":
        kept.write_bytes(b"")
    elif damage == "folder":
        kept.unlink()
        kept.mkdir()
    else:
        np.savez(
            kept, codes=np.zeros(3, np.int8), ends=np.array([9]), digests=np.array([1], np.uint64), skipped=0
        )
    if damage == "folder":
        with pytest.warns(UserWarning, match="not kept"):
            got = fresh(str(folder))
    else:
        got = fresh(str(folder))
        assert kept.read_bytes()[:2] == b"PK" and len(list(own_cache.iterdir())) == 1
    assert np.array_equal(got.codes, want.codes) and got.digest == want.digest and got.skipped == 2


def test_a_cache_that_cannot_be_written_costs_time_only(folder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAUSEGRID_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="set CAUSEGRID_CACHE"):
        assert len(fresh(str(folder)).ends) == 60


def test_the_cache_is_where_the_converted_models_are(monkeypatch, tmp_path):
    from causegrid.models.bundled import cache_folder

    assert source_cache.folder() == cache_folder() / "corpora"
    monkeypatch.delenv("CAUSEGRID_CACHE")
    for home in (str(tmp_path), ""):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert source_cache.folder() == cache_folder() / "corpora"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"corpus": "stdlibb"}, "stdlib"),
        ({"corpus": "nowhere/x.parquet"}, "cannot be read as Parquet|no folder"),
        ({"corpus": "nowhere/folder"}, "no folder"),
        ({"corpus": "x" * 5000}, "cannot be looked up"),
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
    monkeypatch.setitem(sys.modules, "datasets", None)
    source_code._read.cache_clear()
    with pytest.raises(InputError, match=r"causegrid\[code\]"):
        read("code-search-net")


def test_the_standard_library_is_shallow_as_known(monkeypatch):
    """Shares of depth 0, 1, 2, 3 in the standard library are near the published .62 .33 .044 .005."""
    monkeypatch.delenv("CAUSEGRID_CACHE")  # the user's own: tokenising takes seconds
    corpus = read("stdlib")
    step = np.where(corpus.codes < 3, 1, np.where(corpus.codes < 6, -1, 0))
    share = np.bincount(np.cumsum(step), minlength=4) / len(step)
    assert corpus.skipped < 5 and len(corpus.codes) > 500_000
    np.testing.assert_allclose(share[:4], [0.62, 0.33, 0.044, 0.005], atol=0.05)
