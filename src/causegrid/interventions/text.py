"""Loss on ordinary text under an ablation: a group that also wrecks ordinary text is no task circuit
(MEASURES 3.1).

The control text is prose of our own.  It is tokenised as one stream and cut into windows of equal length,
so nothing is padded and every family takes it; the loss is the mean negative log probability per token over
all positions after a window's first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError
from causegrid.models.forward import logits, position_limit
from causegrid.models.record import Model
from causegrid.sites.edit import Edit, edit

WINDOW = 32

CONTROL_TEXTS: tuple[str, ...] = (
    "The path along the river was wet after three days of rain, so we took the road instead.",
    "Bread needs little more than flour, water, salt and time, but it rewards a patient baker.",
    "When the lamp in the hall went out, the whole house seemed to grow older and quieter.",
    "A good map leaves most things out and shows the few that a traveller needs.",
    "The two brothers had repaired boats in the same shed for longer than anyone could remember.",
    "In winter the lake freezes near the shore first, and the birds move slowly towards the middle.",
    "She kept her letters in a tin box and read them again whenever the trains were late.",
    "Most of the orchard had been sold, though a few old pear trees still stood behind the barn.",
    "The museum opens at ten, and by noon there is usually a queue that reaches the square.",
    "He tuned the piano by ear, stopping now and then to listen to the rain on the roof.",
    "It is easier to plan a garden in spring than to keep one alive through a dry summer.",
    "At the end of the lecture nobody asked a question, but several people stayed to talk.",
)


@dataclass(frozen=True, kw_only=True)
class TextLoss:
    """Mean loss per token in nats, without and with the edits, over `n_tokens` predicted tokens."""

    clean: float
    ablated: float
    n_tokens: int

    @property
    def increase(self) -> float:
        """ablated - clean; positive when the edits hurt ordinary text."""
        return self.ablated - self.clean


def windows(model: Model, texts: Sequence[str] | None = None) -> Tensor:
    """The control text as token ids (W, L), no BOS; a remainder shorter than L is left out.

    L is 32, or the model's number of positions or of the text's tokens where that is less.
    Raises InputError for a model without a tokenizer or of a single position, and for texts of fewer than
    two tokens.
    """
    if model.tokenizer is None:
        raise InputError(f"{model.name!r} has no tokenizer, so there is no ordinary text to run it on")
    stream = model.tokenizer(" ".join(texts or CONTROL_TEXTS), add_special_tokens=False)["input_ids"]
    length = min(WINDOW, len(stream), position_limit(model) or WINDOW)
    if length < 2:
        short = "the control text has" if len(stream) < 2 else f"the positions of {model.name!r} take"
        raise InputError(f"{short} fewer than two tokens: nothing to predict")
    n = len(stream) // length
    return torch.from_numpy(np.array(stream[: n * length], dtype=np.int64).reshape(n, length))


def window_losses(model: Model, tokens: Tensor, edits: Iterable[Edit] = ()) -> NDArray[np.float64]:
    """Mean loss per token in nats of each window of token ids (W, L), positions 1.., edits in force: (W,)."""
    chosen = tuple(edits)
    found = []
    for s in range(0, len(tokens), 16):
        part = tokens[s : s + 16].to(model.device)
        with edit(model, *chosen):
            scores = logits(model, part)[:, :-1]  # (W, L - 1, V)
        loss = torch.nn.functional.cross_entropy(scores.transpose(1, 2), part[:, 1:], reduction="none")
        found.append(loss.double().mean(1).cpu().numpy())
    return np.concatenate(found)


def ordinary_text_loss(
    model: Model, edits: Edit | Iterable[Edit], texts: Sequence[str] | None = None
) -> TextLoss:
    """Loss on the control text (ours when `texts` is None) without and with the edits.

    Edits must fit any length: means pooled over positions, not per position.  Raises InputError as
    `windows` does, InterventionError when an edit did not fire.
    """
    tokens = windows(model, texts)
    chosen = (edits,) if isinstance(edits, Edit) else tuple(edits)
    return TextLoss(
        clean=float(window_losses(model, tokens).mean()),
        ablated=float(window_losses(model, tokens, chosen).mean()),
        n_tokens=tokens.shape[0] * (tokens.shape[1] - 1),
    )
