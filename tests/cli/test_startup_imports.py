"""What a verb that computes nothing loads: no torch, nor anything that takes as long.

Each call runs in a process of its own, since a module once loaded stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "numba", "sklearn", "scipy")


def loaded(arguments: list[str]) -> tuple[int, set[str]]:
    """Exit code of the command line and the heavy modules it loaded."""
    code = (
        "import json, sys\n"
        "from causegrid.cli import main\n"
        "code = main(json.loads(sys.argv[1]))\n"
        "print('\\n' + json.dumps([code, sorted({m.split('.')[0] for m in sys.modules})]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, text=True, check=True
    )
    exit_code, modules = json.loads(done.stdout.splitlines()[-1])
    return exit_code, set(HEAVY) & set(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list", "--help"], ["run", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert loaded(arguments) == (0, set())


def test_the_public_package_loads_nothing_heavy() -> None:
    code = "import causegrid, sys; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*HEAVY, "numpy", "pandas"} & set(eval(done.stdout))


def test_a_verb_that_needs_torch_is_seen_to_load_it() -> None:
    """The test's own eyes: a made-up model's check fails, after torch came in."""
    code, modules = loaded(["check", "no-such-model-at-all"])
    assert code == 2 and "torch" in modules


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose cells are all still to run."""
    folder = tmp_path_factory.mktemp("startup")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "causegrid.cli"]
    code = "from causegrid.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    call = [sys.executable, "-c", code]
    subprocess.run([*call, "init", "mine"], cwd=folder, check=True, env=env, capture_output=True)
    subprocess.run(
        [*call, "run", "mine.yaml", "--out", "out", "--limit", "0"],
        cwd=folder,
        check=True,
        env=env,
        capture_output=True,
    )
    return folder / "out"


@pytest.mark.parametrize("verb", ["status", "report", "claims"])
def test_reading_a_run_loads_no_torch(verb: str, started: Path) -> None:
    code, modules = loaded([verb, str(started)])
    assert code == 0
    assert not modules - {"scipy"}
