"""Variable binding (MEASURES 1.4): "Mary lives in London. John lives in Paris. Mary lives in" -> " London".

Variants alternate: the query is the first or the second person (`Q=A`, `Q=B`).  The foil is the other city;
the corrupted twin swaps the two cities, so its answer is the foil.  13 tokens without BOS.
The first name begins the text, without a space in front: names must be single tokens in both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from causegrid.tasks.base import PromptSet, PromptTask, tasks
from causegrid.tasks.drafting import assemble, check_count, distinct, interleave, others
from causegrid.tasks.splits import stream
from causegrid.tasks.tokens import Draft, Encoder, fill, require_words, single_words
from causegrid.tasks.words import CITIES, NAMES

TEMPLATE = "{A} lives in {cA}. {B} lives in {cB}. {Q} lives in"


class VariableBinding(PromptTask):
    """Which city is bound to the person asked for?  Positions `binding`, `distractor`, `query_name`."""

    targets = ("binding", "distractor", "query_name")
    note = "variable binding: the city bound to the person asked for"

    def __init__(self, name: str, *, names: Sequence[str] = NAMES, cities: Sequence[str] = CITIES) -> None:
        self.name = name
        self.names = names
        self.cities = cities

    def prompts(self, tokenizer: Any, n: int, *, seed: int = 0, bos: str = "none") -> PromptSet:
        """Up to `n` distinct prompts, a function of (tokenizer, seed).

        Raises InputError when fewer than 2 names or cities are single tokens.
        """
        check_count(self.name, n)
        encoder = Encoder(tokenizer, bos)
        names, lost_names = single_words(encoder, self.names, "name", at_start=True)
        require_words(self.name, "names", names, lost_names, 2)
        cities, lost_cities = single_words(encoder, self.cities, "city")
        require_words(self.name, "cities", cities, lost_cities, 2)
        sizes = (len(names), len(names) - 1, len(cities), len(cities) - 1)
        rng = stream(seed, 101)
        drafts = [
            [
                _draft(variant, [names[i] for i in others((a, b))], [cities[i] for i in others((c, d))])
                for a, b, c, d in distinct(rng, sizes, count)
            ]
            for variant, count in (("Q=A", (n + 1) // 2), ("Q=B", n // 2))
        ]
        return assemble(self.name, encoder, interleave(drafts), lost_names + lost_cities)


def _draft(variant: str, people: Sequence[str], cities: Sequence[str]) -> Draft:
    asked = 0 if variant == "Q=A" else 1
    words = {"A": people[0], "B": people[1], "Q": people[asked], "cA": cities[0], "cB": cities[1]}
    text, spans = fill(TEMPLATE, words)
    twin, _ = fill(TEMPLATE, {**words, "cA": cities[1], "cB": cities[0]})
    bound, other = ("cA", "cB") if asked == 0 else ("cB", "cA")
    return Draft(
        text=text,
        answers=[" " + words[bound]],
        foils=[" " + words[other]],
        spans={"binding": spans[bound][0], "distractor": spans[other][0], "query_name": spans["Q"][0]},
        variant=variant,
        corrupted=twin,
    )


@tasks.register("variable-binding")
def variable_binding(
    name: str, *, names: Sequence[str] = NAMES, cities: Sequence[str] = CITIES
) -> PromptTask:
    """Who lives where: the city bound to the person asked for."""
    return VariableBinding(name, names=names, cities=cities)
