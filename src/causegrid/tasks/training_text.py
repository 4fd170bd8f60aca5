"""Text that teaches a small language model the four prompt tasks, from the tasks' own templates and words.

Every word is trained on, combinations are not: three quarters of all prompts are held out by a hash of their
text (`held_out`), whatever the seed, and no line of training text contains one of them.  The tasks `held-out-ioi`
and so on draw from those alone (`tasks.held_out`).

A line is a text with the spans that can be told from what stands before them (`answers`): training weighs those,
the other words are drawn at random.  Design choices, each for one thing a model else does not learn:
- `binding`: several questions a line; first facts one at a time, and person and city side by side (`ease` goes from
  1 to 0): a model that is asked two facts from the start stays at chance between their cities.
- `repeated`: words that come twice in the same order, which is what induction heads are for.
- `successor`: runs go up and down, so the last item alone does not give the next one.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from causegrid.tasks.greater_than import CENTURIES
from causegrid.tasks.greater_than import TEMPLATES as YEARS
from causegrid.tasks.ioi import TEMPLATES as GIFTS
from causegrid.tasks.successor import KINDS, ROUND, SHOWN
from causegrid.tasks.tokens import Span, fill
from causegrid.tasks.variable_binding import TEMPLATE as FACTS
from causegrid.tasks.words import CITIES, EVENTS, NAMES, OBJECTS, PLACES

HELD = 3, 4  # so many of so many prompts are held out
LINK, SHORT = " lives in ", (" ", " in ")  # between a person and the city
LONGEST_RUN, MOST_FACTS, LONGEST_REPEAT = 8, 3, 8
REPEATABLE = (*NAMES, *CITIES, *OBJECTS, *PLACES)
SHARES = {"binding": 0.45, "ioi": 0.18, "greater-than": 0.12, "successor": 0.1, "repeated": 0.15}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of training text; `answers` are the character spans of words that follow from the ones before."""

    kind: str
    text: str
    answers: tuple[Span, ...]


def held_out(text: str) -> bool:
    """Whether the prompt of this text is never part of training text: a function of the text alone."""
    return hashlib.blake2b(text.strip().encode(), digest_size=1).digest()[0] % HELD[1] < HELD[0]


def vocabulary() -> list[str]:
    """Every word and number of the four tasks and of training text, as it stands after a space, in a fixed order."""
    words = [*NAMES, *PLACES, *OBJECTS, *CITIES, *EVENTS, *(item for kind in KINDS.values() for item in kind)]
    words += [str(century) for century in CENTURIES]
    for template in (*GIFTS, *YEARS, FACTS):
        plain, _ = fill(template, _Blank())
        words += plain.replace(",", " ").replace(".", " ").split()
    return list(dict.fromkeys(words))


def digest() -> str:
    """16 digits that change when the text does: it belongs to the identity of what was trained on it."""
    rng = random.Random(0)
    shown = "\n".join(line(rng, ease=i / 500).text for i in range(500))
    return hashlib.sha256(shown.encode()).hexdigest()[:16]


def line(rng: random.Random, *, ease: float = 0.0, kind: str | None = None) -> Line:
    """A line of this kind, of a kind drawn by `SHARES` when None; `ease` 1 gives the easiest bindings, 0 all."""
    if kind is None:
        kind = rng.choices(list(SHARES), weights=list(SHARES.values()))[0]
    return _KINDS[kind](rng, ease)


def _ioi(rng: random.Random, _: float) -> Line:
    while True:
        io, subject = rng.sample(NAMES, 2)
        first, second = (io, subject) if rng.random() < 0.5 else (subject, io)
        form = GIFTS[0] if rng.random() < 0.5 else rng.choice(GIFTS)
        things = {"place": rng.choice(PLACES), "object": rng.choice(OBJECTS)}
        text, spans = fill(form, {**things, "A": first, "B": second, "S": subject})
        if not held_out(text):
            return Line(kind="ioi", text=f"{text} {io}.", answers=(spans["S"][0], _after(text, f" {io}")))


def _greater_than(rng: random.Random, ease: float) -> Line:
    while True:
        form = YEARS[0] if rng.random() < 0.5 else rng.choice(YEARS)
        century = str(rng.choice(CENTURIES))
        start = rng.randrange(99)
        noun = rng.choice(EVENTS)
        text, _ = fill(form, {"noun": noun, "C": century, "D": f"{start:02d}"})
        if not held_out(text):
            end = f"{rng.randrange(start + 1, 100):02d}"
            answers = ((len(text) - len(century), len(text)), _after(text, end))
            return Line(kind="greater-than", text=f"{text}{end}.", answers=answers)


def _successor(rng: random.Random, _: float) -> Line:
    """A run up or down; one that would hold a held-out prompt is cut before the prompt is whole."""
    kind = rng.choices(list(KINDS), weights=[len(items) ** 0.5 for items in KINDS.values()])[0]
    items = KINDS[kind]
    n = rng.randint(3, min(LONGEST_RUN, len(items)))
    up = rng.random() < 0.6
    start = rng.randrange(len(items) if kind in ROUND else len(items) - n + 1)
    run = [items[(start + i) % len(items)] for i in range(n)][:: 1 if up else -1]
    for i in range(n - SHOWN + 1):
        if up and held_out(" ".join(run[i : i + SHOWN])):
            run = run[: i + SHOWN - 1]
            break
    return _known_from(" ".join(run), run, 2, "successor")


def _binding(rng: random.Random, ease: float) -> Line:
    """Facts, then questions about them, each once more a sentence of its own; questions are independent, else the
    ones before would give the next away."""
    n_facts = 1 if rng.random() < ease / 2 else rng.randint(2, MOST_FACTS)
    order = [*range(n_facts), *rng.choices(range(n_facts), k=rng.randint(1, 3))]
    while True:  # over the words alone: leaving out orders would teach that the last city is the answer
        people, cities = rng.sample(NAMES, n_facts), rng.sample(CITIES, n_facts)
        if not _asks_held_out(order, people, cities):
            break
    link = rng.choice(SHORT) if rng.random() < 0.1 + ease / 2 else LINK
    text, answers = "", []
    for place, i in enumerate(order):
        text += f"{' ' if text else ''}{people[i]}{link}{cities[i]}."
        if place >= n_facts:
            answers.append((len(text) - 1 - len(cities[i]), len(text) - 1))
    return Line(kind="binding", text=text, answers=tuple(answers))


def _asks_held_out(order: Sequence[int], people: Sequence[str], cities: Sequence[str]) -> bool:
    """Whether three sentences in a row begin with a held-out prompt."""
    for a, b, q in zip(order, order[1:], order[2:], strict=False):
        first, second = f"{people[a]}{LINK}{cities[a]}.", f"{people[b]}{LINK}{cities[b]}."
        if a != b and q in (a, b) and held_out(f"{first} {second} {people[q]}{LINK}"):
            return True
    return False


def _repeated(rng: random.Random, _: float) -> Line:
    words = rng.sample(REPEATABLE, rng.randint(2, LONGEST_REPEAT))
    return _known_from(" ".join(words * 2), words * 2, len(words) + 1, "repeated")


_KINDS: dict[str, Callable[[random.Random, float], Line]] = {
    "binding": _binding,
    "ioi": _ioi,
    "greater-than": _greater_than,
    "successor": _successor,
    "repeated": _repeated,
}


def _after(text: str, more: str) -> Span:
    """Where the word `more` stands once it follows `text`."""
    return len(text) + len(more) - len(more.strip()), len(text) + len(more)


def _known_from(text: str, words: Sequence[str], known: int, kind: str) -> Line:
    """A line of words in which all from number `known` on are answers."""
    ends = [end - 1 for end in itertools.accumulate(len(w) + 1 for w in words)]
    spans = [(end - len(w), end) for w, end in zip(words, ends, strict=True)]
    return Line(kind=kind, text=text, answers=tuple(spans[known:]))


class _Blank(dict[str, str]):
    """Every field of a template is nothing."""

    def __missing__(self, key: str) -> str:
        return ""
