"""The thin record around an untouched module.

No class to inherit, no weight conversion: `.module` is the plain PyTorch model (a Hugging Face causal LM,
or one of our five families) and everything else says what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from causegrid.models.readout import StateReadout
from causegrid.registry import Registry


@dataclass(eq=False, kw_only=True)
class Model:
    """A model and its sizes.

    `family` names the table in `sites/families/` (`transformer`, `mamba`, `mamba2`, `lstm`, `gru`, or the
    Hugging Face `model_type`: `gpt2`, `gpt_neox`, `llama`, `olmo`, `olmo2`, `olmoe`, ...).
    `n_heads` and `head_dim` are those of the *query* heads (0 for models without attention).
    `n_tokens` is the input vocabulary, `n_out` the width of the logits.  `source` says where the weights
    came from; `config` is enough to build the module again (own families) or to describe it.
    With a `readout` a Hugging Face model is called on a state task's tokens and gives its classes: `n_tokens`
    and `n_out` are then the task's.
    """

    name: str
    family: str
    module: nn.Module
    n_layers: int
    d_model: int
    n_tokens: int
    n_out: int
    n_heads: int = 0
    head_dim: int = 0
    n_kv_heads: int = 0
    tokenizer: Any = None
    source: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    readout: StateReadout | None = None

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        return next(self.module.parameters()).device

    @property
    def is_hf(self) -> bool:
        """True for a Hugging Face module (called with `input_ids`, returns an object with `.logits`)."""
        return hasattr(self.module, "generate") or hasattr(self.module, "config")

    @property
    def n_params(self) -> int:
        """Number of parameters, shared ones counted once."""
        return sum(p.numel() for p in self.module.parameters())

    def __call__(self, tokens: Any) -> Tensor:
        """Token ids (B, L) -> logits (B, L, n_out), float32, no gradient, evaluation mode, no cache."""
        from causegrid.models.forward import logits

        return logits(self, tokens)

    def reading(self, readout: StateReadout) -> Model:
        """The same module, called on the tokens of a state task and giving its classes."""
        n_out = self.n_out if readout.outputs is None else len(readout.outputs)
        return replace(self, readout=readout, n_tokens=len(readout.inputs), n_out=n_out)


models: Registry[Any] = Registry("model", "causegrid.models")
