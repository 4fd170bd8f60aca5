"""A study of one real training stage that keeps a checkpoint; `task` says what befalls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from causegrid.studies.base import CellConfig, CellContext, Stage, Study, StudyConfig


class TrainingConfig(StudyConfig):
    here: str
    tasks: list[str]


class TrainingCell(CellConfig):
    here: str


class Trainings(Study):
    name = "trainings"
    version = 1
    note = "for tests"
    config_type = TrainingConfig
    cell_type = TrainingCell

    def cells(self, config: Any) -> Sequence[TrainingCell]:
        return [TrainingCell(study="trainings", task=t, model="m", here=config.here) for t in config.tasks]

    def stages(self, cell: Any) -> Sequence[Stage]:
        return [Stage(name="train", run=train), Stage(name="use", run=use)]

    def cost(self, cell: Any) -> str:
        return "seconds"

    def example(self) -> str:
        return "study: trainings\n"


def trainings(here: Path, *tasks: str) -> tuple[Trainings, TrainingConfig]:
    return Trainings(), TrainingConfig(study="trainings", here=str(here), tasks=list(tasks))


def train(context: CellContext) -> None:
    import torch

    import causegrid as cg
    from causegrid.models import save
    from causegrid.models.training import train as fit

    torch.set_num_threads(1)
    task, here, name = cg.task("parity"), Path(context.config.here), context.config.task
    model = cg.model("gru", task=task, seed=0, d_model=16, n_layers=1)
    steps = []

    def progress(step: int, total: int, facts: dict[str, float]) -> None:
        steps.append(step)
        if name == "slow" and not (here / "go").exists():
            time.sleep(0.02)
            if step == 60:
                (here / "far").touch()
                time.sleep(60)
        if name == "poisoned" and step == 70 and not (here / "go").exists():
            with torch.no_grad():
                model.module.head.weight.fill_(float("nan"))

    run = fit(
        model,
        task,
        steps=80,
        batch=8,
        length=6,
        schedule="mixed",
        lr=1e38 if name == "too-fast" else 3e-3,
        eval_lengths=(6,),
        n_eval=20,
        checkpoint=context.scratch("training.safetensors"),
        checkpoint_every=0.0,
        progress=progress,
    )
    save(model, context.path("model.json").parent)
    context.save_table("training", run.history)
    context.save_table("steps", pd.DataFrame({"first": [steps[0]]}))


def use(context: CellContext) -> None:
    assert not context.scratch("x").exists()
    context.save_table("used", pd.DataFrame({"x": [1]}))
