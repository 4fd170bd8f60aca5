"""How often a pattern-selectivity cell runs its model, stage by stage: never more than this, from its config alone.

Counted is one row of token ids through the embedding: a prompt, a sequence of the synthetic batch or a window of
ordinary text, also where the run starts high in the model or ends where conditions part.  Early stopping, prefix
reuse and equal conditions make most of it cheaper; a cell that is killed and goes on in another process repeats its
clean pass.

How many prompts a task has, in which halves and of how many lengths, is asked of the task with a tokenizer of whole
words: tokenizers split words, they do not join them.  Prompts of one's own may each have another length.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from torch import nn

from causegrid.errors import InputError
from causegrid.evidence import draws_needed
from causegrid.interventions.sweep import CHUNK, FULL_BATCH, KEPT_RESIDUALS
from causegrid.interventions.text import CONTROL_TEXTS, WINDOW
from causegrid.models.record import Model
from causegrid.signatures.screens.base import TaskScreen, screens
from causegrid.studies.pattern.head_groups import PATTERN_SEQUENCES
from causegrid.studies.pattern.matched_null import FIRST_CHUNK
from causegrid.studies.pattern.prompt_sets import REFERENCE, prompt_parts
from causegrid.studies.pattern.routing import N_DRAWS
from causegrid.studies.placement import device
from causegrid.tasks import task
from causegrid.tasks.prompts import FilePrompts

if TYPE_CHECKING:
    from causegrid.studies.pattern_selectivity import PatternCell

TOKENS = 20  # of a prompt, about
BATCH = 64  # prompts of one forward
ALONE = 4  # of each batch, run one by one for the noise floor
CHECKS = 3  # rows that loading and the fingerprint run
_WORD = re.compile(r"\d{1,2}|\w+|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Prompts of a cell; `lengths` (tokens, at least) of the measured ones, `alike` when those of equal length
    share batches."""

    chosen: int
    measured: int
    reference: int
    lengths: tuple[int, ...]
    alike: bool = True

    @property
    def batches(self) -> list[tuple[int, int]]:
        """(prompts, tokens of each) of every batch."""
        if not self.alike:
            return [(1, length) for length in self.lengths]
        found = []
        for length in sorted(set(self.lengths)):
            count = self.lengths.count(length)
            found += [(min(BATCH, count - s), length) for s in range(0, count, BATCH)]
        return found


def passes(cell: PatternCell, config: Any | None) -> tuple[dict[str, int], str]:
    """(what for -> rows, at most; what stands behind their sum where a part is not known).

    `config`: the model's own, None where it is not at hand.
    """
    size = sizes(cell)
    measured, small = size.measured, min(cell.matched_null.n_prompts, size.measured)
    m, layers, heads, experts = len(cell.groups), None, 0, 0
    if config is not None:
        layers = int(config.num_hidden_layers)
        heads = layers * int(getattr(config, "num_attention_heads", 0) or 0)
        experts = layers * min(cell.experts, n_experts(config))
    wanted, conditions = n_draws(cell), n_conditions(cell)
    kinds = [screens.get(name) for name in cell.groups]
    tops = [s.top if isinstance(s, TaskScreen) else None for s in kinds]  # a class takes every head beyond it
    in_groups = heads if None in tops else sum(t for t in tops if t is not None)
    singles = heads if cell.singles == "all" else min(in_groups, heads) if heads else in_groups
    read = functools.partial(_read, cell.modes, size.reference, layers)
    again, again_null = _computed_anew(cell, size, config, conditions, singles, wanted)
    found = {
        "clean": CHECKS + measured + _noise_floor(size),
        "signatures": cell.generic.n + PATTERN_SEQUENCES * (None in tops) + 2 * size.chosen,
        "groups": _tree(conditions) * len(cell.modes) * measured + read(measured, m + 1) + again,
        "single heads": singles * measured,
        "ordinary text": _text(cell, conditions - m, config),
        "null draws": m * _tree(wanted) * small
        + _read(cell.modes[:1], size.reference, layers, small, m)
        + again_null,
    }
    if experts:
        found["routing"] = measured + small + m * (1 + N_DRAWS) * len(cell.modes) * small + read(small, m)
        found["experts"] = (2 + experts) * small
    if cell.checkpoints:
        found["checkpoints"] = len(cell.checkpoints) * (size.chosen + CHECKS)
    unknown = ""
    if config is None:
        of_heads = f" and {measured:,} for each head" if cell.singles == "all" or None in tops else ""
        unknown = f"{of_heads}, more if it is a mixture of experts"
    return {what: n for what, n in found.items() if n}, unknown


def n_conditions(cell: PatternCell) -> int:
    """What is ablated besides single heads and draws: each group alone, its layers, kept only, picked again; unions,
    and all groups."""
    return 4 * len(cell.groups) + len(cell.unions) + 1


def n_draws(cell: PatternCell) -> int:
    """Draws of one group's null."""
    null = cell.matched_null
    return draws_needed(max(1, len(cell.groups)), per_group=null.per_group, least=null.n)


def n_experts(config: Any) -> int:
    """Experts of a layer that a config states, 0 for a dense model."""
    return int(getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0) or 0)


def sizes(cell: PatternCell) -> Sizes:
    """How many prompts a cell has in each of its parts, at most, and how long they are at least."""
    return _sizes(cell.task, cell.n_prompts, cell.rules, cell.modes, cell.digests.get("task", ""))


@functools.cache
def _sizes(name: str, n: int, rules: str, modes: tuple[str, ...], _digest: str) -> Sizes:
    made = task(name)
    words = Model(name="words", family="", module=nn.Identity(), n_layers=0, d_model=0, n_tokens=0, n_out=0)
    words.tokenizer = _Words()
    alike = not isinstance(made, FilePrompts)
    try:
        parts = prompt_parts(words, made, n=n, seed=0, bos="none", rules=rules, modes=modes)
    except (InputError, AttributeError, TypeError, KeyError):  # it wants a tokenizer of another kind
        half = n // 2 if rules == "strict" else n
        beside = n - half if rules == "strict" else min(n, REFERENCE) if set(modes) - {"zero"} else 0
        chosen = n - half if rules == "strict" else n
        return Sizes(chosen=chosen, measured=half, reference=beside, lengths=(TOKENS,) * half, alike=False)
    return Sizes(
        chosen=len(parts.chosen),
        measured=len(parts.measured),
        reference=0 if parts.reference is None else len(parts.reference),
        lengths=tuple(int(x) for x in parts.measured.lengths),
        alike=alike,
    )


class _Words:
    """A tokenizer of whole words, pairs of digits and marks."""

    is_fast, bos_token_id, eos_token_id, unk_token_id = True, None, None, None

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list[Any]]:
        found = [list(_WORD.finditer(text)) for text in texts]
        return {
            "input_ids": [
                [self._ids.setdefault(w.group(), len(self._ids)) for w in words] for words in found
            ],
            "offset_mapping": [[w.span() for w in words] for words in found],
        }

    def decode(self, ids: Sequence[int]) -> str:
        """The words of these ids."""
        return " ".join(list(self._ids)[i] for i in ids)


def _tree(conditions: int) -> int:
    """Runs of so many conditions: each one's own, and at most one fewer up to where others part."""
    return max(0, 2 * conditions - 1)


def _noise_floor(size: Sizes) -> int:
    """Half batches, some prompts one by one, and the stacked layout of each batch."""
    full = FULL_BATCH["cpu" if device() == "cpu" else "cuda"]
    rows = 0
    for count, length in size.batches:
        stack = full // (count * length)
        rows += count + min(count, ALONE) + count * (stack if stack > 1 else 2)
    return rows


def _read(modes: Sequence[str], reference: int, layers: int | None, prompts: int, conditions: int) -> int:
    """Rows that are read for means, or in place of other prompts: once for each condition with a new layer."""
    times = conditions if layers is None else min(layers, conditions)
    return times * sum({"zero": 0, "mean": reference}.get(mode, prompts) for mode in modes)


def _text(cell: PatternCell, conditions: int, config: Any | None) -> int:
    """Windows of ordinary text, without and with each condition; a token is a character at least."""
    limit = getattr(config, "max_position_embeddings", None) or WINDOW
    windows = len(" ".join(CONTROL_TEXTS)) // min(WINDOW, limit)
    return windows * (1 + conditions) * sum(mode != "resample" for mode in cell.modes)


def _computed_anew(
    cell: PatternCell, size: Sizes, config: Any | None, conditions: int, singles: int, wanted: int
) -> tuple[int, int]:
    """Rows of the clean pass run again for the effects and for the null, where not all its residuals are kept."""
    if config is None:
        return 0, 0
    from causegrid.models.pretrained import as_dtype

    longest = max(TOKENS, *size.lengths) if size.lengths else TOKENS
    each = (
        longest
        * int(config.hidden_size)
        * as_dtype(cell.dtype).itemsize
        * (int(config.num_hidden_layers) - 1)
    )
    if each * size.measured <= KEPT_RESIDUALS:
        return 0, 0
    beyond = min(size.measured, size.measured - KEPT_RESIDUALS // each + BATCH)
    times = len(cell.modes) * ceil(conditions / CHUNK) + ceil(singles / CHUNK)
    chunks = ceil(log2(wanted / FIRST_CHUNK + 1)) + wanted // CHUNK
    small = min(cell.matched_null.n_prompts, size.measured)
    return times * beyond, len(cell.groups) * chunks * small
