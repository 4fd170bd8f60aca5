"""A run on disk, and how to read it: all that `report` needs, without torch and without the study.

    run.json                study, version, where its code is, resolved config, cells {id: config}
    cells/<id>/cell.json    the cell's manifest; next to it the files of its finished stages
    claims.json, tables/    written when the grid ends, from finished cells only

A file counts when the manifest lists it, with the size and digest it was written with; the manifest is
written last.  So a killed process leaves the state before its stage, and a damaged file takes back the stage
that wrote it and the stages after it, with a message, until the next run computes them again.  Weights may be
left out (a store kept in git): an absent `*.safetensors` takes nothing back from a cell whose stages are all
finished, since nothing is left to read it.  A finished stage of another version than the study has now is taken
back like a damaged one, and then weights that were left out are missed.  No file holds a path of this machine or
its name.  Reading never writes.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from causegrid.errors import InputError
from causegrid.runs import files, lock
from causegrid.runs.cells import expand, label

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["pending", "running", "interrupted", "stopped", "done", "failed"]
RUN, CELL, CELLS, CLAIMS, TABLES = "run.json", "cell.json", "cells", "claims.json", "tables"
LOCK, IGNORE = ".lock", ".gitignore"
WEIGHTS = ".safetensors"
IGNORED = (".lock*", ".finish.lock*", ".stage-*", ".scratch-*", "*.tmp", f"*{files.CORRUPT}")


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """One cell as it is on disk.  `stages`, `files` hold what is finished and undamaged."""

    id: str
    config: dict[str, Any]
    status: Status
    path: Path
    stages: dict[str, float] = field(default_factory=dict)  # finished stage -> seconds
    stage_names: tuple[str, ...] = ()  # all stages, in order; empty until the cell was started
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""  # one line; "" unless failed
    traceback: str = ""
    message: str = ""  # what is wrong with the files, or who is computing the cell
    damage: str = ""  # what is wrong with the files
    outdated: str = ""  # which stages were finished by another version of them
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> stage, bytes, sha256
    left_out: tuple[str, ...] = ()  # those of `files` that are weights and not here
    manifest: dict[str, Any] = field(default_factory=dict)  # cell.json as read

    @property
    def label(self) -> str:
        """`dyck mamba seed 0`."""
        return label(self.config)

    @property
    def seconds(self) -> float:
        """Seconds of the finished stages."""
        return float(sum(self.stages.values()))

    def reached(self, until: str | None) -> bool:
        """Whether every stage up to and including `until` is finished (None: the last)."""
        if until is None or self.status == "done":
            return self.status == "done"
        wanted = self.stage_names[: self.stage_names.index(until) + 1] if until in self.stage_names else ()
        return bool(wanted) and set(wanted) <= set(self.stages)

    def tables(self) -> list[str]:
        """Names of the tables of finished stages."""
        return sorted(name.removesuffix(".parquet") for name in self.files if name.endswith(".parquet"))

    def table(self, name: str) -> pd.DataFrame | None:
        """The table, or None when no finished stage saved it; one that cannot be read warns and is None."""
        import pandas as pd

        path = self.find(f"{name}.parquet")
        if path is None:
            return None
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            warnings.warn(
                f"cell {self.id}: {path.name} cannot be read ({files.first_line(error)})", stacklevel=2
            )
            return None

    def find(self, name: str) -> Path | None:
        """The path of a file (or folder of files) of a finished stage."""
        if name in self.left_out:
            return None
        known = name in self.files or any(f.startswith(f"{name}/") for f in self.files)
        return self.path / name if known else None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder: its study, its resolved config and its cells."""

    folder: Path
    study: str
    version: int
    code: str  # "module:Class" of the study
    config: dict[str, Any]
    configs: dict[str, dict[str, Any]]  # cell id -> config, in grid order
    stage_versions: dict[str, int] = field(
        default_factory=dict
    )  # of the study's stages that are not of version 1

    def cells(self, *, verify: bool = False) -> list[CellRecord]:
        """Every cell of the grid, in order; with `verify` every byte is checked against its digest."""
        return [self.cell(id, verify=verify) for id in self.configs]

    def cell(self, id: str, *, verify: bool = False) -> CellRecord:
        """One cell.  Raises InputError for an id that is not in the grid."""
        if id not in self.configs:
            raise InputError(
                f"cell {id!r} is not in the grid of {str(self.folder)!r}: see `causegrid status`"
            )
        return read_cell(self.folder, id, self.configs[id], self.stage_versions, verify=verify)

    def claims(self) -> list[dict[str, Any]]:
        """The claims written when the grid last ended; empty before."""
        value, why = files.read_value(self.folder / CLAIMS)
        if why:
            warnings.warn(f"{why}: run the study again to write it anew", stacklevel=2)
        return value if isinstance(value, list) else []


def create(out: Path | str, study: Any, config: Any, cells: Sequence[Any]) -> Run:
    """Make `out` the run folder of this study (or go on with it) and write `run.json`.

    The same study with a changed grid reuses its cells.  Raises InputError, with nothing written, when `out`
    is a file, cannot be written, belongs to another study, or holds something that is no run.
    """
    folder = Path(out)
    configs = expand(study, cells)
    check_folder(folder, study.name)
    resolved = config.model_dump(mode="json") if hasattr(config, "model_dump") else dict(config)
    manifest = {
        "study": study.name,
        "version": study.version,
        "code": code_of(study),
        "config": resolved,
        "cells": configs,
    }
    if study.stage_versions:
        manifest["stage_versions"] = dict(study.stage_versions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if files.read_json(folder / RUN)[0] != files.plain(manifest):
            if files.read_json(folder / RUN)[1]:
                files.keep_corrupt(folder, RUN)
            files.write_json(folder / RUN, manifest)
        (folder / CELLS).mkdir(exist_ok=True)
        if not (folder / IGNORE).exists():
            files.write_text(folder / IGNORE, "\n".join(IGNORED) + "\n")
    except OSError as error:
        raise files.no_folder(folder, error) from error
    return open_run(folder)


def code_of(study: Any) -> str:
    """Where a worker finds the study: "module:Class"."""
    return f"{type(study).__module__}:{type(study).__qualname__}"


def check_folder(folder: Path, study: str) -> None:
    """Raises InputError unless `folder` is free or a run of `study`; writes nothing."""
    try:
        present = sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        what = "is a file" if folder.is_file() else "is below a file"
        raise InputError(f"cannot write a run to {str(folder)!r}: it {what}; name another folder") from None
    except OSError as error:
        raise files.no_folder(folder, error) from error
    if not [name for name in present if name != IGNORE and not name.startswith(f".{RUN}.")]:
        return
    if RUN not in present:
        raise InputError(
            f"{str(folder)!r} is not empty and is not a run (no {RUN}): name a new folder with --out"
        )
    found, _ = files.read_json(folder / RUN)
    owner = found.get("study") if found else _study_of_cells(folder)
    if owner not in (study, None):
        raise InputError(
            f"{str(folder)!r} is a run of study {owner!r}, not {study!r}: name another folder with --out"
        )


def _study_of_cells(folder: Path) -> str | None:
    for path in sorted((folder / CELLS).glob(f"*/{CELL}")):
        found, _ = files.read_json(path)
        if found and found.get("study"):
            return str(found["study"])
    return None


def open_run(folder: Path | str) -> Run:
    """Read `run.json`.  Raises InputError when `folder` is no run or its `run.json` cannot be read."""
    folder = Path(folder)
    path = folder / RUN
    found, why = files.read_json(path)
    if found is None:
        reason = why or ("no run.json in it" if folder.is_dir() else "no such folder")
        raise InputError(f"{str(folder)!r} is not a run: {reason}; `causegrid run` makes one")
    try:
        return Run(
            folder=folder,
            study=str(found["study"]),
            version=int(found["version"]),
            code=str(found["code"]),
            config=dict(found["config"]),
            configs={str(id): dict(config) for id, config in found["cells"].items()},
            stage_versions=_versions(found),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{str(folder)!r} is not a run of this causegrid: run.json lacks {error}") from None


def read_cell(
    folder: Path, id: str, config: dict[str, Any], stage_versions: Mapping[str, int], *, verify: bool = False
) -> CellRecord:
    """One cell of the run in `folder`, whether or not its grid lists it; `stage_versions` as the study has them."""
    path = folder / CELLS / id
    owner = lock.holder(path / LOCK)
    live = f"computed by {owner}" if owner else ""
    found, why = files.read_json(path / CELL)
    if found is None:
        kept = f"{why}: the cell starts again" if why else ""
        return CellRecord(
            id=id,
            config=config,
            path=path,
            status="running" if owner else "pending",
            message=kept or live,
            damage=kept,
        )
    stages = {str(k): float(v) for k, v in _mapping(found, "stages").items()}
    listed = {str(k): dict(v) for k, v in _mapping(found, "files").items() if v.get("stage") in stages}
    names = tuple(str(s) for s in found.get("stage_names") or stages)
    listed, stages, outdated = _current(listed, stages, names, _versions(found), stage_versions)
    wrong = {n: why for n, info in listed.items() if (why := files.damage(path / n, info, verify=verify))}
    left_out = tuple(n for n in wrong if n.endswith(WEIGHTS) and not (path / n).exists())
    written, said, message = str(found.get("status")), "", ""
    spared = len(left_out) == len(wrong)  # nothing is wrong but that
    if wrong and spared and names and set(names) <= set(stages):
        said = f"weights left out ({', '.join(left_out)})"
    elif wrong:
        wrong |= {name: f"{name} was left out" for name in left_out}
        listed, stages, message = _undamaged(listed, stages, names, wrong)
        message = "; ".join(filter(None, (outdated, message)))
        left_out = ()
    status = _status(written, bool(owner), bool(message) and not (spared and written == "failed"))
    if outdated and status == "done":
        status = "stopped"
    error = _mapping(found, "error")
    return CellRecord(
        id=id,
        config=config,
        path=path,
        status=status,
        stages=stages,
        stage_names=names,
        facts=dict(_mapping(found, "facts")),
        error=str(error.get("line", "")) if status == "failed" else "",
        traceback=str(error.get("traceback", "")) if status == "failed" else "",
        message=message
        or outdated
        or said
        or (live if status == "running" else _waiting(stages, names, status)),
        damage=message,
        outdated=outdated,
        files=listed,
        left_out=left_out,
        manifest=found,
    )


def _mapping(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = found.get(key)
    return value if isinstance(value, Mapping) else {}


def _status(written: str, owned: bool, damaged: bool) -> Status:
    if owned:
        return "running"
    if damaged or written not in ("stopped", "done", "failed"):
        return "interrupted"
    return cast(Status, written)


def _waiting(stages: Mapping[str, float], names: Sequence[str], status: Status) -> str:
    """What a cell that was stopped on purpose (`--until`) has, and still needs."""
    if status != "stopped":
        return ""
    left = [name for name in names if name not in stages]
    return f"{', '.join(stages)} done; to come: {', '.join(left)}"


def _undamaged(
    listed: dict[str, dict[str, Any]],
    stages: dict[str, float],
    names: tuple[str, ...],
    wrong: Mapping[str, str],
) -> tuple[dict[str, dict[str, Any]], dict[str, float], str]:
    """Without the stage of the first damaged file and the stages after it, which may have read it."""
    order = {name: i for i, name in enumerate(names)}
    first = min(order.get(str(listed[name].get("stage")), 0) for name in wrong)
    listed, stages, again = _back_to(first, listed, stages, names)
    return listed, stages, f"{'; '.join(wrong.values())}: {again}"


def _current(
    listed: dict[str, dict[str, Any]],
    stages: dict[str, float],
    names: tuple[str, ...],
    had: Mapping[str, int],
    has: Mapping[str, int],
) -> tuple[dict[str, dict[str, Any]], dict[str, float], str]:
    """Without the first finished stage that `has` another version now than it `had`, and the stages after it."""
    old = [at for at, name in enumerate(names) if name in stages and had.get(name, 1) != has.get(name, 1)]
    if not old:
        return listed, stages, ""
    what = ", ".join(
        f"{names[at]!r} is of version {had.get(names[at], 1)}, now {has.get(names[at], 1)}" for at in old
    )
    listed, stages, again = _back_to(old[0], listed, stages, names)
    return listed, stages, f"{what}: {again}"


def _back_to(
    first: int, listed: dict[str, dict[str, Any]], stages: dict[str, float], names: tuple[str, ...]
) -> tuple[dict[str, dict[str, Any]], dict[str, float], str]:
    """(files, stages, which come again) without the stages from `first` on."""
    order = {name: i for i, name in enumerate(names)}
    stages = {name: seconds for name, seconds in stages.items() if order.get(name, 0) < first}
    listed = {k: v for k, v in listed.items() if v.get("stage") in stages}
    return listed, stages, f"stages to compute again: {', '.join(names[first:])}"


def _versions(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(version) for name, version in _mapping(found, "stage_versions").items()}


def clear(path: Path, *, leftovers_of: str = ".stage-") -> None:
    """Remove what a killed worker left half-written in a cell's folder."""
    for entry in path.iterdir():
        if entry.name.startswith(leftovers_of):
            shutil.rmtree(entry)
        elif entry.name.startswith(".") and entry.name.endswith(".tmp"):
            os.unlink(entry)
