"""TransformerLens: `TransformerBridge` on the Hugging Face model, `run_with_hooks` on `attn.hook_z`.

The bridge keeps the weights as they are.  It runs attention in its eager form (its hooks need the pattern)
and computes logits at every position, which is what its users get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

PACKAGE = "transformer-lens"


class Tool:
    """See the package's docstring."""

    def __init__(self, folder: str, tokens: Tensor) -> None:
        from transformer_lens.model_bridge import TransformerBridge
        from transformers import AutoModelForCausalLM

        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.bridge = TransformerBridge.boot_transformers(folder, hf_model=module, device="cpu")
        self.bridge.eval()
        self.tokens = tokens

    def last_logits(self, heads: Mapping[int, Sequence[int]]) -> Tensor:
        """Logits (B, V) at the last position."""

        def zero(members: Sequence[int]) -> Any:
            def hook(z: Tensor, hook: Any) -> Tensor:  # z: (B, L, H, d_h)
                z[:, :, list(members), :] = 0.0
                return z

            return hook

        hooks = [(f"blocks.{layer}.attn.hook_z", zero(members)) for layer, members in heads.items()]
        with torch.no_grad():
            return self.bridge.run_with_hooks(self.tokens, return_type="logits", fwd_hooks=hooks)[:, -1]
