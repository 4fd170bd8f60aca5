"""The house rules, enforced: imports run downwards only, torch stays out until needed, the door opens fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_imports_run_downwards_only():
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / ".importlinter"), no_cache=True) == 0


def test_an_upward_import_would_be_caught(tmp_path):
    """The rule itself is alive: a copy of the package in which a task imports a study is refused."""
    import shutil

    copy = tmp_path / "src" / "causegrid"
    shutil.copytree(ROOT / "src" / "causegrid", copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "tasks" / "dyck.py").open("a") as file:
        file.write("\nimport causegrid.studies.base\n")
    shutil.copy(ROOT / ".importlinter", tmp_path)
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        env={"PYTHONPATH": str(tmp_path / "src")},
    )
    assert done.returncode == 1, done.stdout.decode() + done.stderr.decode()


@pytest.mark.parametrize(
    "module",
    [
        "causegrid",
        "causegrid.cli",
        "causegrid.evidence",
        "causegrid.tasks",
        "causegrid.runs",
        "causegrid.report",
    ],
)
def test_torch_is_not_loaded(module):
    assert (
        python(f"import sys, {module}; print('torch' in sys.modules, 'transformers' in sys.modules)")
        == "False False"
    )


def test_studies_are_found_without_torch():
    code = "import sys\nfrom causegrid.studies.base import studies\nprint(studies.names(), 'torch' in sys.modules)"
    assert python(code) == "['calibration', 'pattern-selectivity', 'state-encoding', 'zoo'] False"


def test_help_answers_at_once():
    """Under 0.3 s of processor time, the best of five: wall time would measure the machine's other work."""

    def spent() -> float:
        before = os.times()
        python("from causegrid.cli import main; main(['--help'])")
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    best = min(spent() for _ in range(5))
    assert best < 0.3, best


def test_public_names_exist():
    import causegrid as cg

    for name in cg.__all__:
        assert getattr(cg, name) is not None
    with pytest.raises(AttributeError):
        _ = cg.no_such_name


def test_every_source_file_says_what_it_is():
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not text.strip() or text.startswith('"""'), f"{file} has no module docstring"
