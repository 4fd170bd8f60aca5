"""Greater-than (MEASURES 1.4; Hanna et al., arXiv 2305.00586, for the task).

"The war lasted from the year 1732 to the year 17" -> a year's last two digits above 32; the foils are those up
to 32.  The corrupted twin starts in the earliest year of that century that is two tokens too (CC01 as a rule), so
that nearly every answer is right.  12 tokens without BOS.

Years must fall into a century and two last digits as tokens of their own; those that do not are left out and
counted.  A tokenizer that splits every digit has no such token: there the prompt is the same and the tens digit
is asked for ("17" -> a tens digit above 3; foils are those below, the start's own is neither), the twin starts
in CC0D.  Which of the two forms was used is in `info["digits"]` ("pairs" or "single").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from causegrid.errors import InputError
from causegrid.tasks.base import PromptSet, PromptTask, tasks
from causegrid.tasks.drafting import assemble, check_count, distinct
from causegrid.tasks.splits import stream
from causegrid.tasks.tokens import Draft, Encoder, fill, require_words, single_words
from causegrid.tasks.words import EVENTS

TEMPLATES: tuple[str, ...] = (
    "The {noun} lasted from the year {C}{D} to the year {C}",
    "The {noun} went on from the year {C}{D} until the year {C}",
    "The {noun} that began in the year {C}{D} ended in the year {C}",
)
CENTURIES: tuple[int, ...] = tuple(range(11, 20))
PAIRS, SINGLE = "pairs", "single"


class GreaterThan(PromptTask):
    """Which year can it have lasted to?  Position `DD`: the start year's last two digits (its tens digit)."""

    targets = ("DD",)
    note = "greater-than: an end year above the start year"

    def __init__(self, name: str, *, templates: int, nouns: Sequence[str], centuries: Sequence[int]) -> None:
        if (
            isinstance(templates, bool)
            or not isinstance(templates, int)
            or not 1 <= templates <= len(TEMPLATES)
        ):
            raise InputError(f"task {name!r}: templates must be 1..{len(TEMPLATES)}, not {templates!r}")
        bad = [c for c in centuries if isinstance(c, bool) or not isinstance(c, int) or not 10 <= c <= 99]
        if bad or not centuries:
            raise InputError(
                f"task {name!r}: centuries must be numbers 10..99, not {bad[0] if bad else centuries!r}"
            )
        self.name = name
        self.templates = TEMPLATES[:templates]
        self.nouns = nouns
        self.centuries = tuple(dict.fromkeys(centuries))

    def prompts(self, tokenizer: Any, n: int, *, seed: int = 0, bos: str = "none") -> PromptSet:
        """Up to `n` distinct prompts, a function of (tokenizer, seed); the variant is the century (`CC=17`).

        Raises InputError when no noun is a single token, or years fall into neither two pairs of digits nor
        single digits.
        """
        check_count(self.name, n)
        encoder = Encoder(tokenizer, bos)
        nouns, dropped = single_words(encoder, self.nouns, "noun")
        require_words(self.name, "nouns", nouns, dropped, 1)
        form, years, lost = self._years(encoder)
        earliest = {c: min(d for century, d in years if century == c) for c, _ in years}
        years = [(c, d) for c, d in years if d > 1]
        rows = distinct(stream(seed, 102), (len(nouns), len(years), len(self.templates)), n)
        drafts = [
            _draft(nouns[i], years[j], earliest[years[j][0]], self.templates[k], form)
            for i, j, k in rows.tolist()
        ]
        made = assemble(self.name, encoder, drafts, [*dropped, *lost])
        return replace(made, info={**made.info, "digits": form})

    def _years(self, encoder: Encoder) -> tuple[str, list[tuple[int, int]], list[str]]:
        """(form, usable (century, last two digits), years left out).  InputError when there are none."""
        every = [(c, d) for c in self.centuries for d in range(1, 99)]
        texts = {year: f"in the year {year[0]}{year[1]:02d}" for year in every}
        encoder.read(texts.values())
        parts = {year: _parts(encoder, text) for year, text in texts.items()}
        for form, shape in ((PAIRS, [2, 2]), (SINGLE, [1, 1, 1, 1])):
            years = [y for y in every if parts[y] == shape]
            if form == SINGLE:
                years = [(c, d) for c, d in years if 1 <= d // 10 <= 8]
            if len(years) >= 2:
                lost = Counter(c for c, d in every if parts[c, d] != shape)
                notes = [
                    f"century {c}: {k} of 98 years are not {form} of digits" for c, k in sorted(lost.items())
                ]
                return form, years, notes
        shown = " | ".join(encoder.tokenizer.decode([i]) for i in encoder.ids(texts[every[0]]))
        raise InputError(
            f"task {self.name!r} needs years of two two-digit tokens or four single digits; this tokenizer reads "
            f"{texts[every[0]]!r} as {shown}: take a model whose tokenizer has them"
        )


def _parts(encoder: Encoder, text: str) -> list[int] | None:
    """How many digits each token of the year at the end of `text` holds; None when that cannot be told.

    Asked of every cut: a token ends after k digits exactly when the text up to there is the same ids.
    """
    cuts = []
    for k in range(4):
        spot = encoder.place(text, (len(text) - 4 + k, len(text) - 3 + k))
        if spot is None or spot[0] != spot[1]:
            return None
        cuts.append(spot[0])
    return list(Counter(cuts).values())


def _draft(noun: str, year: tuple[int, int], earliest: int, template: str, form: str) -> Draft:
    century, last = year
    start = f"{last:02d}"
    text, spans = fill(template, {"noun": noun, "C": str(century), "D": start})
    first, end = spans["D"][0]
    if form == PAIRS:
        answers = [f"{d:02d}" for d in range(last + 1, 100)]
        foils = [f"{d:02d}" for d in range(last + 1)]
        twin = f"{earliest:02d}" if earliest < last else None
    else:
        tens = last // 10
        answers, foils = [str(d) for d in range(tens + 1, 10)], [str(d) for d in range(tens)]
        twin, end = f"0{last % 10}", first + 1
    words = {"noun": noun, "C": str(century)}
    corrupted = None if twin is None else fill(template, {**words, "D": twin})[0]
    return Draft(
        text=text,
        answers=answers,
        foils=foils,
        spans={"DD": (first, end)},
        variant=f"CC={century}",
        corrupted=corrupted,
    )


@tasks.register("greater-than")
def greater_than(
    name: str,
    *,
    templates: int = 1,
    nouns: Sequence[str] = EVENTS,
    centuries: Sequence[int] = CENTURIES,
) -> PromptTask:
    """An end year above the start year: which last digits can follow?"""
    return GreaterThan(name, templates=templates, nouns=nouns, centuries=centuries)
