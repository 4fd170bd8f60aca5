"""The environment of the other tools: made once from `requirements.txt`, apart from ours, ignored by git.

It holds pinned versions that all work with the transformers release we measure ourselves on, so one
environment serves all of them.  It is made again when the requirements change.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".bench"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def scratch(name: str) -> Path:
    """A folder of the bench's own, `.bench/NAME`, that git does not see."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
    (FOLDER / name).mkdir(parents=True, exist_ok=True)
    return FOLDER / name


def python(say: Callable[[str], None]) -> Path:
    """The interpreter of that environment, made now if it is not there.  Raises CalledProcessError."""
    folder = scratch("competitors")
    found = folder / "bin" / "python"
    stamp = folder / "installed.txt"
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return found
    say("installing the other tools, once (some minutes)")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    first = next(line for line in wanted.splitlines() if line.startswith("torch=="))
    subprocess.run([*pip, first], check=True)  # alone and first, so that no other build of it is picked
    subprocess.run([*pip, "--requirement", str(REQUIREMENTS)], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return found
