"""Greater-than and successor on small tokenizers.  Oracle: the text itself, read with `re` and `calendar`."""

from __future__ import annotations

import calendar
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from small_tokenizers import PlainTokenizer, byte_bpe, word_level

from causegrid.errors import InputError
from causegrid.tasks import task
from causegrid.tasks.successor import KINDS
from causegrid.tasks.words import EVENTS

YEAR = re.compile(r"The (\w+) lasted from the year (\d\d)(\d\d) to the year (\d\d)")
PAIRS = [f"{i:02d}" for i in range(100)]
GLUE = re.findall(r"\w+", "The lasted from the year to went on until that began in ended and")


class Pairs:
    """A Python tokenizer, offsets and all, that cuts years into pairs of digits (or, `size=1`, digits)."""

    is_fast = True
    bos_token_id = eos_token_id = unk_token_id = None
    bos_token = eos_token = None

    def __init__(self, size=2):
        words = [*GLUE, *EVENTS, *PAIRS, *"0123456789", *(w for k in KINDS.values() for w in k)]
        self.vocab = {w: i for i, w in enumerate(dict.fromkeys([*(" " + w for w in words), *words]))}
        self.cut = re.compile(r" ?[A-Za-z]+| ?\d{1,2}" if size == 2 else r" ?[A-Za-z]+|\d| ")
        self.vocab[" "] = len(self.vocab)

    def __call__(self, texts, **_):
        found = [[(m.group(), m.span()) for m in self.cut.finditer(t)] for t in texts]
        return {
            "input_ids": [[self.vocab.setdefault(w, len(self.vocab)) for w, _ in row] for row in found],
            "offset_mapping": [[s for _, s in row] for row in found],
        }

    def decode(self, ids):
        names = {i: w for w, i in self.vocab.items()}
        return "".join(names[int(i)] for i in ids)


def words(tokenizer, ids):
    return [tokenizer.decode([int(i)]).strip() for i in ids]


def test_years_of_pairs_of_digits():
    tokenizer = Pairs(2)
    made = task("greater-than").prompts(tokenizer, 300, seed=1)
    assert len(made) == len(set(made.texts)) == 300 and made.info["digits"] == "pairs"
    assert set(made.lengths.tolist()) == {12}
    for i, text in enumerate(made.texts):
        noun, century, last, again = YEAR.fullmatch(text).groups()
        assert noun in EVENTS and century == again and made.variant[i] == f"CC={century}"
        assert words(tokenizer, made.answers[i]) == [p for p in PAIRS if int(p) > int(last)]
        assert words(tokenizer, made.foils[i]) == [p for p in PAIRS if int(p) <= int(last)]
        at = int(made.positions["DD"][i])
        assert tokenizer.decode([made.tokens[i][at]]) == last and at == 7
        twin = tokenizer.decode(made.corrupted[i])
        assert twin == text.replace(century + last, century + "01", 1) and last != "01"
        assert len(made.corrupted[i]) == len(made.tokens[i])


def test_years_of_single_digits_ask_for_the_tens():
    tokenizer = Pairs(1)
    made = task("greater-than").prompts(tokenizer, 200, seed=2)
    assert len(made) == 200 and made.info["digits"] == "single"
    for i, text in enumerate(made.texts):
        _, century, last, _ = YEAR.fullmatch(text).groups()
        tens = int(last[0])
        assert words(tokenizer, made.answers[i]) == [str(d) for d in range(10) if d > tens]
        assert words(tokenizer, made.foils[i]) == [str(d) for d in range(10) if d < tens]
        assert made.foils[i].size and made.answers[i].size
        at = int(made.positions["DD"][i])
        before = tokenizer.decode(made.tokens[i][:at])
        assert before.endswith(century) and tokenizer.decode([made.tokens[i][at]]) == last[0]
        assert tokenizer.decode(made.corrupted[i]) == text.replace(century + last, f"{century}0{last[1]}", 1)


def test_templates_and_centuries_are_options():
    made = task("greater-than", templates=3, centuries=[17]).prompts(Pairs(), 60, seed=0)
    assert set(made.variant) == {"CC=17"} and len({re.sub(r"\d+", "", t).split()[2] for t in made.texts}) == 3
    for bad, word in (
        ({"templates": 4}, "1..3"),
        ({"centuries": [7]}, "10..99"),
        ({"centuries": []}, "10..99"),
    ):
        with pytest.raises(InputError, match=word):
            task("greater-than", **bad)


def test_a_tokenizer_with_years_in_one_piece_is_refused_with_what_it_makes_of_them():
    whole = [str(y) for y in range(1100, 2000)]
    tokenizer = word_level([*GLUE, *EVENTS, *whole])
    with pytest.raises(InputError, match=r"reads 'in the year 1102' as in | the | year | 1102"):
        task("greater-than").prompts(tokenizer, 10)


def test_some_years_in_one_piece_are_left_out_and_counted():
    tokenizer = byte_bpe([*GLUE, *EVENTS, "1732", *(str(c) for c in range(11, 20))], starts=[*PAIRS, "The"])
    made = task("greater-than", centuries=[17]).prompts(tokenizer, 1200, seed=0)
    assert not any("1732" in t for t in made.texts) and made.info["digits"] == "pairs"
    assert any(line.startswith("century 17:") for line in made.dropped)
    years = {YEAR.fullmatch(t).group(3) for t in made.texts}
    for text, twin in zip(made.texts, made.corrupted, strict=True):
        year = "" if twin is None else YEAR.fullmatch(tokenizer.decode(twin)).group(3)
        assert year <= min(years) and year != YEAR.fullmatch(text).group(3)


def following(kind, item):
    if kind == "days":
        return calendar.day_name[(list(calendar.day_name).index(item) + 1) % 7]
    if kind == "months":
        return calendar.month_name[list(calendar.month_name).index(item) % 12 + 1]
    if kind == "digits":
        return str(int(item) + 1)
    return KINDS[kind][KINDS[kind].index(item) + 1]


@pytest.mark.parametrize("make", [Pairs, lambda: PlainTokenizer(w for k in KINDS.values() for w in k)])
def test_successor_prompts_say_what_they_claim(make):
    tokenizer = make()
    made = task("successor").prompts(tokenizer, 500, seed=0)
    sizes = Counter(made.variant)
    assert sizes == {"days": 7, "months": 12, "ordinals": 10, "digits": 94, "words": 15}
    assert len(set(made.texts)) == len(made) and set(made.lengths.tolist()) == {5}
    for i, text in enumerate(made.texts):
        items, kind = text.split(), made.variant[i]
        assert all(following(kind, a) == b for a, b in pairwise(items))
        assert words(tokenizer, made.answers[i]) == [following(kind, items[-1])]
        assert words(tokenizer, made.foils[i]) == [items[-2]]
        assert (made.positions["self"][i], made.positions["previous"][i]) == (4, 3)
        twin = words(tokenizer, made.corrupted[i])
        assert following(kind, twin[-1]) not in (following(kind, items[-1]), items[-2])
        assert len(twin) == 5 and twin != items


def test_kinds_take_turns():
    made = task("successor").prompts(Pairs(), 30, seed=3)
    assert set(Counter(made.variant).values()) <= {6, 7} and list(made.variant[:5]) == list(KINDS)
    again = task("successor").prompts(Pairs(), 30, seed=3)
    assert again.texts == made.texts and task("successor").prompts(Pairs(), 30, seed=4).texts != made.texts


def test_items_of_several_tokens_cost_their_runs_and_are_listed():
    items = [w for kind in ("days", "months") for w in KINDS[kind]]
    tokenizer = byte_bpe([w for w in items if w != "Wednesday"], starts=[w for w in items if w != "May"])
    made = task("successor", kinds=("days", "months")).prompts(tokenizer, 100, seed=0)
    assert set(made.variant) == {"days", "months"} and len(made) == 1 + 11
    assert not any("Wednesday" in t for t in made.texts) and not any(t.startswith("May") for t in made.texts)
    assert any("Wednesday" in line for line in made.dropped) and any(
        "first item" in line for line in made.dropped
    )


def test_no_runs_and_unknown_kinds_are_refused():
    with pytest.raises(InputError, match="leaves none") as caught:
        task("successor").prompts(word_level(["Monday", "one"]), 10)
    said = str(caught.value)
    assert "6 of 7 days, 12 of 12 months, 15 of 15 ordinals, 99 of 99 digits, 19 of 20 words" in said
    assert "151, the first 3: item of days Tuesday: unknown" in said and len(said) < 500
    with pytest.raises(InputError, match="days"):
        task("successor", kinds=["day"])
    with pytest.raises(InputError, match="empty"):
        task("successor", kinds=[])


@pytest.mark.parametrize("name", ["greater-than", "successor"])
def test_positions_move_with_a_bos(name):
    vocabulary = [*GLUE, *EVENTS, *(w for kind in KINDS.values() for w in kind)]
    tokenizer = byte_bpe([*vocabulary, *PAIRS], starts=[*vocabulary, *PAIRS], bos=True)
    bare = task(name).prompts(tokenizer, 40, seed=0)
    with_bos = task(name).prompts(tokenizer, 40, seed=0, bos="model")
    assert with_bos.n_bos == 1 and bare.texts == with_bos.texts
    for key, index in bare.positions.items():
        assert np.array_equal(index + 1, with_bos.positions[key])
