"""What a task is: the two records every other room builds on.

A *state task* emits token sequences with one label per position (study S); a *prompt task* emits text
prompts with an answer, a foil and named positions found by searching the tokens (study P).  Everything
here is numpy: tasks know neither torch nor models.

Split rule of state tasks: a sequence of 20 tokens or more belongs to exactly one split by a hash of its
tokens, so a test sequence can never have been trained on, whatever the seeds (MEASURES 1.1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from causegrid.errors import InputError
from causegrid.registry import Registry

MAX_CLASSES = 256  # of one label; more could neither be probed nor filled with examples

Split = Literal["train", "val", "test"]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StateBatch:
    """Sequences of a state task: `tokens` (B, L) and, per label name, the class at every position (B, L)."""

    tokens: Ints
    labels: Mapping[str, Ints]


class StateTask(ABC):
    """A task whose answer is a state at every position.

    Attributes: `name`; `n_tokens` (input vocabulary); `labels` (label name -> number of classes, the first
    is the one models are trained on); `note` (one line for `causegrid list`); `edited_twins` (its twins are
    edits, which the split guard is not asked about).
    """

    kind: ClassVar[str] = "state"
    edited_twins: ClassVar[bool] = False
    name: str
    n_tokens: int
    labels: Mapping[str, int]
    note: str = ""

    @abstractmethod
    def sample(self, n: int, length: int, *, seed: int | Sequence[int], split: Split) -> StateBatch:
        """`n` sequences of `length` tokens, a function of (seed, split) alone."""

    def labels_of(self, tokens: Ints) -> dict[str, Ints]:
        """The labels of legal sequences (B, L), from their tokens alone."""
        raise InputError(f"task {self.name!r} cannot label given tokens: it has no labels_of(tokens)")

    def split_names(self, tokens: Ints) -> Ints:
        """What the split guard hashes: a code (B, L) that names each sequence one to one."""
        return tokens

    def twins(self, tokens: Ints, position: int, rng: np.random.Generator) -> Ints:
        """The sequences (B, L) with another token at `position`, legal; a row without such a twin as it is."""
        raise InputError(
            f"task {self.name!r} has no corrupted twins, so nothing can be patched: see tasks.pairs"
        )

    @property
    def label(self) -> str:
        """The label models are trained on."""
        return next(iter(self.labels))

    @property
    def n_classes(self) -> int:
        """Number of classes of the trained label."""
        return self.labels[self.label]


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Tokenised prompts of one task for one tokenizer.  All per-prompt fields have length B.

    `tokens[i]` (L_i,) holds the prompt alone (its last token is the query position); `answers[i]` and
    `foils[i]` are sets of token ids (foils may be empty: no margin then); `positions[name]` (B,) holds the
    index into `tokens[i]`, -1 where that prompt has none; `corrupted[i]` is an equal-length twin or None;
    `variant[i]` is the template variant; `dropped` lists words or prompts left out, with the reason;
    `bos` is the policy used and `n_bos` how many BOS tokens stand in front.
    """

    task: str
    texts: Sequence[str]
    tokens: Sequence[Ints]
    answers: Sequence[Ints]
    foils: Sequence[Ints]
    positions: Mapping[str, Ints]
    variant: Sequence[str]
    corrupted: Sequence[Ints | None]
    dropped: Sequence[str] = ()
    bos: str = "none"
    n_bos: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> Ints:
        """Number of tokens of each prompt, (B,)."""
        return np.array([len(t) for t in self.tokens], dtype=np.int64)

    def subset(self, indices: Sequence[int] | Ints) -> PromptSet:
        """The prompts at `indices`, in that order."""
        pick = [int(i) for i in indices]
        index = np.array(pick, dtype=np.int64)
        return replace(
            self,
            texts=[self.texts[i] for i in pick],
            tokens=[self.tokens[i] for i in pick],
            answers=[self.answers[i] for i in pick],
            foils=[self.foils[i] for i in pick],
            positions={k: np.asarray(v)[index] for k, v in self.positions.items()},
            variant=[self.variant[i] for i in pick],
            corrupted=[self.corrupted[i] for i in pick],
        )

    def halves(self) -> tuple[PromptSet, PromptSet]:
        """Two disjoint halves with the variants spread evenly: heads are chosen on the first, measured on
        the second (MEASURES 2.3)."""
        first: list[int] = []
        second: list[int] = []
        turn: dict[str, int] = {}
        for i, variant in enumerate(self.variant):
            (first, second)[turn.get(variant, 0) % 2].append(i)
            turn[variant] = turn.get(variant, 0) + 1
        return self.subset(first), self.subset(second)


class PromptTask(ABC):
    """A task of text prompts.  `targets` names the positions its screens look at."""

    kind: ClassVar[str] = "prompt"
    name: str
    targets: Sequence[str] = ()
    note: str = ""

    @abstractmethod
    def prompts(self, tokenizer: Any, n: int, *, seed: int = 0, bos: str = "none") -> PromptSet:
        """Up to `n` *distinct* prompts for this tokenizer, a function of the seed.

        `bos` is "none" (the papers' setting) or "model" (what the tokenizer does by itself).
        Raises InputError when the tokenizer leaves too few usable words, naming which.
        """


Task = StateTask | PromptTask
tasks: Registry[Any] = Registry("task", "causegrid.tasks")
