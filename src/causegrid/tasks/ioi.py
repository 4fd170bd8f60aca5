"""Indirect object identification (MEASURES 1.4; Wang et al., arXiv 2211.00593, for the task).

"When Mary and John went to the store, John gave a drink to" -> " Mary" (indirect object IO), foil " John"
(subject S).  Variants alternate: ABBA names IO first, BABA names S first.  The corrupted twin replaces the
second S by a third name (pattern ABC): equal length, and the answer is no longer determined.
All words are single tokens, so all prompts of one template have one length (14 tokens without BOS for the
first, the paper's).
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from causegrid.errors import InputError
from causegrid.tasks.base import PromptSet, PromptTask, tasks
from causegrid.tasks.drafting import assemble, check_count, distinct, interleave, others
from causegrid.tasks.splits import stream
from causegrid.tasks.tokens import Draft, Encoder, fill, require_words, single_words
from causegrid.tasks.words import NAMES, OBJECTS, PLACES

TEMPLATES: tuple[str, ...] = (
    "When {A} and {B} went to the {place}, {S} gave a {object} to",
    "After {A} and {B} left the {place}, {S} handed a {object} to",
    "While {A} and {B} were at the {place}, {S} showed a {object} to",
    "Then {A} and {B} met at the {place}, and {S} passed a {object} to",
)
_FIELDS = {"A", "B", "S", "place", "object"}


class IOI(PromptTask):
    """Who is given the object?  Positions `IO`, `S1`, `S2`."""

    targets = ("IO", "S1", "S2")
    note = "indirect object identification: the name that was not repeated"

    def __init__(
        self,
        name: str,
        *,
        templates: int | Sequence[str] = 1,
        names: Sequence[str] = NAMES,
        places: Sequence[str] = PLACES,
        objects: Sequence[str] = OBJECTS,
    ) -> None:
        self.name = name
        self.templates = _templates(name, templates)
        self.words = {"names": names, "places": places, "objects": objects}

    def prompts(self, tokenizer: Any, n: int, *, seed: int = 0, bos: str = "none") -> PromptSet:
        """Up to `n` distinct prompts, a function of (tokenizer, seed).

        Raises InputError when fewer than 4 names, 1 place or 1 object are single tokens.
        """
        check_count(self.name, n)
        encoder = Encoder(tokenizer, bos)
        kept: dict[str, list[str]] = {}
        dropped: list[str] = []
        for option, least in (("names", 4), ("places", 1), ("objects", 1)):
            kept[option], lost = single_words(encoder, self.words[option], option[:-1])
            require_words(self.name, option, kept[option], lost, least)
            dropped += lost
        names, places, objects = kept["names"], kept["places"], kept["objects"]
        sizes = (len(names), len(names) - 1, len(places), len(objects), len(self.templates))
        rng = stream(seed, 100)
        drafts: list[list[Draft]] = []
        for variant, count in (("ABBA", (n + 1) // 2), ("BABA", n // 2)):
            rows = distinct(rng, sizes, count)
            thirds = rng.integers(0, len(names) - 2, size=len(rows))
            drafts.append(
                [
                    _draft(
                        variant,
                        [names[i] for i in others((io, s, third))],
                        {"place": places[place], "object": objects[thing]},
                        self.templates[form],
                    )
                    for (io, s, place, thing, form), third in zip(rows, thirds, strict=True)
                ]
            )
        return assemble(self.name, encoder, interleave(drafts), dropped)


def _draft(variant: str, people: Sequence[str], things: Mapping[str, str], template: str) -> Draft:
    io, subject, third = people
    first, second = (io, subject) if variant == "ABBA" else (subject, io)
    words = {**things, "A": first, "B": second, "S": subject}
    text, spans = fill(template, words)
    twin, _ = fill(template, {**words, "S": third})
    a, b = ("A", "B") if variant == "ABBA" else ("B", "A")
    return Draft(
        text=text,
        answers=[" " + io],
        foils=[" " + subject],
        spans={"IO": spans[a][0], "S1": spans[b][0], "S2": spans["S"][0]},
        variant=variant,
        corrupted=twin,
    )


def _templates(task: str, given: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, int):
        if not 1 <= given <= len(TEMPLATES):
            raise InputError(f"task {task!r}: templates must be 1..{len(TEMPLATES)} or a list, not {given}")
        return TEMPLATES[:given]
    given = (given,) if isinstance(given, str) else tuple(given)
    for template in given:
        try:
            fields = [f for _, f, _, _ in string.Formatter().parse(template) if f is not None]
        except ValueError as error:
            raise InputError(f"task {task!r}: template {template!r} cannot be read: {error}") from None
        if sorted(fields) != sorted(_FIELDS):
            raise InputError(
                f"task {task!r}: {template!r} needs {{A}} {{B}} {{S}} {{place}} {{object}}, once each"
            )
    if not given:
        raise InputError(f"task {task!r}: templates is empty; give 1..{len(TEMPLATES)} or a list of texts")
    return given


@tasks.register("ioi")
def ioi(
    name: str,
    *,
    templates: int | Sequence[str] = 1,
    names: Sequence[str] = NAMES,
    places: Sequence[str] = PLACES,
    objects: Sequence[str] = OBJECTS,
) -> PromptTask:
    """Indirect object identification: the name that was not repeated."""
    return IOI(name, templates=templates, names=names, places=places, objects=objects)
