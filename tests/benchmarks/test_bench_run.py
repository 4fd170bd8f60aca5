"""The bench as it is run: exit codes, resuming, rows that die, and every row there is in its quick mode."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import bench_examples as examples
import pytest

from benchmarks import __main__ as door
from benchmarks import bench, runner

ROOT = Path(__file__).parents[2]
BROKEN = bench.discover()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bench writing to a folder of the test, its child processes replaced by calls."""

    def child(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        name, path, run = command[3], Path(command[4]), command[6]
        error = runner.run_row(name, path, quick="--quick" in command, run=run)
        return subprocess.CompletedProcess(command, 0 if error is None else 1)

    for name in ("ROOT", "RESULTS", "QUICK"):
        monkeypatch.setattr(door, name, {"ROOT": tmp_path}.get(name, tmp_path / name.lower()))
    monkeypatch.setattr(door.subprocess, "run", child)
    monkeypatch.setattr(bench, "rows", {})
    monkeypatch.setattr(bench, "discover", dict)
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_unequal_results_fail_and_a_missed_target_does_not(house: Path, capsys) -> None:
    fake = {"figure": examples.figure(ratio=1.0)}
    bench.row("fake", title="A fake")(lambda quick, say: [fake["figure"]])
    assert door.main([]) == 0
    assert "short by a factor of 40.00" in (house / "docs" / "performance.md").read_text()
    for difference in (1.1e-5, float("nan")):
        fake["figure"] = examples.figure(difference=difference)
        assert door.main([]) == 1
        assert "FAILED  Small step: differs from a slow step" in capsys.readouterr().err
    fake["figure"] = bench.Equality(name="e", against="f", difference=1.0, tolerance=0.5)
    assert door.main(["fake"]) == 1


def test_a_row_that_raises_is_recorded_and_the_others_go_on(house: Path, capsys) -> None:
    def bad(quick: bool, say: bench.Say) -> list[bench.Result]:
        raise RuntimeError("no such thing")

    bench.row("a_bad", title="Bad")(bad)
    bench.row("good", title="Good")(lambda quick, say: [examples.figure()])
    assert door.main([]) == 1
    assert (
        json.loads((house / "results" / "a_bad.json").read_text())["error"] == "RuntimeError: no such thing"
    )
    text = (house / "docs" / "performance.md").read_text()
    assert "**Bad** could not be measured: `RuntimeError: no such thing`" in text
    assert "| Small step |" in text


def test_resume_repeats_only_what_is_missing(house: Path) -> None:
    ran: list[str] = []
    for name in ("one", "two"):
        bench.row(name, title=name)(lambda quick, say, name=name: ran.append(name) or [])
    assert door.main([]) == 0
    (house / "results" / "two.json").unlink()
    assert door.main(["--resume"]) == 0
    assert ran == ["one", "two", "two"]
    assert door.main([]) == 0
    assert ran == ["one", "two", "two", "one", "two"]


def test_a_module_that_cannot_be_imported_fails_the_run(house: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench, "discover", lambda: {"sad": "Traceback\nSyntaxError: bad"})
    assert door.main([]) == 1
    assert "FAILED  sad: SyntaxError: bad" in capsys.readouterr().err
    assert "`SyntaxError: bad`" in (house / "docs" / "performance.md").read_text()


def test_unknown_names_and_names_taken_twice(house: Path, capsys) -> None:
    bench.row("known", title="k")(lambda quick, say: [])
    assert door.main(["unknown"]) == 2
    assert "no row is called 'unknown': choose from known" in capsys.readouterr().err
    with pytest.raises(ValueError, match="'known' is registered twice"):
        bench.row("known", title="k")(lambda quick, say: [])


def test_a_row_whose_process_dies_is_recorded_and_its_old_results_are_gone(house: Path, monkeypatch) -> None:
    bench.row("dies", title="Dies")(lambda quick, say: [examples.figure()])
    assert door.main([]) == 0
    monkeypatch.setattr(door.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, -9))
    assert door.main(["dies"]) == 1
    text = (house / "docs" / "performance.md").read_text()
    assert "code -9" in text
    assert "Small step" not in text


def test_every_row_can_be_imported() -> None:
    assert BROKEN == {}


@pytest.mark.parametrize("name", sorted(bench.rows))
def test_every_row_runs_in_quick_mode(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.runner", name, str(path), "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    results, facts = bench.read(path)
    assert facts["quick"]
    assert results
    assert door.judge(tmp_path) == []
    for found in results:
        if isinstance(found, bench.Figure):
            assert 0 < found.low <= found.ratio <= found.high < math.inf, found
            assert found.ours_s > 0, found
            assert found.other_s > 0, found
        if isinstance(found, bench.Curve):
            for values in found.series.values():
                assert len(values) == len(found.xs), found
                assert all(math.isfinite(v) for v in values), found
