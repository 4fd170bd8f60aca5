"""From a text prompt to token ids: BOS policy, answer ids, named positions.

BOS: texts are encoded without special tokens and one BOS is put in front only under the policy `model`, and
only if the tokenizer adds one itself.  So there are 0 or 1 BOS as asked, never two, and never an EOS behind:
the last token is always the prompt's own.

Answers: the ids that *continue* the prompt, found by encoding prompt + answer and removing the prompt's ids;
where the prompt's own ids change under that (it ends in the middle of a token), the answer is encoded alone.

Positions: a named span of characters is found among the tokens through the tokenizer's offsets, or, for
tokenizers without offsets, by searching which tokens the text up to the span's end consists of.  Nothing is
an offset counted by hand, so a BOS or a longer word moves every position as it should.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from causegrid.errors import InputError, unknown
from causegrid.tasks.base import Ints, PromptSet

BOS_POLICIES = ("none", "model")
SHOWN = 3  # of things left out, in a message
_CARRIER = "and"  # a word in front, so that words are seen as they are inside a sentence
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One prompt before a tokenizer has seen it.

    `answers`, `foils`: continuations with the space they need; `spans`: position name -> characters
    [start, end) of `text`; `whole`: every span must be exactly one token (else its last token is taken).
    """

    text: str
    answers: Sequence[str]
    foils: Sequence[str] = ()
    spans: Mapping[str, Span] = field(default_factory=dict)
    variant: str = ""
    corrupted: str | None = None
    whole: bool = True


def fill(template: str, words: Mapping[str, str]) -> tuple[str, dict[str, list[Span]]]:
    """A `{field}` template with its words in -> (text, field -> spans of its occurrences, in order)."""
    text = ""
    spans: dict[str, list[Span]] = {}
    for literal, name, _, _ in string.Formatter().parse(template):
        text += literal
        if name is not None:
            spans.setdefault(name, []).append((len(text), len(text) + len(words[name])))
            text += words[name]
    return text, spans


class Encoder:
    """A tokenizer under a BOS policy.  Attributes `n_bos` (0 or 1) and `prefix` (the BOS ids)."""

    def __init__(self, tokenizer: Any, bos: str = "none") -> None:
        if tokenizer is None:
            raise InputError("this model has no tokenizer: prompt tasks need a language model with one")
        if bos not in BOS_POLICIES:
            raise unknown("BOS policy", bos, BOS_POLICIES)
        self.tokenizer = tokenizer
        self.bos = bos
        self.fast = bool(getattr(tokenizer, "is_fast", False))
        self._bos_id = getattr(tokenizer, "bos_token_id", None)
        self._eos_id = getattr(tokenizer, "eos_token_id", None)
        self._seen: dict[str, tuple[list[int], list[Span] | None]] = {}
        self.prefix: list[int] = []
        if bos == "model" and self._bos_id is not None:
            with_special = list(tokenizer(_CARRIER, add_special_tokens=True)["input_ids"])
            if with_special[:1] == [self._bos_id]:
                self.prefix = [int(self._bos_id)]

    @property
    def n_bos(self) -> int:
        """How many BOS tokens stand in front of every prompt."""
        return len(self.prefix)

    def read(self, texts: Iterable[str]) -> None:
        """Encode texts in one batch; `ids` and `place` of these are look-ups afterwards."""
        new = [t for t in dict.fromkeys(texts) if t not in self._seen]
        if not new:
            return
        options: dict[str, Any] = {"return_offsets_mapping": True} if self.fast else {}
        out = self.tokenizer(new, add_special_tokens=False, padding=False, truncation=False, **options)
        offsets = out["offset_mapping"] if self.fast else [None] * len(new)
        for text, ids, spans in zip(new, out["input_ids"], offsets, strict=True):
            self._seen[text] = self._bare(text, list(ids), None if spans is None else list(spans))

    def _bare(
        self, text: str, ids: list[int], spans: list[Span] | None
    ) -> tuple[list[int], list[Span] | None]:
        """Without a BOS or EOS that the tokenizer put there although asked not to."""
        start, end = 0, len(ids)
        while start < end and ids[start] == self._bos_id and not self._begins(text, "bos_token"):
            start += 1
        ends = str(getattr(self.tokenizer, "eos_token", None) or "\0")
        while end > start and ids[end - 1] == self._eos_id and not text.rstrip().endswith(ends):
            end -= 1
        return ids[start:end], None if spans is None else spans[start:end]

    def _begins(self, text: str, token: str) -> bool:
        word = getattr(self.tokenizer, token, None)
        return bool(word) and text.lstrip().startswith(str(word))

    def names_bos(self, text: str) -> bool:
        """True when the text itself begins with the tokenizer's BOS token (the policy decides that)."""
        return self._begins(text, "bos_token")

    def ids(self, text: str) -> list[int]:
        """Token ids of the text alone, without special tokens."""
        self.read([text])
        return self._seen[text][0]

    def continuation(self, text: str, more: str) -> list[int]:
        """Ids of `more` where it continues `text`."""
        before, full = self.ids(text), self.ids(text + more)
        if full[: len(before)] == before and len(full) > len(before):
            return full[len(before) :]
        return self.ids(more)

    def is_unknown(self, token: int) -> bool:
        """True for the tokenizer's unknown token."""
        unk = getattr(self.tokenizer, "unk_token_id", None)
        return unk is not None and token == unk

    def lacks_words(self, text: str) -> bool:
        """Whether the tokenizer puts its unknown token in the place of words of this text.

        Never where that token has another office (GPT-2's is its end of text: bytes know every word), and not where
        the text itself spells it.
        """
        made = self.tokenizer
        offices = {getattr(made, f"{office}_token_id", None) for office in ("bos", "eos", "pad")}
        if getattr(made, "unk_token_id", None) in offices or str(made.unk_token) in text:
            return False
        return any(map(self.is_unknown, self.ids(text)))

    def unknown_words(self, text: str) -> list[str]:
        """The first few words of a text that are unknown by themselves."""
        words = dict.fromkeys(re.findall(r"\w+|[^\w\s]", text))
        return [w for w in words if any(map(self.is_unknown, self.ids(w)))][:SHOWN]

    def place(self, text: str, span: Span) -> Span | None:
        """First and last token (inclusive, BOS not counted) that hold the characters [start, end) of the
        text, or None when they cannot be told apart from their neighbours."""
        start, end = span
        self.read([text])
        ids, offsets = self._seen[text]
        if offsets is not None:
            held = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
            return (held[0], held[-1]) if held else None
        until, before = self.ids(text[:end]), self.ids(text[:start].rstrip()) if text[:start].strip() else []
        if ids[: len(until)] != until or until[: len(before)] != before or len(until) <= len(before):
            return None
        return len(before), len(until) - 1


def single_words(
    encoder: Encoder, words: Sequence[str], kind: str, *, at_start: bool = False
) -> tuple[list[str], list[str]]:
    """Words that are one known token each, all different -> (kept, lost with the reason).

    Checked after a space, inside a sentence; with `at_start` also as the first word of a text.
    """
    encoder.read([*words, _CARRIER, *(f"{_CARRIER} {w}" for w in words)])
    kept: list[str] = []
    lost: list[str] = []
    owner: dict[tuple[bool, int], str] = {}
    for word in dict.fromkeys(words):
        forms = [(False, encoder.continuation(_CARRIER, " " + word))]
        if at_start:
            forms.append((True, encoder.ids(word)))
        reason = ""
        for first, ids in forms:
            where = " at the start of a text" if first else ""
            if len(ids) != 1:
                reason = f"{len(ids)} tokens{where}"
            elif encoder.is_unknown(ids[0]):
                reason = f"unknown to the tokenizer{where}"
            elif owner.get((first, ids[0]), word) != word:
                reason = f"same token as {owner[first, ids[0]]}{where}"
            if reason:
                break
        if reason:
            lost.append(f"{kind} {word}: {reason}")
        else:
            kept.append(word)
            owner.update({(first, ids[0]): word for first, ids in forms})
    return kept, lost


def in_short(lost: Sequence[str]) -> str:
    """Things left out in a few words: all of them when few, else how many and the first three."""
    if len(lost) <= SHOWN:
        return "; ".join(lost) or "none"
    return f"{len(lost)}, the first {SHOWN}: {'; '.join(lost[:SHOWN])}"


def require_words(task: str, option: str, kept: Sequence[str], lost: Sequence[str], least: int) -> None:
    """Raise InputError when fewer than `least` words are left, naming the first lost ones and the mend."""
    if len(kept) < least:
        raise InputError(
            f"task {task!r} needs at least {least} {option} that are single tokens, this tokenizer leaves "
            f"{len(kept)}{' (' + ', '.join(kept) + ')' if kept else ''}; lost: {in_short(lost)}; "
            f"give your own words as {option}=[...] or take a model whose tokenizer has them"
        )


def prompt_set(
    task: str,
    encoder: Encoder,
    drafts: Sequence[Draft],
    *,
    refuse: Callable[[int, str], None],
    dropped: Sequence[str] = (),
    info: Mapping[str, Any] | None = None,
) -> PromptSet:
    """Tokenise drafts into a `PromptSet`.

    A draft that cannot be used (an answer of several tokens, a position that is no token of its own, a twin
    of another length, ...) is left out after `refuse(index, reason)`, which may raise instead.
    """
    encoder.read(t for d in drafts for t in (d.text, d.corrupted) if t is not None)
    encoder.read(d.text + c for d in drafts for c in (*d.answers, *d.foils))
    names = list(dict.fromkeys(name for d in drafts for name in d.spans))
    kept: list[Draft] = []
    found: list[tuple[list[int], list[int], dict[str, int]]] = []
    for i, draft in enumerate(drafts):
        made = _encode(encoder, draft)
        if isinstance(made, str):
            refuse(i, made)
        else:
            kept.append(draft)
            found.append(made)
    shift = encoder.n_bos
    return PromptSet(
        task=task,
        texts=[d.text for d in kept],
        tokens=[_array(encoder.prefix + encoder.ids(d.text)) for d in kept],
        answers=[_array(answers) for answers, _, _ in found],
        foils=[_array(foils) for _, foils, _ in found],
        positions={
            name: _array([at[name] + shift if name in at else -1 for _, _, at in found]) for name in names
        },
        variant=[d.variant for d in kept],
        corrupted=[
            None if d.corrupted is None else _array(encoder.prefix + encoder.ids(d.corrupted)) for d in kept
        ],
        dropped=list(dropped),
        bos=encoder.bos,
        n_bos=shift,
        info=dict(info or {}),
    )


def _array(ids: Sequence[int]) -> Ints:
    return np.array(ids, dtype=np.int64)


def _encode(encoder: Encoder, draft: Draft) -> tuple[list[int], list[int], dict[str, int]] | str:
    """(answer ids, foil ids, position name -> token without BOS), or why the draft cannot be used."""
    ids = encoder.ids(draft.text)
    if not ids:
        return "the prompt has no tokens"
    if encoder.names_bos(draft.text):
        return "the prompt begins with the tokenizer's BOS token: leave it out, the BOS policy decides that"
    for text in (draft.text, *([] if draft.corrupted is None else [draft.corrupted])):
        if encoder.lacks_words(text):
            said = ", ".join(map(repr, encoder.unknown_words(text)))
            return f"this tokenizer does not have {said or 'all words of the prompt'}"
    sides: list[list[int]] = []
    for side, continuations in (("answer", draft.answers), ("foil", draft.foils)):
        side_ids: list[int] = []
        for more in continuations:
            answer = encoder.continuation(draft.text, more)
            if len(answer) != 1:
                return f"{side} {more!r} is {len(answer)} tokens in this tokenizer, it must be one"
            if encoder.is_unknown(answer[0]):
                return f"{side} {more!r} is unknown to this tokenizer"
            side_ids.append(answer[0])
        sides.append(list(dict.fromkeys(side_ids)))
    both = set(sides[0]) & set(sides[1])
    if both:
        return f"answer and foil share the token {encoder.tokenizer.decode([min(both)])!r}"
    at: dict[str, int] = {}
    for name, span in draft.spans.items():
        word = draft.text[slice(*span)]
        held = encoder.place(draft.text, span)
        if held is None:
            return f"position {name!r} ({word!r}) cannot be found among the tokens"
        if draft.whole and held[0] != held[1]:
            return f"position {name!r} ({word!r}) is {held[1] - held[0] + 1} tokens"
        at[name] = held[1]
    if draft.corrupted is not None:
        other = len(encoder.ids(draft.corrupted))
        if other != len(ids):
            return f"corrupted has {other} tokens, the prompt {len(ids)}: they must be of equal length"
    return sides[0], sides[1], at
