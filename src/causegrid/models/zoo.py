"""The tiny zoo: three classes the published studies used, small enough to train here in minutes.

`zoo-gpt-neox` (dense, parallel residual), `zoo-olmo` (dense) and `zoo-olmoe` (mixture of experts) are made from
their transformers config classes and trained by the study `zoo` (`causegrid zoo`) on text from the four prompt
tasks.  `zoo-olmo:seed=1` names one of them, looked up in the user cache, where the study leaves what it trained.

Design choices:
- 6 layers of 16 heads: a matched null needs heads to draw from.  Width 128 leaves heads of 8, so a participation
  ratio lies between 1 and 8.
- Rotary positions of base 100: with 4 frequencies a head, the usual 10000 leaves one that tells neighbours apart.
- One token a word, a space in front belonging to it; a text begins as if after a space, so a name is one token
  wherever it stands.  Years are two tokens, `▁17` and `32`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from causegrid.errors import InputError, one_line, unknown
from causegrid.models.bundled import cache_folder
from causegrid.models.pretrained import wrap
from causegrid.models.quiet import quiet
from causegrid.models.record import Model, models
from causegrid.models.saved import digest, load

SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<line>"}
SIZES: dict[str, Any] = dict(
    hidden_size=128,
    num_hidden_layers=6,
    num_attention_heads=16,
    max_position_embeddings=256,
    rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    initializer_range=0.05,
    use_cache=False,
    tie_word_embeddings=False,
)
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "zoo-gpt-neox": ("gpt_neox", dict(intermediate_size=256, rotary_pct=1.0)),
    "zoo-olmo": ("olmo", dict(intermediate_size=176)),
    "zoo-olmoe": (
        "olmoe",
        dict(intermediate_size=48, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True),
    ),
}


def tokenizer_of(words: Sequence[str]) -> Any:
    """A word-level tokenizer: one token for every word after a space, every pair of digits, `.` and `,`.

    Decoding gives the text back.  Words it does not know are one unknown token each.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast

    pairs = [f"{pair:02d}" for pair in range(100)]
    tokens = [*SPECIAL.values(), ".", ",", *(f"▁{word}" for word in words), *pairs]
    ids = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    core: Any = Tokenizer(WordLevel(ids, unk_token=SPECIAL["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
            pre_tokenizers.Split(Regex(r"▁?\d{1,2}|▁?\w+|[.,]"), behavior="isolated"),
        ]
    )
    core.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return fast(tokenizer_object=core, clean_up_tokenization_spaces=False, model_max_length=256, **SPECIAL)


def fresh(name: str, tokenizer: Any, *, seed: int = 0, **changes: Any) -> Model:
    """An untrained model of this class for this tokenizer, its weights drawn from `seed`; `changes` to the config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    require_class(name)
    kind, own = CLASSES[name]
    auto_config: Any = AutoConfig
    auto: Any = AutoModelForCausalLM
    ids = dict(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    config = auto_config.for_model(kind, **{**SIZES, **own, **ids, **changes})
    with torch.random.fork_rng(devices=[]), quiet():
        torch.default_generator.manual_seed(seed)
        module = auto.from_config(config, dtype=torch.float32)
    return wrap(module.eval(), name=name, tokenizer=tokenizer, source="untrained")


def require_class(name: str) -> None:
    """Raises InputError unless `name` is a class of the zoo."""
    if name not in CLASSES:
        raise unknown("model of the zoo", name, CLASSES)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A class of the zoo, registered under its name and called to load what `causegrid zoo` trained."""

    name: str
    note: str
    trainable: bool = False

    def __call__(
        self,
        name: str,
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> Model:
        """The model of `seed` (0 unless given) from the user cache.

        Raises InputError for other options, and with the command to run when it is not there.
        """
        folder = self.require(**options)
        made = load(folder, dtype=dtype, device=device)
        made.name, made.source = name, f"trained by causegrid zoo, seed {options.get('seed', 0)}"
        return made

    def require(self, **options: Any) -> Path:
        """The folder of the model of `seed`.  Raises InputError as a call does, without loading anything."""
        folder = self.folder(**options)
        if not (folder / "model.json").is_file():
            raise InputError(
                f"model {self.name!r} of seed {options.get('seed', 0)} has not been trained on this machine: "
                "run `causegrid zoo` first (it trains seeds 0 and 1; others: a study file of `study: zoo`)"
            )
        return folder

    def folder(self, **options: Any) -> Path:
        """Where the model of `seed` is kept, whether it is there or not."""
        for option in options:
            if option != "seed":
                raise unknown(f"option of model {self.name!r}", option, ("seed",))
        seed = options.get("seed", 0)
        if type(seed) is not int or seed < 0:
            raise InputError(f"model {self.name!r}: seed must be a whole number from 0, not {seed!r}")
        return cache_folder() / "zoo" / f"{self.name}-seed{seed}"

    def digest(self, **options: Any) -> str:
        """16 digits of the sha256 of the kept weights; "" when they are not there."""
        weights = self.folder(**options) / "model.safetensors"
        return digest(weights)[:16] if weights.is_file() else ""


def keep(source: Path, name: str, seed: int) -> Path:
    """Put the model saved in `source` where `NAME:seed=SEED` looks for it, by one rename; returns the folder.

    Raises InputError when the cache cannot be written.
    """
    target: Path = KEPT[name].folder(seed=seed)
    aside = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        (aside / "new").mkdir()
        for file in FILES:
            if (source / file).is_file():
                shutil.copyfile(source / file, aside / "new" / file)
        if target.exists():
            os.replace(target, aside / "old")
        os.replace(aside / "new", target)
    except OSError as error:
        raise InputError(
            f"model {name!r} could not be kept in {str(target.parent)!r}: {one_line(error)}; "
            "set CAUSEGRID_CACHE to a folder that can be written"
        ) from None
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    return target


FILES = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "model.json",
)
NOTES = {
    "zoo-gpt-neox": "GPT-NeoX, 6 layers of 16 heads, trained here by `causegrid zoo` on the four prompt tasks",
    "zoo-olmo": "OLMo, 6 layers of 16 heads, trained here by `causegrid zoo` on the four prompt tasks",
    "zoo-olmoe": "OLMoE, 6 layers of 16 heads, 8 experts, trained here by `causegrid zoo` on the four prompt tasks",
}
KEPT: dict[str, Kept] = {
    name: models.register(name)(Kept(name=name, note=note)) for name, note in NOTES.items()
}
