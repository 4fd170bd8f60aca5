"""What a study is: a config, the cells it expands to, and the stages that fill one cell.

A study says *which* measures in *which* order; it does not know where results are kept.  `runs` gives each
stage a `CellContext` and keeps what it saves; a finished stage is never run again.  Study modules import
torch inside their stages only, so that finding them stays quick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pandas as pd
from pydantic import BaseModel, ConfigDict

from causegrid.registry import Registry


class StudyConfig(BaseModel):
    """Base of every study's YAML: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: str


class CellConfig(BaseModel):
    """Base of one cell's config: everything its numbers depend on, nothing else.  It is what is hashed.

    `digests`: of the files a name stands for (a prompt file, a model folder), so that a changed file is another
    cell.  A Hugging Face id stands for what the hub serves: its cells note a fingerprint of the logits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    study: str
    task: str
    model: str
    seed: int = 0
    digests: dict[str, str] = {}


class CellContext(Protocol):
    """What `runs` hands to a stage."""

    config: Any
    folder: Path  # the cell's folder; finished stages' files are in it

    def save_table(self, name: str, table: pd.DataFrame) -> None:
        """Keep a tidy table as `<name>.parquet` of this cell (atomic, visible when the stage ends)."""

    def table(self, name: str) -> pd.DataFrame:
        """A table saved by this or an earlier stage."""

    def path(self, name: str) -> Path:
        """Where this stage may write the file `name`; it moves into the cell's folder when the stage ends."""

    def scratch(self, name: str) -> Path:
        """Where this stage may keep `name`, a file or a folder, through a kill or a failure; gone when it ends."""

    def find(self, name: str) -> Path:
        """The file `name` of this or an earlier stage."""

    def note(self, **facts: Any) -> None:
        """Add JSON-able facts to the cell's manifest (`cell.json`, under `facts`)."""

    def progress(self, done: int, total: int, what: str = "") -> None:
        """Tell how far this stage is."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One resumable step of a cell."""

    name: str
    run: Callable[[CellContext], None]


class Study(ABC):
    """One published protocol.  `version` changes when the meaning of its numbers does (it is in the hash).

    `stage_versions`: of stages that changed while those before them stand (1 where nothing is said).  A cell that
    has such a stage of another version computes it and the stages after it again, and keeps the earlier ones.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    stage_versions: ClassVar[Mapping[str, int]] = {}
    note: ClassVar[str]
    config_type: ClassVar[type[StudyConfig]]
    cell_type: ClassVar[type[CellConfig]]

    @abstractmethod
    def cells(self, config: Any) -> Sequence[CellConfig]:
        """The grid, expanded.  Raises InputError for unknown tasks or models before anything runs."""

    @abstractmethod
    def stages(self, cell: Any) -> Sequence[Stage]:
        """The stages of one cell, in order."""

    @abstractmethod
    def cost(self, cell: Any) -> str:
        """One phrase on what the cell will cost (steps, forward passes, memory)."""

    @abstractmethod
    def example(self) -> str:
        """YAML of a small example with at least three cells (`causegrid init`)."""

    def claims(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Claims over finished cells.  Each cell: {"id", "config": dict, "facts": dict, "tables": callable
        name -> DataFrame or None}.  Each claim: {"id", "kind" ("claim" | "anchor"), "statement", "published",
        "measured", "result" ("supported" | "contradicted" | "not enough evidence"; "compared" of an anchor),
        "why", "cells": [ids]}."""
        return []

    def summaries(self, cells: Sequence[Mapping[str, Any]]) -> Mapping[str, pd.DataFrame]:
        """Name -> small table over finished cells (as `claims` gets them), for a page of results."""
        return {}


studies: Registry[Any] = Registry("study", "causegrid.studies")
