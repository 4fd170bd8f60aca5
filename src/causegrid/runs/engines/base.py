"""What an engine is: a check of its options, and a generator over cells that finished, in whatever order.

An engine gets the run folder, cell ids and options, all picklable; the worker that fills a cell opens the run
itself, writes its own result into the cell's folder and returns only the id and how it ended.  Nothing else
crosses a process or a machine, so an engine for a cluster needs no more than a shared folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from causegrid.registry import Registry

Report = Callable[[str, int, int, str], None]  # cell id, done, total, what
How = Literal["done", "failed", "cached", "elsewhere", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How cells are run; none of it changes a number.

    code: "module:Class" of the study.  workers: cells at a time.  threads: of one worker (None: the cores are
    shared out).  device: where models run (`cpu`, `cuda`, `auto`, `balanced`).  timeout: seconds for one cell
    (None: no limit).  until: the last stage to run (None: all).  started: UNIX time of the run call; a cell that
    failed after it is not tried again by this call.
    """

    code: str
    workers: int = 1
    threads: int | None = None
    device: str = "cpu"
    timeout: float | None = None
    until: str | None = None
    started: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How one cell ended.  `line` is the reason of a failure, or who computes the cell elsewhere."""

    id: str
    how: How
    line: str = ""


class Engine(ABC):
    """Where cells run.  Its docstring's first line is what `causegrid list engines` says."""

    def check(self, options: Options) -> None:  # noqa: B027 - nothing to refuse is the common case
        """Raises InputError, before anything is written, for options this engine cannot honour."""

    @abstractmethod
    def fill(
        self, folder: Path, ids: Sequence[str], options: Options, report: Report
    ) -> Generator[Finished, None, None]:
        """Run the cells; closing the generator (an interrupt) leaves those under way resumable."""


engines: Registry[type[Engine]] = Registry("engine", "causegrid.runs.engines")
