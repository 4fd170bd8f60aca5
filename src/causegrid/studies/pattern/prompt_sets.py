"""Which prompts a cell's heads are chosen on, which they are measured on, and which stand for the mean.

`strict`: chosen on one half, measured on the other, and the half that chose is the reference of mean and
resample ablation.  `paper`: chosen and measured on the same prompts, as published, so 500 prompts mean 500
evaluated; the reference is drawn beside, as many as `REFERENCE` at most, with the variants spread evenly.
Where the task has too few distinct prompts for both, they shrink alike (*ours*); with zero ablation alone no
reference is needed and every prompt is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from causegrid.errors import InputError
from causegrid.interventions.metrics import METRICS
from causegrid.models.record import Model
from causegrid.signatures.patterns import prompts_of
from causegrid.tasks import PromptSet, Task

REFERENCE = 100
SHOWN = 4  # answers of a prompt written out in the table
CHOSEN, MEASURED, BESIDE = "chosen on", "measured on", "reference"


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """`reference` is None when no ablation of the cell needs one; `same`: chosen and measured on one set."""

    chosen: PromptSet
    measured: PromptSet
    reference: PromptSet | None
    same: bool

    def named(self) -> list[tuple[str, PromptSet]]:
        """Every prompt of the cell once: (the part it stands in, prompts)."""
        if not self.same:
            return [(CHOSEN, self.chosen), (MEASURED, self.measured)]
        beside = [] if self.reference is None else [(BESIDE, self.reference)]
        return [(MEASURED, self.measured), *beside]


def prompt_parts(
    model: Model, task: Task, *, n: int, seed: int, bos: str, rules: str, modes: Sequence[str]
) -> PromptParts:
    """The cell's prompts.

    Raises InputError as the task does, naming the words this tokenizer lacks, and when a part is left empty: no
    variant has two prompts, one a half; or no prompt is left beside for a mean.
    """
    if rules == "strict":
        chosen, measured = prompts_of(model, task, n=n, seed=seed, bos=bos).halves()
        if not len(measured):
            raise InputError(
                f"task {task.name!r} leaves no second half: {_counted(len(chosen))}, and no template variant occurs "
                "twice (two of a variant are needed, one a half)"
            )
        return PromptParts(chosen=chosen, measured=measured, reference=chosen, same=False)
    extra = min(n, REFERENCE) if set(modes) - {"zero"} else 0
    drawn = prompts_of(model, task, n=n + extra, seed=seed, bos=bos)
    beside = spread(drawn.variant, min(extra, max(len(drawn) - n, len(drawn) * extra // (n + extra))))
    kept = np.setdiff1d(np.arange(len(drawn)), beside)
    measured = drawn.subset(kept)
    reference = drawn.subset(beside) if len(beside) else None
    if extra and reference is None:
        raise InputError(
            f"task {task.name!r} leaves no reference for mean ablation: {_counted(len(measured))}, and at least 2 "
            "are needed"
        )
    return PromptParts(chosen=measured, measured=measured, reference=reference, same=True)


def _counted(n: int) -> str:
    return f"{n} usable prompt{'s' * (n != 1)}"


def spread(variants: Sequence[str], k: int) -> list[int]:
    """`k` places, ascending, that hold the variants in their own proportions."""
    if k == 0:
        return []
    by_variant = sorted(range(len(variants)), key=lambda i: (variants[i], i))
    steps = (np.arange(k) + 0.5) * len(variants) / k
    return sorted(by_variant[int(s)] for s in steps)


def prompt_rows(parts: PromptParts, clean: Any, tokenizer: Any) -> pd.DataFrame:
    """One row per prompt: text, variant, twin, answer, foil, and the untouched model's values where measured."""
    tables = []
    for name, part in parts.named():
        values = clean if name == MEASURED else np.full((len(part), len(METRICS)), np.nan)  # (n, M)
        twins = [None if t is None else tokenizer.decode([int(i) for i in t]) for t in part.corrupted]
        tables.append(
            pd.DataFrame(
                {
                    "half": name,
                    "text": list(part.texts),
                    "variant": list(part.variant),
                    "n_tokens": part.lengths,
                    "answer": [_words(tokenizer, ids) for ids in part.answers],
                    "foil": [_words(tokenizer, ids) for ids in part.foils],
                    "corrupted": pd.Series(twins, dtype=object),
                    **{metric: values[:, i] for i, metric in enumerate(METRICS)},
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def subset(n: int, most: int, seed: int) -> list[int]:
    """A seeded subset of `n` prompts, at most `most`, ascending."""
    if n <= most:
        return list(range(n))
    return sorted(int(i) for i in np.random.default_rng([seed, n, most]).permutation(n)[:most])


def _words(tokenizer: Any, ids: Any) -> str:
    """Token ids as text, at most a few of them."""
    shown = [tokenizer.decode([int(i)]) for i in list(ids)[:SHOWN]]
    return " | ".join(shown) + (f" | ... ({len(ids)})" if len(ids) > SHOWN else "")
