"""Training text of the zoo: what it must teach, and what it must never hold.  The oracles read the text alone."""

from __future__ import annotations

import hashlib
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causegrid.errors import InputError
from causegrid.models.zoo import tokenizer_of
from causegrid.tasks import task
from causegrid.tasks.successor import KINDS
from causegrid.tasks.training_text import SHARES, held_out, line, vocabulary

HELD = [f"held-out-{name}" for name in ("ioi", "greater-than", "successor", "variable-binding")]
TOKENIZER = tokenizer_of(vocabulary())
PROMPTS = [
    r"When \w+ and \w+ went to the \w+, \w+ gave a \w+ to",
    r"The \w+ lasted from the year \d{4} to the year \d\d",
    r"\w+ lives in \w+\. \w+ lives in \w+\. \w+ lives in",
]


FACT = re.compile(r"(\w+)(?: lives in| in)? (\w+)\.")


def prompts_in(text: str) -> list[str]:
    """Every prompt of the four tasks that stands anywhere in a text."""
    found = [m.group(1) for p in PROMPTS for m in re.finditer(rf"(?=\b({p}))", text)]
    words = text.split()
    for items in KINDS.values():
        circle = [*items, *items] if items[0] in ("Monday", "January") else items
        runs = {" ".join(circle[i : i + 5]) for i in range(len(circle) - 4)}
        found += [w for i in range(len(words) - 4) if (w := " ".join(words[i : i + 5])) in runs]
    return found


def trained(text: str) -> bool:
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 4 == 3


def asks_both(prompt: str) -> bool:
    """Of a binding prompt: whether it asks for one of two people."""
    names = prompt.split()[0::4] if "lives" in prompt else []
    return not names or (names[0] != names[1] and names[2] in names[:2])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), ease=st.sampled_from([0.0, 0.7]))
def test_no_line_holds_a_held_out_prompt(seed: int, ease: float) -> None:
    rng = random.Random(seed)
    for kind in SHARES:
        for _ in range(20):
            text = line(rng, ease=ease, kind=kind).text
            assert all(trained(p) for p in prompts_in(text) if asks_both(p)), text


def test_lines_hold_prompts_that_are_not_held_out() -> None:
    rng = random.Random(0)
    for kind in ("ioi", "greater-than", "successor", "binding"):
        assert any(prompts_in(line(rng, kind=kind).text) for _ in range(300)), kind


@pytest.mark.parametrize("name", HELD)
def test_drawn_prompts_never_stand_in_training_text(name: str) -> None:
    rng = random.Random(3)
    text = "\n".join(line(rng).text for _ in range(4000))
    for seed in (0, 1):
        drawn = task(name).prompts(TOKENIZER, 100, seed=seed)
        assert not [t for t in drawn.texts if t in text]
        assert len(set(drawn.texts)) == len(drawn) == 100


@pytest.mark.parametrize("name", HELD)
def test_the_tasks_lose_no_word_on_the_zoos_tokenizer(name: str) -> None:
    whole = task(name.removeprefix("held-out-")).prompts(TOKENIZER, 40)
    held = task(name).prompts(TOKENIZER, 40)
    assert not whole.dropped and not held.dropped
    assert held.task == name and set(held.positions) == set(task(name).targets)
    assert set(held.texts) >= {t for t in whole.texts if held_out(t)} or len(held) == 40
    assert all(held_out(t) for t in held.texts)
    for i, text in enumerate(held.texts):
        assert TOKENIZER.decode(held.tokens[i]) == text


def test_every_word_is_trained_on() -> None:
    rng = random.Random(0)
    seen: set[str] = set()
    for kind in SHARES:
        for _ in range(4000 if kind == "successor" else 1500):
            seen.update(TOKENIZER.convert_ids_to_tokens(TOKENIZER(line(rng, kind=kind).text)["input_ids"]))
    wanted = {f"▁{word}" for word in vocabulary()} | {f"{year:02d}" for year in range(100)}
    assert wanted <= seen
    assert TOKENIZER.unk_token not in seen


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_answers_follow_from_what_stands_before(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        made = line(rng, kind="binding")
        home = dict(FACT.findall(made.text))
        for start, end in made.answers:
            name = made.text[:start].split(". ")[-1].split()[0]
            assert home[name] == made.text[start:end]
            assert (name, home[name]) in FACT.findall(made.text[:start])
        made = line(rng, kind="ioi")
        start, end = made.answers[-1]
        giver = made.text[slice(*made.answers[0])]
        before = re.findall(r"\w+", made.text[:start])
        assert before.count(giver) == 2 and before.count(made.text[start:end]) == 1
        made = line(rng, kind="greater-than")
        start, end = made.answers[-1]
        assert int(made.text[start:end]) > int(re.findall(r"\d{4}", made.text)[0][2:])
        made = line(rng, kind="successor")
        words = made.text.split()
        items = next(k for k in KINDS.values() if words[0] in k)
        steps = {(items.index(b) - items.index(a)) % len(items) for a, b in pairwise(words)}
        assert steps in ({1}, {len(items) - 1})
        assert [made.text[a:b] for a, b in made.answers] == words[2:]
        made = line(rng, kind="repeated")
        words = made.text.split()
        assert words[: len(words) // 2] == words[len(words) // 2 :]
        assert [made.text[a:b] for a, b in made.answers] == words[len(words) // 2 + 1 :]


def test_ease_gives_one_fact_at_a_time() -> None:
    rng = random.Random(0)

    def facts(ease: float) -> list[int]:
        return [len(dict(FACT.findall(line(rng, ease=ease, kind="binding").text))) for _ in range(200)]

    assert 60 < facts(1.0).count(1) < 140
    assert set(facts(0.0)) == {2, 3}


def test_options_reach_the_task_and_unknown_ones_are_refused() -> None:
    assert set(task("held-out-successor:kinds=days").prompts(TOKENIZER, 9).variant) == {"days"}
    with pytest.raises(InputError, match="option"):
        task("held-out-ioi:nouns=3")
    with pytest.raises(InputError, match="unknown task"):
        task("held-out-iio")
