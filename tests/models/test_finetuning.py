"""Language models made to read a state task: tokens in, classes out, adapters, saving, memory.

Oracles call the plain Hugging Face module on the vocabulary's ids, without our forward.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

import tiny
from causegrid.errors import InputError
from causegrid.models import fingerprint, load, model, save, untrained
from causegrid.models import memory as memory_of
from causegrid.models.finetuning import adaptable, fine_tunable, merged, needed_bytes
from causegrid.models.outline import outline
from causegrid.models.readout import StateReadout, vocabulary_ids
from causegrid.models.training import train
from causegrid.tasks import task
from peaks import peak_of

FAMILIES = ("mamba", "gpt_neox", "llama_gqa")
SMALL = {"batch": 8, "length": 8, "seed": 1}


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Family -> folder of a tiny model with transformers' own initial weights (tiny.hf makes them 4 x larger)."""
    made = {}

    def folder(family, **changes):
        key = (family, *changes.items())
        if key not in made:
            from transformers import AutoConfig, AutoModelForCausalLM

            kind, settings = tiny.CONFIGS[family]
            torch.manual_seed(0)
            module = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**settings, **changes}))
            made[key] = tmp_path_factory.mktemp(family)
            module.save_pretrained(made[key])
        return str(made[key])

    return folder


def steps(made, name="dyck", n=3, **changes):
    settings = {"schedule": "fixed", "batch": 8, "length": 8, "eval_lengths": [8], "n_eval": 20}
    return train(made, task(name), steps=n, **(settings | changes))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("readout", ["head", "tokens"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_goes_in_and_comes_out(calm, family, readout, method, tmp_path):
    dyck = task("dyck")
    made = fine_tunable(calm(family), dyck, method=method, rank=4, readout=readout, **SMALL)
    result = steps(made, lr=1e-2)
    assert np.isfinite(result.history["loss"]).all()
    tokens = dyck.sample(4, 8, seed=3, split="test").tokens
    adapted = made(tokens)
    plain = merged(made)
    assert type(plain.module) is type(model(calm(family)).module)
    assert not [name for name, _ in plain.module.named_parameters() if "lora" in name]
    logits = plain(tokens)
    assert torch.allclose(adapted, logits, atol=1e-5, rtol=0)
    assert logits.shape == (4, 8, dyck.n_classes)

    ids = torch.tensor(plain.readout.inputs)[torch.as_tensor(tokens)]
    with torch.no_grad():
        raw = plain.module(input_ids=ids).logits
    picked = raw if readout == "head" else raw[..., list(plain.readout.outputs)]
    assert torch.equal(logits, picked)
    assert raw.shape[-1] == (dyck.n_classes if readout == "head" else tiny.VOCAB)

    save(plain, tmp_path)
    again = model(str(tmp_path))
    assert again.readout == plain.readout
    assert torch.equal(again(tokens), logits)
    assert fingerprint(again) == fingerprint(plain)
    assert again.n_params == plain.n_params

    fresh = untrained(again, seed=0)
    assert type(fresh.module) is type(again.module)
    assert fresh.readout == again.readout
    assert fresh.n_params == again.n_params
    assert torch.equal(fresh(tokens), untrained(again, seed=0)(tokens))
    assert not torch.allclose(fresh(tokens), logits, atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_adapter_has_a_gradient_and_the_rest_stands_still(calm, family):
    """An adapter on a matrix that is read past its forward would learn nothing."""
    made = fine_tunable(calm(family), task("parity"), method="lora", rank=2, **SMALL)
    before = {name: p.detach().clone() for name, p in made.module.named_parameters()}
    steps(made, "parity")
    moved = {name for name, p in made.module.named_parameters() if not torch.equal(p, before[name])}
    head = {name for name in before if name.endswith(("lm_head.weight", "embed_out.weight"))}
    adapters = {name for name in before if ".lora_" in name}
    assert adapters
    assert moved == adapters | head
    assert len(head) == 1


def test_all_matrices_of_a_block_are_adapted(calm):
    found = {
        family: {path.rpartition(".")[2] for path in adaptable(model(calm(family)))} for family in FAMILIES
    }
    assert found["llama_gqa"] == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    assert found["gpt_neox"] == {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
    assert found["mamba"] == {"in_proj", "x_proj"}  # dt_proj is read past its forward, peft refuses out_proj


def test_full_moves_every_weight_and_unties_the_head(calm):
    folder = calm("llama_gqa", tie_word_embeddings=True)
    made = fine_tunable(folder, task("parity"), **SMALL)
    embed, head = made.module.get_input_embeddings().weight, made.module.get_output_embeddings().weight
    assert head.shape == (2, tiny.HIDDEN)
    assert head is not embed
    before = {name: p.detach().clone() for name, p in made.module.named_parameters()}
    steps(made, "parity")
    still = [name for name, p in made.module.named_parameters() if torch.equal(p, before[name])]
    assert still == []


@pytest.mark.parametrize("readout", ["head", "tokens"])
def test_tied_embeddings_come_back(calm, readout, tmp_path):
    made = fine_tunable(calm("llama_gqa", tie_word_embeddings=True), task("parity"), readout=readout, **SMALL)
    steps(made, "parity", lr=1e-2)
    save(made, tmp_path)
    again = load(tmp_path)
    tied = again.module.get_output_embeddings().weight is again.module.get_input_embeddings().weight
    assert tied == (readout == "tokens")
    assert torch.equal(again([[0, 1, 1]]), made([[0, 1, 1]]))


def test_same_seed_same_model(calm):
    folder = calm("gpt2")
    runs = []
    for seed in (1, 1, 2):
        made = fine_tunable(folder, task("parity"), method="lora", **(SMALL | {"seed": seed}))
        steps(made, "parity")
        runs.append(made([[0, 1, 1]]))
    assert torch.equal(runs[0], runs[1])  # gpt2's config asks for dropout 0.1
    assert not torch.equal(runs[0], runs[2])


def test_learns_parity_for_real(calm):
    made = fine_tunable(calm("mamba"), task("parity"), batch=32, length=8, seed=0)
    result = steps(made, "parity", n=150, batch=32, lr=1e-2, n_eval=100, schedule="curriculum")
    token = result.behaviour.query("metric == 'token'")["accuracy"].item()
    assert token > 0.9


def test_default_rates_are_those_of_fine_tuning(calm):
    for method, rate in (("full", 5e-5), ("lora", 1e-3)):
        made = fine_tunable(calm("mamba"), task("parity"), method=method, **SMALL)
        assert steps(made, "parity", n=1).settings["lr"] == rate


def test_names_are_single_tokens_of_the_tokenizer():
    sys.path.insert(0, "tests/tasks")
    from small_tokenizers import word_level

    tokenizer = word_level(["0", "(", "1", ")", "A", "2"])
    size = {"n_vocab": len(tokenizer), "tokenizer": tokenizer}

    def words(n, names=()):
        return tokenizer.convert_ids_to_tokens(list(vocabulary_ids(n, names=names, **size)))

    assert words(2) == ["0", "1"]
    assert words(2, ["(", ")"]) == ["(", ")"]
    assert words(2, ["(", "]"]) == ["0", "1"]  # one name is no token of its own: none is used
    assert words(4) == ["0", "1", "2", "A"]
    five = words(5)
    assert five[:4] == ["0", "1", "2", "A"]
    assert five[4] in ("(", ")")
    with pytest.raises(InputError, match="no 20 ordinary"):
        words(20)


def test_without_a_tokenizer_the_special_ids_are_left_out():
    assert vocabulary_ids(3, n_vocab=9, special=(0, 1, 4)) == (2, 3, 5)


def test_ids_of_the_task_alone_are_taken(calm):
    made = fine_tunable(calm("gpt_neox"), task("parity"), **SMALL)
    with pytest.raises(InputError, match="its 2 ids are 0 to 1"):
        made([[0, 2]])


def test_refusals(calm, tmp_path):
    folder, parity = calm("gpt_neox"), task("parity")
    for changes, words in (
        ({"method": "lorra"}, "did you mean 'lora'"),
        ({"readout": "heads"}, "did you mean 'head'"),
        ({"rank": 0}, "at least 1"),
    ):
        with pytest.raises(InputError, match=words):
            fine_tunable(folder, parity, **(SMALL | changes))
    with pytest.raises(InputError, match="needs a state task"):
        fine_tunable(folder, task("ioi"), **SMALL)
    with pytest.raises(InputError, match="trained from scratch"):
        fine_tunable("gru", parity, **SMALL)
    with pytest.raises(InputError, match="fine_tunable"):
        steps(model(folder), "parity")
    save(fine_tunable(folder, parity, **SMALL), tmp_path)
    with pytest.raises(InputError, match="was trained on a state task"):
        fine_tunable(str(tmp_path), parity, **SMALL)


def test_adapters_are_saved_merged_and_stay_on(calm, tmp_path):
    made = fine_tunable(calm("gpt_neox"), task("parity"), method="lora", **SMALL)
    steps(made, "parity", lr=1e-2)
    before = made([[0, 1, 1]])
    save(made, tmp_path)
    assert torch.equal(made([[0, 1, 1]]), before)
    assert torch.allclose(load(tmp_path)([[0, 1, 1]]), before, atol=1e-5, rtol=0)
    assert hasattr(made.module, "merge_and_unload")


def test_lora_without_peft_says_what_to_install(calm, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"pip install 'causegrid\[lora\]'"):
        fine_tunable(calm("gpt_neox"), task("parity"), method="lora", **SMALL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": [1, 1]},
        {"inputs": []},
        {"inputs": [1, 500]},
        {"inputs": None},
        {"outputs": [-1, 2]},
        {"lr": None},
    ],
)
def test_a_damaged_readout_is_refused_in_one_line(calm, wrong, tmp_path):
    save(fine_tunable(calm("gpt_neox"), task("parity"), readout="tokens", **SMALL), tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    about["readout"] |= wrong
    (tmp_path / "model.json").write_text(json.dumps(about))
    with pytest.raises(InputError) as refused:
        load(tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_head_of_another_size_is_refused(calm, tmp_path):
    save(fine_tunable(calm("gpt_neox"), task("parity"), **SMALL), tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(about | {"n_out": 3}))
    with pytest.raises(InputError, match="3 rows"):
        load(tmp_path)
    (tmp_path / "head.safetensors").unlink()
    with pytest.raises(InputError, match=r"head\.safetensors"):
        load(tmp_path)


def test_readout_survives_json():
    given = StateReadout(task="s3", inputs=(5, 6), outputs=None, lr=0.1)
    assert StateReadout.from_json(json.loads(json.dumps(given.to_json()))) == given


def test_more_than_memory_is_refused_before_any_weight_is_read(calm, monkeypatch):
    from causegrid.models import finetuning

    def never(*args, **kwargs):
        raise AssertionError("weights were read")

    monkeypatch.setattr(memory_of, "available_bytes", lambda device: 1_000_000)
    monkeypatch.setattr(finetuning, "model", never)
    with pytest.raises(InputError, match=r"needs about [\d.]+ GB .* 0\.001 GB are free"):
        fine_tunable(calm("gpt_neox"), task("parity"), **(SMALL | {"batch": 64}))


def test_available_memory_is_some_of_the_machines():
    found = memory_of.available_bytes(torch.device("cpu"))
    assert found is None or 1e7 < found < 1e14


WIDE = {
    "llama": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4},
    "gpt_neox": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4},
    "mamba": {"hidden_size": 64, "state_size": 16, "num_hidden_layers": 3},
}


@pytest.mark.parametrize("family", WIDE)
@pytest.mark.parametrize(("method", "readout"), [("full", "head"), ("lora", "head"), ("full", "tokens")])
def test_the_estimate_is_within_a_factor_of_two_of_the_peak(calm, family, method, readout):
    folder = calm(family, **WIDE[family])
    size = {"method": method, "rank": 8, "batch": 16, "length": 24}
    parity = task("parity")
    n_classes = parity.n_classes if readout == "head" else None
    estimate = needed_bytes(outline(folder), n_classes=n_classes, **size)
    steps(fine_tunable(folder, parity, readout=readout, **(size | {"batch": 2})), "parity", n=1)  # warm up
    peak = peak_of(lambda: steps(fine_tunable(folder, parity, readout=readout, **size), "parity", n=2,
                                 batch=16, length=24, eval_lengths=[8]))  # fmt: skip
    assert 0.5 < estimate / peak < 2, (estimate, peak)


def test_a_hub_model_larger_than_memory_is_refused_on_its_config_alone(calm, monkeypatch):
    """Its config is fetched, its weights never: loading them is an error here."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(calm("llama_gqa"))
    config.hidden_size, config.intermediate_size = 1 << 15, 1 << 17
    config.num_attention_heads = config.num_key_value_heads = 1 << 8
    asked = []

    def answer(where, **settings):
        asked.append((str(where), settings["local_files_only"]))
        if settings["local_files_only"]:
            raise OSError("not in the cache")
        return config

    monkeypatch.setattr("causegrid.models.hub.reachable", lambda: True)
    monkeypatch.setattr(AutoConfig, "from_pretrained", answer)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(InputError, match=r"'nobody/large'.*GB"):
        fine_tunable("nobody/large", task("parity"), **SMALL)
    assert asked == [("nobody/large", True), ("nobody/large", False)]  # first the cache
