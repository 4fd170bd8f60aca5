"""The tiny zoo as a study: train three classes of language model on text from the four prompt tasks.

A cell is one class from one seed.  It is trained on `tasks.training_text`, asked the held-out prompts of all four
tasks, and kept in the user cache, where `zoo-olmo:seed=1` finds it.  A task whose floor a model does not pass (the
margin's interval above 0 and the answer above the foil on three quarters of the prompts) is said to be
`not testable` there: pattern selectivity gives no verdict on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from causegrid.errors import InputError
from causegrid.studies.base import CellConfig, Stage, Study, StudyConfig, studies
from causegrid.studies.examples import example
from causegrid.studies.grid import Names, Seeds

Steps = tuple[Annotated[int, Field(ge=1)], ...]
TASKS = ("held-out-ioi", "held-out-greater-than", "held-out-successor", "held-out-variable-binding")


class ZooTraining(BaseModel):
    """`batch` rows of `length` tokens a step, `steps` steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: Annotated[int, Field(ge=1)] = 2000
    batch: Annotated[int, Field(ge=1)] = 32
    length: Annotated[int, Field(ge=16)] = 32
    lr: Annotated[float, Field(gt=0)] = 2e-3


class ZooBlock(BaseModel):
    """Every model of `models` from every seed; `checkpoints` are steps after which it is kept as it was."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Names
    seeds: Seeds = (0, 1)
    checkpoints: Steps = ()
    training: ZooTraining | None = None


class ZooConfig(StudyConfig):
    """The study file of `study: zoo`."""

    study: Literal["zoo"]
    grid: Annotated[tuple[ZooBlock, ...], Field(min_length=1)]
    training: ZooTraining = ZooTraining()
    n_eval: Annotated[int, Field(ge=16)] = 256
    keep: bool = True  # in the user cache


class ZooCell(CellConfig):
    """One class from one seed."""

    study: Literal["zoo"]
    training: ZooTraining
    checkpoints: Steps
    n_eval: int
    keep: bool


@studies.register("zoo")
class Zoo(Study):
    """Small language models for the four prompt tasks."""

    name = "zoo"
    version = 1
    note = "trains the tiny zoo: GPT-NeoX, OLMo and OLMoE on text from the four prompt tasks"
    config_type = ZooConfig
    cell_type = ZooCell

    def cells(self, config: ZooConfig) -> Sequence[ZooCell]:
        from causegrid.models.zoo import require_class
        from causegrid.tasks.training_text import digest

        cells: list[ZooCell] = []
        for block in config.grid:
            training = block.training or config.training
            late = [step for step in block.checkpoints if step > training.steps]
            if late:
                raise InputError(
                    f"a checkpoint after step {late[0]} of {training.steps}: name steps up to that"
                )
            for model in block.models:
                require_class(model)
                for seed in block.seeds:
                    if any((c.model, c.seed) == (model, seed) for c in cells):
                        raise InputError(f"the grid names {model!r} of seed {seed} twice: remove one")
                    cells.append(
                        ZooCell(
                            study="zoo",
                            task="training-text",
                            model=model,
                            seed=seed,
                            digests={"text": digest()},
                            training=training,
                            checkpoints=tuple(sorted(set(block.checkpoints))),
                            n_eval=config.n_eval,
                            keep=config.keep,
                        )
                    )
        return cells

    def stages(self, cell: ZooCell) -> Sequence[Stage]:
        from causegrid.studies.tiny_zoo.stages import ZooStages

        work = ZooStages(cell)
        stages = [Stage(name="train", run=work.train), Stage(name="evaluate", run=work.evaluate)]
        return [*stages, Stage(name="keep", run=work.keep)] if cell.keep else stages

    def cost(self, cell: ZooCell) -> str:
        t = cell.training
        return f"{t.steps} steps of {t.batch} x {t.length} tokens; about 1 to 1.5 M parameters"

    def example(self) -> str:
        return example("zoo.yaml")
