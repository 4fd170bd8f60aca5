"""Tiny models and prompts for the intervention tests."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from causegrid.models.record import Model
from causegrid.tasks import PromptSet

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model():
    """family name -> Model around a tiny random Hugging Face module (cached)."""
    made: dict[tuple, Model] = {}

    def make(family: str, **changes) -> Model:
        key = (family, tuple(sorted(changes.items())))
        if key not in made:
            made[key] = wrap(tiny.hf(family, **changes), family)
        return made[key]

    return make


def wrap(module: torch.nn.Module, name: str) -> Model:
    config = module.config
    heads = 0 if name.startswith("mamba") else config.num_attention_heads
    width = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    return Model(
        name=f"tiny-{name}",
        family=config.model_type,
        module=module,
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_tokens=config.vocab_size,
        n_out=config.vocab_size,
        n_heads=heads,
        head_dim=width if heads else 0,
        n_kv_heads=getattr(config, "num_key_value_heads", heads) if heads else 0,
    )


@pytest.fixture(scope="session")
def wrapped():
    """Wrap a module of one's own as a Model."""
    return wrap


@pytest.fixture(scope="session")
def make_prompts():
    """(n, lengths, seed) -> a PromptSet of random tokens with two answers and two foils each."""

    def make(n: int = 12, lengths=(7,), seed: int = 0, vocab: int = 97, foils: bool = True) -> PromptSet:
        rng = np.random.default_rng(seed)
        tokens = [rng.integers(3, vocab, int(lengths[i % len(lengths)])) for i in range(n)]
        picks = [rng.permutation(vocab)[:4] for _ in range(n)]
        return PromptSet(
            task="random",
            texts=[f"{seed}-{i}" for i in range(n)],
            tokens=tokens,
            answers=[p[:2] for p in picks],
            foils=[p[2:] if foils else p[:0] for p in picks],
            positions={"first": np.zeros(n, dtype=np.int64)},
            variant=["ab"[i % 2] for i in range(n)],
            corrupted=[None] * n,
        )

    return make
