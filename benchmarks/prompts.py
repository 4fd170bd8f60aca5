"""Random prompts for models whose answers do not matter."""

from __future__ import annotations

import numpy as np

from causegrid.tasks import PromptSet


def random_prompts(n_tokens: int, *, n: int, length: int, seed: int = 0) -> PromptSet:
    """`n` random prompts of `length` tokens, each with one answer and one foil."""
    rng = np.random.default_rng(seed)
    ends = [rng.choice(n_tokens, 2, replace=False) for _ in range(n)]
    return PromptSet(
        task="random",
        texts=[f"random {i}" for i in range(n)],
        tokens=list(rng.integers(0, n_tokens, (n, length))),
        answers=[e[:1] for e in ends],
        foils=[e[1:] for e in ends],
        positions={},
        variant=["random"] * n,
        corrupted=[None] * n,
    )
