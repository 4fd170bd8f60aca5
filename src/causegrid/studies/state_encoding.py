"""Study S, state encoding: train, probe every layer, erase and refit the probe, remove components, patch.

After "Task Structure Reverses Layerwise State Encoding in Sequence Models" (arXiv 2606.00926) and its second
version, which withdraws the necessity reading of single-direction ablation: here every erasure is followed
by a fresh probe, and where that still reads the state the test is void.

A cell is one model family trained on one task from one seed.  A family that does not learn the task is a
result: its cell says `not learned` and keeps its numbers (MEASURES 1.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from causegrid.errors import InputError
from causegrid.studies.base import CellConfig, Stage, Study, StudyConfig, studies
from causegrid.studies.examples import example
from causegrid.studies.grid import Block, Seeds, pairs
from causegrid.tasks import StateTask

Frozen = ConfigDict(extra="forbid", frozen=True)


class Training(BaseModel):
    """How a model is trained; training stops early when the task is solved."""

    model_config = Frozen

    steps: Annotated[int, Field(ge=1)] = 2000
    schedule: Literal["curriculum", "mixed", "fixed"] = "curriculum"
    length: Annotated[int, Field(ge=8)] = 40  # under 8 nothing counts as learned (MEASURES 1.2)
    batch: Annotated[int, Field(ge=1)] = 64
    lr: Annotated[float, Field(gt=0)] | None = None


class Probing(BaseModel):
    """Sizes of the probe's splits, in sequences."""

    model_config = Frozen

    n_train: Annotated[int, Field(ge=20)] = 400
    n_test: Annotated[int, Field(ge=20)] = 200


Ranks = Annotated[tuple[Annotated[int, Field(ge=1)] | Literal["full"], ...], Field(min_length=1)]
Lengths = tuple[Annotated[int, Field(ge=1)], ...]
Basis = Literal["probe", "principal", "singular", "inlp", "leace"]
Gate = Literal["gate", "mlp_gate", "input_gate", "forget_gate", "output_gate", "reset_gate", "update_gate"]
Part = Literal["conv", "attention", "mixer", "mlp", "state", Gate]
Place = Literal["resid_pre", "resid_post", "attn_out", "mlp_out", "state"]


class Beyond(BaseModel):
    """Erasures fitted at the trained length, applied at longer ones."""

    model_config = Frozen

    lengths: Annotated[Lengths, Field(min_length=1)] = (80, 100, 120)
    ranks: Ranks = (1, "full")
    n_test: Annotated[int, Field(ge=20)] = 100
    n_random: Annotated[int, Field(ge=2)] = 19


class Erasing(BaseModel):
    """What is erased: subspaces of each rank (`full` = C - 1, the probe's whole row space), INLP, LEACE."""

    model_config = Frozen

    bases: Annotated[tuple[Basis, ...], Field(min_length=1)] = (
        "probe",
        "principal",
        "singular",
        "inlp",
        "leace",
    )
    ranks: Ranks = (1, 2, 4, "full")
    n_random: Annotated[int, Field(ge=2)] = 39
    n_random_refits: Annotated[int, Field(ge=1)] = 3
    beyond: Beyond | None = Beyond()

    @property
    def every_rank(self) -> Ranks:
        """Ranks of both erasing stages, each once."""
        return tuple(dict.fromkeys((*self.ranks, *(self.beyond.ranks if self.beyond else ()))))

    def require(self, task: str, n_classes: int) -> None:
        """Raises InputError when only probe directions are erased and this task's probe has none of the ranks."""
        stated = [self.ranks, *([self.beyond.ranks] if self.beyond else ())]
        for ranks in stated if set(self.bases) == {"probe"} else ():
            if all(rank != "full" and rank >= n_classes for rank in ranks):
                raise InputError(
                    f"no rank of {', '.join(map(str, ranks))} can be erased for task {task!r}: its label has "
                    f"{n_classes} classes, so its probe has ranks 1 to {n_classes - 1}"
                )


class Components(BaseModel):
    """Parts removed after training; `kinds` None = all the model has."""

    model_config = Frozen

    kinds: Annotated[tuple[Part, ...], Field(min_length=1)] | None = None
    n: Annotated[int, Field(ge=20)] = 200


class Patching(BaseModel):
    """Clean activations patched into corrupted runs; `kinds` None = all the model has."""

    model_config = Frozen

    kinds: Annotated[tuple[Place, ...], Field(min_length=1)] | None = None
    n_pairs: Annotated[int, Field(ge=8)] = 100
    grid: bool = True


class FineTuning(BaseModel):
    """How a pretrained model learns the task: which weights move, and where its answer is read."""

    model_config = Frozen

    method: Literal["full", "lora"] = "full"
    rank: Annotated[int, Field(ge=1)] = 8
    readout: Literal["head", "tokens"] = "head"


class StateBlock(Block):
    """A block of the grid; what it states takes the place of the study's for its cells, `null` included."""

    training: Training | None = None
    erasing: Erasing | None = None
    components: Components | None = None
    patching: Patching | None = None

    def own(self, config: StateEncodingConfig, name: str) -> Any:
        """This setting of the block where it states one, else the study's."""
        return getattr(self if name in self.model_fields_set else config, name)


class StateEncodingConfig(StudyConfig):
    """The study file of `study: state-encoding`."""

    study: Literal["state-encoding"]
    grid: Annotated[tuple[StateBlock, ...], Field(min_length=1)]
    seeds: Seeds = (0,)
    training: Training = Training()
    eval_lengths: Annotated[Lengths, Field(min_length=1)] = (40, 60, 80, 100, 120)
    n_eval: Annotated[int, Field(ge=20)] = 200
    probing: Probing = Probing()
    erasing: Erasing | None = Erasing()
    components: Components | None = Components()
    patching: Patching | None = Patching()
    fine_tuning: FineTuning = FineTuning()


class StateCell(CellConfig):
    """One family trained, or one pretrained model fine-tuned, on one task from one seed."""

    study: Literal["state-encoding"]
    training: Training
    fine_tuning: FineTuning | None  # None: a family trained from scratch
    eval_lengths: tuple[int, ...]
    n_eval: int
    probing: Probing
    erasing: Erasing | None
    components: Components | None
    patching: Patching | None


@studies.register("state-encoding")
class StateEncoding(Study):
    """The protocol of study S."""

    name = "state-encoding"
    version = 3
    note = "train, probe, erase and refit, remove components, patch (arXiv 2606.00926, both versions)"
    config_type = StateEncodingConfig
    cell_type = StateCell

    def cells(self, config: StateEncodingConfig) -> Sequence[StateCell]:
        from causegrid.studies.names import digests, is_family, require_state_model, require_task
        from causegrid.studies.state.fresh import require_buildable

        cells = []
        for block, task, model, seeds in pairs(config.grid, config.seeds):
            made = require_task(task, kind="state")
            require_state_model(model)
            scratch = is_family(model)
            training = block.training or config.training
            if scratch:
                require_buildable(model, task, max(training.length, *config.eval_lengths))
            erasing = block.own(config, "erasing")
            if erasing and isinstance(made, StateTask):
                erasing.require(task, made.n_classes)
            for seed in seeds:
                cells.append(
                    StateCell(
                        study="state-encoding",
                        task=task,
                        model=model,
                        seed=seed,
                        digests=digests(task, "" if scratch else model),
                        training=training,
                        fine_tuning=None if scratch else config.fine_tuning,
                        eval_lengths=config.eval_lengths,
                        n_eval=config.n_eval,
                        probing=config.probing,
                        erasing=erasing,
                        components=block.own(config, "components"),
                        patching=block.own(config, "patching"),
                    )
                )
        if "fine_tuning" in config.model_fields_set and all(cell.fine_tuning is None for cell in cells):
            raise InputError(
                "fine_tuning is set, but every model of the grid is a family trained from scratch"
            )
        return cells

    def stages(self, cell: StateCell) -> Sequence[Stage]:
        from causegrid.studies.state.stages import StateStages

        work = StateStages(cell)
        stages = [
            Stage(name="train", run=work.train),
            Stage(name="probe", run=work.probe),
        ]
        if cell.erasing:
            stages.append(Stage(name="erase", run=work.erase))
        if cell.erasing and cell.erasing.beyond:
            stages.append(Stage(name="beyond", run=work.beyond))
        if cell.components:
            stages.append(Stage(name="components", run=work.components))
        if cell.patching:
            stages.append(Stage(name="patch", run=work.patch))
        return stages

    def cost(self, cell: StateCell) -> str:
        from causegrid.studies.names import fresh_size, require_task
        from causegrid.studies.state.footprint import sentence

        t = cell.training
        if cell.fine_tuning is None:
            size = fresh_size(cell.model, cell.task)
        else:
            size = sentence(cell, require_task(cell.task, kind="state"))
        return f"up to {t.steps} steps of {t.batch} x {t.length} tokens; {size}"

    def example(self) -> str:
        return example("state_encoding.yaml")

    def claims(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        from causegrid.studies.state.claims import state_claims

        return state_claims(cells)

    def summaries(self, cells: Sequence[Mapping[str, Any]]) -> Mapping[str, pd.DataFrame]:
        from causegrid.studies.state.summary import summaries

        return summaries(cells)
