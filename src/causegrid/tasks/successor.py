"""Successor (MEASURES 1.4): "Monday Tuesday Wednesday Thursday Friday" -> " Saturday".

Five consecutive items of one kind: days and months (which go round), ordinals, numbers in digits and in words.
The foil is the item before the last (*ours*), so that a margin exists.  The corrupted twin is another run of
the same kind, whose answer is neither.  Five tokens without BOS.

Every item must be a single token, the first one as it stands at the start of a text, the others after a space;
a kind keeps the runs of which that is true.  Tokenizers that split digits have no numbers in digits: those come
in words alone.  Kinds take turns, so a sample is as even over them as their runs allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from causegrid.errors import InputError, unknown
from causegrid.tasks.base import PromptSet, PromptTask, tasks
from causegrid.tasks.drafting import assemble, check_count, interleave
from causegrid.tasks.splits import stream
from causegrid.tasks.tokens import Draft, Encoder, in_short, single_words

KINDS: dict[str, tuple[str, ...]] = {
    "days": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "months": ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
               "November", "December"),
    "ordinals": ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
                 "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth"),
    "digits": tuple(str(i) for i in range(1, 100)),
    "words": ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
              "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
}  # fmt: skip
ROUND = ("days", "months")  # the last item is followed by the first
SHOWN = 5  # items of a prompt


class Successor(PromptTask):
    """What comes next?  Positions `self` (the last item) and `previous` (the one before it)."""

    targets = ("self", "previous")
    note = "successor: the item after five consecutive ones"

    def __init__(self, name: str, *, kinds: Sequence[str]) -> None:
        given = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in given:
            if kind not in KINDS:
                raise unknown(f"kind of sequence for task {name!r}:", kind, tuple(KINDS))
        if not given:
            raise InputError(f"task {name!r}: kinds is empty; allowed are {', '.join(KINDS)}")
        self.name = name
        self.kinds = tuple(dict.fromkeys(given))

    def prompts(self, tokenizer: Any, n: int, *, seed: int = 0, bos: str = "none") -> PromptSet:
        """Up to `n` distinct prompts, a function of (tokenizer, seed); the variant is the kind.

        All runs there are when fewer than `n` exist (118 or so).  Raises InputError when no kind keeps two
        runs, counting the items that are not single tokens by kind.
        """
        check_count(self.name, n)
        encoder = Encoder(tokenizer, bos)
        rng = stream(seed, 103)
        drafts: list[list[Draft]] = []
        dropped: list[str] = []
        counts: list[str] = []  # of lost items, by kind
        for kind in self.kinds:
            kept, lost = single_words(encoder, KINDS[kind], f"item of {kind}")
            first, not_first = single_words(encoder, kept, f"first item of {kind}", at_start=True)
            dropped += [*lost, *not_first]
            counts.append(f"{len(lost) + len(not_first)} of {len(KINDS[kind])} {kind}")
            found = runs(kind, set(kept), set(first))
            order = rng.permutation(len(found))
            drafts.append([_draft(kind, found[i], _twin(found, found[i], rng)) for i in order])
        if sum(map(len, drafts)) < 2:
            raise InputError(
                f"task {self.name!r} needs runs of six items that are single tokens, this tokenizer leaves none; "
                f"lost: {', '.join(counts)}: {in_short(dropped)}; take a model whose tokenizer has them"
            )
        return assemble(self.name, encoder, interleave(drafts)[:n], dropped)


def runs(kind: str, usable: set[str], first: set[str]) -> list[tuple[str, ...]]:
    """The runs of five items and the next one in which every item is usable, the first one as a first."""
    items = KINDS[kind]
    last = len(items) if kind in ROUND else len(items) - SHOWN
    every = [tuple(items[(start + j) % len(items)] for j in range(SHOWN + 1)) for start in range(last)]
    return [run for run in every if run[0] in first and usable.issuperset(run)]


def _twin(every: Sequence[tuple[str, ...]], run: tuple[str, ...], rng: np.random.Generator) -> str | None:
    """Another run whose next item is neither this one's answer nor its foil, or None where there is none."""
    others = [r for r in every if r[SHOWN] not in (run[SHOWN], run[SHOWN - 2])]
    return " ".join(others[int(rng.integers(len(others)))][:SHOWN]) if others else None


def _draft(kind: str, run: tuple[str, ...], twin: str | None) -> Draft:
    text = " ".join(run[:SHOWN])
    own = len(text) - len(run[SHOWN - 1])
    before = own - 1 - len(run[SHOWN - 2])
    return Draft(
        text=text,
        answers=[" " + run[SHOWN]],
        foils=[" " + run[SHOWN - 2]],
        spans={"self": (own, len(text)), "previous": (before, own - 1)},
        variant=kind,
        corrupted=twin,
    )


@tasks.register("successor")
def successor(name: str, *, kinds: Sequence[str] = tuple(KINDS)) -> PromptTask:
    """The next day, month, ordinal or number after five consecutive ones."""
    return Successor(name, kinds=kinds)
