"""Cell ids, locks, JSON, combined tables, and what importing `runs` loads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_fake_study import Fake, FakeCell, fake

from causegrid.errors import InputError
from causegrid.runs import files, lock, run
from causegrid.runs.cells import cell_id
from causegrid.runs.combined import combine
from causegrid.runs.lock import Lock, holder
from causegrid.runs.store import open_run

MODULES = ["", ".config", ".cells", ".store", ".execute", ".resume", ".files", ".lock", ".engines", ".fields",
           ".engines.base", ".engines.inline", ".engines.local"]  # fmt: skip


def test_importing_runs_loads_no_torch_and_no_pandas():
    code = (
        "import sys, importlib\n"
        f"for m in {MODULES!r}: importlib.import_module('causegrid.runs' + m)\n"
        "print([m for m in ('torch', 'transformers', 'pandas', 'sklearn', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_a_run_loads_no_torch_and_no_study(tmp_path):
    run(fake(tmp_path / "log", "a"), tmp_path / "run", engine="inline")
    code = (
        "import sys; from causegrid.runs.store import open_run\n"
        "r = open_run(sys.argv[1]); c = r.cells()[0]\n"
        "print(c.status, len(c.table('numbers')), r.claims()[0]['id'])\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'pydantic', 'runs_fake_study')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "done 2 F1\n[]\n"


def test_a_cell_id_is_a_hash_of_config_study_and_version():
    cell = FakeCell(study="fake", task="a", model="m", log="l")
    text = (
        '{"config":{"depth":{"mode":"mean","rate":0.1,"steps":3},"digests":{},"log":"l","model":"m","seed":0,"study":"fake",'
        '"task":"a"},"study":"fake","version":1}'
    )
    assert cell_id(Fake(), cell) == hashlib.sha256(text.encode()).hexdigest()[:16]
    shuffled = dict(reversed(cell.model_dump(mode="json").items()))
    assert cell_id(Fake(), shuffled) == cell_id(Fake(), cell)
    others = [cell.model_copy(update={"seed": 1}), cell.model_copy(update={"task": "b"})]
    versions = [SimpleNamespace(name="fake", version=2), SimpleNamespace(name="other", version=1)]
    ids = {cell_id(Fake(), c) for c in [cell, *others]} | {cell_id(s, cell) for s in versions}
    assert len(ids) == 5
    with pytest.raises(InputError, match="not finite"):
        cell_id(Fake(), {"x": float("inf")})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(values)
def test_plain_is_strict_json_and_changes_finite_values_only(value):
    text = json.dumps(files.plain(value), allow_nan=False)
    assert files.plain(json.loads(text)) == files.plain(value)
    if "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value):
        assert json.loads(text) == json.loads(json.dumps(value))


def test_plain_turns_arrays_to_lists_and_names_what_json_cannot_hold():
    given = {
        "a": np.float32(1.5),
        "b": np.array([[1, 2]]),
        "c": (np.nan, np.inf),
        "d": np.bool_(True),
        "e": {2, 1},
    }
    assert files.plain(given) == {"a": 1.5, "b": [[1, 2]], "c": [None, None], "d": True, "e": [1, 2]}
    with pytest.raises(TypeError, match=r"facts\.x\[1\] is a object"):
        files.plain({"x": [1, object()]}, "facts")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_a_lock_is_exclusive_and_is_given_back(tmp_path):
    path = tmp_path / ".lock"
    mine, other = Lock(path), Lock(path)
    assert mine.acquire() and not other.acquire()
    assert holder(path) == f"process {os.getpid()}"
    mine.release()
    assert not path.exists() and holder(path) == "" and other.acquire()
    other.release()


@pytest.mark.parametrize("kind", ["dead", "reborn", "far and old", "garbage and old"])
def test_a_stale_lock_is_taken(tmp_path, kind):
    path = tmp_path / ".lock"
    process = subprocess.Popen(["true"])
    process.wait()
    host = "elsewhere" if kind.startswith("far") else lock._host()
    pid = os.getpid() if kind == "reborn" else process.pid
    path.write_text(
        "{" if kind.startswith("garbage") else json.dumps({"pid": pid, "host": host, "born": "1"})
    )
    if kind.endswith("old"):
        old = time.time() - lock.STALE_S - 1
        os.utime(path, (old, old))
    assert holder(path) == ""
    taker = Lock(path)
    assert taker.acquire() and holder(path) == f"process {os.getpid()}"
    taker.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ['{"pid": 1, "host": "elsewhere", "born": "1"}', "", "{"])
def test_a_fresh_lock_of_another_machine_or_being_written_is_left_alone(tmp_path, content):
    path = tmp_path / ".lock"
    path.write_text(content)
    assert holder(path) and not Lock(path).acquire() and path.read_text() == content


def test_a_zombie_holds_no_lock(tmp_path):
    path = tmp_path / ".lock"
    process = subprocess.Popen(["true"])
    until = time.monotonic() + 10
    while lock._born(process.pid) is not None and time.monotonic() < until:
        time.sleep(0.01)
    path.write_text(json.dumps({"pid": process.pid, "host": lock._host(), "born": ""}))
    assert holder(path) == ""
    process.wait()


def test_many_takers_of_a_stale_lock_one_winner(tmp_path):
    for _ in range(60):
        path = tmp_path / ".lock"
        path.write_text(json.dumps({"pid": 2**22 + 1, "host": lock._host(), "born": "1"}))
        takers = [Lock(path) for _ in range(4)]
        won: list[bool] = []
        threads = [threading.Thread(target=lambda t=t, won=won: won.append(t.acquire())) for t in takers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(won) == 1
        takers[0].release()
        assert list(tmp_path.iterdir()) == []


def test_a_held_lock_is_kept_fresh(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_S", 0.02)
    mine = Lock(tmp_path / ".lock")
    assert mine.acquire()
    os.utime(mine.path, (0, 0))
    until = time.monotonic() + 5
    while mine.path.stat().st_mtime < 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert time.time() - mine.path.stat().st_mtime < 5
    mine.release()


def test_tables_whose_columns_disagree_are_joined_or_named(tmp_path, monkeypatch):
    out = tmp_path / "run"
    made = fake(tmp_path / "log", "a", "b")
    run(made, out, engine="inline")
    first, second = open_run(out).cells()
    for cell, tables in [
        (first, {"last": pd.DataFrame({"z": [1]}), "half": pd.DataFrame({"y": ["text"]})}),
        (second, {"last": pd.DataFrame({"z": [0.5], "more": [True]}), "half": pd.DataFrame({"y": [1.0]})}),
    ]:
        manifest = json.loads((cell.path / "cell.json").read_text())
        for name, table in tables.items():
            files.write_table(cell.path / f"{name}.parquet", table)
            manifest["files"][f"{name}.parquet"] |= files.fingerprint(cell.path / f"{name}.parquet")
        files.write_json(cell.path / "cell.json", manifest)
    with pytest.raises(InputError, match="table 'half' cannot be joined over cells"):
        combine(open_run(out))
    whole = pd.read_parquet(out / "tables" / "last.parquet")
    assert whole["z"].tolist() == [1.0, 0.5] and whole["more"].tolist() == [None, True]
    assert (out / "tables" / "numbers.parquet").exists() and not (out / "tables" / "half.parquet").exists()


def test_no_host_name_and_no_home_in_what_is_kept(tmp_path, monkeypatch):
    import platform

    monkeypatch.setenv("HOME", str(tmp_path))
    out = tmp_path / "run"
    run(fake(tmp_path / "log", "raise"), out, engine="inline")
    (cell,) = open_run(out).cells()
    kept = json.dumps({k: v for k, v in cell.manifest.items() if k != "config"})
    assert str(tmp_path) not in kept
    if len(platform.node()) > 3:
        assert platform.node() not in kept
