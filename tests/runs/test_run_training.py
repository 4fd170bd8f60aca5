"""A real training stage that is killed or diverges: what survives, and what it is worth."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs_training_study import Trainings, trainings

from causegrid.models import model
from causegrid.runs import run, status
from causegrid.runs.store import open_run

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inline(made, out, **more):
    return run(made, out, engine="inline", **more)


def test_kill_9_in_the_middle_of_training_costs_the_steps_since_the_checkpoint(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from runs_training_study import trainings; from causegrid.runs import run\n"
        "run(trainings(Path(sys.argv[2]), 'slow'), sys.argv[3], engine='inline')\n"
    )
    out = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", code, str(HERE), str(tmp_path), str(out)])
    until = time.monotonic() + 120
    while not (tmp_path / "far").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    process.wait()
    (cell,) = open_run(out).cells()
    assert (cell.status, cell.stages) == ("interrupted", {})
    assert [p.name for p in (cell.path / ".scratch-train").iterdir()] == ["training.safetensors"]
    (tmp_path / "go").touch()
    assert inline(trainings(tmp_path, "slow"), out).n_done == 1
    assert inline(trainings(tmp_path, "slow"), tmp_path / "whole").n_done == 1
    (killed,), (whole,) = open_run(out).cells(), open_run(tmp_path / "whole").cells()
    assert killed.table("steps")["first"][0] > 10 and whole.table("steps")["first"][0] == 1
    assert killed.table("training").equals(whole.table("training"))
    a, b = (model(c.path).module.state_dict() for c in (killed, whole))
    assert all(torch.equal(a[k], b[k]) for k in b)
    assert not [p for p in killed.path.iterdir() if p.name.startswith(".")]


def test_a_diverged_cell_names_the_step_and_keeps_its_last_good_model(tmp_path):
    out = tmp_path / "run"
    outcome = inline(trainings(tmp_path, "poisoned", "too-fast", "fine"), out)
    assert (outcome.n_done, outcome.n_failed, outcome.exit_code) == (1, 2, 1)
    poisoned, too_fast, fine = open_run(out).cells()
    where = ".scratch-train/training-last-good"
    assert poisoned.error == (
        f"TrainingDiverged: the loss became nan at step 71; the weights of step 50 are saved in {where}"
    )
    assert status(out)["message"][0] == poisoned.error
    assert where in too_fast.error and too_fast.manifest["error"]["stage"] == "train"
    assert str(tmp_path) not in (poisoned.path / "cell.json").read_text().replace(f'"here": "{tmp_path}"', "")
    good = model(poisoned.path / where)
    assert all(v.isfinite().all() for v in good.module.state_dict().values())
    assert fine.status == "done" and not (fine.path / ".scratch-train").exists()
    (tmp_path / "go").touch()
    again = inline(trainings(tmp_path, "poisoned", "too-fast", "fine"), out)
    assert (again.n_done, again.n_failed, again.n_cached) == (1, 1, 1)
    poisoned = open_run(out).cells()[0]
    assert poisoned.table("training").equals(fine.table("training"))
    assert not [p for p in poisoned.path.iterdir() if p.name.startswith(".")]


def test_scratch_of_a_finished_stage_is_swept_up_and_names_are_plain(tmp_path, monkeypatch):
    out = tmp_path / "run"
    inline(trainings(tmp_path, "fine"), out, until="train")
    (cell,) = open_run(out).cells()
    (cell.path / ".scratch-train").mkdir()  # as a kill between manifest and removal leaves it
    (cell.path / ".scratch-train" / "training.safetensors").write_bytes(b"x")
    assert inline(trainings(tmp_path, "fine"), out).n_done == 1
    assert not [p for p in cell.path.iterdir() if p.name.startswith(".")]

    def climbs(context):
        context.scratch("../escape")

    from causegrid.studies.base import Stage

    monkeypatch.setattr(Trainings, "stages", lambda self, cell: [Stage(name="climb", run=climbs)])
    assert "not a file name" in inline(trainings(tmp_path, "other"), out).failures[0][1]
