"""Your own prompts from a JSONL file, one object a line (MEASURES 1.4).

    {"prompt": "The capital of France is", "answer": "Paris", "foil": ["Rome", "London"],
     "positions": {"country": "France"}, "corrupted": "The capital of Italy is", "variant": "europe"}

`prompt` and `answer` are required.  `answer` and `foil` are a string or a list, each one token.
Space rule: an answer that begins with a space, or a prompt that ends with one, is taken as it is written;
else one space is put between them.
A position is the *last token* of its text's first occurrence in the prompt: lengthen the text (", John") to
name a later occurrence.  `corrupted` is a twin with as many tokens.  `variant` names a kind of prompt;
halves of a set hold all variants evenly.

The file is read and checked when the task is made; what depends on the tokenizer is checked with it.  Every
error names file and line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from causegrid.errors import InputError, unknown
from causegrid.tasks.base import PromptSet, PromptTask, tasks
from causegrid.tasks.drafting import check_count
from causegrid.tasks.splits import stream
from causegrid.tasks.tokens import Draft, Encoder, Span, in_short, prompt_set

KEYS = ("prompt", "answer", "foil", "positions", "corrupted", "variant")
UNUSABLE = ("error", "drop")


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """A checked file: `drafts[i]` stands on line `lines[i]`.

    `dropped`: lines left out; `repeated`: positions whose text occurs more than once."""

    file: str
    sha256: str
    drafts: tuple[Draft, ...]
    lines: tuple[int, ...]
    dropped: tuple[str, ...]
    repeated: tuple[str, ...]


def read_prompts(file: str | Path) -> PromptFile:
    """Read and check a JSONL file.  Raises InputError naming file and line."""
    if not str(file):
        raise InputError('task \'prompts\' needs a file, as in cg.task("prompts", file="mine.jsonl")')
    try:
        raw = Path(file).expanduser().read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the prompts file {str(file)!r}: {reason}") from None
    drafts: list[Draft] = []
    lines: list[int] = []
    dropped: list[str] = []
    repeated: list[str] = []
    first: dict[str, int] = {}
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        draft = _draft(where, _object(where, line), repeated)
        if draft.text in first:
            dropped.append(f"{where}: the same prompt as line {first[draft.text]}")
            continue
        first[draft.text] = number
        drafts.append(draft)
        lines.append(number)
    if not drafts:
        raise InputError(
            f'the prompts file {str(file)!r} is empty: one {{"prompt": ..., "answer": ...}} a line is needed'
        )
    return PromptFile(
        file=str(file),
        sha256=hashlib.sha256(raw).hexdigest(),
        drafts=tuple(drafts),
        lines=tuple(lines),
        dropped=tuple(dropped),
        repeated=tuple(repeated),
    )


def _object(where: str, line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start + 1} of the line): {error.reason}") from None
    try:
        made = json.loads(text, object_pairs_hook=_each_once)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{where}: not JSON ({reason}): one object a line is needed") from None
    if not isinstance(made, dict):
        raise InputError(f"{where}: a JSON {type(made).__name__}, not an object with {', '.join(KEYS)}")
    for key in made:
        if key not in KEYS:
            raise InputError(f"{where}: {unknown('key', key, KEYS)}")
    for key in ("prompt", "answer"):
        if key not in made:
            raise InputError(f"{where}: {key!r} is missing; the keys are {', '.join(KEYS)}")
    return made


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [key for key, _ in pairs]
        raise InputError(f"the key {next(k for k in names if names.count(k) > 1)!r} stands twice")
    return made


def _draft(where: str, made: Mapping[str, Any], repeated: list[str]) -> Draft:
    prompt = _text(where, "prompt", made["prompt"])
    if not prompt.strip():
        raise InputError(f"{where}: 'prompt' is empty")
    corrupted = made.get("corrupted")
    positions = {} if made.get("positions") is None else made["positions"]
    if not isinstance(positions, dict):
        raise InputError(f"{where}: 'positions' must be an object (name -> text), not {positions!r}")
    if "" in positions:
        raise InputError(f"{where}: a position needs a name, to stand before {positions['']!r}")
    if corrupted == prompt:
        raise InputError(f"{where}: 'corrupted' is the prompt itself, not a twin of it")
    answers = _continuations(where, "answer", made["answer"], prompt)
    if not answers:
        raise InputError(f"{where}: 'answer' is an empty list")
    foil = made.get("foil")
    return Draft(
        text=prompt,
        answers=answers,
        foils=[] if foil is None else _continuations(where, "foil", foil, prompt),
        spans={n: _span(where, n, _text(where, n, t), prompt, repeated) for n, t in positions.items()},
        variant=_text(where, "variant", "prompt" if made.get("variant") is None else made["variant"]),
        corrupted=None if corrupted is None else _text(where, "corrupted", corrupted),
        whole=False,
    )


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: {key!r} must be a string, not {value!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{where}: {key!r} holds half a surrogate pair, which is no text") from None
    return value


def _continuations(where: str, key: str, value: Any, prompt: str) -> list[str]:
    texts = [_text(where, key, v) for v in (value if isinstance(value, list) else [value])]
    for text in texts:
        if not text:
            raise InputError(f"{where}: {key!r} is empty")
    as_written = prompt[-1].isspace()
    return [t if as_written or t[0].isspace() else " " + t for t in dict.fromkeys(texts)]


def _span(where: str, name: str, text: str, prompt: str, repeated: list[str]) -> Span:
    bare = text.strip()
    if not bare or bare not in prompt:
        raise InputError(f"{where}: position {name!r}: {text!r} is not in the prompt {prompt!r}")
    count = prompt.count(bare)
    if count > 1:
        repeated.append(f"{where}: position {name!r}: {bare!r} occurs {count} times, the first is taken")
    start = prompt.index(bare)
    return start, start + len(bare)


class FilePrompts(PromptTask):
    """Prompts of a JSONL file; `targets` are all position names in it; `sha256` is the file's hash."""

    def __init__(self, file: str | Path, unusable: str = "error") -> None:
        if unusable not in UNUSABLE:
            raise unknown("value of 'unusable'", unusable, UNUSABLE)
        self.source = read_prompts(file)
        self.unusable = unusable
        self.name = f"prompts:{file}"
        self.sha256 = self.source.sha256
        self.targets = tuple(dict.fromkeys(n for d in self.source.drafts for n in d.spans))
        self.note = f"{len(self.source.drafts)} prompts from {file}"

    def prompts(self, tokenizer: Any, n: int, *, seed: int = 0, bos: str = "none") -> PromptSet:
        """All prompts in file order, or a seeded choice of `n` of them.

        Raises InputError naming file and line for a prompt this tokenizer cannot use (an answer of several
        tokens, a twin of another length); with `unusable="drop"` such prompts are left out and listed.
        """
        check_count(self.name, n)
        source = self.source
        dropped = list(source.dropped)
        usable = [True] * len(source.drafts)

        def refuse(index: int, reason: str) -> None:
            message = f"{source.file}:{source.lines[index]}: {reason}"
            if self.unusable == "error":
                raise InputError(
                    f"{message}; mend it, or in Python task('prompts', file=..., unusable='drop') leaves them out"
                )
            dropped.append(message)
            usable[index] = False

        info = {"file": source.file, "sha256": source.sha256, "repeated": list(source.repeated)}
        every = prompt_set(self.name, Encoder(tokenizer, bos), source.drafts, refuse=refuse, info=info)
        if not len(every):
            raise InputError(f"no prompt of {source.file} fits this tokenizer: {in_short(dropped)}")
        lines = np.array(source.lines)[usable]
        pick = np.arange(len(every))
        if n < len(every):
            pick = np.sort(stream(seed, 102).choice(len(every), size=n, replace=False))
        return replace(
            every.subset(pick), dropped=dropped, info={**info, "lines": [int(x) for x in lines[pick]]}
        )


@tasks.register("prompts")
def prompts(name: str, *, file: str | Path, unusable: str = "error") -> PromptTask:
    """Your own prompts: a JSONL file with prompt, answer and foil (also written prompts:FILE.jsonl)."""
    return FilePrompts(file, unusable)
