"""Training a model on a state task: one class per position, cross-entropy over all positions.

Schedules of the length, one length per batch and never beyond `length`: `fixed`; `mixed`, uniform from 4;
`curriculum`, which starts at 4 and goes up by two each time a batch's loss is under 0.1 (0.05 took Mamba and
the LSTM a third longer to the full length, with no better end).  AdamW with a short warm-up, a linear fade over
the second half of the steps (Mamba's last errors are the step size's noise) and gradient clipping; the
learning rate is the family's unless given.  A run stops early once validation accuracy at the full length
reaches `solved_at`.  Batch number i is a function of (seed, i) alone, so a run repeats exactly on the same
number of threads; with a `checkpoint` it also goes on after a kill, bit for bit as if it had never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, RunFailed, unknown
from causegrid.models import checkpoint as kept
from causegrid.models.behaviour import SHORTEST, SequenceTask, behaviour, hits, learned_length, require_fit
from causegrid.models.forward import call, full_float32
from causegrid.models.forward import logits as logits_of
from causegrid.models.record import Model
from causegrid.models.saved import save

__all__ = ["SCHEDULES", "TrainRun", "TrainingDiverged", "behaviour", "learned_length", "train"]

SCHEDULES = ("fixed", "mixed", "curriculum")
RATES = {"lstm": 2e-3, "gru": 2e-3, "transformer": 5e-4, "mamba": 2e-3, "mamba2": 2e-3}
LONGER, EASY = 2, 0.1  # the curriculum's step in length, and the loss that earns it
CHECK = 50  # steps between two looks at the validation set
N_CHECK = 500  # validation sequences of a look: one lost early costs all its later positions
WARMUP = 20
Progress = Callable[[int, int, dict[str, float]], None]


class TrainingDiverged(RunFailed):
    """The loss stopped being a number at `.step`; the model holds the weights of `.good_step` again, the last
    known to give a finite loss.  `.folder`: the model saved with them (None without a checkpoint)."""

    def __init__(self, step: int, loss: float, good_step: int, folder: Path | None, why: str = "") -> None:
        where = f"are saved in {folder}" if folder else "could not be saved" if why else "are restored"
        super().__init__(
            f"the loss became {loss} at step {step}; the weights of step {good_step} {where}"
            + (f" ({why})" if why else "")
        )
        self.step, self.good_step, self.folder = step, good_step, folder


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
    checkpoint: Path | None = None,
    checkpoint_every: float = 60.0,
    progress: Progress | None = None,
) -> TrainRun:
    """Train `model` in place on `task` for at most `steps` batches of `batch` sequences.

    Stops early when token accuracy on validation sequences of `length` tokens reaches `solved_at` (looked at
    every 50 steps spent at that length), or after `max_seconds`.  `progress(step, steps, facts)` is called
    after every step with length, loss and token_accuracy.  Afterwards accuracy is measured on `n_eval` test
    sequences at each of `eval_lengths`.

    With a `checkpoint` the run's state is written to that file every `checkpoint_every` seconds (less often
    where writing is slow) and at the end, and a call with the same arguments goes on from it, bit for bit.  A
    file that is corrupt or of another run is not used, with a warning.  Remove it when the result is safe.

    Raises InputError on an unknown schedule, a length under 4, a model that does not fit the task, or a label the
    task has not declared; TrainingDiverged when the loss is no longer finite.
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
    task.sample(1, length, seed=(seed, 1), split="val")  # and a task that has none to check or to test on
    task.sample(1, longest, seed=(seed, longest), split="test")
    rate = lr or (model.readout.lr if model.readout else RATES.get(model.family, 5e-4))
    module, device = model.module, model.device
    weights = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01, fused=device.type in ("cpu", "cuda"))
    state = _State(model, optimizer, _Lengths(schedule, length, seed))
    keeper = None
    if checkpoint is not None:
        run = dict(steps=steps, seed=seed, batch=batch, lr=rate, schedule=schedule, length=length)
        keeper = kept.Checkpoint(
            Path(checkpoint),
            {**run, "solved_at": solved_at, **_whose(model, task, seed)},
            every=checkpoint_every,
        )
        found = keeper.read()
        if found is not None:
            state.restore(*found)
    start = time.perf_counter() - state.seconds
    module.train()
    try:
        while not state.over and state.step < steps:
            step = state.step + 1
            now = state.lengths.next()
            data = task.sample(batch, now, seed=(seed, step), split="train")
            _require_classes(task, data.labels[task.label])
            tokens = torch.from_numpy(np.ascontiguousarray(data.tokens)).to(device)
            labels = torch.from_numpy(np.ascontiguousarray(data.labels[task.label])).to(device)
            logits = call(model, tokens).float().flatten(0, 1)  # (B L, n_out)
            loss = F.cross_entropy(logits, labels.flatten())
            accuracy_now = (logits.detach().argmax(-1) == labels.flatten()).float().mean()
            value, accuracy = torch.stack([loss.detach(), accuracy_now]).tolist()  # one wait for the device
            if not np.isfinite(value):
                raise state.diverged(step, value, keeper)
            if state.step and state.step % CHECK == 0:
                state.mark_good()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, step / WARMUP, max(0.05, 2 - 2 * step / steps))
            optimizer.step()
            state.rows.append((step, now, value, accuracy))
            state.lengths.seen(value)
            if progress is not None:
                progress(step, steps, {"length": now, "loss": value, "token_accuracy": accuracy})
            state.at_full += now == length
            if now == length and state.at_full % CHECK == 0 and accuracy >= solved_at - 0.01:
                right = hits(model, task, length, n=N_CHECK, seed=(seed, 1), split="val")
                state.solved = float(right.mean()) >= solved_at
            state.seconds = time.perf_counter() - start
            state.over = state.solved or (max_seconds is not None and state.seconds > max_seconds)
            if keeper is not None and (keeper.due() or state.over or step == steps) and state.finite():
                keeper.write(*state.kept())
        if not state.finite():  # since the very last step
            raise state.diverged(state.step + 1, float("nan"), keeper)
    finally:
        module.eval()
    return TrainRun(
        history=pd.DataFrame(state.rows, columns=["step", "length", "loss", "token_accuracy"]),
        behaviour=behaviour(model, task, eval_lengths, n=n_eval, seed=seed),
        learned_length=learned_length(model, task, max_length=length, n=n_eval, seed=seed),
        steps=state.step,
        solved=state.solved,
        seconds=state.seconds,
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


def _require_classes(task: SequenceTask, labels: NDArray[np.int64]) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= task.n_classes:
        raise InputError(
            f"task {task.name!r} gave the label {low if low < 0 else high} for {task.label!r}, which it says has "
            f"{task.n_classes} classes: 0 to {task.n_classes - 1} are allowed"
        )


class _Lengths:
    """The length of each batch; `seen(loss)` moves the curriculum."""

    def __init__(self, schedule: str, length: int, seed: int) -> None:
        self.schedule, self.length = schedule, length
        self.now = min(SHORTEST, length) if schedule == "curriculum" else length
        self.rng = np.random.default_rng((seed, 7))

    def next(self) -> int:
        if self.schedule == "mixed":
            return int(self.rng.integers(SHORTEST, self.length + 1))
        return self.now

    def seen(self, loss: float) -> None:
        if self.schedule == "curriculum" and loss < EASY:
            self.now = min(self.length, self.now + LONGER)


class _State:
    """All that a run changes as it goes, and so all that a checkpoint keeps."""

    def __init__(self, model: Model, optimizer: torch.optim.Optimizer, lengths: _Lengths) -> None:
        self.model, self.optimizer, self.lengths = model, optimizer, lengths
        self.rows: list[tuple[int, int, float, float]] = []  # step, length, loss, token accuracy
        self.at_full, self.seconds = 0, 0.0
        self.solved = self.over = False
        self.mark_good()

    @property
    def step(self) -> int:
        """Steps taken."""
        return len(self.rows)

    def finite(self) -> bool:
        """Whether every weight is a number."""
        return all(bool(p.isfinite().all()) for p in self.model.module.parameters() if p.requires_grad)

    def mark_good(self) -> None:
        """The weights of this moment are good ones."""
        self.good = {name: value.clone() for name, value in kept.moving(self.model.module).items()}
        self.good_step = self.step

    def diverged(self, step: int, loss: float, keeper: kept.Checkpoint | None) -> TrainingDiverged:
        """The error to raise, with the last good weights back in the model and beside the checkpoint."""
        kept.put_back(self.model.module, self.good)
        folder, why = None, ""
        if keeper is not None:
            try:
                folder = save(self.model, keeper.path.with_name(f"{keeper.path.stem}-last-good"))
            except (OSError, RuntimeError, ValueError) as error:  # a full disk must not hide the divergence
                why = " ".join(str(error).split())
        return TrainingDiverged(step, loss, self.good_step, folder, why)

    def kept(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, facts) that `restore` takes."""
        parts = {
            "weights": kept.moving(self.model.module),
            "good": self.good,
            "optimizer": kept.optimizer_tensors(self.optimizer),
            "random": kept.random_states(self.model.device),
            "rows": {"": torch.tensor(self.rows, dtype=torch.float64)},  # (step, 4)
        }
        tensors = {f"{part}/{name}": value for part, named in parts.items() for name, value in named.items()}
        names = ("at_full", "seconds", "solved", "over", "good_step")
        facts = {name: getattr(self, name) for name in names}
        facts |= {"now": self.lengths.now, "drawn": self.lengths.rng.bit_generator.state}
        return tensors, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Back to where `kept` was called."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = value
        module, device = self.model.module, self.model.device
        kept.put_back(module, parts["weights"])
        kept.put_back_optimizer(self.optimizer, parts.get("optimizer", {}))
        kept.put_back_random_states(device, parts["random"])
        self.good = {name: value.to(device) for name, value in parts["good"].items()}
        self.rows = [(int(s), int(n), v, a) for s, n, v, a in parts["rows"][""].tolist()]
        self.lengths.now = facts.pop("now")
        self.lengths.rng.bit_generator.state = facts.pop("drawn")
        for name, fact in facts.items():
            setattr(self, name, fact)


def _whose(model: Model, task: SequenceTask, seed: int) -> dict[str, Any]:
    """What tells this run from another one of the same settings: its model's first weights, its task's data."""
    data = task.sample(2, SHORTEST, seed=(seed, 1), split="train")
    return {
        "task": task.name,
        "label": task.label,
        "data": kept.array_digest(np.stack([data.tokens, data.labels[task.label]])),
        "model": model.name,
        "n_params": model.n_params,
        "weights": kept.digest(model.module.state_dict()),
    }
