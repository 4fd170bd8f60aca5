"""The stages of one cell of the zoo: train, evaluate, keep."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING, Any

import pandas as pd

from causegrid.evidence.effects import bootstrap_mean, wilson
from causegrid.evidence.thresholds import Thresholds
from causegrid.interventions.metrics import metrics
from causegrid.models import fingerprint, last_logits, load, save
from causegrid.models.record import Model
from causegrid.models.zoo import fresh, keep, tokenizer_of
from causegrid.models.zoo_training import train_language
from causegrid.studies.base import CellContext
from causegrid.studies.tiny_zoo.rows import KINDS, TrainingRows
from causegrid.studies.zoo import TASKS
from causegrid.tasks import task
from causegrid.tasks.training_text import digest, vocabulary

if TYPE_CHECKING:
    from causegrid.studies.zoo import ZooCell

ALL = "all"  # the rows of a task over its variants


class ZooStages:
    """The stages of one cell."""

    def __init__(self, cell: ZooCell) -> None:
        self.cell = cell

    def train(self, context: CellContext) -> None:
        """Train, keep the steps asked for in `checkpoints/step-N`, and save the model in the cell."""
        c, t = self.cell, self.cell.training
        made = fresh(c.model, tokenizer_of(vocabulary()), seed=c.seed)
        rows = TrainingRows(made.tokenizer, steps=t.steps, batch=t.batch, length=t.length, seed=c.seed)
        early = context.scratch("checkpoints")
        history = train_language(
            made,
            rows,
            steps=t.steps,
            lr=t.lr,
            run={
                "model": c.model,
                "seed": c.seed,
                "batch": t.batch,
                "length": t.length,
                "text": digest(),
            },
            checkpoint=context.scratch("state.safetensors"),
            snapshots=c.checkpoints,
            folder=early,
            progress=lambda step, steps, facts: context.progress(step, steps, f"loss {facts['loss']:.2f}"),
        )
        history["kind"] = [KINDS[k] for k in history["kind"]]
        save(made, context.path("model.json").parent)
        tokens = [step * t.batch * t.length for step in c.checkpoints]
        if c.checkpoints:
            shutil.copytree(early, context.path("checkpoints"))
            folders = [f"checkpoints/step-{step}" for step in c.checkpoints]
            table = pd.DataFrame({"step": c.checkpoints, "tokens_seen": tokens, "folder": folders})
            context.save_table("checkpoints", table)
        context.save_table("history", history)
        context.note(
            family=made.family,
            n_params=made.n_params,
            n_tokens=made.n_tokens,
            steps=t.steps,
            tokens_seen=t.steps * t.batch * t.length,
            seconds=float(history["seconds"].iloc[-1]),
            fingerprint=fingerprint(made),
        )

    def evaluate(self, context: CellContext) -> None:
        """The four tasks on prompts that training text never held, by variant, against the floor."""
        made = load(context.find("model.json").parent)
        table = capability(made, n=self.cell.n_eval, seed=self.cell.seed)
        context.save_table("capability", table)
        whole = table[table["variant"] == ALL]
        context.note(passed={r["task"]: bool(r["passes"]) for r in whole.to_dict("records")})

    def keep(self, context: CellContext) -> None:
        """Put the model where its name finds it."""
        keep(context.find("model.json").parent, self.cell.model, self.cell.seed)


def capability(model: Model, *, n: int, seed: int) -> pd.DataFrame:
    """One row per task and variant: `task, variant, n, top1, restricted, restricted_low, restricted_high, margin,
    low, high, passes, state`.

    `restricted`: the best answer above the best foil.  `passes`: the floor of MEASURES 4.2, rule 1; `state` says
    `testable` or `not testable`.
    """
    rows: list[dict[str, Any]] = []
    least = Thresholds().model_accuracy
    for name in TASKS:
        made: Any = task(name)
        prompts = made.prompts(model.tokenizer, n, seed=seed)
        values = pd.DataFrame(metrics(last_logits(model, prompts.tokens), prompts))
        variant = pd.Series(list(prompts.variant))
        for kind in (ALL, *sorted(set(variant))):
            part = values if kind == ALL else values[variant == kind]
            margin, right = part["logit_diff"].to_numpy(), part["restricted"]
            low, high = bootstrap_mean(margin, seed=seed)
            least_right, most_right = wilson(int(right.sum()), len(part))
            passes = bool(not math.isnan(low) and low > 0 and right.mean() >= least)
            rows.append(
                dict(task=name, variant=kind, n=len(part), top1=part["top1"].mean(), restricted=right.mean(),
                     restricted_low=least_right, restricted_high=most_right, margin=margin.mean(), low=low,
                     high=high, passes=passes, state="testable" if passes else "not testable")
            )  # fmt: skip
    return pd.DataFrame(rows)
