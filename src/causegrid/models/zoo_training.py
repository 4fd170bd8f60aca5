"""Training a small language model on rows of tokens: weighted next-token cross-entropy, AdamW.

The rows of step i are a function of i alone, so with a `checkpoint` a killed run goes on, bit for bit, as if it had
never stopped (on the same number of threads).  Warm-up, then a linear fade over the last part of the steps;
gradients are clipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from causegrid.models import checkpoint as kept
from causegrid.models.record import Model
from causegrid.models.saved import save

WARMUP = 50
FADE = 0.4  # the last part of the steps, over which the learning rate goes down to a twentieth
Rows = Callable[[int], tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]]
Progress = Callable[[int, int, dict[str, float]], None]


def train_language(
    model: Model,
    rows: Rows,
    *,
    steps: int,
    lr: float = 2e-3,
    run: dict[str, Any] | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: float = 30.0,
    snapshots: Collection[int] = (),
    folder: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Train `model` in place; returns the history: step, loss, kind, accuracy, n, tokens, seconds.

    `rows(step)` gives ids (B, L), the weight of each as a target (B, L), and its kind (B, L), -1 for what is not
    counted; accuracy is per kind, over the steps since the row before.  `run` tells this run from others.  The model
    as it was after each step of `snapshots` is saved in `folder/step-N`.  Raises RuntimeError when the loss
    is no longer finite.
    """
    module: Any = model.module
    weights = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    keeper, history, first, spent = None, [], 1, 0.0
    counts: NDArray[np.float64] = np.zeros((0, 2))  # (kinds, right and asked)
    if checkpoint is not None:
        about = {**(run or {}), "steps": steps, "lr": lr, "weights": kept.digest(module.state_dict())}
        keeper = kept.Checkpoint(checkpoint, about, every=checkpoint_every)
        found = keeper.read()
        if found is not None:
            tensors, facts = found
            parts: dict[str, dict[str, torch.Tensor]] = {}
            for key, value in tensors.items():
                part, _, name = key.partition("/")
                parts.setdefault(part, {})[name] = value
            kept.put_back(module, parts["weights"])
            kept.put_back_optimizer(optimizer, parts["optimizer"])
            history, first, spent = facts["history"], facts["step"] + 1, facts["seconds"]
            counts = np.array(facts["counts"])
    start = time.perf_counter() - spent
    module.train()
    try:
        for step in range(first, steps + 1):
            ids, weight, kinds = (torch.from_numpy(a).to(model.device) for a in rows(step))
            logits = module(input_ids=ids).logits.float()[:, :-1].flatten(0, 1)  # (B (L-1), V)
            target, weight, kinds = (a[:, 1:].flatten() for a in (ids, weight, kinds))
            loss = (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum()
            if not bool(loss.isfinite()):
                raise RuntimeError(f"the loss became {float(loss)} at step {step}")
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, step / WARMUP, max(0.05, (1 - step / steps) / FADE))
            optimizer.step()
            counts = _count(counts, logits, target, kinds)
            if step % 50 == 0 or step == steps:
                history += [
                    dict(step=step, loss=float(loss.detach()), kind=k, accuracy=right / asked, n=int(asked),
                         tokens=step * ids.numel(), seconds=time.perf_counter() - start)
                    for k, (right, asked) in enumerate(counts.tolist()) if asked
                ]  # fmt: skip
                counts = np.zeros((0, 2))
            if folder is not None and step in snapshots:
                module.eval()
                save(model, folder / f"step-{step}")
                module.train()
            if progress is not None:
                progress(step, steps, {"loss": float(loss.detach())})
            if keeper is not None and (keeper.due() or step == steps):
                tensors = {f"weights/{name}": value for name, value in kept.moving(module).items()}
                tensors |= {f"optimizer/{n}": v for n, v in kept.optimizer_tensors(optimizer).items()}
                seconds = time.perf_counter() - start
                facts = dict(history=history, step=step, seconds=seconds, counts=counts.tolist())
                keeper.write(tensors, facts)
    finally:
        module.eval()
    return pd.DataFrame(history)


def _count(
    counts: NDArray[np.float64], logits: torch.Tensor, target: torch.Tensor, kinds: torch.Tensor
) -> NDArray[np.float64]:
    """`counts` with these predictions of counted targets added."""
    at = kinds >= 0
    right = (logits.detach()[at].argmax(-1) == target[at]).cpu().numpy()
    kind = kinds[at].cpu().numpy()
    size = max(len(counts), int(kind.max(initial=-1)) + 1)
    new = np.zeros((size, 2))
    new[: len(counts)] = counts
    np.add.at(new, kind, np.stack([right, np.ones_like(right)], axis=1).astype(np.float64))
    return new
