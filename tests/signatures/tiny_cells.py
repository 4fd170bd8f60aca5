"""Tiny models as `Model` records, a toy prompt set and a toy state task, for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny
from causegrid.models.record import Model
from causegrid.tasks.base import PromptSet, StateBatch, StateTask

torch.set_num_threads(1)


def tiny_model(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Model:
    """One of the tiny Hugging Face models, wrapped."""
    module = tiny.hf(family, seed, **changes).to(dtype)
    config = module.config
    heads = 0 if family.startswith("mamba") else config.num_attention_heads
    return Model(
        name=f"tiny-{family}",
        family=config.model_type,
        module=module,
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_tokens=config.vocab_size,
        n_out=config.vocab_size,
        n_heads=heads,
        head_dim=(getattr(config, "head_dim", None) or config.hidden_size // heads) if heads else 0,
    )


def prompt_set(n: int = 20, lengths: Sequence[int] = (6, 9, 7), seed: int = 0) -> PromptSet:
    """`n` random prompts of ragged lengths; every named position any task screen needs, all different."""
    rng = np.random.default_rng(seed)
    size = [lengths[i % len(lengths)] for i in range(n)]
    names = ["IO", "S1", "S2", "DD", "previous", "binding", "distractor", "query_name"]
    positions: dict[str, list[int]] = {name: [] for name in names}
    for length in size:
        places = rng.permutation(np.arange(1, length - 1))
        for name, place in zip(names, np.resize(places, len(names)), strict=True):
            positions[name].append(int(place))
    return PromptSet(
        task="toy",
        texts=[f"prompt {i}" for i in range(n)],
        tokens=[rng.integers(3, tiny.VOCAB, size=length) for length in size],
        answers=[np.array([5])] * n,
        foils=[np.array([6])] * n,
        positions={
            **{k: np.array(v) for k, v in positions.items()},
            "self": np.array(size) - 1,
        },
        variant=["A" if i % 2 else "B" for i in range(n)],
        corrupted=[None] * n,
    )


class Toy(StateTask):
    """Running parity of 2 tokens, and the last but one token as a second label."""

    name = "toy-parity"
    n_tokens = 2
    labels = {"parity": 2, "before": 2}  # noqa: RUF012

    def sample(self, n: int, length: int, *, seed: Any, split: str) -> StateBatch:
        tokens = np.random.default_rng([seed, len(split)]).integers(2, size=(n, length))
        before = np.concatenate([np.zeros((n, 1), dtype=np.int64), tokens[:, :-1]], axis=1)
        return StateBatch(tokens=tokens, labels={"parity": tokens.cumsum(1) % 2, "before": before})
