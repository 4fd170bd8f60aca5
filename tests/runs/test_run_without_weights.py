"""A store kept in git: weights ignored, cells committed one by one, the grid going on from a clone."""

from __future__ import annotations

import getpass
import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from runs_fake_study import fake, ran

from causegrid.runs import claims, plan, run, status
from causegrid.runs.store import open_run

ALL = ["first", "second", "third"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def inline(made, out, **more):
    return run(made, out, engine="inline", **more)


def clone(out: Path, to: Path) -> Path:
    """What git brings to another machine when it ignores weights and what the run's .gitignore names."""

    def git(*words: str, at: Path = out) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *who, *words], cwd=at, check=True, capture_output=True)

    git("init", "-q")
    git("config", "core.excludesFile", str(to.with_suffix(".ignore")))
    to.with_suffix(".ignore").write_text("*.safetensors\n")
    git("add", ".")
    git("commit", "-q", "-m", "cells")
    git("clone", "-q", str(out), str(to), at=out.parent)
    shutil.rmtree(out / ".git")
    return to


def test_a_done_cell_without_its_weights_is_done(tmp_path, log):
    made, there = fake(log, "weights", "b"), tmp_path / "there"
    inline(made, there)
    here = clone(there, tmp_path / "here")
    table = status(here)
    assert table["status"].tolist() == ["done", "done"]
    assert table["message"].tolist() == ["weights left out (model.safetensors)", ""]
    assert plan(made, here)["status"].tolist() == ["cached", "cached"]
    before = (here / "cells" / table["cell"][0] / "cell.json").read_bytes()
    outcome = inline(made, here)
    assert (outcome.n_cached, outcome.n_done) == (2, 0) and ran(log, "weights") == ALL
    assert (here / "cells" / table["cell"][0] / "cell.json").read_bytes() == before
    record = open_run(here).cells()[0]
    assert record.find("model.safetensors") is None and record.table("last") is not None
    assert len(claims(here)["cells"][0]) == 2


def test_weights_that_are_there_but_wrong_are_damage(tmp_path, log):
    made, out = fake(log, "weights"), tmp_path / "run"
    inline(made, out)
    (cell,) = open_run(out).cells()
    (cell.path / "model.safetensors").write_bytes(b"m" * 99)
    assert status(out)["status"].tolist() == ["interrupted"]
    assert inline(made, out).n_done == 1 and ran(log, "weights") == ALL * 2


def test_an_unfinished_cell_without_its_weights_starts_where_they_were_made(tmp_path, log):
    made, there = fake(log, "weights", "b"), tmp_path / "there"
    inline(made, there, until="second")
    here = clone(there, tmp_path / "here")
    table = status(here)
    assert table["status"].tolist() == ["interrupted", "stopped"]
    assert (
        table["message"][0] == "model.safetensors was left out: stages to compute again: first, second, third"
    )
    assert inline(made, here).n_done == 2
    assert ran(log, "weights") == ["first", "second", *ALL] and ran(log, "b") == ALL
    assert status(here)["message"].tolist() == ["", ""]


def test_a_cell_that_lost_a_table_too_needs_its_weights(tmp_path, log):
    made, out = fake(log, "weights"), tmp_path / "run"
    inline(made, out)
    (cell,) = open_run(out).cells()
    (cell.path / "model.safetensors").unlink()
    (cell.path / "last.parquet").unlink()
    (cell,) = open_run(out).cells()
    assert (cell.status, cell.stages) == ("interrupted", {})
    assert inline(made, out).n_done == 1 and ran(log, "weights") == ALL * 2


def test_a_cell_with_every_stage_finished_but_not_marked_done_needs_no_weights(tmp_path, log):
    made, out = fake(log, "weights"), tmp_path / "run"
    inline(made, out)
    (cell,) = open_run(out).cells()
    (cell.path / "cell.json").write_text(json.dumps({**cell.manifest, "status": "running", "finished": None}))
    (cell.path / "model.safetensors").unlink()
    assert inline(made, out).n_done == 1 and ran(log, "weights") == ALL
    assert status(out)["message"].tolist() == ["weights left out (model.safetensors)"]


def test_a_failed_cell_keeps_its_reason_and_is_tried_from_the_start(tmp_path, log):
    made, there = fake(log, "weights-raise"), tmp_path / "there"
    inline(made, there)
    here = clone(there, tmp_path / "here")
    table = status(here)
    assert table["status"].tolist() == ["failed"]
    assert table["message"][0].startswith(
        "RuntimeError: cannot read x or numpy/__init__.py; model.safetensors was left"
    )
    assert inline(made, here, retry_failed=False).n_left == 1
    assert inline(made, here).n_failed == 1
    assert ran(log, "weights-raise") == ["first", "second"] * 2


def test_a_clone_with_some_cells_counts_the_others_as_pending(tmp_path, log):
    made, there = fake(log, "a", "b", "c"), tmp_path / "there"
    inline(made, there, limit=1)
    here = clone(there, tmp_path / "here")
    assert status(here)["status"].tolist() == ["done", "pending", "pending"]
    shutil.rmtree(here / "cells")
    assert status(here)["status"].tolist() == ["pending"] * 3
    assert plan(made, here)["status"].tolist() == ["to run"] * 3
    assert inline(made, here).n_done == 3


def test_what_git_gets_names_no_machine_and_holds_no_lock_or_half_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "there"
    inline(fake(Path("log.txt"), "weights"), there)
    inline(fake(Path("log.txt"), "weights", "weights-raise"), there)
    cell = next((there / "cells").iterdir())
    for name in (".lock", ".lock.12.34", ".x.json.1-2.tmp", "half.parquet.corrupt"):
        (cell / name).write_text("x")
    for name in (".stage-first-1", ".scratch-first"):
        (cell / name).mkdir()
        (cell / name / "x.safetensors").write_text("x")
    here = clone(there, tmp_path / "here")
    found = [p for p in here.rglob("*") if p.is_file() and ".git" not in p.relative_to(here).parts]
    assert {p.name for p in found} == {
        *(".gitignore", "run.json", "claims.json", "cell.json", "w.bin", "loose.txt"),
        *("numbers.parquet", "half.parquet", "last.parquet"),
    }
    for path in found:
        text = path.read_bytes().decode("latin-1")
        for secret in (str(tmp_path), str(Path.home()) + "/", f"{platform.node()}", f"/{getpass.getuser()}/"):
            assert secret not in text, (path.name, secret)
        assert 'File \\"/' not in text


def test_a_gitignore_of_the_users_own_stays(tmp_path, log):
    out = tmp_path / "run"
    inline(fake(log, "a"), out)
    assert ".scratch-*" in (out / ".gitignore").read_text()
    (out / ".gitignore").write_text("*.safetensors\n")
    inline(fake(log, "a", "b"), out)
    assert (out / ".gitignore").read_text() == "*.safetensors\n"
