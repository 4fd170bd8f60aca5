"""Tiny models wrapped in records, built here without the loader so that this room is tested on its own."""

from __future__ import annotations

import functools
from typing import Any

import torch

import tiny
from causegrid.models import mamba, mamba2, recurrent, transformer
from causegrid.models.record import Model

OURS = ("transformer", "mamba", "mamba2", "lstm", "gru")
MAKERS: dict[str, Any] = {
    "transformer": transformer.make,
    "mamba": mamba.make,
    "mamba2": functools.partial(mamba2.make, head_dim=8, n_state=8, chunk=8),
    "lstm": recurrent.lstm,
    "gru": recurrent.gru,
}


@functools.cache
def hf(name: str) -> Model:
    """A tiny Hugging Face model (cached: every test must leave it as it was)."""
    module = tiny.hf(name)
    config = module.config
    heads = config.num_attention_heads if name in tiny.ATTENTION else 0
    return Model(
        name=f"tiny-{name}",
        family=config.model_type,
        module=module,
        n_layers=tiny.LAYERS,
        d_model=tiny.HIDDEN,
        n_tokens=tiny.VOCAB,
        n_out=tiny.VOCAB,
        n_heads=heads,
    )


@functools.cache
def ours(name: str) -> Model:
    """A small model of one of our families: width 32, 3 blocks, 11 tokens, 5 classes."""
    model: Model = MAKERS[name](name, n_tokens=11, n_out=5, d_model=32, n_layers=3, seed=1)
    with torch.no_grad():
        for parameter in model.module.parameters():
            if parameter.dim() == 2 and parameter.shape[0] != parameter.numel():
                parameter.mul_(3.0)
    return model


def tokens(model: Model, batch: int = 3, length: int = 9, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.n_tokens, (batch, length), generator=generator)


def traces(model: Model) -> list[Any]:
    """What could be left behind: every hook and every attribute that shadows a class's own."""
    return [
        (list(m._forward_hooks), list(m._forward_pre_hooks), "forward" in vars(m), vars(m).get("attend"))
        for m in model.module.modules()
    ]


def output(model: Model, ids: torch.Tensor, **extra: Any) -> torch.Tensor:
    """Logits of the bare module, sharing no code with the package's forward."""
    with torch.no_grad():
        return (
            model.module(input_ids=ids, use_cache=False, **extra).logits if model.is_hf else model.module(ids)
        )
