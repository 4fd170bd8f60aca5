"""The calibration: does the verdict procedure find what was planted, and only that? (MEASURES 4.4)

A cell is a family of planted models and a run of seeds: each seed is one model with one set of prompts, put
through groups, effects, matched null and both rule sets as study P does.  A second kind of cell asks the
intervals alone whether they hold the effect they are about, a third the null alone whether it keeps its level
when all heads are alike.  Cells are small, so a run stops and goes on
anywhere.  `causegrid.studies.calibrating.summary` reads a finished run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from causegrid.errors import InputError
from causegrid.studies.base import CellConfig, Stage, Study, StudyConfig, studies
from causegrid.studies.examples import example

Frozen = ConfigDict(extra="forbid", frozen=True)
Positive = Annotated[int, Field(ge=1)]
HEAD_DIM = 8  # the least width that carries what a planted head attends to
NULLS_PER_CELL = 300  # they run no model
Counts = Annotated[tuple[Annotated[int, Field(ge=8)], ...], Field(min_length=1)]


class PlantedGroup(BaseModel):
    """One group: its role, its share of the margin, how many heads, in which layers.  A `backup` is listed after the
    primary it stands by for, and placed in later layers.  `bearers`: how many heads do what the group does (default
    all)."""

    model_config = Frozen

    role: Literal["primary", "secondary", "backup", "correlate", "interferer", "bos-interferer", "null"]
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    size: Positive = 3
    placement: Literal["early", "late", "spread", "one"] = "spread"
    bearers: Positive | None = None

    @model_serializer(mode="wrap")
    def _all_bear(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """That all heads bear the share goes unsaid, so a cell keeps the id it had before some might."""
        made: dict[str, Any] = handler(self)
        if made.get("bearers") is None:
            made.pop("bearers", None)
        return made


class PlantedFamily(BaseModel):
    """Models alike but for the seed.  `noise`: what a head without a role adds to a prompt's margin (standard
    deviation, a share of the margin); `stop`: whether nulls stop early."""

    model_config = Frozen

    name: Annotated[str, Field(min_length=1)]
    question: Literal["verdicts", "intervals", "nulls"] = "verdicts"
    groups: Annotated[tuple[PlantedGroup, ...], Field(min_length=1)]
    layers: Positive = 4
    heads: Positive = 12
    kv_heads: Positive | None = None
    head_dim: Annotated[int, Field(ge=HEAD_DIM)] = HEAD_DIM
    noise: Annotated[float, Field(ge=0)] = 0.05
    tail: Literal["normal", "heavy"] = "normal"
    stop: bool = True
    prompts: Counts = (32,)
    replicates: Positive = 100

    @model_serializer(mode="wrap")
    def _without_width(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Heads of the usual width go unsaid, so a cell keeps the id it had before there were others."""
        made: dict[str, Any] = handler(self)
        if made.get("head_dim") == HEAD_DIM:
            del made["head_dim"]
        return made


class CalibrationConfig(StudyConfig):
    """The study file of `study: calibration`; a cell holds at most `per_cell` replicates (of `nulls`: 300)."""

    study: Literal["calibration"]
    families: Annotated[tuple[PlantedFamily, ...], Field(min_length=1)]
    per_cell: Positive = 50
    seed: Annotated[int, Field(ge=0)] = 0


class CalibrationCell(CellConfig):
    """Replicates `seed * per_cell` and on of one family on one number of prompts.  `task` and `model` are labels."""

    study: Literal["calibration"]
    family: PlantedFamily
    n_prompts: int
    first: int
    replicates: int
    base: int


@studies.register("calibration")
class Calibration(Study):
    """The protocol of the calibration."""

    name = "calibration"
    version = 2
    note = "the verdict procedure on planted models: error rates, power, confusion, coverage"
    config_type = CalibrationConfig
    cell_type = CalibrationCell

    def cells(self, config: CalibrationConfig) -> Sequence[CalibrationCell]:
        names = [f.name for f in config.families]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise InputError(f"two families are named {twice[0]!r}: give each its own name")
        cells = []
        for family in config.families:
            _check(family)
            size = NULLS_PER_CELL if family.question == "nulls" else config.per_cell
            for n_prompts in family.prompts:
                for first in range(0, family.replicates, size):
                    cells.append(
                        CalibrationCell(
                            study="calibration",
                            task=f"planted, {n_prompts} prompts",
                            model=family.name,
                            seed=first // size,
                            family=family.model_copy(update={"prompts": (n_prompts,), "replicates": 1}),
                            n_prompts=n_prompts,
                            first=first,
                            replicates=min(size, family.replicates - first),
                            base=config.seed,
                        )
                    )
        return sorted(cells, key=lambda c: c.first)  # a run stopped anywhere has something of everything

    def stages(self, cell: CalibrationCell) -> Sequence[Stage]:
        from causegrid.studies.calibrating.stages import CalibrationStages

        work = CalibrationStages(cell)
        return [Stage(name="replicates", run=getattr(work, cell.family.question))]

    def summaries(self, cells: Sequence[Mapping[str, Any]]) -> Mapping[str, pd.DataFrame]:
        from causegrid.studies.calibrating.summary import summaries

        return summaries(cells)

    def cost(self, cell: CalibrationCell) -> str:
        f = cell.family
        of = f.question if f.question != "verdicts" else f"{len(f.groups)} groups and their nulls"
        wide = f" of width {f.head_dim}" if f.head_dim != HEAD_DIM else ""
        return f"{cell.replicates} models of {f.layers} x {f.heads} heads{wide}, {of} on {cell.n_prompts} prompts"

    def example(self) -> str:
        return example("calibration.yaml")


def _check(family: PlantedFamily) -> None:
    """Raises InputError for a family no model can be made of."""
    taken = sum(g.size for g in family.groups)
    if taken > family.layers * family.heads:
        raise InputError(
            f"family {family.name!r} plants {taken} heads in {family.layers} layers of {family.heads}: too many"
        )
    for g in family.groups:
        if g.bearers is not None and g.bearers > g.size:
            raise InputError(
                f"family {family.name!r}: {g.bearers} heads cannot bear the share of a group of {g.size}"
            )
    if family.kv_heads is not None and family.heads % family.kv_heads:
        raise InputError(
            f"family {family.name!r}: {family.heads} heads cannot share {family.kv_heads} key-value heads"
        )
    placed = [g.role for g in family.groups]
    if "backup" not in placed:
        return
    if "primary" not in placed[: placed.index("backup")]:
        raise InputError(f"family {family.name!r} has a backup and no primary listed before it")
    primary = [g for g in family.groups if g.role == "primary"]
    backups = [g for g in family.groups if g.role == "backup"]
    early, late = {g.placement for g in primary}, {g.placement for g in backups}
    if family.layers < 2 or early != {"early"} or late != {"late"}:
        raise InputError(
            f"family {family.name!r}: a backup reads what its primary wrote, in later layers: give at least 2 layers, "
            "the primary `placement: early` and the backup `placement: late`"
        )
