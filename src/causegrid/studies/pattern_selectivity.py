"""Study P, pattern selectivity: do the heads a screen picks cause the task?

After "Pattern Selectivity is Not Task-Causal Structure" (arXiv 2606.05378) and its method paper
(arXiv 2605.24059).  Heads are chosen on one half of the prompts and measured on the other (`rules: paper`: on
the same prompts, as published); every group is ablated beside a matched-random null; the verdict says what the
group is, under both rule sets, of which `rules` leads.

A cell is one task on one model from one seed (the seed draws prompts, the null and the intervals).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from causegrid.studies.base import CellConfig, Stage, Study, StudyConfig, studies
from causegrid.studies.examples import example
from causegrid.studies.grid import Block, Seeds, pairs
from causegrid.studies.pattern.checkpoints import Checkpoint

Frozen = ConfigDict(extra="forbid", frozen=True)
Mode = Literal["mean", "zero", "resample"]
DType = Literal["float32", "bfloat16", "float16"]
MOST = 100_000  # prompts, draws, synthetic sequences: more is a slip of the keyboard
OWN = ("n_prompts", "singles", "generic", "dtype")  # what a block may state in place of the study
# The first decides: mean under strict, zero as published (MEASURES 3.1).
MODES: Mapping[str, tuple[Mode, ...]] = {"strict": ("mean", "zero"), "paper": ("zero", "mean")}


class Null(BaseModel):
    """The matched-random null: max(n, per_group x m - 1) draws for m competing groups (MEASURES 4.1)."""

    model_config = Frozen

    n: Annotated[int, Field(ge=1, le=MOST)] = 99
    per_group: Annotated[int, Field(ge=1, le=MOST)] = 80
    n_prompts: Annotated[int, Field(ge=8)] = 64
    early_stop: bool = True


class Generic(BaseModel):
    """The synthetic batch of the generic classes: `n` sequences of `length` random ids."""

    model_config = Frozen

    n: Annotated[int, Field(ge=16, le=MOST)] = 2000
    length: Annotated[int, Field(ge=32)] = 256


class PatternBlock(Block):
    """A block of the grid; `groups` names the screens whose heads compete (default: all that fit), `unions` those
    that are also ablated together (default: the published pairs; all groups together always are), `checkpoints`
    the training checkpoints of the block's model; `n_prompts`, `singles`, `generic` and `dtype` take the place of the
    study's."""

    groups: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    unions: tuple[tuple[str, ...], ...] | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    n_prompts: Annotated[int, Field(ge=16, le=MOST)] | None = None
    singles: Literal["groups", "all"] | None = None
    generic: Generic | None = None
    dtype: DType | None = None


class PatternSelectivityConfig(StudyConfig):
    """The study file of `study: pattern-selectivity`."""

    study: Literal["pattern-selectivity"]
    grid: Annotated[tuple[PatternBlock, ...], Field(min_length=1)]
    seeds: Seeds = (0,)
    n_prompts: Annotated[int, Field(ge=16, le=MOST)] = 512
    bos: Literal["none", "model"] = "none"
    rules: Literal["strict", "paper"] = "strict"
    modes: Annotated[tuple[Mode, ...], Field(min_length=1)] | None = None  # None: by the rules
    singles: Literal["groups", "all"] = "all"
    generic: Generic = Generic()
    matched_null: Null = Null()
    n_subsamples: Annotated[int, Field(ge=2, le=MOST)] = 20
    dtype: DType = "float32"
    experts: Annotated[int, Field(ge=1)] = 16  # of each layer of a mixture, by use, ablated one by one


class PatternCell(CellConfig):
    """One task on one model."""

    study: Literal["pattern-selectivity"]
    groups: tuple[str, ...]
    unions: tuple[tuple[str, ...], ...]
    n_prompts: int
    bos: str
    rules: Literal["strict", "paper"]
    modes: tuple[Mode, ...]
    singles: str
    generic: Generic
    matched_null: Null
    n_subsamples: int
    dtype: DType = "float32"
    experts: int = 16
    checkpoints: tuple[Checkpoint, ...] = ()


@studies.register("pattern-selectivity")
class PatternSelectivity(Study):
    """The protocol of study P."""

    name = "pattern-selectivity"
    version = 4
    stage_versions: ClassVar[dict[str, int]] = {"routing": 2, "verdicts": 4}
    note = "screens, head-group ablation, matched-random null, verdicts (arXiv 2606.05378)"
    config_type = PatternSelectivityConfig
    cell_type = PatternCell

    def cells(self, config: PatternSelectivityConfig) -> Sequence[PatternCell]:
        from causegrid.studies.names import digests, require_language_model, require_screens, require_task
        from causegrid.studies.pattern.checkpoints import check_checkpoints, folder_digests
        from causegrid.studies.pattern.conditions import PUBLISHED_UNIONS, check_unions
        from causegrid.studies.pattern.head_groups import default_names, screen_digests

        modes = tuple(dict.fromkeys(config.modes or MODES[config.rules]))
        if config.rules == "strict" and "zero" not in modes:
            modes = (*modes, "zero")  # always shown beside (MEASURES 3.1)
        cells = []
        for block, task, model, seeds in pairs(config.grid, config.seeds):
            made = require_task(task, kind="prompt")
            require_language_model(model)
            require_screens(block.groups or (), made)
            unions = PUBLISHED_UNIONS if block.unions is None else block.unions
            groups = tuple(block.groups or default_names(list(getattr(made, "targets", ()))))
            if block.unions is not None:
                check_unions(unions, groups)
            check_checkpoints(model, block.checkpoints)
            shared = config.model_dump(exclude={"study", "grid", "seeds", "modes"})
            shared |= {name: own for name in OWN if (own := getattr(block, name)) is not None}
            cells += [
                PatternCell(
                    study="pattern-selectivity",
                    task=task,
                    model=model,
                    seed=seed,
                    groups=groups,
                    unions=unions,
                    modes=modes,
                    digests=digests(task, model)
                    | folder_digests(task, block.checkpoints)
                    | screen_digests(groups),
                    checkpoints=block.checkpoints,
                    **shared,
                )
                for seed in seeds
            ]
        return cells

    def stages(self, cell: PatternCell) -> Sequence[Stage]:
        from causegrid.studies.pattern.stages import PatternStages

        work = PatternStages(cell)
        return [
            Stage(name="prompts", run=work.prompts),
            Stage(name="signatures", run=work.signatures),
            Stage(name="effects", run=work.effects),
            Stage(name="null", run=work.null),
            Stage(name="routing", run=work.routing),
            Stage(name="verdicts", run=work.verdicts),
            *([Stage(name="checkpoints", run=work.checkpoints)] if cell.checkpoints else []),
        ]

    def cost(self, cell: PatternCell) -> str:
        from causegrid.studies.pattern.footprint import footprint

        return footprint(cell).sentence()

    def example(self) -> str:
        return example("pattern_selectivity.yaml")

    def claims(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        from causegrid.studies.pattern.claims import pattern_claims

        return pattern_claims(cells)

    def summaries(self, cells: Sequence[Mapping[str, Any]]) -> Mapping[str, pd.DataFrame]:
        from causegrid.studies.pattern.summary import summaries

        return summaries(cells)
