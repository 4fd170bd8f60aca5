"""Runs that are killed, interrupted, damaged, changed, doubled; each time against what is on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from runs_fake_study import Fake, FakeConfig, Other, fake, ran

from causegrid.errors import InputError
from causegrid.runs import claims, plan, run, status
from causegrid.runs.engines.base import Options
from causegrid.runs.execute import execute, give_up
from causegrid.runs.store import code_of, create, open_run

HERE = Path(__file__).parent
ALL = ["first", "second", "third"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def inline(made, out, **more):
    return run(made, out, engine="inline", **more)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def one(folder: Path):
    (cell,) = open_run(folder).cells()
    return cell


def wait_for(path: Path, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.01)


def start(
    log: Path, out: Path, *tasks: str, engine: str = "inline", workers: int = 1
) -> subprocess.Popen[bytes]:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from runs_fake_study import fake; from causegrid.runs import run\n"
        f"run(fake(Path(sys.argv[2]), *{tasks!r}), sys.argv[3], engine={engine!r}, workers={workers})\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(HERE), str(log), str(out)], stderr=subprocess.PIPE
    )


def test_a_run_fills_its_grid_and_keeps_what_a_reader_needs(tmp_path, log):
    out = tmp_path / "run"
    outcome = inline(fake(log, "a", "b", seeds=[0, 1]), out)
    assert (outcome.n_done, outcome.n_failed, outcome.n_cached, outcome.exit_code) == (4, 0, 0, 0)
    top = json.loads((out / "run.json").read_text())
    assert top["study"] == "fake" and top["config"]["depth"]["steps"] == 3 and len(top["cells"]) == 4
    for id in top["cells"]:
        cell = json.loads((out / "cells" / id / "cell.json").read_text())
        assert cell["id"] == id and cell["status"] == "done" and cell["error"] is None
        assert list(cell["stages"]) == ALL and all(s >= 0 for s in cell["stages"].values())
        assert cell["facts"] == {"first": 0.5, "array": [0, 1], "third": 1.0}
        assert {"python", "causegrid", "torch", "platform"} <= set(cell["versions"])
        left = {p.name for p in (out / "cells" / id).iterdir()}
        assert left == {
            "cell.json",
            "numbers.parquet",
            "half.parquet",
            "last.parquet",
            "loose.txt",
            "weights",
        }
    record = open_run(out).cells()[0]
    assert record.status == "done" and record.tables() == ["half", "last", "numbers"]
    assert record.table("numbers")["values"].map(list).tolist() == [[1.0], [2.0, 3.0]]
    assert record.table("missing") is None
    assert record.find("weights").is_dir() and record.find("cell.json") is None


def test_combined_tables_have_keys_in_front_and_claims_cover_finished_cells(tmp_path, log):
    out = tmp_path / "run"
    inline(fake(log, "a", "raise", "b"), out, csv=True)
    numbers = pd.read_parquet(out / "tables" / "numbers.parquet")
    assert list(numbers.columns) == ["cell", "task", "model", "seed", "x", "model_in_table", "values"]
    assert (
        numbers["task"].tolist() == ["a", "a", "b", "b"]
        and numbers["model_in_table"].tolist() == ["a", "b"] * 2
    )
    read = pd.read_csv(out / "tables" / "numbers.csv")
    assert list(read.columns) == [
        "cell",
        "task",
        "model",
        "seed",
        "x",
        "model_in_table",
    ]  # lists of numbers stay out
    written = json.loads((out / "claims.json").read_text())
    assert written[0]["measured"] == 6.0 and len(written[0]["cells"]) == 2
    assert open_run(out).claims() == written
    assert claims(out)["measured"].tolist() == [6.0]


def test_nothing_is_computed_twice(tmp_path, log):
    made, out = fake(log, "a", "b"), tmp_path / "run"
    inline(made, out)
    before = snapshot(out / "cells")
    again = inline(made, out)
    assert (again.n_done, again.n_cached, again.n_failed) == (0, 2, 0)
    assert ran(log, "a") == ran(log, "b") == ALL and snapshot(out / "cells") == before


def test_kill_9_inside_a_stage_loses_that_stage_only(tmp_path, log):
    out = tmp_path / "run"
    process = start(log, out, "wait", "after")
    wait_for(tmp_path / "wait.started")
    assert open_run(out).cells()[0].status == "running"
    process.kill()
    process.wait()
    cell, after = open_run(out).cells()
    assert (cell.status, list(cell.stages), after.status) == ("interrupted", ["first"], "pending")
    assert cell.tables() == ["numbers"] and cell.table("half") is None
    assert list(cell.path.glob(".stage-*"))
    assert status(out)["stages"].tolist() == ["1/3", "-"]
    (tmp_path / "go").touch()
    outcome = inline(fake(log, "wait", "after"), out)
    assert outcome.n_done == 2
    assert ran(log, "wait") == ["first", "second", "second", "third"]
    assert not [p for p in cell.path.iterdir() if p.name.startswith(".")]


def test_sigterm_leaves_an_interrupted_cell_that_goes_on(tmp_path, log):
    out = tmp_path / "run"
    process = start(log, out, "wait")
    wait_for(tmp_path / "wait.started")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in said
    assert one(out).manifest["status"] == "interrupted" and not list(one(out).path.glob(".*"))
    (tmp_path / "go").touch()
    assert inline(fake(log, "wait"), out).n_done == 1
    assert ran(log, "wait") == ["first", "second", "second", "third"]


def test_a_kill_between_moving_files_and_the_manifest_is_the_old_state(tmp_path, log, monkeypatch):
    from causegrid.runs import files

    made, out = fake(log, "a"), tmp_path / "run"
    real = files.write_json

    def dies(path, value):
        if path.name == "cell.json" and "second" in value.get("stages", {}):
            raise KeyboardInterrupt
        real(path, value)

    monkeypatch.setattr(files, "write_json", dies)
    with pytest.raises(KeyboardInterrupt):
        inline(made, out)
    monkeypatch.undo()
    cell = one(out)
    assert (
        (cell.path / "half.parquet").exists()
        and cell.tables() == ["numbers"]
        and list(cell.stages) == ["first"]
    )
    assert inline(made, out).n_done == 1 and ran(log, "a") == ["first", "second", "second", "third"]


def test_two_runs_on_one_folder_share_the_work(tmp_path, log):
    out = tmp_path / "run"
    process = start(log, out, "wait", "a", "b")
    wait_for(tmp_path / "wait.started")
    outcome = inline(fake(log, "wait", "a", "b"), out)
    assert (outcome.n_done, outcome.n_elsewhere, outcome.n_failed) == (2, 1, 0)
    (tmp_path / "go").touch()
    assert process.wait(timeout=60) == 0, process.stderr.read()
    assert ran(log, "wait") == ran(log, "a") == ran(log, "b") == ALL
    assert len(pd.read_parquet(out / "tables" / "last.parquet")) == 3
    assert len(json.loads((out / "claims.json").read_text())[0]["cells"]) == 3


def test_a_failed_cell_says_why_and_the_grid_goes_on(tmp_path, log):
    made, out = fake(log, "raise", "input", "exit", "nojson", "taken", "climb", "b"), tmp_path / "run"
    outcome = inline(made, out)
    assert (outcome.n_done, outcome.n_failed, outcome.exit_code) == (1, 6, 1)
    cells = {c.config["task"]: c for c in open_run(out).cells()}
    assert cells["raise"].error == "RuntimeError: the stage fell over"
    assert "in second" in cells["raise"].traceback and cells["raise"].manifest["error"]["stage"] == "second"
    assert cells["input"].error == "head L9H9 is not in this model"
    assert cells["exit"].error == "SystemExit: 3"
    assert cells["nojson"].error.startswith("TypeError: note.bad is a object")
    assert "belongs to stage 'first'" in cells["taken"].error
    assert "not a file name" in cells["climb"].error
    for task in ("raise", "input", "exit", "nojson", "taken", "climb"):
        assert cells[task].status == "failed" and list(cells[task].stages) == ["first"]
        assert cells[task].table("half") is None and not list(cells[task].path.glob(".*"))
    assert dict(outcome.failures)[cells["input"].id] == "head L9H9 is not in this model"
    assert status(out).set_index("task").loc["input", "message"] == "head L9H9 is not in this model"


def test_failed_cells_are_tried_again_from_their_last_finished_stage(tmp_path, log):
    made, out = fake(log, "raise"), tmp_path / "run"
    inline(made, out)
    kept = inline(made, out, retry_failed=False)
    assert (kept.n_done, kept.n_failed, kept.n_left) == (0, 0, 1)
    assert inline(made, out).n_failed == 1
    assert ran(log, "raise") == ["first", "second", "second"]


def test_nan_is_null_in_json_and_nan_in_tables(tmp_path, log):
    out = tmp_path / "run"
    inline(fake(log, "nan"), out)
    text = (one(out).path / "cell.json").read_text()
    assert "NaN" not in text and json.loads(text)["facts"]["third"] is None
    assert one(out).table("last")["z"].isna().all()


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00" * 40, '{"status": "done"'])
def test_a_corrupt_manifest_is_kept_aside_and_the_cell_starts_again(tmp_path, log, content):
    made, out = fake(log, "a", "b"), tmp_path / "run"
    inline(made, out)
    path = open_run(out).cells()[0].path / "cell.json"
    path.write_text(content)
    cell = open_run(out).cells()[0]
    assert cell.status == "pending" and "cell.json" in cell.message
    assert plan_of(made, out) == ["to run", "cached"]
    assert inline(made, out).n_done == 1
    assert path.with_name("cell.json.corrupt").read_text() == content
    assert ran(log, "a") == ALL * 2 and ran(log, "b") == ALL


def plan_of(made, out):
    return plan(made, out)["status"].tolist()


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "delete", "nested"])
def test_a_damaged_file_takes_back_its_stage_and_the_later_ones(tmp_path, log, damage):
    made, out = fake(log, "a"), tmp_path / "run"
    inline(made, out)
    path = one(out).path / ("weights/w.bin" if damage == "nested" else "half.parquet")
    good = path.read_bytes()
    bad = {"truncate": good[:-10], "empty": b"", "flip": good[:20] + bytes([good[20] ^ 255]) + good[21:]}
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(bad.get(damage, good[:5]))
    (cell,) = open_run(out).cells(verify=True)
    first = ["first"] if damage != "nested" else []
    assert (cell.status, list(cell.stages)) == ("interrupted", first)
    assert path.name in cell.message and "third" in cell.message
    assert inline(made, out).n_done == 1
    assert ran(log, "a") == ALL + ALL[len(first) :]
    assert path.read_bytes()[:4] == good[:4] and one(out).status == "done"
    assert bool(list(one(out).path.glob(f"*{path.name}.corrupt"))) == (damage != "delete")
    assert path.name in one(out).manifest["repaired"]


def test_a_table_that_cannot_be_read_warns_and_never_crashes_a_reader(tmp_path, log):
    out = tmp_path / "run"
    inline(fake(log, "a"), out)
    path = one(out).path / "half.parquet"
    good = path.read_bytes()
    path.write_bytes(b"PAR1" + b"x" * (len(good) - 8) + b"PAR1")
    with pytest.warns(UserWarning, match="half.parquet cannot be read"):
        assert one(out).table("half") is None


def test_a_full_disk_fails_the_cell_and_leaves_nothing_half_written(tmp_path, log):
    made, out = fake(log, "full", "b"), tmp_path / "run"
    outcome = inline(made, out)
    assert (outcome.n_done, outcome.n_failed) == (1, 1)
    cell = open_run(out).cells()[0]
    assert "disk is full" in cell.error and "'second'" in cell.error
    assert {p.name for p in cell.path.iterdir()} == {"cell.json", "numbers.parquet", "weights"}


def test_a_disk_full_when_tables_are_written(tmp_path, log, monkeypatch):
    def full(self, path, **_):
        Path(path).write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    made, out = fake(log, "a"), tmp_path / "run"
    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    assert "disk is full" in inline(made, out).failures[0][1]
    assert {p.name for p in one(out).path.iterdir()} == {"cell.json"}
    monkeypatch.undo()
    assert inline(made, out).n_done == 1


def test_a_disk_so_full_that_the_manifest_cannot_be_written(tmp_path, log, monkeypatch):
    from causegrid.runs import files

    made, out = fake(log, "a", "b"), tmp_path / "run"
    real = os.replace

    def full(source, target):
        if str(target).endswith("cell.json") and "second" in Path(source).read_text():
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    outcome = inline(made, out)
    assert outcome.n_failed == 2 and all("No space left" in line for _, line in outcome.failures)
    monkeypatch.undo()
    assert not list(out.rglob("*.tmp")) and not list(out.rglob(".stage-*"))
    assert inline(made, out).n_done == 2


def test_a_really_full_disk(tmp_path, log):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    code = (
        "import sys, subprocess, json; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from runs_fake_study import fake; from causegrid.runs import run\n"
        "disk = Path(sys.argv[3]); disk.mkdir()\n"
        "mount = ['mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', str(disk)]\n"
        "if subprocess.run(mount).returncode: sys.exit(77)\n"
        "made = fake(Path(sys.argv[2]), 'a', 'b', 'c', 'd', 'e', 'f')\n"
        "o = run(made, disk / 'run', engine='inline')\n"
        "left = [str(p) for p in disk.rglob('*') if p.name.endswith(('.tmp', '.lock')) or '.stage' in p.name]\n"
        "subprocess.run(['mount', '-o', 'remount,size=8m', 'none', str(disk)], check=True)\n"
        "p = run(made, disk / 'run', engine='inline')\n"
        "print(json.dumps([o.n_done, o.n_failed, [l for _, l in o.failures], left, p.n_failed, p.n_done]))\n"
    )
    command = ["unshare", "-m", sys.executable, "-c", code, str(HERE), str(log), str(tmp_path / "disk")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("mounting is not permitted here")
    assert done.returncode == 0, done.stderr
    n_done, n_failed, lines, left, again_failed, again_done = json.loads(done.stdout.splitlines()[-1])
    assert n_done + n_failed == 6 and n_done >= 1 and n_failed >= 1
    assert all("disk is full" in line or "No space left" in line for line in lines), lines
    assert left == [] and (again_failed, again_done) == (0, n_failed)


def test_a_changed_grid_reuses_cells_and_combines_the_new_grid_only(tmp_path, log):
    out = tmp_path / "run"
    inline(fake(log, "a", "b"), out)
    outcome = inline(fake(log, "b", "c"), out)
    assert (outcome.n_done, outcome.n_cached) == (1, 1)
    assert ran(log, "b") == ALL and [c.config["task"] for c in open_run(out).cells()] == ["b", "c"]
    assert pd.read_parquet(out / "tables" / "last.parquet")["task"].tolist() == ["b", "c"]
    assert inline(fake(log, "a"), out).n_cached == 1
    study, config = fake(log, "a", depth={"steps": 4})
    assert inline((study, config), out).n_done == 1


def test_another_version_of_a_study_makes_new_cells(tmp_path, log, monkeypatch):
    out = tmp_path / "run"
    inline(fake(log, "a"), out)
    monkeypatch.setattr(Fake, "version", 2)
    assert inline(fake(log, "a"), out).n_done == 1


def test_folders_that_are_refused_stay_as_they_were(tmp_path, log):
    out = tmp_path / "run"
    inline(fake(log, "a"), out)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("dear")
    before = snapshot(tmp_path)
    config = FakeConfig(study="fake", log=str(log), tasks=["a"])
    for folder, said in [(out, "is a run of study 'fake', not 'other'"), (mine, "is not a run"),
                         (mine / "thesis.tex", "is a file"), (mine / "thesis.tex" / "run", "below a file"),
                         (Path("/proc/nope/run"), "cannot write")]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            inline((Other(), config), folder)
    with pytest.raises(InputError, match="is a run of study"):
        plan((Other(), config), out)
    assert snapshot(tmp_path) == before


def test_bad_options_are_refused_before_anything_is_written(tmp_path, log):
    made, out = fake(log, "a"), tmp_path / "run"
    for more, said in [
        ({"workers": 0}, "workers is 0"),
        ({"limit": -1}, "limit is -1"),
        ({"timeout": 0}, "timeout is 0"),
        ({"engine": "lokal"}, "did you mean 'local'"),
    ]:
        with pytest.raises(InputError, match=said):
            run(made, out, **more)
    with pytest.raises(InputError, match="forbidden"):
        inline(fake(log, "forbidden"), out)
    with pytest.raises(InputError, match="empty"):
        inline(fake(log), out)
    for more in ({"workers": 2}, {"timeout": 1.0}):
        with pytest.raises(InputError, match="use engine 'local'"):
            inline(made, tmp_path / "two", **more)
    assert not out.exists() and not (tmp_path / "two").exists()


def test_a_folder_of_which_git_kept_the_ignore_file_alone_is_free(tmp_path, log):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".gitignore").write_text("*.lock\n")
    assert inline(fake(log, "a"), out).n_done == 1
    assert (out / ".gitignore").read_text() == "*.lock\n"


def test_a_corrupt_run_manifest_is_kept_aside_and_cells_are_reused(tmp_path, log):
    made, out = fake(log, "a"), tmp_path / "run"
    inline(made, out)
    (out / "run.json").write_text("{half")
    with pytest.raises(InputError, match="is not a run"):
        status(out)
    with pytest.raises(InputError, match="is a run of study 'fake'"):
        inline((Other(), made[1]), out)
    assert inline(made, out).n_cached == 1
    assert (out / "run.json.corrupt").read_text() == "{half"


def test_limit_and_plan(tmp_path, log):
    made, out = fake(log, "a", "b", "c"), tmp_path / "run"
    table = plan(made, out)
    assert list(table.columns) == ["cell", "task", "model", "seed", "status", "cost"] and not out.exists()
    assert table["status"].tolist() == ["to run"] * 3 and table["cost"][0] == "3 steps"
    first = inline(made, out, limit=1)
    assert (first.n_done, first.n_left) == (1, 2) and plan_of(made, out) == ["cached", "to run", "to run"]
    before = snapshot(out)
    plan(made, out)
    status(out)
    assert snapshot(out) == before
    assert inline(made, out, limit=0).n_left == 2
    assert inline(made, out).n_done == 2


def test_a_bug_in_claims_does_not_lose_the_grid(tmp_path, log):
    out = tmp_path / "run"
    outcome = inline(fake(log, "bad-claim"), out)
    assert (outcome.n_done, outcome.n_failed, outcome.exit_code) == (1, 0, 1)
    assert "claims fell over" in outcome.problems[0] and (out / "tables" / "last.parquet").exists()


def test_progress_tells_cells_and_stages(tmp_path, log):
    told: list[tuple[int, int, str]] = []
    inline(fake(log, "a"), tmp_path / "run", progress=lambda *news: told.append(news))
    assert (0, 1, "cells") in told and (1, 1, "cells") in told
    assert (1, 2, "a m seed 0: second steps") in told and (3, 3, "a m seed 0: stages") in told


def test_a_cell_another_run_took_out_of_the_grid_fails_by_name(tmp_path, log):
    from causegrid.runs.engines import Options
    from causegrid.runs.execute import execute

    out = tmp_path / "run"
    inline(fake(log, "a"), out)
    gone = one(out).id
    inline(fake(log, "b"), out)
    finished = execute(out, gone, Options(code="runs_fake_study:Fake"), lambda *news: None)
    assert finished.how == "failed" and f"cell {gone!r} is not in the grid" in finished.line


def test_failures_of_this_call_are_not_tried_twice_by_a_second_worker(tmp_path, log):
    from causegrid.runs.engines import Options
    from causegrid.runs.execute import execute

    made, out = fake(log, "raise"), tmp_path / "run"
    before = time.time()
    inline(made, out)
    options = Options(code="runs_fake_study:Fake", started=before)
    finished = execute(out, one(out).id, options, lambda *news: None)
    assert (finished.how, finished.line) == ("failed", "RuntimeError: the stage fell over")
    assert ran(log, "raise") == ["first", "second"]


def test_until_fills_every_cell_up_to_a_stage_and_a_later_run_goes_on(tmp_path, log):
    made, out = fake(log, "a", "raise"), tmp_path / "run"
    outcome = inline(made, out, until="first")
    assert (outcome.n_done, outcome.n_failed, outcome.exit_code) == (2, 0, 0)
    assert ran(log, "a") == ran(log, "raise") == ["first"]
    table = status(out)
    assert table["status"].tolist() == ["stopped"] * 2 and table["stages"].tolist() == ["1/3"] * 2
    assert table["message"].tolist() == ["first done; to come: second, third"] * 2
    assert (
        plan_of(made, out) == ["to run"] * 2
        and json.loads((out / "claims.json").read_text())[0]["cells"] == []
    )
    before = snapshot(out / "cells")
    again = inline(made, out, until="first")
    assert (again.n_done, again.n_cached) == (0, 2) and snapshot(out / "cells") == before
    assert inline(made, out, until="second").n_failed == 1 and ran(log, "a") == ["first", "second"]
    failed = inline(made, out, until="first")
    assert (failed.n_cached, failed.exit_code) == (2, 0) and status(out)["status"].tolist() == [
        "stopped",
        "failed",
    ]
    assert inline(made, out).n_done == 1
    assert ran(log, "a") == ALL and status(out)["status"].tolist() == ["done", "failed"]
    assert inline(made, out, until="third", retry_failed=False).n_cached == 1


def test_until_the_last_stage_is_the_whole_cell_and_an_unknown_stage_writes_nothing(tmp_path, log):
    made, out = fake(log, "a"), tmp_path / "run"
    with pytest.raises(
        InputError, match=r"unknown stage 'frist': allowed are first, second, third; did you mean"
    ):
        inline(made, out, until="frist")
    assert not out.exists()
    inline(made, out, until="third")
    assert one(out).status == "done"


def test_a_damaged_file_of_a_stopped_cell_is_computed_again(tmp_path, log):
    made, out = fake(log, "a"), tmp_path / "run"
    inline(made, out, until="second")
    (one(out).path / "half.parquet").unlink()
    assert one(out).status == "interrupted"
    assert inline(made, out, until="second").n_done == 1
    assert ran(log, "a") == ["first", "second", "second"] and one(out).status == "stopped"


def test_a_stage_of_another_version_comes_again_and_those_after_it_and_none_before(
    tmp_path, log, monkeypatch
):
    out = tmp_path / "run"
    inline(fake(log, "a", "b"), out)
    ids = list(json.loads((out / "run.json").read_text())["cells"])
    assert "stage_versions" not in json.loads((out / "run.json").read_text())
    monkeypatch.setattr(Fake, "stage_versions", {"second": 2})
    assert [c.status for c in open_run(out).cells()] == ["done", "done"]  # until somebody runs it again
    assert list(plan(fake(log, "a", "b"), out)["status"]) == ["to run", "to run"]
    inline(fake(log, "a", "b"), out, limit=1)
    assert ran(log, "a") == [*ALL, "second", "third"] and ran(log, "b") == ALL
    first, second = open_run(out).cells()
    assert first.status == "done" and second.status == "stopped"
    assert "'second' is of version 1, now 2: stages to compute again: second, third" in second.message
    assert list(second.stages) == ["first"] and second.tables() == ["numbers"]
    assert list(plan(fake(log, "a", "b"), out)["status"]) == ["cached", "to run"]
    assert inline(fake(log, "a", "b"), out).n_cached == 1 and ran(log, "b") == [*ALL, "second", "third"]
    for id in ids:
        cell = json.loads((out / "cells" / id / "cell.json").read_text())
        assert (
            cell["stage_versions"] == {"second": 2} and "repaired" not in cell and list(cell["stages"]) == ALL
        )
    before = snapshot(out / "cells")
    assert inline(fake(log, "a", "b"), out).n_cached == 2 and snapshot(out / "cells") == before


def test_a_cell_of_another_version_whose_worker_dies_is_not_reported_done(tmp_path, log, monkeypatch):
    out = tmp_path / "run"
    inline(fake(log, "a"), out)
    monkeypatch.setattr(Fake, "stage_versions", {"third": 2})
    made = create(out, *fake(log, "a"), fake(log, "a")[0].cells(fake(log, "a")[1]))
    (id,) = made.configs
    assert made.cell(id).outdated and give_up(out, id, "failed", "killed: out of memory").how == "failed"
    assert made.cell(id).status == "failed" and list(made.cell(id).stages) == ["first", "second"]
    assert inline(fake(log, "a"), out).n_done == 1 and ran(log, "a") == [*ALL, "third"]


def test_a_worker_of_other_code_leaves_the_cells_alone(tmp_path, log, monkeypatch):
    """run.json was begun anew by a causegrid with other stages while this one runs: nothing is computed or stamped."""
    out = tmp_path / "run"
    inline(fake(log, "a"), out)
    before = snapshot(out / "cells")
    monkeypatch.setattr(Fake, "stage_versions", {"third": 2})
    create(out, *fake(log, "a"), fake(log, "a")[0].cells(fake(log, "a")[1]))
    monkeypatch.setattr(Fake, "stage_versions", {})
    (id,) = open_run(out).configs
    found = execute(out, id, Options(code=code_of(Fake())), lambda *_: None)
    assert found.how == "failed" and "stage versions {'third': 2}, this one has {}" in found.line
    assert {n: b for n, b in snapshot(out / "cells").items() if not n.endswith(".lock")} == before


def test_weights_left_out_and_another_version_are_both_named(tmp_path, log, monkeypatch):
    out = tmp_path / "run"
    inline(fake(log, "weights"), out)
    next(out.glob("cells/*/model.safetensors")).unlink()
    assert one(out).status == "done"
    monkeypatch.setattr(Fake, "stage_versions", {"third": 2})
    inline(fake(log, "weights"), out, limit=0)
    assert (
        "'third' is of version 1, now 2" in one(out).message
        and "model.safetensors was left out" in one(out).message
    )
    assert inline(fake(log, "weights"), out).n_done == 1 and ran(log, "weights") == [*ALL, *ALL]


def test_a_cell_that_goes_on_keeps_the_versions_of_its_finished_stages(tmp_path, log, monkeypatch):
    """It goes on at its first unfinished stage with the versions its finished stages were written with."""
    monkeypatch.setattr(Fake, "stage_versions", {"first": 3, "third": 2})
    out = tmp_path / "run"
    inline(fake(log, "a"), out, until="second")
    assert json.loads(next(out.glob("cells/*/cell.json")).read_text())["stage_versions"] == {"first": 3}
    inline(fake(log, "a"), out)
    assert ran(log, "a") == ALL
    monkeypatch.setattr(Fake, "stage_versions", {"third": 2})  # an older causegrid takes its own back
    inline(fake(log, "a"), out)
    assert ran(log, "a") == [*ALL, *ALL]
