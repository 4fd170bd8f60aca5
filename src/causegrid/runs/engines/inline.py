"""This process, one cell after another: for debugging, notebooks and machines where nothing may fork.

A timeout needs a process to end: this engine has none, and says so.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from causegrid.errors import InputError
from causegrid.runs.engines.base import Engine, Finished, Options, Report, engines
from causegrid.runs.execute import execute


@engines.register("inline")
class Inline(Engine):
    """this process, one cell after another"""

    def check(self, options: Options) -> None:
        if options.workers != 1:
            raise InputError(
                f"engine 'inline' runs one cell at a time, not {options.workers}: use engine 'local'"
            )
        if options.timeout is not None:
            raise InputError("engine 'inline' cannot end a cell at a timeout: use engine 'local'")

    def fill(
        self, folder: Path, ids: Sequence[str], options: Options, report: Report
    ) -> Generator[Finished, None, None]:
        for id in ids:
            yield execute(folder, id, options, report)
