"""The study files that ship: each can be read, the formal grid is whole, and committed cells are cells of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from causegrid.runs.cells import cell_id
from causegrid.runs.config import load

ROOT = Path(__file__).parents[2]
FAMILIES = ("transformer", "mamba", "mamba2", "lstm", "gru")
RUNS = {  # folder of results -> its study file
    "state_encoding": "state_encoding",
    "state_encoding_smollm2": "state_encoding_smollm2",
    "calibration": "calibration",
    "zoo": "zoo",
}
LARGER = {"pattern_selectivity": 28}  # MB


@pytest.mark.parametrize("file", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_ready_study_is_read(file):
    study, config = load(file)
    assert config.study == study.name


def test_the_formal_grid_is_whole():
    study, config = load(ROOT / "studies" / "state_encoding.yaml")
    cells = {(c.task, c.model, c.seed): c for c in study.cells(config)}
    wanted = {(t, m, s) for t in ("parity", "s3", "z6", "dyck") for m in FAMILIES for s in range(3)}
    wanted |= {("code-depth", m, 0) for m in FAMILIES}
    wanted |= {
        (t, m, s) for t in ("parity", "s3", "dyck") for m in ("mamba", "mamba:conv=false") for s in range(6)
    }
    assert wanted <= set(cells)
    for key in wanted:
        if key[2] < 3 and ":" not in key[1]:
            assert cells[key].erasing is not None and cells[key].patching is not None, key
        assert cells[key].training.length == 40 and set(cells[key].eval_lengths) == {40, 60, 80, 100, 120}


@pytest.mark.parametrize("name", RUNS)
def test_committed_cells_are_cells_of_the_study_file(name):
    """A changed default, version or name would leave them all behind: they would be computed anew."""
    study, config = load(ROOT / "studies" / f"{RUNS[name]}.yaml")
    planned = {cell_id(study, cell) for cell in study.cells(config)}
    found = {}
    for file in (ROOT / "results" / name / "cells").glob("*/cell.json"):
        cell = json.loads(file.read_text(encoding="utf-8"))
        own = cell["config"]["task"].startswith("code-depth")  # its corpus is the machine's own library
        if cell["status"] == "done" and not own:
            found[cell["id"]] = cell
    assert found and set(found) <= planned


def test_ready_state_studies_hold_erasures_against_39_random_subspaces():
    """SmolLM2 alone has 19, and says so: its results are there."""
    found = {}
    for file in (ROOT / "studies").glob("state_encoding*.yaml"):
        study, config = load(file)
        found[file.stem] = {cell.erasing.n_random for cell in study.cells(config) if cell.erasing}
    assert found.pop("state_encoding_smollm2") == {19}
    assert len(found) >= 3 and all(counts == {39} for counts in found.values()), found


@pytest.mark.parametrize(
    "folder", sorted(p for p in (ROOT / "results").iterdir() if p.is_dir()), ids=lambda p: p.name
)
def test_committed_results_stay_small(folder):
    """20 MB a folder, of what git tracks; one was larger before there was a limit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    files = [ROOT / name for name in listed if name]
    size = sum(file.stat().st_size for file in files if file.is_file())
    assert files and size < LARGER.get(folder.name, 20) * 1e6, f"{folder.name}: {size / 1e6:.1f} MB"
