"""nnsight: a trace that writes zeros into the input of the attention output projection.

`NNsight` wraps the loaded module (`TransformersModel` wants a tokenizer and its pipeline, which play no part
here); the edit and the saved logits are plain Python inside the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PACKAGE = "nnsight"


class Tool:
    """See the package's docstring."""

    def __init__(self, folder: str, tokens: Tensor) -> None:
        from nnsight import NNsight
        from transformers import AutoModelForCausalLM

        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model = NNsight(module)
        self.tokens = tokens
        config = module.config
        llama = config.model_type == "llama"
        layers = self.model.model.layers if llama else self.model.gpt_neox.layers
        self.projections = [b.self_attn.o_proj if llama else b.attention.dense for b in layers]
        self.width = config.hidden_size // config.num_attention_heads

    def last_logits(self, heads: Mapping[int, Sequence[int]]) -> Tensor:
        """Logits (B, V) at the last position."""
        width = self.width
        with torch.no_grad(), self.model.trace(input_ids=self.tokens, use_cache=False):
            for layer in sorted(heads):  # in the order in which the model runs
                z = self.projections[layer].input  # (B, L, H d_h)
                for h in heads[layer]:
                    z[:, :, h * width : (h + 1) * width] = 0.0
            last = self.model.output.logits[:, -1].save()
        return last  # noqa: RET504 (a trace cannot return)
