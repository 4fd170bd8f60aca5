"""A grid of cells, from wherever it stands to its end: run, plan, status, claims.

There is no separate `resume`: a run looks at its folder first.  Finished cells are never computed again;
interrupted ones go on at their first unfinished stage, those with a stage that the study does otherwise now at
that stage; failed ones are tried again (unless told otherwise).
A second run on the same folder takes other cells.  Whoever ends last writes tables and claims: that part
runs under a lock of its own.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causegrid.errors import InputError
from causegrid.runs import files, store
from causegrid.runs.cells import cell_id, expand
from causegrid.runs.combined import combine
from causegrid.runs.engines import Finished, Options, engines
from causegrid.runs.execute import study as study_of
from causegrid.runs.execute import wanted
from causegrid.runs.lock import Lock, holder
from causegrid.studies.placement import choose

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int, str], None]
FINISH_LOCK, FINISH_WAIT_S = ".finish.lock", 120.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run call ended.

    n_done, n_failed: cells computed by this call (up to `until`).  n_cached: cells that were finished before.
    n_left: not tried (`limit`, or failed before and not retried).  n_elsewhere: being computed by another run.
    failures: cell id -> reason.  problems: what went wrong after the cells (tables, claims).
    """

    folder: Path
    n_done: int = 0
    n_failed: int = 0
    n_cached: int = 0
    n_left: int = 0
    n_elsewhere: int = 0
    failures: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 all went well, 1 a cell failed (or its tables or claims could not be written)."""
        return 1 if self.n_failed or self.problems else 0


def run(
    study: Path | str | tuple[Any, Any],
    out: Path | str | None = None,
    *,
    workers: int = 1,
    engine: str = "local",
    limit: int | None = None,
    until: str | None = None,
    overrides: Sequence[str] = (),
    progress: Progress | None = None,
    retry_failed: bool = True,
    threads: int | None = None,
    device: str = "cpu",
    timeout: float | None = None,
    csv: bool = False,
) -> Outcome:
    """Fill the grid of a study file, or of (study, config), in `out` (default: `runs/<name of the file>`).

    limit: at most so many unfinished cells.  until: the last stage to run in each cell; a later call without it
    goes on from there.  progress(done, total, what): cells, and stages within each.
    retry_failed: cells that failed in an earlier call are tried again.  device: where models run.  threads: of
    one worker (default: the cores shared out).  timeout: seconds for one cell (`local` only).
    Raises InputError before anything runs or is written, KeyboardInterrupt on Ctrl-C or SIGTERM (resumable).
    """
    _at_least("workers", workers, 1)
    _at_least("limit", limit, 0)
    _at_least("threads", threads, 1)
    choose(device)
    _at_least("timeout", timeout, 0.001)
    chosen = engines.get(engine)()
    found, config, default = _resolve(study, overrides)
    folder = Path(out) if out is not None else default
    options = Options(
        code=store.code_of(found),
        workers=workers,
        threads=threads,
        device=device,
        timeout=timeout,
        until=until,
        started=time.time(),
    )
    chosen.check(options)
    cells = found.cells(config)
    if until is not None:
        for cell in cells:
            wanted([stage.name for stage in found.stages(cell)], until)
    made = store.create(folder, found, config, cells)
    records = made.cells(verify=True)
    n_cached = sum(c.reached(until) for c in records)
    todo = [c.id for c in records if not c.reached(until) and (retry_failed or c.status != "failed")]
    ids = todo[:limit]
    labels = {c.id: c.label for c in records}
    tell: Progress = progress or (lambda done, total, what: None)

    def report(id: str, done: int, total: int, what: str) -> None:
        tell(done, total, f"{labels[id]}: {what or 'stages'}")

    outcome = Outcome(folder=folder, n_cached=n_cached, n_left=len(records) - n_cached - len(ids))
    if ids:
        tell(0, len(ids), "cells")
        with _terminable(), closing(chosen.fill(folder, ids, options, report)) as finished:
            for n, cell in enumerate(finished, 1):
                outcome = _counted(outcome, cell)
                tell(n, len(ids), "cells")
    return replace(outcome, problems=tuple(_finish(made, found, csv)))


def plan(
    study: Path | str | tuple[Any, Any], out: Path | str | None = None, *, overrides: Sequence[str] = ()
) -> pd.DataFrame:
    """The cells of a study: `cell, task, model, seed, status ("cached" | "to run"), cost`.  Writes nothing.

    Raises InputError where `run` would.
    """
    import pandas as pd

    found, config, default = _resolve(study, overrides)
    folder = Path(out) if out is not None else default
    made = found.cells(config)
    configs = expand(found, made)
    store.check_folder(folder, found.name)
    costs = {cell_id(found, cell): found.cost(cell) for cell in made}
    rows = []
    for id, cell in configs.items():
        cached = store.read_cell(folder, id, cell, found.stage_versions).status == "done"
        rows.append({**_keys(id, cell), "status": "cached" if cached else "to run", "cost": costs[id]})
    return pd.DataFrame(rows)


def status(folder: Path | str) -> pd.DataFrame:
    """The cells of a run folder: `cell, task, model, seed, status, stages ("2/3"), seconds, message`.

    Raises InputError when the folder is no run.
    """
    import pandas as pd

    rows = []
    for cell in store.open_run(folder).cells():
        stages = f"{len(cell.stages)}/{len(cell.stage_names)}" if cell.stage_names else "-"
        message = "; ".join(filter(None, (cell.error, cell.message)))
        rows.append({**_keys(cell.id, cell.config), "status": cell.status, "stages": stages,
                     "seconds": round(cell.seconds, 2), "message": message})  # fmt: skip
    return pd.DataFrame(rows)


def claims(folder: Path | str) -> pd.DataFrame:
    """What the finished cells say, computed anew: `id, statement, published, measured, result, why, cells`.

    Raises InputError when the folder is no run or its study's code cannot be imported.
    """
    import pandas as pd

    found = store.open_run(folder)
    columns = ["id", "statement", "published", "measured", "result", "why", "cells"]
    rows = files.plain(study_of(found.code).claims(_finished_cells(found)))
    return pd.DataFrame(rows, columns=None if rows else columns)


def summaries(folder: Path | str) -> Mapping[str, pd.DataFrame]:
    """Name -> small table of what the finished cells say, computed anew; which tables is the study's to say.

    Raises InputError when the folder is no run or its study's code cannot be imported.
    """
    found = store.open_run(folder)
    made: Mapping[str, pd.DataFrame] = study_of(found.code).summaries(_finished_cells(found))
    return made


def _resolve(study: Path | str | tuple[Any, Any], overrides: Sequence[str]) -> tuple[Any, Any, Path]:
    """(study, config, default folder)."""
    if isinstance(study, tuple):
        if overrides:
            raise InputError("overrides are for study files: change the config itself")
        return study[0], study[1], Path("runs") / study[0].name
    from causegrid.runs.config import load

    found, config = load(study, overrides=overrides)
    return found, config, Path("runs") / Path(study).stem


def _counted(outcome: Outcome, cell: Finished) -> Outcome:
    if cell.how == "done":
        return replace(outcome, n_done=outcome.n_done + 1)
    if cell.how == "cached":
        return replace(outcome, n_cached=outcome.n_cached + 1)
    if cell.how == "elsewhere":
        return replace(outcome, n_elsewhere=outcome.n_elsewhere + 1)
    failures = (*outcome.failures, (cell.id, cell.line))
    return replace(outcome, n_failed=outcome.n_failed + 1, failures=failures)


def _finish(made: store.Run, study: Any, csv: bool) -> list[str]:
    """Tables and claims over what is finished; returns what went wrong."""
    lock = Lock(made.folder / FINISH_LOCK)
    try:
        if not lock.acquire(wait_s=FINISH_WAIT_S):
            return [f"tables and claims were left to {holder(lock.path)}, which is writing them"]
    except OSError as error:
        return [f"tables and claims: {files.first_line(error)}"]
    problems = []
    try:
        for what, write in (
            ("tables", lambda: combine(made, csv=csv)),
            ("claims", lambda: _claim(made, study)),
        ):
            try:
                write()
            except InputError as error:
                problems.append(str(error))
            except (
                Exception
            ) as error:  # the cells are safe; a bug in a claim must not look like a failed grid
                reason = "the disk is full" if files.is_full(error) else f"{type(error).__name__}: {error}"
                problems.append(f"{what} could not be written: {reason}")
                log.warning("%s could not be written", what, exc_info=True)
    finally:
        lock.release()
    return problems


def _claim(made: store.Run, study: Any) -> None:
    files.write_json(made.folder / store.CLAIMS, study.claims(_finished_cells(made)))


def _finished_cells(made: store.Run) -> list[Mapping[str, Any]]:
    return [
        {"id": c.id, "config": c.config, "facts": c.facts, "tables": c.table}
        for c in made.cells()
        if c.status == "done"
    ]


def _keys(id: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"cell": id, "task": config.get("task"), "model": config.get("model"), "seed": config.get("seed")}


def _at_least(name: str, value: float | None, lowest: float) -> None:
    if value is not None and value < lowest:
        raise InputError(f"{name} is {value}: allowed are values from {lowest} up")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as an interrupt, where signals can be caught (the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
