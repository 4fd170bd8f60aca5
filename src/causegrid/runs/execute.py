"""One cell, from wherever it stopped to its end.

A stage writes into its own temporary folder; when it returns, its files are flushed, moved into the cell's
folder, and only then listed in `cell.json`.  A kill at any moment leaves the state before the stage or the
state after it; of a stage that did not end, its scratch folder alone stays.  Whatever a stage raises is the
cell's result (`failed`, with the reason), never the grid's; an interrupt leaves the cell resumable.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causegrid.errors import InputError, unknown
from causegrid.runs import files, store
from causegrid.runs.engines.base import Finished, Options, Report
from causegrid.runs.lock import Lock, holder
from causegrid.runs.versions import earlier, versions
from causegrid.studies.placement import choose

if TYPE_CHECKING:
    import pandas as pd


def execute(folder: Path, id: str, options: Options, report: Report) -> Finished:
    """Fill one cell of the run in `folder`; returns how it ended, never raises but for an interrupt."""
    try:
        run = store.open_run(folder)
        path = run.cell(id).path
        path.mkdir(parents=True, exist_ok=True)
        lock = Lock(path / store.LOCK)
        if not lock.acquire():
            return Finished(id=id, how="elsewhere", line=holder(path / store.LOCK) or "another process")
    except (OSError, InputError) as error:
        return Finished(id=id, how="failed", line=_line(error))
    try:
        choose(options.device)
        return _Cell(run, run.configs[id], path, id, options, report).fill()
    except OSError as error:  # the manifest itself could not be written
        return Finished(id=id, how="failed", line=f"{_line(error)}; the cell's folder does not say so")
    finally:
        lock.release()


def study(code: str) -> Any:
    """The study of "module:Class".  Raises InputError when it cannot be imported."""
    module, _, name = code.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"the study's code {code!r} cannot be imported: {files.first_line(error)}"
        ) from error
    return found() if isinstance(found, type) else found


def give_up(folder: Path, id: str, how: str, line: str, *, since: float = 0.0) -> Finished:
    """Record why a worker that is gone left its cell, unless it finished it or somebody else took it.

    since: UNIX time; a cell that stopped as asked (`until`) after it was finished by that worker.
    """
    run = store.open_run(folder)
    path = run.folder / store.CELLS / id
    lock = Lock(path / store.LOCK)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not lock.acquire():
            return Finished(id=id, how="elsewhere", line=holder(path / store.LOCK))
        try:
            found, _ = files.read_json(path / store.CELL)
            status = found.get("status") if found else None
            record = run.cell(id)
            whole = status == "done" and not (record.damage or record.outdated)
            if whole or (found and status == "stopped" and _unix(found.get("finished")) > since):
                return Finished(id=id, how="done")
            store.clear(path)
            manifest = found or {
                "id": id,
                "study": run.study,
                "version": run.version,
                "config": run.configs[id],
            }
            error = {"type": "Killed", "line": line, "stage": manifest.get("stage"), "traceback": ""}
            manifest.pop("stage", None)
            manifest |= {"status": how, "error": error if how == "failed" else None, "finished": _now()}
            files.write_json(path / store.CELL, manifest)
        finally:
            lock.release()
    except OSError as error:
        line += f" (and {_line(error)})"
    return Finished(id=id, how="failed" if how == "failed" else "interrupted", line=line)


class _Cell:
    """The cell being filled, under its lock."""

    def __init__(
        self, run: store.Run, config: Mapping[str, Any], path: Path, id: str, options: Options, report: Report
    ) -> None:
        self.run, self.config, self.path, self.id, self.options = run, dict(config), path, id, options
        self.report = report
        self.manifest: dict[str, Any] = {}

    def fill(self) -> Finished:
        """Every stage that is not finished yet."""
        has = self._stage_versions()
        if has != self.run.stage_versions:
            return Finished(id=self.id, how="failed", line=_other_code(self.run.stage_versions, has))
        record = self.run.cell(self.id, verify=True)
        before = record.manifest
        if before.get("status") == "done" and not (record.damage or record.outdated):
            return Finished(id=self.id, how="cached")
        if self.options.until and record.reached(self.options.until):
            return Finished(id=self.id, how="cached")
        if before.get("status") == "failed" and _unix(before.get("finished")) > self.options.started:
            return Finished(id=self.id, how="failed", line=str((before.get("error") or {}).get("line", "")))
        self._start(record)
        try:
            with redirect_stdout(sys.stderr):
                self._stages()
        except (Exception, SystemExit) as error:
            return self._failed(error)
        except BaseException:
            with suppress(OSError):  # then it still says `running`, which without a live lock reads the same
                self._end("interrupted", None)
            raise
        whole = set(self.manifest["stage_names"]) <= set(self.manifest["stages"])
        self._end("done" if whole else "stopped", None)
        return Finished(id=self.id, how="done")

    def _stage_versions(self) -> dict[str, int]:
        """Those of this process's code; of code that cannot be imported the run's: its first stage says so."""
        try:
            return dict(study(self.options.code).stage_versions)
        except InputError:
            return self.run.stage_versions

    def _start(self, record: store.CellRecord) -> None:
        store.clear(self.path)
        for stage in record.stages:
            shutil.rmtree(self.scratch(stage), ignore_errors=True)
        if not record.manifest:
            files.keep_corrupt(self.path, store.CELL)
        for name in set(record.manifest.get("files") or {}) - set(record.files):
            if files.damage(self.path / name, record.manifest["files"][name], verify=True):
                files.keep_corrupt(self.path, name)
        self.manifest = {
            "id": self.id,
            "study": self.run.study,
            "version": self.run.version,
            "config": self.config,
            "status": "running",
            "stage_names": [],
            "stages": record.stages,
            "stage_versions": {n: v for n, v in self.run.stage_versions.items() if n in record.stages},
            "files": record.files,
            "facts": record.facts,
            "error": None,
            "versions": versions(),
            "earlier_versions": earlier(record.manifest),
            "started": record.manifest.get("started") or _now(),
            "finished": None,
        }
        if record.damage:
            self.manifest["repaired"] = record.damage
        self._write()

    def _stages(self) -> None:
        found = study(self.options.code)
        cell = found.cell_type.model_validate(self.config)
        stages = list(found.stages(cell))
        names = [stage.name for stage in stages]
        if len(set(names)) != len(names):
            raise ValueError(f"study {self.run.study!r} has two stages of one name: {', '.join(names)}")
        self.manifest["stage_names"] = names
        until = self.options.until
        last = len(names) if until is None else wanted(names, until) + 1
        for at, stage in enumerate(stages[:last]):
            if stage.name in self.manifest["stages"]:
                continue
            self.report(self.id, at, len(stages), "")
            self.manifest["stage"] = stage.name
            self._write()
            self._stage(stage.name, stage.run, cell)
        self.report(self.id, last, len(stages), "")

    def _stage(self, name: str, work: Callable[[Any], None], cell: Any) -> None:
        aside = self.path / f".stage-{_plain(name)}-{os.getpid()}"
        aside.mkdir()
        context = Context(self, name, cell, aside)
        try:
            start = time.perf_counter()
            work(context)
            seconds = time.perf_counter() - start
            self._commit(name, aside, context.facts, seconds)
            shutil.rmtree(self.scratch(name), ignore_errors=True)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _commit(self, name: str, aside: Path, facts: dict[str, Any], seconds: float) -> None:
        written = {}
        for path in sorted(p for p in aside.rglob("*") if p.is_file()):
            files.flush(path)
            written[path.relative_to(aside).as_posix()] = {"stage": name, **files.fingerprint(path)}
        for entry in sorted(aside.iterdir()):
            self.require_free(entry.name, name)
        for entry in sorted(aside.iterdir()):
            target = self.path / entry.name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            os.replace(entry, target)
        files.flush(self.path)
        self.manifest = {  # one assignment: an interrupt here finds all of the stage, or nothing
            **self.manifest,
            "files": {**self.manifest["files"], **written},
            "facts": {**self.manifest["facts"], **facts},
            "stages": {**self.manifest["stages"], name: seconds},
            "stage_versions": {
                n: v for n, v in self.run.stage_versions.items() if n == name or n in self.manifest["stages"]
            },
            "versions": versions(),
        }
        self._write()

    def scratch(self, stage: str) -> Path:
        """The folder of what a stage keeps until it ends."""
        return self.path / f".scratch-{_plain(stage)}"

    def require_free(self, name: str, stage: str) -> None:
        """Raises ValueError for a name a stage cannot write: not plain, the manifest's, another stage's."""
        require_plain(name)
        if name == store.CELL:
            raise ValueError(f"{name!r} is the cell's manifest: use note()")
        for taken, info in self.manifest["files"].items():
            if taken.split("/")[0] == name:
                raise ValueError(
                    f"{name!r} belongs to stage {info['stage']!r}: stage {stage!r} cannot write it"
                )

    def _failed(self, error: BaseException) -> Finished:
        line = _line(error)
        if files.is_full(error):
            line = f"the disk is full: nothing of stage {self.manifest.get('stage', '?')!r} was kept ({line})"
        line = self._portable(line)
        text = self._portable("".join(traceback.format_exception(error)))
        stage = self.manifest.get("stage")
        try:
            self._end(
                "failed", {"type": type(error).__name__, "line": line, "stage": stage, "traceback": text}
            )
        except OSError as second:
            line += f"; cell.json could not be written either ({_line(second)})"
        return Finished(id=self.id, how="failed", line=line)

    def _portable(self, text: str) -> str:
        """Without this machine's paths: the cell's folder, the run's and where Python's code lies go."""
        places = [str(self.path), str(self.run.folder), *sys.path, sys.prefix, sys.base_prefix]
        roots = {os.path.abspath(place) for place in places}
        for root in sorted(roots - {"/"}, key=len, reverse=True):
            text = text.replace(f"{root}/", "")
        return text.replace(str(Path.home()), "~")

    def _end(self, status: str, error: dict[str, Any] | None) -> None:
        self.manifest.pop("stage", None)
        self.manifest |= {"status": status, "error": error, "versions": versions(), "finished": _now()}
        self._write()

    def _write(self) -> None:
        files.write_json(self.path / store.CELL, self.manifest)


class Context:
    """The `CellContext` of one stage."""

    def __init__(self, cell: _Cell, stage: str, config: Any, aside: Path) -> None:
        self.config = config
        self.folder = cell.path
        self.facts: dict[str, Any] = {}
        self._cell, self._stage, self._aside = cell, stage, aside

    def save_table(self, name: str, table: pd.DataFrame) -> None:
        """Keep `table` as `<name>.parquet`.  Raises TypeError for anything but a frame."""
        if not hasattr(table, "to_parquet"):
            raise TypeError(f"table {name!r} is a {type(table).__name__}, not a DataFrame")
        files.write_table(self.path(f"{name}.parquet"), table)

    def table(self, name: str) -> pd.DataFrame:
        """A table of this or an earlier stage.  Raises FileNotFoundError naming those there are."""
        import pandas as pd

        return pd.read_parquet(self.find(f"{name}.parquet"))

    def path(self, name: str) -> Path:
        """Where to write `name`, a file or a folder.  Raises ValueError for a name taken or not plain."""
        self._cell.require_free(name, self._stage)
        return self._aside / name

    def scratch(self, name: str) -> Path:
        """Where to keep `name` until this stage ends, through kills and failures.  Raises ValueError for a name
        that is not plain."""
        require_plain(name)
        folder = self._cell.scratch(self._stage)
        folder.mkdir(exist_ok=True)
        return folder / name

    def find(self, name: str) -> Path:
        """The file or folder `name` of this or an earlier stage.  Raises FileNotFoundError otherwise."""
        if (self._aside / name).exists():
            return self._aside / name
        known = self._cell.manifest["files"]
        if name in known or any(f.startswith(f"{name}/") for f in known):
            return self.folder / name
        raise FileNotFoundError(
            f"no file {name!r} in this cell: there are {', '.join(sorted(known)) or 'none'}"
        )

    def note(self, **facts: Any) -> None:
        """Facts for the manifest, kept when the stage ends; NaN becomes null.  Raises TypeError otherwise."""
        self.facts |= files.plain(facts, "note")

    def progress(self, done: int, total: int, what: str = "") -> None:
        """How far this stage is."""
        self._cell.report(self._cell.id, done, total, f"{self._stage} {what}".strip())


def require_plain(name: str) -> None:
    """Raises ValueError for what is not the plain name of a file."""
    if not name or Path(name).name != name or name.startswith(".") or name.endswith(files.CORRUPT):
        raise ValueError(f"not a file name for a cell: {name!r}")


def _other_code(written: Mapping[str, int], has: Mapping[str, int]) -> str:
    """Why a worker leaves a cell alone: another causegrid has begun the run anew, whose stages are not this one's."""
    return (
        f"run.json is of a causegrid with stage versions {dict(written)}, this one has {dict(has)}: "
        "start the run again"
    )


def _plain(stage: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in stage)


def wanted(names: Sequence[str], until: str) -> int:
    """The place of stage `until` in `names`.  Raises InputError naming the stages there are."""
    if until not in names:
        raise unknown("stage", until, names)
    return names.index(until)


def _line(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {files.first_line(error)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _unix(stamp: Any) -> float:
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return 0.0
