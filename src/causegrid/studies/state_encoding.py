"""Study S, state encoding: train, probe every layer, erase, refit the probe.

After "Task Structure Reverses Layerwise State Encoding in Sequence Models" (arXiv 2606.00926) and its second
version, which withdraws the necessity reading of single-direction ablation: here every erasure is followed
by a fresh probe, and where that still reads the state the test is void.

A cell is one model family trained on one task from one seed.  A family that does not learn the task is a
result: its cell says `not learned` and keeps its numbers (MEASURES 1.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from causegrid.studies.base import CellConfig, Stage, Study, StudyConfig, studies
from causegrid.studies.examples import example
from causegrid.studies.grid import Block, Seeds, pairs

Frozen = ConfigDict(extra="forbid", frozen=True)


class Training(BaseModel):
    """How a model is trained; training stops early when the task is solved."""

    model_config = Frozen

    steps: Annotated[int, Field(ge=1)] = 2000
    schedule: Literal["curriculum", "mixed", "fixed"] = "curriculum"
    length: Annotated[int, Field(ge=4)] = 40
    batch: Annotated[int, Field(ge=1)] = 64
    lr: Annotated[float, Field(gt=0)] | None = None


class Probing(BaseModel):
    """Sizes of the probe's splits, in sequences."""

    model_config = Frozen

    n_train: Annotated[int, Field(ge=20)] = 400
    n_test: Annotated[int, Field(ge=20)] = 200


class Erasing(BaseModel):
    """What is erased: leading probe directions of each rank (`full` = the whole row space)."""

    model_config = Frozen

    ranks: Annotated[tuple[Annotated[int, Field(ge=1)] | Literal["full"], ...], Field(min_length=1)] = (
        1,
        2,
        4,
        "full",
    )
    n_random: Annotated[int, Field(ge=2)] = 39
    n_random_refits: Annotated[int, Field(ge=1)] = 3


class StateBlock(Block):
    """A block of the grid; `training` overrides the study's for its cells."""

    training: Training | None = None


class StateEncodingConfig(StudyConfig):
    """The study file of `study: state-encoding`."""

    study: Literal["state-encoding"]
    grid: Annotated[tuple[StateBlock, ...], Field(min_length=1)]
    seeds: Seeds = (0,)
    training: Training = Training()
    eval_lengths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (
        40,
        60,
        80,
        100,
        120,
    )
    n_eval: Annotated[int, Field(ge=20)] = 200
    probing: Probing = Probing()
    erasing: Erasing = Erasing()


class StateCell(CellConfig):
    """One family trained on one task from one seed."""

    study: Literal["state-encoding"]
    training: Training
    eval_lengths: tuple[int, ...]
    n_eval: int
    probing: Probing
    erasing: Erasing


@studies.register("state-encoding")
class StateEncoding(Study):
    """The protocol of study S."""

    name = "state-encoding"
    version = 2
    note = "train, probe every layer, erase, refit the probe (arXiv 2606.00926, both versions)"
    config_type = StateEncodingConfig
    cell_type = StateCell

    def cells(self, config: StateEncodingConfig) -> Sequence[StateCell]:
        from causegrid.studies.names import digests, require_family, require_task

        cells = []
        for block, task, model in pairs(config.grid):
            require_task(task, kind="state")
            require_family(model)
            for seed in config.seeds:
                cells.append(
                    StateCell(
                        study="state-encoding",
                        task=task,
                        model=model,
                        seed=seed,
                        digests=digests(task),
                        training=block.training or config.training,
                        eval_lengths=config.eval_lengths,
                        n_eval=config.n_eval,
                        probing=config.probing,
                        erasing=config.erasing,
                    )
                )
        return cells

    def stages(self, cell: StateCell) -> Sequence[Stage]:
        from causegrid.studies.state.stages import StateStages

        work = StateStages(cell)
        return [
            Stage(name="train", run=work.train),
            Stage(name="probe", run=work.probe),
            Stage(name="erase", run=work.erase),
        ]

    def cost(self, cell: StateCell) -> str:
        t = cell.training
        return f"up to {t.steps} steps of {t.batch} x {t.length} tokens; 0.4 to 0.8 M parameters"

    def example(self) -> str:
        return example("state_encoding.yaml")

    def claims(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        from causegrid.studies.state.claims import state_claims

        return state_claims(cells)
