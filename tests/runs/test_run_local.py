"""The local engine: real processes, killed, late, interrupted, pinned; and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from runs_fake_study import Fake, fake, ran

from causegrid.errors import InputError
from causegrid.runs import run
from causegrid.runs.engines import engines, local
from causegrid.runs.store import open_run

HERE = Path(__file__).parent
ALL = ["first", "second", "third"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


@pytest.fixture(autouse=True)
def quick_workers(monkeypatch):
    monkeypatch.setattr(local, "PRELOAD", ("pandas", "causegrid.runs.execute"))


def wait_for(path: Path, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.01)


def test_a_killed_worker_fails_its_cell_alone(tmp_path, log):
    out = tmp_path / "run"
    outcome = run(fake(log, "kill", "nothing", "raise", "a"), out, workers=2)
    assert (outcome.n_done, outcome.n_failed, outcome.exit_code) == (1, 3, 1)
    cells = {c.config["task"]: c for c in open_run(out).cells()}
    assert cells["kill"].error.startswith("the worker was killed by SIGKILL")
    assert cells["nothing"].error == "the worker ended without a result (exit code 0)"
    assert cells["raise"].error == "RuntimeError: the stage fell over"
    for task in ("kill", "nothing", "raise"):
        assert cells[task].status == "failed" and list(cells[task].stages) == ["first"]
        assert not list(cells[task].path.glob(".*"))
    assert ran(log, "a") == ALL
    (tmp_path / "spare").touch()
    assert run(fake(log, "kill"), out).n_done == 1
    assert ran(log, "kill") == ["first", "second", "second", "third"]


def test_two_workers_work_at_the_same_time_each_in_its_own_process(tmp_path, log):
    told: list[tuple[int, int, str]] = []
    process = subprocess.Popen(
        ["sh", "-c", f"while [ ! -e {tmp_path}/wait1.started ] || [ ! -e {tmp_path}/wait2.started ];"
         f" do sleep 0.05; done; touch {tmp_path}/go"]
    )  # fmt: skip
    outcome = run(
        fake(log, "wait1", "wait2"), tmp_path / "run", workers=2, progress=lambda *news: told.append(news)
    )
    process.wait(timeout=10)
    assert outcome.n_done == 2
    pids = {line.split()[0]: line.split()[3] for line in log.read_text().splitlines()}
    assert len({*pids.values(), str(os.getpid())}) == 3
    assert (1, 2, "wait1 m seed 0: second steps") in told and (2, 2, "cells") in told


def test_one_worker_runs_one_cell_at_a_time_in_grid_order(tmp_path, log):
    assert run(fake(log, "a", "b"), tmp_path / "run").n_done == 2
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["a"] * 3 + ["b"] * 3


def test_a_late_cell_is_ended_and_can_go_on(tmp_path, log):
    made, out = fake(log, "wait", "a"), tmp_path / "run"
    outcome = run(made, out, timeout=3.0)
    assert (outcome.n_done, outcome.n_failed) == (1, 1)
    cell = open_run(out).cells()[0]
    assert (cell.status, cell.error, list(cell.stages)) == ("failed", "timed out after 3 s", ["first"])
    (tmp_path / "go").touch()
    assert run(made, out).n_done == 1 and ran(log, "wait") == ["first", "second", "second", "third"]


def test_stdout_stays_the_callers(tmp_path, log):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys; sys.path.insert(0, {str(HERE)!r})
            from pathlib import Path; from runs_fake_study import fake; from causegrid.runs import run
            from causegrid.runs.engines import local; local.PRELOAD = ()
            outcome = run(fake(Path({str(log)!r}), "print"), {str(tmp_path / "run")!r})
            print(outcome.n_done, outcome.n_failed)
            """
        )
    )  # no `if __name__ == "__main__"`: workers must not import the caller's script
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "1 0\n", done.stderr
    assert "noise on stdout" in done.stderr and "raw noise" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_run_and_their_cells_go_on(tmp_path, log, number):
    out = tmp_path / "run"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from runs_fake_study import fake; from causegrid.runs import run\n"
        "from causegrid.runs.engines import local; local.PRELOAD = ()\n"
        "run(fake(Path(sys.argv[2]), 'wait', 'wait2'), sys.argv[3], workers=2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(HERE), str(log), str(out)], stderr=subprocess.DEVNULL
    )
    wait_for(tmp_path / "wait.started")
    wait_for(tmp_path / "wait2.started")
    workers = {int(line.split()[3]) for line in log.read_text().splitlines()}
    process.send_signal(number)
    assert process.wait(timeout=30) != 0
    until = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < until, "a worker outlived its run"
        time.sleep(0.05)
    assert [c.status for c in open_run(out).cells()] == ["interrupted"] * 2
    if number != signal.SIGKILL:
        written = [json.loads((c.path / "cell.json").read_text())["status"] for c in open_run(out).cells()]
        assert written == ["interrupted"] * 2 and not list(out.glob("cells/*/.*"))
    (tmp_path / "go").touch()
    assert run(fake(log, "wait", "wait2"), out, workers=2).n_done == 2
    assert ran(log, "wait") == ["first", "second", "second", "third"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_threads_are_pinned_in_workers(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from runs_pinned_study import Pinned, PinnedConfig; from causegrid.runs import run\n"
        "from causegrid.runs.store import open_run\n"
        "run((Pinned(), PinnedConfig(study='pinned')), sys.argv[2], threads=1)\n"
        "print(open_run(sys.argv[2]).cells()[0].facts)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(HERE), str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120, env=env,
    )  # fmt: skip
    assert done.stdout == "{'torch': 1, 'omp': '1', 'pools': [1]}\n", done.stderr


def test_a_study_no_worker_can_import_is_refused_before_anything_is_written(tmp_path, log):
    class Local(Fake):
        pass

    with pytest.raises(InputError, match="workers cannot import the study"):
        run((Local(), fake(log, "a")[1]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert run((Local(), fake(log, "a")[1]), tmp_path / "run", engine="inline").n_failed == 1


def test_engines_are_registered():
    assert {"inline", "local"} <= set(engines.names())


def test_workers_stop_where_they_are_asked_to(tmp_path, log):
    out = tmp_path / "run"
    assert run(fake(log, "a", "b"), out, workers=2, until="first").n_done == 2
    assert ran(log, "a") == ran(log, "b") == ["first"]
    assert run(fake(log, "a", "b"), out, workers=2).n_done == 2
    assert ran(log, "a") == ran(log, "b") == ALL
