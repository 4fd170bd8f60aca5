"""pyvene: an `IntervenableModel` per condition, `ZeroIntervention` on `head_attention_value_output`, unit `h`.

That component is the input of the attention output projection, split by head; one representation per layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PACKAGE = "pyvene"


class Tool:
    """See the package's docstring."""

    def __init__(self, folder: str, tokens: Tensor) -> None:
        from transformers import AutoModelForCausalLM

        self.module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokens = tokens

    def last_logits(self, heads: Mapping[int, Sequence[int]]) -> Tensor:
        """Logits (B, V) at the last position."""
        import pyvene

        config = pyvene.IntervenableConfig(
            [
                {
                    "layer": layer,
                    "component": "head_attention_value_output",
                    "unit": "h",
                    "max_number_of_units": len(members),
                    "intervention_type": pyvene.ZeroIntervention,
                }
                for layer, members in heads.items()
            ]
        )
        wrapped = pyvene.IntervenableModel(config, model=self.module)
        where = [[list(members)] * len(self.tokens) for members in heads.values()]  # (edits, B, heads)
        with torch.no_grad():
            _, out = wrapped({"input_ids": self.tokens, "use_cache": False}, unit_locations={"base": where})
        return out.logits[:, -1]
