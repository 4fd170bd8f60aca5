"""Loading from disk: sizes from the weights themselves, and one line for everything that cannot be loaded."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as hf_logging

import tiny
from causegrid.errors import InputError
from causegrid.models import model, require_tokenizer
from causegrid.models.pretrained import as_device, as_dtype, check_causal, wrap
from causegrid.models.quiet import quiet


def refusal(*args, **kwargs) -> str:
    with pytest.raises(InputError) as error:
        model(*args, **kwargs)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    return str(error.value)


@pytest.fixture
def copied(disk, tmp_path):
    """Family -> its own copy of the folder, to be broken."""

    def copy(family: str):
        return shutil.copytree(disk(family), tmp_path / family)

    return copy


def edit_config(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.update(changes)
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


HEADS = {"llama_gqa": (4, 8, 2), "llama_wide": (4, 12, 2), "mistral": (4, 8, 2), "qwen2": (4, 8, 2)}


@pytest.mark.parametrize("family", list(tiny.CONFIGS))
def test_every_family_loads_with_its_sizes_and_weights(disk, loaded, family):
    made = loaded(family)
    oracle = AutoModelForCausalLM.from_pretrained(disk(family)).eval()
    tokens = torch.arange(3, 15)[None]
    with torch.no_grad():
        want = oracle(tokens, use_cache=False).logits
    torch.testing.assert_close(made(tokens), want, atol=1e-5, rtol=1e-5)
    assert made.family == tiny.CONFIGS[family][0]
    assert (made.n_layers, made.d_model, made.n_tokens, made.n_out) == (2, 32, 97, 97)
    expected = (0, 0, 0) if family.startswith("mamba") else HEADS.get(family, (4, 8, 4))
    assert (made.n_heads, made.head_dim, made.n_kv_heads) == expected
    assert made.tokenizer is None and made.source == str(disk(family))
    assert type(made.module) is type(oracle) and not made.module.training
    assert next(made.module.parameters()).dtype == torch.float32
    json.dumps(dict(made.config))


def test_output_width_is_the_heads_own():
    module = tiny.hf("llama")
    module.lm_head = torch.nn.Linear(tiny.HIDDEN, 11, bias=False)
    made = wrap(module, name="narrow head")
    assert (made.n_tokens, made.n_out) == (97, 11) and made([[96, 2]]).shape == (1, 2, 11)


def test_projection_that_does_not_divide_into_heads_is_refused():
    module = tiny.hf("llama")
    module.config.num_attention_heads = 5
    with pytest.raises(InputError, match="5 heads"):
        wrap(module, name="odd")


@pytest.mark.parametrize("family", ["gpt2", "mamba", "olmoe"])
def test_bfloat16_as_asked(disk, family):
    made = model(disk(family), dtype="bfloat16")
    assert next(made.module.parameters()).dtype == torch.bfloat16
    assert made([[1, 2, 3]]).dtype == torch.float32


def test_dtypes_and_devices_by_name(disk):
    assert as_dtype(None) is torch.float32 and as_dtype("torch.float16") is torch.float16
    assert as_dtype(torch.float64) is torch.float64
    assert as_device(None) == torch.device("cpu") and as_device("auto").type in ("cpu", "cuda")
    assert "float32" in refusal(disk("gpt2"), dtype="flaot32")
    assert "'nowhere'" in refusal(disk("gpt2"), device="nowhere")
    if not torch.cuda.is_available():
        assert "'cuda'" in refusal(disk("gpt2"), device="cuda")


def word_level(folder, words=("<pad>", "<s>", "</s>", "the", "cat")):
    backend = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>").save_pretrained(
        folder
    )


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_tokenizer_is_loaded_when_it_is_there(copied, family):
    folder = copied(family)
    word_level(folder)
    made = model(folder)
    assert made.tokenizer("the cat").input_ids == [3, 4]
    assert require_tokenizer(made) is made.tokenizer


@pytest.mark.parametrize("family", ["gpt2", "mamba", "llama"])
def test_no_tokenizer_is_none_and_never_an_empty_one(loaded, family):
    assert loaded(family).tokenizer is None
    with pytest.raises(InputError, match="no tokenizer"):
        require_tokenizer(loaded(family))


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_a_tokenizer_without_words_is_none(copied, family):
    folder = copied(family)
    (folder / "tokenizer_config.json").write_text("{}")
    assert model(folder).tokenizer is None


def test_broken_tokenizer_is_named(copied):
    folder = copied("llama")
    (folder / "tokenizer.json").write_text("{")
    (folder / "tokenizer_config.json").write_text("{}")
    assert "tokenizer" in refusal(folder)


def test_folder_without_a_model(tmp_path):
    assert "config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "model_type" in refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "perceptron"}')
    assert "perceptron" in refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    assert "no causal language model" in refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "a.B"}}')
    assert "trust_remote_code" in refusal(tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "llama_gqa", "mamba2"])
def test_weights_that_are_missing_or_corrupt(copied, family):
    folder = copied(family)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    for bad in (good[: len(good) // 2], b"xx"):
        weights.write_bytes(bad)
        assert "corrupt" in refusal(folder)
    weights.unlink()
    assert "holds none" in refusal(folder)


def test_pickled_weights_are_never_loaded(copied):
    folder = copied("llama")
    (folder / "model.safetensors").unlink()
    torch.save(tiny.hf("llama").state_dict(), folder / "pytorch_model.bin")
    assert "never loaded" in refusal(folder)


@pytest.mark.parametrize("family", ["llama_gqa", "olmoe", "mamba"])
def test_weights_that_do_not_fit_the_config_are_not_filled_in(copied, family):
    folder = copied(family)
    edit_config(folder, num_hidden_layers=3, layer_types=None)
    message = refusal(folder)
    assert "lacks" in message and ".2." in message
    edit_config(folder, num_hidden_layers=2, vocab_size=50)
    assert "shapes" in refusal(folder)


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2", "mamba"])
def test_weights_without_a_place_are_not_dropped(tmp_path, family):
    layers = "n_layer" if family == "gpt2" else "num_hidden_layers"
    tiny.hf(family, **{layers: 3}).save_pretrained(tmp_path)
    edit_config(tmp_path, **{layers: 2}, layer_types=None)
    message = refusal(tmp_path)
    assert "no place" in message and ".2." in message and str(tmp_path) in message


@pytest.mark.parametrize(
    ("family", "buffers"),
    [
        ("gpt2", ("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias")),
        (
            "gpt_neox",
            (
                "gpt_neox.layers.0.attention.bias",
                "gpt_neox.layers.0.attention.masked_bias",
                "gpt_neox.layers.1.attention.rotary_emb.inv_freq",
            ),
        ),
        ("llama", ("model.layers.0.self_attn.rotary_emb.inv_freq",)),
    ],
)
def test_buffers_of_old_checkpoints_may_be_there(copied, loaded, family, buffers):
    folder = copied(family)
    file = folder / "model.safetensors"
    save_file({**load_file(file), **{name: torch.ones(4) for name in buffers}}, file, {"format": "pt"})
    assert torch.equal(model(folder)([[1, 2, 3]]), loaded(family)([[1, 2, 3]]))


def test_a_tied_head_may_be_stored_too(tmp_path):
    module = tiny.hf("llama", tie_word_embeddings=True)
    module.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    assert "lm_head.weight" not in stored
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
    save_file(stored, file, {"format": "pt"})
    assert model(tmp_path)([[1, 2]]).shape == (1, 2, tiny.VOCAB)


@pytest.mark.parametrize(
    ("family", "changes", "word"),
    [
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("mamba", {"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads is 0"),
        ("gpt2", {"n_head": 0}, "n_head is 0"),
        ("llama", {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ("llama", {"num_attention_heads": 7}, "heads"),
        ("gpt_neox", {"num_attention_heads": 7}, "heads"),
        ("llama", {"hidden_size": "32"}, "hidden_size is '32'"),
        ("llama", {"vocab_size": "97"}, "vocab_size"),
        ("llama", {"hidden_act": "swoosh"}, "KeyError: 'swoosh'"),
    ],
)
def test_configs_that_make_no_model(copied, family, changes, word):
    folder = copied(family)
    edit_config(folder, **changes)
    message = refusal(folder)
    assert word in message and str(folder) in message


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, "\xff"])
def test_configs_that_are_no_object(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert str(tmp_path) in refusal(tmp_path)


def test_nan_weights_are_refused_at_load(tmp_path):
    module = tiny.hf("gpt2")
    with torch.no_grad():
        module.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    module.save_pretrained(tmp_path)
    assert "transformer.h.0.mlp.c_fc.weight holds NaN" in refusal(tmp_path)


def test_a_model_that_sees_the_future_is_refused(tmp_path):
    from transformers import BertConfig, BertLMHeadModel

    settings = dict(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    torch.manual_seed(0)
    module = BertLMHeadModel(BertConfig(**settings, initializer_range=0.5))
    module.save_pretrained(tmp_path)
    assert "not causal" in refusal(tmp_path)
    for family in tiny.CONFIGS:
        check_causal(wrap(tiny.hf(family), name=family))


def test_an_id_that_cannot_be_reached(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    message = refusal("nobody/nothing-at-all")
    assert "'nobody/nothing-at-all'" in message and "cannot be reached" in message


def test_a_config_of_a_mistyped_folder_is_said_to_be_none(monkeypatch, tmp_path):
    import huggingface_hub.constants

    from causegrid.models.config import read_config

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m" / "ok").mkdir(parents=True)
    for name, said in (
        ("m/okk", "local folder 'm/okk', did you mean 'm/ok'?"),
        ("m/xyz", "local folder 'm/xyz' ("),
    ):
        with pytest.raises(InputError, match="cannot be reached") as refused:
            read_config(name, {})
        assert f"nor is there a {said}" in str(refused.value)
    assert "nor is there" not in refusal("other/okk")


def test_an_id_that_is_no_id():
    assert "a b/c" in refusal("a b/c")


def test_loading_is_quiet_and_leaves_the_settings(disk, capfd):
    import logging

    from huggingface_hub.utils import logging as hub_logging

    folder = disk("mamba")
    capfd.readouterr()  # saving it talks
    hf_logging.set_verbosity_info()
    try:
        model(folder)
        assert hf_logging.get_verbosity() == hf_logging.INFO and hf_logging.is_progress_bar_enabled()
        with pytest.raises(RuntimeError), quiet():
            raise RuntimeError
        assert hf_logging.get_verbosity() == hf_logging.INFO and hf_logging.is_progress_bar_enabled()
    finally:
        hf_logging.set_verbosity_warning()
    level = hub_logging.get_verbosity()
    with quiet():
        assert not hub_logging.get_logger("huggingface_hub.utils._http").isEnabledFor(logging.WARNING)
    assert hub_logging.get_verbosity() == level
    out, err = capfd.readouterr()
    assert out == "" and err == ""
