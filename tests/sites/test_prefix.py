from __future__ import annotations

import pytest
import torch
from site_models import OURS, hf, ours, output, tokens, traces

import tiny
from causegrid.errors import InputError, InterventionError
from causegrid.models.record import Model
from causegrid.sites import capture, edit, site, skip_blocks, zero
from causegrid.sites.hooks import tap
from causegrid.sites.prefix import mlp_at_query, query_mlp, stop_before
from causegrid.sites.table import blocks

EVERY = [*tiny.CONFIGS, *(f"our {name}" for name in OURS)]


def get(name: str) -> Model:
    return ours(name.removeprefix("our ")) if name.startswith("our ") else hf(name)


@pytest.mark.parametrize("name", EVERY)
def test_reuse_is_bit_identical_at_every_boundary(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    clean, found = output(model, ids), traces(model)
    last = model.n_layers
    stored = capture(model, ids, [*(f"L{i}.resid_pre" for i in range(last)), f"L{last - 1}.resid_post"])
    wrong = torch.zeros_like(ids) + 3
    for upto, residual in enumerate(stored.values()):
        with skip_blocks(model, upto, residual):
            assert torch.equal(output(model, wrong), clean)  # the stored residual is all it reads
    assert traces(model) == found
    assert torch.equal(output(model, ids), clean)


@pytest.mark.parametrize("name", EVERY)
def test_reuse_below_an_edit_equals_the_full_run(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    residual = capture(model, ids, "L1.resid_pre")["L1.resid_pre"]
    kind = "z[1]" if model.n_heads else "resid_post@-1"
    with edit(model, zero(f"L1.{kind}")):
        full = output(model, ids)
    with skip_blocks(model, 1, residual), edit(model, zero(f"L1.{kind}")) as log:
        assert torch.equal(output(model, ids), full)
    assert log.total == 1


def test_skipped_blocks_are_not_run() -> None:
    model = hf("llama")
    ids = tokens(model)
    residual = capture(model, ids, "L1.resid_pre")["L1.resid_pre"]
    ran: list[int] = []
    handles = [
        model.module.get_submodule(f"model.layers.{i}.mlp").register_forward_hook(
            lambda *_, i=i: ran.append(i)
        )
        for i in range(2)
    ]
    with skip_blocks(model, 1, residual):
        output(model, ids)
    for handle in handles:
        handle.remove()
    assert ran == [1]


def test_left_padding_and_a_users_own_forward() -> None:
    model = hf("gpt2")
    ids = tokens(model)
    mask = torch.tensor([[0] * pad + [1] * (9 - pad) for pad in (0, 2, 4)])
    extra = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    clean = output(model, ids, **extra)
    residual = capture(model, ids, "L1.resid_pre", mask=mask)["L1.resid_pre"]
    block = model.module.get_submodule("transformer.h.0")
    own = block.forward
    block.forward = own
    with skip_blocks(model, 1, residual):
        assert torch.equal(output(model, ids, **extra), clean)
    assert vars(block).pop("forward") == own


def test_mistakes_are_named() -> None:
    model = hf("llama")
    ids = tokens(model)
    residual = torch.zeros(3, 9, 32)
    for upto in (-1, 3):
        with pytest.raises(InputError, match="2 layers"), skip_blocks(model, upto, residual):
            pass
    for upto in (0, 1):
        with (
            pytest.raises(InputError, match=r"\(3, 9, 32\).*\(3, 8, 32\)"),
            skip_blocks(model, upto, residual),
        ):
            output(model, ids[:, :8])
    with pytest.raises(InterventionError), skip_blocks(model, 1, residual):
        pass
    with pytest.raises(KeyError), skip_blocks(model, 1, residual):
        raise KeyError
    assert "forward" not in vars(model.module.get_submodule("model.layers.0"))


@pytest.mark.parametrize("name", EVERY)
def test_a_forward_can_stop_before_any_block_and_go_on_from_there(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    clean, found = output(model, ids), traces(model)
    for block in range(model.n_layers):
        kept: list[torch.Tensor] = []
        handle = tap(blocks(model)[block], "input", lambda x, kept=kept: kept.append(x.clone()))
        returned = False
        with stop_before(model, block):
            output(model, ids)
            returned = True
        handle.remove()
        assert not returned
        with skip_blocks(model, block, kept[0]):
            assert torch.equal(output(model, ids), clean)
    assert traces(model) == found


def test_blocks_at_and_above_the_stop_do_not_run_and_edits_below_fire() -> None:
    model = hf("llama")
    ids = tokens(model)
    with edit(model, zero("L0.z[1]")) as log, stop_before(model, 1):
        output(model, ids)
    assert log.total == 1
    silent = pytest.raises(InterventionError, match="fired zero times")
    with silent, edit(model, zero("L1.z[1]")), stop_before(model, 1):
        output(model, ids)


def test_a_stop_that_is_not_reached_or_does_not_exist_is_an_error() -> None:
    model = hf("llama")
    with pytest.raises(InterventionError, match="no forward reached block 1"), stop_before(model, 1):
        pass
    with pytest.raises(InputError, match="2 layers"), stop_before(model, 2):
        output(model, tokens(model))
    assert not any(m._forward_pre_hooks for m in model.module.modules())


MIXTURES = ("olmoe", "mixtral", "qwen2_moe")
WITH_MLP = [name for name in EVERY if name in tiny.ATTENTION and name not in MIXTURES] + ["our transformer"]


@pytest.mark.parametrize("name", EVERY)
def test_the_last_mlp_runs_at_the_query_alone_and_the_query_does_not_see_it(name: str) -> None:
    model = get(name)
    mlp, found = query_mlp(model), traces(model)
    assert (mlp is not None) == (name in WITH_MLP)
    if mlp is None:
        return
    ids, seen = tokens(model), []
    clean = output(model, ids)
    with mlp_at_query(mlp):
        handle = mlp.register_forward_hook(lambda _, args, out: seen.append((args[0].shape, out.shape)))
        cut = output(model, ids)
        handle.remove()
    assert seen == [((len(ids), 1, model.d_model),) * 2]
    torch.testing.assert_close(cut[:, -1], clean[:, -1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(cut[:, 0], clean[:, 0], atol=1e-3)  # what nobody may read
    assert traces(model) == found and torch.equal(output(model, ids), clean)


@pytest.mark.parametrize(
    ("where", "free"),
    [
        ("L0.resid_post", True), ("L0.mlp_out", True), ("L1.resid_pre", True), ("L1.z[0]", True),
        ("L1.attn_out", True), ("L1.mlp_out", False), ("L1.resid_post", False), ("L1.resid_post@-1", False),
    ],
)  # fmt: skip
def test_edits_that_may_see_other_positions_of_the_last_mlp(where: str, free: bool) -> None:
    assert (query_mlp(hf("gpt_neox"), [site("L0.z[1]"), site(where)]) is not None) == free


@pytest.mark.parametrize(
    ("path", "free"),
    [
        ("model.layers.0", True), ("model.layers.0.mlp", True), ("model.layers.1.self_attn.o_proj", True),
        ("model.layers.1.mlp", False), ("model.layers.1.mlp.up_proj", False), ("model.layers.1", False),
        ("model.layers.1.post_attention_layernorm", False), ("model.norm", False), ("lm_head", False),
        ("model", False), ("", False),
    ],
)  # fmt: skip
def test_nothing_is_cut_where_somebodys_hook_could_see_it(path: str, free: bool) -> None:
    model = hf("llama")
    module = model.module.get_submodule(path)
    for register in (module.register_forward_hook, module.register_forward_pre_hook):
        handle = register(lambda *_: None)
        assert (query_mlp(model) is not None) == free
        handle.remove()
    module.forward = module.forward
    assert (query_mlp(model) is not None) == free
    del module.forward
    assert query_mlp(model) is not None


def test_nothing_is_cut_under_a_hook_on_all_modules_or_in_a_shared_mlp() -> None:
    model = hf("llama")
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert query_mlp(model) is None
    handle.remove()
    first, last = blocks(model)
    own, last.mlp = last.mlp, first.mlp
    try:
        assert query_mlp(model) is None
    finally:
        last.mlp = own
