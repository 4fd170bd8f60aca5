"""Our end of a worker: start it, load a model, time conditions in it, read its logits."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.competitors.env import ROOT

Heads = Mapping[int, Sequence[int]]


class Competitor:
    """A tool (`plain`, `with_pyvene`, ...) on the model saved in `folder` and `tokens` (B, L); a context."""

    def __init__(
        self, python: Path, tool: str, folder: Path, tokens: Sequence[Sequence[int]], *, threads: int
    ) -> None:
        self.tool = tool
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed on exit)
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.competitors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | quiet,
        )
        given = {"tool": tool, "folder": str(folder), "tokens": [list(map(int, row)) for row in tokens]}
        self.version: str = self._ask({"do": "load", "threads": threads, **given})["version"]

    def seconds(self, conditions: Sequence[Heads]) -> list[float]:
        """Seconds of each condition, as the worker measured them."""
        found: list[float] = self._ask({"do": "run", "conditions": list(conditions), "keep": None})["seconds"]
        return found

    def logits(self, conditions: Sequence[Heads]) -> NDArray[np.float32]:
        """Logits (K, B, V) at the last position."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "logits.npy"
            self._ask({"do": "run", "conditions": list(conditions), "keep": str(file)})
            kept: NDArray[np.float32] = np.load(file)
        return kept

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"{self.tool} gave no answer; its last words:\n{self._errors.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Competitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
