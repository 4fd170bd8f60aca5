"""Block outputs of a state task, captured once and reused by every probe, baseline and erasure.

Train and test rows come from different *sequences* (the task's own disjoint splits).  Long sequences are
thinned to `n_positions` positions each, drawn per sequence: fitting stays cheap and no position is favoured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from causegrid.errors import InputError, unknown
from causegrid.models.record import Model
from causegrid.signatures.logistic import Ints
from causegrid.signatures.probes import Probe
from causegrid.signatures.standard import Floats32
from causegrid.tasks.base import Split, StateTask

N_POSITIONS = 40
BATCH = 50
SETTLED_TOLERANCE, SETTLED_ITERATIONS = 1e-6, 500


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One split, N = sequences x positions rows: `x[layer]` (N, d) float32 and `y[label]`, `sequence`,
    `position`, `token`, `previous` (the token before, -1 at the start), each (N,)."""

    x: Mapping[int, Floats32]
    y: Mapping[str, Ints]
    sequence: Ints
    position: Ints
    token: Ints
    previous: Ints

    @property
    def n_sequences(self) -> int:
        return int(self.sequence[-1]) + 1

    def per_sequence(self, right: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Right or wrong per row (N,) -> accuracy per sequence (n_sequences,)."""
        return np.asarray(right.reshape(self.n_sequences, -1).mean(axis=1))


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Both splits of one task at one length; layers run from -1 (embedding output) to the last block."""

    task: str
    length: int
    labels: Mapping[str, int]
    n_tokens: int
    train: Rows
    test: Rows

    @property
    def layers(self) -> list[int]:
        return list(self.train.x)


def collect(
    model: Model,
    task: Any,
    *,
    length: int = 40,
    n_train: int = 400,
    n_test: int = 200,
    seed: int = 0,
    n_positions: int | None = N_POSITIONS,
    batch: int = BATCH,
) -> Activations:
    """Block outputs (and the embedding output) on `n_train` training and `n_test` test sequences.

    `n_positions`: positions kept per sequence, None = all.  Raises InputError for a prompt task, a model
    whose vocabulary is too small for the task, and counts under 1.
    """
    if getattr(task, "kind", "") != "state":
        raise InputError(f"task {getattr(task, 'name', task)!r} has no states to probe: use a state task")
    if model.n_tokens < task.n_tokens:
        raise InputError(
            f"model {model.name!r} knows {model.n_tokens} tokens, task {task.name!r} needs {task.n_tokens}"
        )
    for what, count in {"length": length, "n_train": n_train, "n_test": n_test}.items():
        if count < 1:
            raise InputError(f"{what} is {count}: at least 1 is needed")
    kept = length if n_positions is None else min(length, n_positions)
    if kept < 1:
        raise InputError(f"n_positions is {n_positions}: at least 1 is needed")
    splits: list[tuple[Split, int]] = [("train", n_train), ("test", n_test)]
    train, test = (_split(model, task, length, n, seed, split, kept, batch) for split, n in splits)
    return Activations(
        task=task.name,
        length=length,
        labels=dict(task.labels),
        n_tokens=task.n_tokens,
        train=train,
        test=test,
    )


def _split(
    model: Model, task: StateTask, length: int, n: int, seed: int, split: Split, kept: int, batch: int
) -> Rows:
    from causegrid.sites.capture import capture

    sample = task.sample(n, length, seed=seed, split=split)
    tokens = np.asarray(sample.tokens, dtype=np.int64)  # (n, L)
    rng = np.random.default_rng([seed, length, split == "test"])
    where = np.sort(rng.random((n, length)).argpartition(kept - 1, axis=1)[:, :kept], axis=1)  # (n, kept)
    layers = list(range(-1, model.n_layers))
    x = {layer: np.empty((n, kept, model.d_model), dtype=np.float32) for layer in layers}
    for start in range(0, n, batch):
        part = slice(start, start + batch)
        pick = torch.from_numpy(where[part])[..., None]  # (b, kept, 1)
        found = capture(model, tokens[part], [f"L{layer}.resid_post" for layer in layers])
        for layer, value in zip(layers, found.values(), strict=True):
            taken = value.gather(1, pick.to(value.device).expand(-1, -1, value.shape[2]))
            x[layer][part] = taken.float().cpu().numpy()
    before = np.concatenate([np.full((n, 1), -1), tokens[:, :-1]], axis=1)
    rows = np.arange(n)[:, None]
    return Rows(
        x={layer: value.reshape(n * kept, -1) for layer, value in x.items()},
        y={name: np.asarray(y, dtype=np.int64)[rows, where].ravel() for name, y in sample.labels.items()},
        sequence=np.repeat(np.arange(n), kept),
        position=where.ravel().astype(np.int64),
        token=tokens[rows, where].ravel(),
        previous=before[rows, where].ravel(),
    )


def fit_probes(
    activations: Activations, label: str | None = None, *, directions: bool = False
) -> dict[int, Probe]:
    """One probe per layer for `label` (default: the task's first).  Raises InputError for unknown labels.

    `directions`: fitted until the *weights* have settled, for erasing them: on separable states the accuracy
    is there long before the direction is.
    """
    name = check_label(activations.labels, label)
    train = activations.train
    stop = {"tol": SETTLED_TOLERANCE, "max_iter": SETTLED_ITERATIONS} if directions else {}
    return {layer: Probe(**stop).fit(x, train.y[name]) for layer, x in train.x.items()}  # type: ignore[arg-type]


def check_label(labels: Mapping[str, int], label: str | None) -> str:
    """The label, or the first.  Raises InputError naming those there are."""
    if label is None:
        return next(iter(labels))
    if label not in labels:
        raise unknown("label", label, labels)
    return label
