"""A study without science: what its stages do is the cell's `task`; each stage logs a line."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from causegrid.errors import InputError
from causegrid.studies.base import CellConfig, CellContext, Stage, Study, StudyConfig


class Depth(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = 3
    rate: float = Field(default=0.1, gt=0)
    mode: Literal["mean", "zero"] = "mean"


class Dense(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["dense"]
    width: int = 4


class Expert(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["expert"]
    experts: int = 2


class FakeConfig(StudyConfig):
    study: Literal["fake"]
    log: str
    tasks: list[str]
    models: Sequence[str] = ("m",)
    seeds: Sequence[int] = (0,)
    depth: Depth = Depth()
    parts: Sequence[Dense | Expert] = ()
    tagged: Sequence[Annotated[Dense | Expert, Field(discriminator="kind")]] = ()


class FakeCell(CellConfig):
    log: str
    depth: Depth = Depth()


class Fake(Study):
    name = "fake"
    version = 1
    note = "for tests"
    config_type = FakeConfig
    cell_type = FakeCell

    def cells(self, config: FakeConfig) -> Sequence[FakeCell]:
        if "forbidden" in config.tasks:
            raise InputError("unknown task 'forbidden'")
        return [
            FakeCell(study="fake", task=t, model=m, seed=s, log=config.log, depth=config.depth)
            for t in config.tasks
            for m in config.models
            for s in config.seeds
        ]

    def stages(self, cell: FakeCell) -> Sequence[Stage]:
        return [
            Stage(name="first", run=first),
            Stage(name="second", run=second),
            Stage(name="third", run=third),
        ]

    def cost(self, cell: FakeCell) -> str:
        return f"{cell.depth.steps} steps"

    def example(self) -> str:
        return "study: fake\nlog: log.txt\ntasks: [a, b, c]\n"

    def claims(self, cells: Sequence[Any]) -> list[dict[str, Any]]:
        if any(c["config"]["task"] == "bad-claim" for c in cells):
            raise RuntimeError("claims fell over")
        total = sum(float(c["tables"]("numbers")["x"].sum()) for c in cells)
        assert all(c["tables"]("nothing") is None for c in cells)
        return [{"id": "F1", "measured": total, "cells": [c["id"] for c in cells]}]


class Other(Fake):
    name = "other"


def fake(log: Path, *tasks: str, **more: Any) -> tuple[Fake, FakeConfig]:
    return Fake(), FakeConfig(study="fake", log=str(log), tasks=list(tasks), **more)


def ran(log: Path, task: str) -> list[str]:
    """Stages run for this task, in order of time."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1] for line in lines if line.split()[0] == task]


def _log(context: CellContext, stage: str) -> None:
    with open(context.config.log, "a") as file:
        file.write(f"{context.config.task} {stage} {time.time()} {os.getpid()}\n")


def task_of(context: CellContext) -> str:
    return str(context.config.task)


def first(context: CellContext) -> None:
    _log(context, "first")
    context.save_table(
        "numbers", pd.DataFrame({"x": [1.0, 2.0], "model": ["a", "b"], "values": [[1.0], [2.0, 3.0]]})
    )
    folder = context.path("weights")
    folder.mkdir()
    (folder / "w.bin").write_bytes(b"w" * 1000)
    if task_of(context).startswith("weights"):
        context.path("model.safetensors").write_bytes(b"m" * 100)
    context.note(first=np.float32(0.5), array=np.arange(2))
    assert context.table("numbers")["x"].tolist() == [1.0, 2.0]


def second(context: CellContext) -> None:
    _log(context, "second")
    task, here = context.config.task, Path(context.config.log).parent
    context.save_table("half", pd.DataFrame({"y": [3]}))
    context.path("loose.txt").write_text("loose")
    context.progress(1, 2, "steps")
    if task.startswith("weights"):
        assert context.find("model.safetensors").read_bytes() == b"m" * 100
    if task == "weights-raise":
        raise RuntimeError(f"cannot read {context.folder.resolve() / 'x'} or {Path(np.__file__)}")
    if task == "raise":
        raise RuntimeError("the stage fell over\nwith a second line")
    if task == "input":
        raise InputError("head L9H9 is not in this model")
    if task == "exit":
        raise SystemExit(3)
    if task == "nothing":
        os._exit(0)
    if task == "kill" and not (here / "spare").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "print":
        print("noise on stdout", flush=True)
        os.write(1, b"raw noise on stdout\n")
    if task == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if task == "nojson":
        context.note(bad=object())
    if task == "taken":
        context.path("numbers.parquet")
    if task == "climb":
        context.path("../escape")
    if task.startswith("wait"):
        (here / f"{task}.started").touch()
        until = time.monotonic() + 60
        while not (here / "go").exists() and time.monotonic() < until:
            time.sleep(0.01)


def third(context: CellContext) -> None:
    _log(context, "third")
    assert context.find("loose.txt").read_text() == "loose"
    assert context.find("weights").joinpath("w.bin").stat().st_size == 1000
    nan = context.config.task == "nan"
    context.save_table("last", pd.DataFrame({"z": [float("nan") if nan else 1.0], "cell": ["own"]}))
    context.note(third=float("nan") if nan else 1.0)
