import json

import numpy as np
import pytest
from small_tokenizers import PlainTokenizer, byte_bpe, word_level

from causegrid.errors import InputError
from causegrid.tasks import task

PROMPT, TWIN = (["The", "capital", "of", c, "is"] for c in ("France", "Italy"))
WORDS = [*PROMPT, "Italy", "Paris", "Rome", "Lyon", "now", "it", "as", "John", "gave", "Mary", "to", ",", "."]
GOOD = {"prompt": "The capital of France is", "answer": "Paris"}
FULL = {
    **GOOD,
    "foil": ["Rome", "Lyon"],
    "positions": {"country": "France", "verb": "is"},
    "corrupted": "The capital of Italy is",
    "variant": "europe",
}


@pytest.fixture(scope="module")
def bpe():
    return byte_bpe(WORDS, starts=["The", "John", "Paris"], bos=True)


def write(tmp_path, *lines):
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines))
    return str(file)


@pytest.mark.parametrize("bos", ["none", "model"])
@pytest.mark.parametrize("kind", ["bpe", "words", "python"])
def test_a_full_line(tmp_path, bos, kind, bpe):
    tokenizer = {"bpe": bpe, "words": word_level(WORDS, bos=True), "python": PlainTokenizer(WORDS)}[kind]
    made = task("prompts", file=write(tmp_path, FULL, b"", {**GOOD, "prompt": "Paris is"}))
    assert made.targets == ("country", "verb")
    got = made.prompts(tokenizer, 10, bos=bos)
    n = got.n_bos
    assert n == (bos == "model")
    assert [tokenizer.decode([t]).strip() for t in got.tokens[0][n:]] == PROMPT
    assert [tokenizer.decode([t]).strip() for t in got.corrupted[0][n:]] == TWIN
    assert [tokenizer.decode([t]).strip() for t in got.answers[0]] == ["Paris"]
    assert [tokenizer.decode([t]).strip() for t in got.foils[0]] == ["Rome", "Lyon"]
    assert got.positions["country"].tolist() == [3 + n, -1] and got.positions["verb"].tolist() == [4 + n, -1]
    assert got.corrupted[1] is None and got.foils[1].size == 0 and list(got.variant) == ["europe", "prompt"]
    assert got.info["lines"] == [1, 3] and len(got.info["sha256"]) == 64


def test_the_space_rule(tmp_path, bpe):
    lines = [
        {"prompt": "France is", "answer": "Paris"},
        {"prompt": "Italy is", "answer": " Paris"},
        {"prompt": "Rome is ", "answer": "Paris"},
    ]
    got = task("prompts", file=write(tmp_path, *lines)).prompts(bpe, 3)
    spaced, bare = bpe(" Paris", add_special_tokens=False), bpe("Paris", add_special_tokens=False)
    assert [a.tolist() for a in got.answers] == [spaced["input_ids"]] * 2 + [bare["input_ids"]]
    assert spaced["input_ids"] != bare["input_ids"]
    assert bpe.decode(got.tokens[2]) == "Rome is "


def test_positions_are_the_last_token_of_the_first_occurrence(tmp_path, bpe):
    line = {
        "prompt": "Mary, it is John, John gave it to",
        "answer": "Mary",
        "positions": {"S1": "John", "S2": ", John", "phrase": " gave it "},
    }
    made = task("prompts", file=write(tmp_path, line)).prompts(bpe, 1)
    words = [bpe.decode([t]).strip() for t in made.tokens[0]]
    johns = [i for i, w in enumerate(words) if w == "John"]
    assert [made.positions["S1"][0], made.positions["S2"][0]] == johns
    assert words[made.positions["phrase"][0]] == "it" and made.positions["phrase"][0] == len(words) - 2
    (note,) = made.info["repeated"]
    assert ":1:" in note and "occurs 2 times" in note


@pytest.mark.parametrize(
    "bad, words",
    [
        (b"{", ("not JSON",)),
        (b"[" * 100_000, ("not JSON",)),
        (b'["a"]', ("list", "not an object")),
        (b"3", ("int", "not an object")),
        (b'{"prompt": "\xff"}', ("not UTF-8", "byte 13")),
        ({"prompt": "a"}, ("'answer' is missing",)),
        ({"answer": "a"}, ("'prompt' is missing",)),
        ({**GOOD, "answr": "a"}, ("answr", "did you mean 'answer'")),
        ({**GOOD, "prompt": "  "}, ("'prompt' is empty",)),
        ({**GOOD, "prompt": 3}, ("'prompt' must be a string",)),
        ({**GOOD, "answer": 3}, ("'answer' must be a string",)),
        ({**GOOD, "answer": []}, ("empty list",)),
        ({**GOOD, "answer": ""}, ("'answer' is empty",)),
        ({**GOOD, "foil": [""]}, ("'foil' is empty",)),
        ({**GOOD, "foil": {"a": 1}}, ("'foil' must be a string",)),
        ({**GOOD, "positions": ["France"]}, ("'positions' must be an object",)),
        ({**GOOD, "positions": {"x": "Spain"}}, ("'x'", "'Spain' is not in the prompt")),
        ({**GOOD, "positions": {"x": " "}}, ("is not in the prompt",)),
        ({**GOOD, "corrupted": 1}, ("'corrupted' must be a string",)),
        ({**GOOD, "corrupted": GOOD["prompt"]}, ("'corrupted' is the prompt itself",)),
        ({**GOOD, "positions": 0}, ("'positions' must be an object",)),
        ({**GOOD, "positions": {"": "France"}}, ("a position needs a name",)),
        ({**GOOD, "variant": 0}, ("'variant' must be a string",)),
        (b'{"prompt": "a b", "answer": "c", "prompt": "d"}', (":2: the key 'prompt' stands twice",)),
        (b'{"prompt": "a \\ud800", "answer": "b"}', ("half a surrogate",)),
    ],
)
def test_errors_name_file_and_line(tmp_path, bad, words):
    file = write(tmp_path, FULL, bad)
    with pytest.raises(InputError) as caught:
        task("prompts", file=file)
    message = str(caught.value)
    assert message.startswith(f"{file}:2: ") and all(w in message for w in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    "bad, words",
    [
        ({**GOOD, "answer": "Constantinople"}, ("' Constantinople' is", "tokens", "unusable='drop'")),
        ({**GOOD, "foil": ["Rome", "Byzantium"]}, ("foil ' Byzantium'",)),
        ({**GOOD, "foil": "Paris"}, ("share the token",)),
        ({**GOOD, "corrupted": "The capital of Italy is now"}, ("corrupted has 6 tokens, the prompt 5",)),
        ({**GOOD, "prompt": "<s> The capital is"}, ("BOS",)),
    ],
)
def test_errors_that_need_the_tokenizer(tmp_path, bad, words, bpe):
    bad = {**bad, "prompt": bad["prompt"].replace("France", "Italy")}
    file = write(tmp_path, FULL, bad)
    with pytest.raises(InputError) as caught:
        task("prompts", file=file).prompts(bpe, 5)
    message = str(caught.value)
    assert message.startswith(f"{file}:2: ") and all(w in message for w in words), message
    kept = task("prompts", file=file, unusable="drop").prompts(bpe, 5)
    assert len(kept) == 1 and len(kept.dropped) == 1 and kept.dropped[0].startswith(f"{file}:2: ")
    assert kept.info["lines"] == [1]
    with pytest.raises(InputError, match="no prompt of"):
        task("prompts", file=write(tmp_path, bad), unusable="drop").prompts(bpe, 5)


def test_unknown_answers_are_refused(tmp_path):
    with pytest.raises(InputError, match=":1: answer ' Oslo' is unknown"):
        task("prompts", file=write(tmp_path, {**GOOD, "answer": "Oslo"})).prompts(word_level(WORDS), 1)


def test_prompts_of_words_the_tokenizer_lacks_are_refused(tmp_path):
    """They would be the same unknown token, and texts that differ in them alone one and the same prompt."""
    bad = {**GOOD, "prompt": "The zebra of France is"}
    twin = {**GOOD, "corrupted": "The zebra of France is"}
    for line in (bad, twin):
        with pytest.raises(InputError, match=":1: this tokenizer does not have 'zebra'"):
            task("prompts", file=write(tmp_path, line)).prompts(word_level(WORDS), 1)
    kept = task("prompts", file=write(tmp_path, GOOD, bad), unusable="drop").prompts(word_level(WORDS), 2)
    assert len(kept) == 1 and "'zebra'" in kept.dropped[0]


def test_an_unknown_token_with_another_office_or_spelt_by_the_text_lacks_no_word(tmp_path, bpe):
    """GPT-2's unknown token is its end of text, which a prompt may hold; a text may spell `<unk>` itself."""
    words = word_level([*WORDS, "<unk>"])
    text = {**GOOD, "prompt": "The <unk> of France is"}
    assert len(task("prompts", file=write(tmp_path, text)).prompts(words, 1)) == 1
    gpt2 = word_level(WORDS)
    gpt2.eos_token = gpt2.unk_token
    bad = {**GOOD, "prompt": "The zebra of France is"}
    assert len(task("prompts", file=write(tmp_path, bad)).prompts(gpt2, 1)) == 1


def test_unreadable_and_empty_files(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the prompts file .*gone\.jsonl.*No such file"):
        task("prompts", file=str(tmp_path / "gone.jsonl"))
    with pytest.raises(InputError, match="cannot read"):
        task("prompts", file=str(tmp_path))
    with pytest.raises(InputError, match="cannot read"):
        task("prompts:a\0b")
    with pytest.raises(InputError, match="is empty"):
        task("prompts", file=write(tmp_path, b"", b"  "))
    with pytest.raises(InputError, match="did you mean 'drop'"):
        task("prompts", file=write(tmp_path, GOOD), unusable="dropp")


def test_bom_crlf_and_duplicates(tmp_path, bpe):
    first, second = json.dumps(GOOD).encode(), json.dumps({**GOOD, "foil": "Rome"}).encode()
    file = write(tmp_path, b"\xef\xbb\xbf" + first + b"\r", second)
    made = task("prompts", file=file).prompts(bpe, 5)
    assert len(made) == 1 and made.dropped == [f"{file}:2: the same prompt as line 1"]


def test_a_seeded_choice_in_file_order(tmp_path, bpe):
    lines = [{"prompt": f"{i} is", "answer": "Paris"} for i in range(30)]
    made = task("prompts", file=write(tmp_path, *lines))
    one, again, other = (made.prompts(bpe, 10, seed=s).info["lines"] for s in (1, 1, 2))
    assert one == again == sorted(one) and len(set(one)) == 10 and one != other
    assert made.prompts(bpe, 99).info["lines"] == list(range(1, 31))
    assert np.array_equal(
        made.prompts(bpe, 10, seed=1).tokens[0],
        bpe(f"{one[0] - 1} is", add_special_tokens=False)["input_ids"],
    )
