"""Rows of training text as tokens: lines one after another, cut at the row's length.

The first line of a row begins as prompts do; the ones after it have something unrelated in front, so that what is
learned does not hang on where a line begins.  What follows from the words before weighs 1, words drawn at random a
little, the end of a line nothing (a run of five items must not seem at its end because training runs were).
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causegrid.tasks.training_text import SHARES, line

KINDS = tuple(SHARES)
OTHER = 0.1  # weight of a word that the ones before it do not tell
EASY_UNTIL = 0.3  # part of the steps over which bindings go from the easiest to all


class TrainingRows:
    """`rows(step)` -> ids, weights and kinds, each (batch, length), a function of (seed, step)."""

    def __init__(self, tokenizer: Any, *, steps: int, batch: int, length: int, seed: int) -> None:
        self.tokenizer = tokenizer
        self.steps, self.batch, self.length, self.seed = steps, batch, length, seed

    def texts(self, step: int) -> list[str]:
        """The lines the rows of this step are made of."""
        return [made.text for made in self._lines(step)]

    def _lines(self, step: int) -> list[Any]:
        rng = random.Random(f"zoo {self.seed} {step}")
        ease = max(0.0, 1 - step / (EASY_UNTIL * self.steps))
        return [line(rng, ease=ease) for _ in range(self.batch * (2 + self.length // 6))]

    def __call__(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        lines = self._lines(step)
        out = self.tokenizer(
            [made.text for made in lines], return_offsets_mapping=True, add_special_tokens=False
        )
        shape = (self.batch, self.length)
        ids = np.full(shape, self.tokenizer.eos_token_id, dtype=np.int64)
        weights, kinds = np.zeros(shape, dtype=np.float32), np.full(shape, -1, dtype=np.int64)
        row = at = 0
        for made, tokens, offsets in zip(lines, out["input_ids"], out["offset_mapping"], strict=True):
            ends = {end for _, end in made.answers}
            known = np.array([end in ends for _, end in offsets])
            part = slice(at, at + len(tokens))
            room = len(ids[row, part])
            ids[row, part] = tokens[:room]
            weights[row, part] = np.where(known, 1.0, OTHER)[:room]
            kinds[row, part] = np.where(known, KINDS.index(made.kind), -1)[:room]
            at += len(tokens) + 1  # the end of the line
            if at >= self.length:
                row, at = row + 1, 0
                if row == self.batch:
                    return ids, weights, kinds
        raise AssertionError(f"{len(lines)} lines did not fill {self.batch} rows")
