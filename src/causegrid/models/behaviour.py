"""What a trained model does, by length: token, strict and last-position accuracy (MEASURES 1.2).

The three differ hugely between papers, so each row names its metric.  The unit of chance is the sequence:
token accuracy gets a bootstrap interval over sequences, strict and last (one yes or no per sequence)
Wilson's.  All our families are causal, so one forward pass at the longest length gives the accuracy at
every shorter one: `learned_length` costs a single pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from causegrid.errors import InputError
from causegrid.models.forward import call
from causegrid.models.record import Model

METRICS = ("token", "strict", "last")
LEARNED = 0.99  # token accuracy at which a length counts as learned
SHORTEST = 4  # the shortest length that is evaluated


class Batch(Protocol):
    """`tokens` (B, L) and, per label name, the class at every position (B, L)."""

    @property
    def tokens(self) -> NDArray[np.int64]: ...
    @property
    def labels(self) -> Mapping[str, NDArray[np.int64]]: ...


class SequenceTask(Protocol):
    """What training asks of a task: sizes, the trained label's name, and sequences from a seed."""

    @property
    def name(self) -> str: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def n_classes(self) -> int: ...
    def sample(
        self, n: int, length: int, *, seed: int | Sequence[int], split: Literal["train", "val", "test"]
    ) -> Batch: ...


def require_fit(model: Model, task: SequenceTask) -> None:
    """InputError unless the model takes this task's tokens and gives its classes."""
    if model.is_hf and model.readout is None:
        raise InputError(
            f"{model.name!r} is a language model that reads text: fine_tunable({model.name!r}, task) makes "
            "it read a state task"
        )
    if model.n_tokens < task.n_tokens or model.n_out < task.n_classes:
        raise InputError(
            f"model {model.name!r} has {model.n_tokens} tokens and {model.n_out} classes, "
            f"task {task.name!r} needs {task.n_tokens} and {task.n_classes}"
        )


def hits(
    model: Model,
    task: SequenceTask,
    length: int,
    *,
    n: int,
    seed: int | Sequence[int] = 0,
    split: Literal["val", "test"] = "test",
    batch: int = 64,
) -> NDArray[np.bool_]:
    """Where the model's most likely class is the label, (n, length); evaluation mode, no gradient."""
    require_fit(model, task)
    data = task.sample(n, length, seed=seed, split=split)
    tokens = torch.from_numpy(np.ascontiguousarray(data.tokens)).to(model.device)
    training = model.module.training
    model.module.eval()
    try:
        with torch.inference_mode():
            said = [call(model, part).argmax(-1).cpu() for part in torch.split(tokens, batch)]
    finally:
        model.module.train(training)
    right: NDArray[np.bool_] = torch.cat(said).numpy() == data.labels[task.label]
    return right


def wilson(k: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion k / n."""
    p, extra = k / n, z * z / n
    middle = (p + extra / 2) / (1 + extra)
    half = z * np.sqrt(p * (1 - p) / n + extra / (4 * n)) / (1 + extra)
    return (0.0 if k == 0 else float(middle - half)), (1.0 if k == n else float(middle + half))


def behaviour(
    model: Model, task: SequenceTask, lengths: Sequence[int], *, n: int = 200, seed: int = 0
) -> pd.DataFrame:
    """Accuracy on `n` test sequences at each length: columns length, metric, accuracy, low, high, n.

    Metrics: `token` (all positions), `strict` (all positions of a sequence right), `last` (last position).
    Raises InputError when the model cannot run at a length (learned positions) or does not fit the task.
    """
    rows: list[dict[str, Any]] = []
    for length in lengths:
        right = hits(model, task, length, n=n, seed=(seed, length))  # (n, L)
        share = right.mean(axis=1)
        rng = np.random.default_rng((seed, length))
        means = rng.multinomial(n, np.full(n, 1 / n), size=1000) @ share / n
        low, high = np.quantile(means, [0.025, 0.975])
        mean = share.mean()
        low, high = min(low, mean), max(high, mean)  # equal when every sequence scores the same
        rows.append(dict(length=length, metric="token", accuracy=mean, low=low, high=high, n=n))
        for metric, yes in (("strict", right.all(axis=1)), ("last", right[:, -1])):
            low, high = wilson(int(yes.sum()), n)
            rows.append(dict(length=length, metric=metric, accuracy=yes.mean(), low=low, high=high, n=n))
    return pd.DataFrame(rows, columns=["length", "metric", "accuracy", "low", "high", "n"])


def learned_length(
    model: Model, task: SequenceTask, *, max_length: int = 40, n: int = 200, seed: int = 0
) -> int:
    """The largest length from 4 to `max_length` with token accuracy >= 0.99 on test sequences, 0 when none.

    (MEASURES 1.2; below 8 a cell counts as not learned.)
    """
    right = hits(model, task, max_length, n=n, seed=(seed, 0)).mean(axis=0)  # (L,)
    upto = right.cumsum() / np.arange(1, max_length + 1)  # token accuracy of the first l positions
    good = [l for l in range(SHORTEST, max_length + 1) if upto[l - 1] >= LEARNED]
    return max(good, default=0)
