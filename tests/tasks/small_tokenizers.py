"""Small real tokenizers of the kinds in use, built in a moment: byte-level BPE, WordLevel, Metaspace BPE, and
a plain Python one without offsets."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

BOS, EOS, UNK, PAD = "<s>", "</s>", "<unk>", "<pad>"
SPECIAL = [PAD, BOS, EOS, UNK]


def _wrap(core: Tokenizer, bos: bool, eos: bool, unk: bool) -> PreTrainedTokenizerFast:
    single = (f"{BOS} " if bos else "") + "$A" + (f" {EOS}" if eos else "")
    core.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(t, core.token_to_id(t)) for t in (BOS, EOS)]
    )
    named = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    if unk:
        named["unk_token"] = UNK
    return PreTrainedTokenizerFast(tokenizer_object=core, **named)


def byte_bpe(
    words: Iterable[str], *, starts: Iterable[str] = (), bos: bool = False, eos: bool = False
) -> PreTrainedTokenizerFast:
    """GPT-2 style: `words` are single tokens after a space, `starts` at the start of a text, all else falls
    apart into characters."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=20_000,
        min_frequency=1,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([" " + w for w in words] + list(starts), trainer)
    return _wrap(core, bos, eos, unk=False)


def word_level(words: Iterable[str], *, bos: bool = False, eos: bool = False) -> PreTrainedTokenizerFast:
    """One token a word or punctuation mark; other words are unknown."""
    vocabulary = {w: i for i, w in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return _wrap(core, bos, eos, unk=True)


def metaspace_bpe(words: Iterable[str], *, bos: bool = True) -> PreTrainedTokenizerFast:
    """Llama-2 style: a space mark in front of every word, also of the first."""
    core = Tokenizer(models.BPE(unk_token=UNK))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=20_000, min_frequency=1, special_tokens=SPECIAL, show_progress=False
    )
    core.train_from_iterator([" ".join(words), ". , 0 1 2"], trainer)
    return _wrap(core, bos, False, unk=True)


class PlainTokenizer(PreTrainedTokenizer):
    """Words and punctuation split in Python: no offsets.  Adds a BOS and an EOS, as asked or not at all."""

    def __init__(self, words: Iterable[str], **options: object) -> None:
        self._ids = {w: i for i, w in enumerate(dict.fromkeys([*SPECIAL, *words]))}
        self._words = list(self._ids)
        super().__init__(bos_token=BOS, eos_token=EOS, unk_token=UNK, pad_token=PAD, **options)

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return text.replace(".", " . ").replace(",", " , ").split()

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids.get(token, self._ids[UNK])

    def _convert_id_to_token(self, index: int) -> str:
        return self._words[index]

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        return [self._ids[BOS], *token_ids_0, self._ids[EOS]]
