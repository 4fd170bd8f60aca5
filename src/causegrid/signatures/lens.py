"""Logit lens: what the model would say if it stopped after each block.

Every block's output goes through the model's own final norm and output projection; at the last block that
is the model's logits themselves (case 16), so a wrong scale cannot hide.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causegrid.models.record import Model


def logit_lens(model: Model, tokens: Any) -> Tensor:
    """Token ids (B, L) -> logits after every block, (n_layers, B, L, n_out), float32.

    Raises InputError for ids outside the vocabulary and families without a site table.
    """
    from causegrid.sites.capture import capture
    from causegrid.sites.table import readout

    where = [f"L{layer}.resid_post" for layer in range(model.n_layers)]
    outputs = capture(model, tokens, where)
    return torch.stack([readout(model, outputs[site]) for site in where])
