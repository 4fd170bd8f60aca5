"""`benchmarks/gpu.py` on the CPU at tiny sizes: its JSON, a broken equality, a missing GPU, a used-up budget."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, steps

SCRIPT = Path(gpu.__file__)
GAPS = (
    "logits",
    "gradients",
    "effects of single heads",
    "query rows",
    "self-checks",
    "block outputs",
    "probe",
)


def run(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    out = folder / "gpu.json"
    code = gpu.main(["--device", "cpu", "--quick", "--out", str(out), *more])
    return code, json.loads(out.read_text())


def test_the_script_runs_and_writes_everything_it_says(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--out", str(out)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    wall = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["seconds"] <= wall and found["unequal"] == [] and found["left_out"] == []
    assert found["machine"]["torch"] == torch.__version__ and found["machine"]["mamba-ssm"]
    names = [row["name"] for row in found["equal"]]
    for family in steps.FAMILIES:
        assert f"{family}: logits" in names and f"{family}: gradients" in names
        assert sum(f", {family}, " in row["name"] for row in found["times"]) == 2
    assert all(any(gap in name for name in names) for gap in GAPS)
    assert all(row["difference"] == 0 for row in found["equal"])  # both are the CPU
    assert all(row["seconds"] > 0 and row["rounds"] >= 1 for row in found["times"])
    sweep = found["times"][-1]
    assert sweep["heads"] == 8 and sweep["low"] <= sweep["speedup"] <= sweep["high"]
    for row in (*found["equal"], *found["times"]):
        assert row["name"] in done.stdout


@pytest.mark.parametrize("wrong", [0.01, math.nan])
def test_a_broken_equality_is_named_and_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: float
) -> None:
    right, calls = gpu.query_rows, []

    def every_second(model: Any, tokens: Any) -> torch.Tensor:
        calls.append(model)
        return right(model, tokens) + wrong * (len(calls) % 2 == 0)

    monkeypatch.setattr(gpu, "query_rows", every_second)
    monkeypatch.setattr(gpu, "times", lambda *_, **__: ([], []))
    code, found = run(tmp_path)
    assert code == 1 and found["unequal"] == ["gpt_neox: query rows", "llama: query rows"]
    assert "NOT EQUAL: gpt_neox: query rows" in capsys.readouterr().out
    assert torch.backends.cudnn.allow_tf32  # put back after the comparisons


def test_differences_are_relative_and_shapes_must_agree() -> None:
    assert gpu.off(torch.tensor([1.0, -4.0]), torch.tensor([1.0, -5.0])) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="cannot be compared"):
        gpu.off(torch.ones(2), torch.ones(1))


def test_what_the_budget_leaves_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = run(tmp_path, "--budget", "1e-9")
    assert code == 0 and found["equal"] == [] and found["times"] == []
    assert len(found["left_out"]) == 8 + 11 and "equality of mamba" in found["left_out"]
    monkeypatch.setattr(gpu, "equalities", lambda *_: ([], []))
    monkeypatch.setattr(gpu, "_step", lambda *_: ({}, [lambda: time.sleep(0.2)]))
    monkeypatch.setattr(gpu, "_sweep", lambda *_, **__: ({}, [lambda: None]))
    code, found = run(tmp_path, "--budget", "0.3")
    assert code == 0 and "one round takes 0.2 s" in found["left_out"][0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
@pytest.mark.parametrize("given", [[], ["--device", "cuda:1"], ["--device", "cpu", "--budget", "0"]])
def test_no_gpu_and_no_budget_are_one_line(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(given) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert ("cuda" in said.err and "cannot be used here" in said.err) or "budget" in said.err
