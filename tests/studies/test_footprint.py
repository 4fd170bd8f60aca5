"""What `plan` says before anything runs, against the models themselves and sums by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError

import tiny
from causegrid.errors import InputError
from causegrid.interventions.text import CONTROL_TEXTS
from causegrid.studies.pattern.footprint import footprint
from causegrid.studies.pattern.head_groups import default_names
from causegrid.studies.pattern_selectivity import PatternSelectivity, PatternSelectivityConfig
from causegrid.studies.placement import DEVICE, choose, device, placed

READY = [
    Path(__file__).parents[2] / "studies" / f"pattern_selectivity_{name}.yaml"
    for name in ("published", "experts", "training")
]
STUDY = PatternSelectivity()


def cells(**keys):
    block = {"tasks": ["ioi"], "models": ["EleutherAI/pythia-1b"]}
    block |= {k: keys.pop(k) for k in ("tasks", "models", "checkpoints", "groups", "dtype") if k in keys}
    return STUDY.cells(
        PatternSelectivityConfig.model_validate({"study": "pattern-selectivity", "grid": [block], **keys})
    )


def shape_only(folder: Path, family: str, **changes) -> str:
    """A folder with a config and no weights."""
    tiny.hf(family, **changes).config.save_pretrained(folder)
    assert [f.name for f in folder.iterdir()] == ["config.json"]
    return str(folder)


@pytest.mark.parametrize("family", ["gpt_neox", "olmo", "olmoe", "mixtral"])
def test_parameters_and_memory_come_from_the_config_alone(tmp_path, family):
    n = sum(p.numel() for p in tiny.hf(family).parameters())
    (wide,) = cells(models=[shape_only(tmp_path, family)])
    (half,) = cells(models=[str(tmp_path)], dtype="bfloat16")
    assert footprint(wide).n_params == footprint(half).n_params == n
    assert (footprint(wide).weights, footprint(half).weights) == (4 * n, 2 * n)
    assert footprint(half).residuals * 2 == footprint(wide).residuals
    assert footprint(wide).memory > footprint(half).memory > 2 * n
    assert "parameters in about" in STUDY.cost(wide)


def test_passes_by_hand(tmp_path):
    folder = shape_only(tmp_path / "a", "olmoe")
    (cell,) = cells(
        models=[folder], groups=["induction", "previous-token", "name-mover"], n_prompts=100, rules="paper",
        modes=["zero"], experts=3, generic={"n": 50, "length": 64},
        matched_null={"n": 9, "per_group": 5, "n_prompts": 20},
    )  # fmt: skip
    passes = dict(footprint(cell).passes)
    batches = (64 + 4 + 2 * 64) + (36 + 4 + 2 * 36)  # in halves, some alone, stacked to 1024 tokens or twice
    assert passes["clean"] == 3 + 100 + batches
    assert passes["signatures"] == 50 + 32 + 2 * 100
    conditions = 4 * 3 + 2 + 1  # alone, layers, only, picked again; two unions, all
    assert passes["groups"] == (2 * conditions - 1) * 100  # each, and where others part
    assert passes["single heads"] == 2 * 4 * 100
    windows = len(" ".join(CONTROL_TEXTS)) // 32
    assert passes["ordinary text"] == windows * (1 + conditions - 3)  # not kept only
    assert passes["null draws"] == 3 * (2 * 14 - 1) * 20  # max(9, 5 x 3 - 1)
    clean = 100 + 20
    assert passes["routing"] == clean + 3 * (1 + 5) * 20  # of each group its own and five draws
    assert passes["experts"] == (2 + 2 * 3) * 20 and "checkpoints" not in passes
    assert footprint(cell).n_passes == sum(passes.values())
    (dense,) = cells(models=[shape_only(tmp_path / "b", "olmo")])
    assert not {"experts", "routing"} & set(footprint(dense).passes)
    names = ["induction", "previous-token"]
    (two,) = cells(models=[folder], groups=names, n_prompts=100)
    assert two.modes == ("mean", "zero")
    means = 2 * 50  # two layers, each read once from the half that chose
    assert footprint(two).passes["groups"] == 2 * (2 * (4 * 2 + 2 + 1) - 1) * 50 + means
    assert footprint(two).passes["null draws"] == 2 * (2 * 159 - 1) * 50 + means
    steps = [{"folder": folder, "tokens": n} for n in (1, 2, 3)]
    for rules, chosen in (("strict", 50), ("paper", 100)):
        (long,) = cells(models=[folder], checkpoints=steps, n_prompts=100, rules=rules)
        assert footprint(long).passes["checkpoints"] == 3 * (chosen + 3)


def test_single_heads_of_the_groups_are_bounded_where_screens_bound_them(tmp_path):
    """A task screen picks five, a generic class takes every head beyond its threshold."""
    folder = shape_only(tmp_path, "olmo", num_attention_heads=8)
    counted = {
        names: footprint(cells(models=[folder], groups=list(names), n_prompts=100, singles="groups")[0])
        for names in (("name-mover",), ("name-mover", "induction"))
    }
    assert [f.passes["single heads"] for f in counted.values()] == [5 * 50, 2 * 8 * 50]
    (unknown,) = cells(models=["nobody/nothing"], groups=["name-mover", "induction"], singles="groups")
    assert "256 for each head" in footprint(unknown).sentence()
    (bounded,) = cells(models=["nobody/nothing"], groups=["name-mover"], singles="groups")
    assert "for each head" not in footprint(bounded).sentence()


def test_residuals_beyond_the_cap_are_counted_as_run_again(tmp_path, monkeypatch):
    from causegrid.studies.pattern import passes

    folder = shape_only(tmp_path, "olmo")
    (cell,) = cells(models=[folder], groups=["induction"], n_prompts=400, modes=["zero"], rules="paper")
    before = footprint(cell).passes
    monkeypatch.setattr(passes, "KEPT_RESIDUALS", 20 * 32 * 4 * 100)  # of a hundred prompts
    after = footprint(cell).passes
    beyond = 400 - 100 + 64
    assert after["groups"] - before["groups"] == 2 * beyond  # for the groups, and for the single heads
    assert after["null draws"] - before["null draws"] == 64 * 3  # draws come in 24, 48, 27


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_memory_by_hand(tmp_path, monkeypatch, dtype, size):
    """3 blocks 32 wide, 97 tokens, 50 measured prompts of about 20 tokens, 64 of them a forward."""
    monkeypatch.delenv(DEVICE, raising=False)
    (cell,) = cells(
        models=[shape_only(tmp_path, "gpt_neox", num_hidden_layers=3)], n_prompts=100, dtype=dtype
    )
    found = footprint(cell)
    kept = 50 * 20 * 32 * size * 2  # between blocks
    forks = 399 * 50 * 20 * 32 * size  # of the draws of one of five groups
    assert found.residuals == kept + forks
    assert found.logits == 3 * 8 * 32 * 97 * 4  # of ordinary text at every position, in float32
    rows = 12 * 8192 * 3 * 4  # attention of every head to every position
    assert found.activations == 8 * 8192 * 32 * size + rows  # the synthetic batch is the largest forward
    assert found.memory == found.weights + found.residuals + found.logits + found.activations


def test_an_unknown_size_is_said():
    (cell,) = cells(models=["nobody/nothing"])
    found = footprint(cell)
    assert found.memory is None
    assert "memory not known" in found.sentence() and "256 for each head" in found.sentence()


def test_number_type_and_checkpoints_make_another_cell_and_the_device_does_not(tmp_path, monkeypatch):
    from causegrid.runs.cells import cell_id

    folder = tmp_path / "step1"
    tiny.hf("gpt_neox").save_pretrained(folder)
    one = [{"folder": str(folder), "tokens": 10}]
    variants = [cells()[0], cells(dtype="bfloat16")[0], cells(checkpoints=one)[0]]
    assert len({cell_id(STUDY, c) for c in variants}) == 3
    before = cell_id(STUDY, cells(checkpoints=one)[0])
    monkeypatch.setenv(DEVICE, "balanced")
    assert cell_id(STUDY, cells(checkpoints=one)[0]) == before
    tiny.hf("gpt_neox", seed=1).save_pretrained(folder)  # other weights
    assert cell_id(STUDY, cells(checkpoints=one)[0]) != before
    names = [stage.name for stage in STUDY.stages(variants[2])]
    assert names[-1] == "checkpoints" and "checkpoints" not in [s.name for s in STUDY.stages(variants[0])]
    with pytest.raises(ValidationError, match="dtype"):
        cells(dtype="int8")


def test_what_a_block_states_takes_the_place_of_the_studys():
    blocks = [
        {"tasks": ["ioi"], "models": ["EleutherAI/pythia-1b"]},
        {"tasks": ["successor"], "models": ["EleutherAI/pythia-1b"], "n_prompts": 40, "singles": "all"},
    ]
    blocks[1] |= {"generic": {"n": 20}, "dtype": "bfloat16"}
    config = {"study": "pattern-selectivity", "grid": blocks, "n_prompts": 100, "singles": "groups"}
    config |= {"generic": {"n": 64, "length": 48}}
    first, second = STUDY.cells(PatternSelectivityConfig.model_validate(config))
    assert (first.n_prompts, first.singles, first.generic.n, first.generic.length, first.dtype) == (
        100, "groups", 64, 48, "float32")  # fmt: skip
    assert (second.n_prompts, second.singles, second.generic.n, second.generic.length, second.dtype) == (
        40, "all", 20, 256, "bfloat16")  # fmt: skip


def test_the_default_groups_and_the_source_of_ones_own_screens_make_the_cell(tmp_path, monkeypatch):
    """Else an edited screen, or a registered one, would find the cells of the one before it finished."""
    import importlib

    from causegrid.runs.cells import cell_id
    from causegrid.signatures.screens.base import screens

    def written(text):
        (tmp_path / "home_screen.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.reload(importlib.import_module("home_screen"))

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    source = (
        "from causegrid.signatures.screens.base import GenericScreen, TaskScreen\n"
        "def score(attention, rules): return None\n"
        "def places(batch): return batch.first[:, None]\n"
        "TASK = TaskScreen(name='home', needs=('S1',), targets=('S1',), score=score, note='')\n"
        "GENERIC = GenericScreen(name='first', places=places, note='')\n"
    )
    made = written(source)
    (plain,) = cells()
    assert plain.groups == tuple(default_names(["IO", "S1", "S2"])) and not plain.digests
    named = {"groups": ["name-mover", "induction"]}
    ids = {cell_id(STUDY, plain), cell_id(STUDY, cells(**named)[0])}
    monkeypatch.setitem(screens._things, "home", made.TASK)
    assert (
        "home" in cells()[0].groups and cell_id(STUDY, cells(**named)[0]) in ids
    )  # not asked for: the same cell
    ids.add(cell_id(STUDY, cells()[0]))
    monkeypatch.setitem(screens._things, "home", written(source.replace("None", "0")).TASK)
    ids.add(cell_id(STUDY, cells()[0]))
    assert len(ids) == 4
    monkeypatch.setitem(screens._things, "first", made.GENERIC)  # generic classes share a background
    assert cell_id(STUDY, cells(**named)[0]) not in ids


def test_a_checkpoint_that_cannot_be_is_an_error_before_anything_is_computed(small_lm, tmp_path, monkeypatch):
    from causegrid.models import config
    from causegrid.runs import run
    from causegrid.runs.store import open_run

    tiny.hf("gpt_neox").save_pretrained(tmp_path / "other")  # of other sizes
    block = {
        "tasks": ["ioi"],
        "models": [str(small_lm)],
        "checkpoints": [{"folder": str(tmp_path / "other"), "tokens": 1}],
    }
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({"study": "pattern-selectivity", "n_prompts": 16, "grid": [block]}))
    outcome = run(study, tmp_path / "out", engine="inline")
    (cell,) = open_run(tmp_path / "out").cells()
    assert "heads" in str(cell.error) and not cell.stages and len(outcome.failures) == 1

    def no_such(where, extra):
        raise InputError(f"{where!r} has no revision {extra['revision']!r}")

    monkeypatch.setattr(config, "read_config", no_such)
    from causegrid.studies.pattern.checkpoints import Checkpoint, require_checkpoints

    with pytest.raises(InputError, match="'org/name' has no revision 'step7'"):
        require_checkpoints(None, "org/name", [Checkpoint(revision="step7", tokens=1)])


def test_the_device_of_a_run(monkeypatch, small_lm):
    monkeypatch.delenv(DEVICE, raising=False)
    assert device() == "cpu"
    for chosen in ("auto", "balanced"):
        monkeypatch.setenv(DEVICE, chosen)
        made = placed(str(small_lm), dtype="bfloat16")
        assert made.module.dtype == torch.bfloat16
        if not torch.cuda.is_available():
            assert made.device.type == "cpu"
    choose("cuda:1")
    assert device() == "cuda:1"
    for wrong in ("cpu:1", "cuda:x", "disk"):
        with pytest.raises(InputError, match=wrong):
            choose(wrong)
    monkeypatch.setenv(DEVICE, "gpu")
    with pytest.raises(InputError, match=r"'gpu'.*cuda"):
        device()


def test_a_model_that_accelerate_dispatched_gives_the_same_numbers(small_lm):
    """Several devices are not at hand: the hooks that carry values between them are, around the same weights."""
    accelerate = pytest.importorskip("accelerate")
    from causegrid.interventions.heads import Ablator
    from causegrid.models import model
    from causegrid.tasks import task

    groups = {"a": ["L1H0", "L2H3"], "b": ["L0H1"]}
    tables = []
    for dispatched in (False, True):
        made = model(small_lm)
        if dispatched:
            parts = ["gpt_neox.embed_in", "gpt_neox.final_layer_norm", "gpt_neox.rotary_emb", "lm_head"]
            layers = [f"gpt_neox.layers.{i}" for i in range(3)]
            accelerate.dispatch_model(
                made.module, dict.fromkeys([*parts, *layers], "cpu"), main_device="cpu", force_hooks=True
            )
            assert hasattr(made.module.gpt_neox.layers[0], "_hf_hook")
        tables.append(Ablator(made, task("ioi"), n=8).table(groups, "mean"))
    for plain, own in zip(tables[0]["values"], tables[1]["values"], strict=True):
        assert plain == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize("file", READY, ids=lambda f: f.stem)
def test_ready_made_studies_are_planned(file):
    config = PatternSelectivityConfig.model_validate(yaml.safe_load(file.read_text()))
    found = STUDY.cells(config)
    assert found and all("passes of a prompt" in STUDY.cost(cell) for cell in found)
    if file.stem.endswith("published"):
        assert {c.model for c in found} == {
            "EleutherAI/pythia-1b", "allenai/OLMo-1B-0724-hf", "allenai/OLMoE-1B-7B-0924",
        }  # fmt: skip
        assert len(found) == 12
        assert all((c.rules, c.modes, c.bos, c.n_prompts) == ("paper", ("zero",), "none", 500) for c in found)
    if file.stem.endswith("experts"):
        assert found[0].model.startswith("mistralai/Mixtral") and found[0].dtype == "bfloat16"
