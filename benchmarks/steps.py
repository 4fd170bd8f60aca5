"""One training step, as `causegrid.train` takes it: forward, cross-entropy, backward, clipping, fused AdamW.

Works for our modules and for transformers', whose output wraps the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from causegrid.models.record import Model

FAMILIES = ("transformer", "mamba", "mamba2", "lstm", "gru")
CLASSES = 8


def build(family: str, *, classes: int = CLASSES, **sizes: int) -> Model:
    """A model of the family with fresh weights, as many classes as tokens, its natural sizes unless given."""
    from causegrid.models.record import models

    made: Model = models.get(family)(family, n_tokens=classes, n_out=classes, **sizes)
    return made


def batch(rows: int = 64, length: int = 40, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens and labels, (rows, length) each, below `CLASSES`."""
    rng = torch.Generator().manual_seed(seed)
    tokens, labels = torch.randint(CLASSES, (2, rows, length), generator=rng)
    return tokens, labels


def loss_of(module: nn.Module, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy over all positions, and the logits (B, L, classes)."""
    out = module(tokens)
    logits = out if isinstance(out, Tensor) else out.logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def training_step(module: nn.Module, tokens: Tensor, labels: Tensor) -> Callable[[], Any]:
    """A function that takes one step on this batch; the module is put into training mode."""
    weights = [p for p in module.train().parameters() if p.requires_grad]
    # a rate of 0 keeps every step the same work: weights that drift could reach denormal or huge values
    optimizer = torch.optim.AdamW(weights, lr=0.0, weight_decay=0.01, fused=True)

    def step() -> float:
        loss, _ = loss_of(module, tokens, labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        return loss.item()

    return step


def gradients(module: nn.Module, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Parameter name -> gradient of the loss, in training mode."""
    module.train().zero_grad()
    loss, _ = loss_of(module, tokens, labels)
    torch.autograd.backward(loss)
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return found


def furthest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Largest difference of any gradient, each against the largest entry of its own parameter's gradient.

    Raises ValueError when the two do not hold the same names.
    """
    if found.keys() != wanted.keys():
        raise ValueError(f"gradients of different parameters: {sorted(found.keys() ^ wanted.keys())}")
    return max(
        float((found[name].double() - want).abs().max() / want.abs().max()) for name, want in wanted.items()
    )
