"""The yardstick: plain forward pre-hooks on the attention output projection, the whole model every time.

This is the loop people write: one condition at a time, the whole batch, logits at every position, no cache.
`last=True` asks transformers for the last position's logits alone, which shows what that saves by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Heads = Mapping[int, Sequence[int]]
PACKAGE = "torch"


def projections(module: nn.Module) -> list[nn.Module]:
    """The attention output projection of each block, in order.  Raises ValueError for other families."""
    kind = module.config.model_type
    if kind == "llama":
        return [block.self_attn.o_proj for block in module.model.layers]
    if kind == "gpt_neox":
        return [block.attention.dense for block in module.gpt_neox.layers]
    raise ValueError(f"no output projection known for {kind!r}: allowed are 'llama', 'gpt_neox'")


class Plain:
    """Plain hooks on a loaded module; `tokens` (B, L)."""

    def __init__(self, module: nn.Module, tokens: Tensor, *, last: bool = False) -> None:
        self.module = module.eval()
        self.tokens = tokens
        self.extra = {"logits_to_keep": 1} if last else {}
        self.projections = projections(module)
        self.width = self.projections[0].in_features // module.config.num_attention_heads

    def last_logits(self, heads: Heads) -> Tensor:
        """Logits (B, V) at the last position with the output of `heads` set to zero."""
        handles = [
            self.projections[layer].register_forward_pre_hook(self._zero(members))
            for layer, members in heads.items()
        ]
        try:
            with torch.no_grad():
                out = self.module(input_ids=self.tokens, use_cache=False, **self.extra).logits  # (B, L, V)
            return out[:, -1]
        finally:
            for handle in handles:
                handle.remove()

    def _zero(self, members: Sequence[int]) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            z = args[0].clone()  # (B, L, H d_h)
            for h in members:
                z[..., h * self.width : (h + 1) * self.width] = 0.0
            return (z, *args[1:])

        return hook


class Tool(Plain):
    """Plain hooks on the model saved in `folder`."""

    def __init__(self, folder: str, tokens: Tensor) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokens)
