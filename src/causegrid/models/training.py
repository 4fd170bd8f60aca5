"""Training a model on a state task: one class per position, cross-entropy over all positions.

Schedules of the length, one length per batch and never beyond `length`: `fixed`; `mixed`, uniform from 4;
`curriculum`, which starts at 4 and goes up by two each time a batch's loss is under 0.1 (0.05 took Mamba and
the LSTM a third longer to the full length, with no better end).  AdamW with a short warm-up, a linear fade over
the second half of the steps (Mamba's last errors are the step size's noise) and gradient clipping; the
learning rate is the family's unless given.  A run stops early once validation accuracy at the full length
reaches `solved_at`.  Batch number i is a function of (seed, i) alone,
so a run repeats exactly on the same number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from causegrid.errors import InputError, unknown
from causegrid.models.behaviour import SHORTEST, SequenceTask, behaviour, hits, learned_length, require_fit
from causegrid.models.forward import full_float32
from causegrid.models.forward import logits as logits_of
from causegrid.models.record import Model

__all__ = ["SCHEDULES", "TrainRun", "TrainingDiverged", "behaviour", "learned_length", "train"]

SCHEDULES = ("fixed", "mixed", "curriculum")
RATES = {"lstm": 2e-3, "gru": 2e-3, "transformer": 5e-4, "mamba": 2e-3, "mamba2": 2e-3}
LONGER, EASY = 2, 0.1  # the curriculum's step in length, and the loss that earns it
CHECK = 50  # steps between two looks at the validation set
N_CHECK = 500  # validation sequences of a look: one lost early costs all its later positions
WARMUP = 20
Progress = Callable[[int, int, dict[str, float]], None]


class TrainingDiverged(RuntimeError):
    """The loss stopped being a number at `.step`; the model holds its last good weights again."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"the loss became {loss} at step {step}; weights of the last good check restored")
        self.step = step


@dataclass(frozen=True, kw_only=True)
class TrainRun:
    """A finished training run.

    `history`: step, length, loss, token_accuracy per step.  `behaviour`: length, metric, accuracy, low, high,
    n.  `learned_length`: see MEASURES 1.2, up to the trained length.  `steps` taken, `solved` (validation
    reached the mark), `seconds` of training, and the `settings` that make it repeatable.
    """

    history: pd.DataFrame
    behaviour: pd.DataFrame
    learned_length: int
    steps: int
    solved: bool
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)


@full_float32()
def train(
    model: Model,
    task: SequenceTask,
    *,
    steps: int = 2000,
    seed: int = 0,
    batch: int = 64,
    lr: float | None = None,
    schedule: Literal["fixed", "mixed", "curriculum"] = "curriculum",
    length: int = 40,
    eval_lengths: Sequence[int] = (40, 60, 80, 100, 120),
    n_eval: int = 200,
    solved_at: float = 0.999,
    max_seconds: float | None = None,
    progress: Progress | None = None,
) -> TrainRun:
    """Train `model` in place on `task` for at most `steps` batches of `batch` sequences.

    Stops early when token accuracy on validation sequences of `length` tokens reaches `solved_at` (looked at
    every 50 steps spent at that length), or after `max_seconds`.  `progress(step, steps, facts)` is called
    after every step with length, loss and token_accuracy.  Afterwards accuracy is measured on `n_eval` test
    sequences at each of `eval_lengths`.

    Raises InputError on an unknown schedule, a length under 4, or a model that does not fit the task;
    TrainingDiverged when the loss is no longer finite.
    """
    require_fit(model, task)
    if schedule not in SCHEDULES:
        raise unknown("length schedule", schedule, SCHEDULES)
    if length < SHORTEST:
        raise InputError(f"cannot train at length {length}: the shortest is {SHORTEST}")
    longest = max([length, *eval_lengths])
    logits_of(
        model, np.zeros((1, longest), dtype=np.int64)
    )  # refuses lengths the positions cannot take, before training
    rate = RATES.get(model.family, 5e-4) if lr is None else lr
    module, device = model.module, model.device
    weights = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01, fused=device.type in ("cpu", "cuda"))
    lengths = _Lengths(schedule, length, seed)
    rows: list[tuple[int, int, float, float]] = []
    good = _copy(module)
    solved, at_full = False, 0
    start = time.perf_counter()
    module.train()
    try:
        for step in range(1, steps + 1):
            now = lengths.next(step)
            data = task.sample(batch, now, seed=(seed, step), split="train")
            tokens = torch.from_numpy(np.ascontiguousarray(data.tokens)).to(device)
            labels = torch.from_numpy(np.ascontiguousarray(data.labels[task.label])).to(device)
            logits = module(tokens).flatten(0, 1)  # (B L, n_out)
            loss = F.cross_entropy(logits, labels.flatten())
            accuracy_now = (logits.detach().argmax(-1) == labels.flatten()).float().mean()
            value, accuracy = torch.stack([loss.detach(), accuracy_now]).tolist()  # one wait for the device
            if not np.isfinite(value):
                module.load_state_dict(good)
                raise TrainingDiverged(step, value)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, step / WARMUP, max(0.05, 2 - 2 * step / steps))
            optimizer.step()
            rows.append((step, now, value, accuracy))
            lengths.seen(value)
            if progress is not None:
                progress(step, steps, {"length": now, "loss": value, "token_accuracy": accuracy})
            at_full += now == length
            if step % CHECK == 0:
                good = _copy(module)
            if now == length and at_full % CHECK == 0 and accuracy >= solved_at - 0.01:
                solved = (
                    float(hits(model, task, length, n=N_CHECK, seed=(seed, 1), split="val").mean())
                    >= solved_at
                )
            if solved or (max_seconds is not None and time.perf_counter() - start > max_seconds):
                break
    finally:
        module.eval()
    seconds = time.perf_counter() - start
    return TrainRun(
        history=pd.DataFrame(rows, columns=["step", "length", "loss", "token_accuracy"]),
        behaviour=behaviour(model, task, eval_lengths, n=n_eval, seed=seed),
        learned_length=learned_length(model, task, max_length=length, n=n_eval, seed=seed),
        steps=len(rows),
        solved=solved,
        seconds=seconds,
        settings=dict(
            task=task.name,
            seed=seed,
            batch=batch,
            lr=rate,
            schedule=schedule,
            length=length,
            solved_at=solved_at,
        ),
    )


class _Lengths:
    """The length of each batch; `seen(loss)` moves the curriculum."""

    def __init__(self, schedule: str, length: int, seed: int) -> None:
        self.schedule, self.length = schedule, length
        self.now = min(SHORTEST, length) if schedule == "curriculum" else length
        self.rng = np.random.default_rng((seed, 7))

    def next(self, step: int) -> int:
        if self.schedule == "mixed":
            return int(self.rng.integers(SHORTEST, self.length + 1))
        return self.now

    def seen(self, loss: float) -> None:
        if self.schedule == "curriculum" and loss < EASY:
            self.now = min(self.length, self.now + LONGER)


def _copy(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
