from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from site_models import OURS, hf, ours, output, tokens, traces

import tiny
from causegrid.errors import InputError, InterventionError
from causegrid.models.record import Model
from causegrid.sites import Edit, capture, edit, erase, mean, replace, site, supported, zero

EVERY = [*tiny.CONFIGS, *(f"our {name}" for name in OURS)]


def get(name: str) -> Model:
    return ours(name.removeprefix("our ")) if name.startswith("our ") else hf(name)


def with_raw_hook(model: Model, path: str, change: Callable[[Any], Any], ids: torch.Tensor) -> torch.Tensor:
    """The oracle: one raw pre-hook on one module's input."""

    def hook(_module: Any, args: Any) -> Any:
        return (change(args[0].clone()), *args[1:])

    handle = model.module.get_submodule(path).register_forward_pre_hook(hook)
    try:
        return output(model, ids)
    finally:
        handle.remove()


@pytest.mark.parametrize("name", EVERY)
def test_case_14_clean_ablated_clean_is_bit_equal(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    kinds = [kind for kind, reason in supported(model, "edit").items() if not reason]
    before, found = output(model, ids), traces(model)
    for kind in kinds:
        spot = f"L0.{kind}" + ("@4" if kind == "state" else "")
        with edit(model, zero(spot)) as log:
            ablated = output(model, ids)
        assert log.fired == {spot: 1} and log.total == 1
        assert not torch.allclose(before, ablated), kind
        assert torch.equal(before, output(model, ids)), kind
    assert traces(model) == found


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_edit_changes_no_bit(name: str) -> None:
    model = get(name)
    ids = tokens(model)
    kinds = [k for k, reason in supported(model, "edit").items() if not reason and k != "state"]
    clean = output(model, ids)
    same = [Edit(site(f"L{i}.{kind}"), lambda x: x) for kind in kinds for i in range(model.n_layers)]
    with edit(model, *same) as log:
        assert torch.equal(clean, output(model, ids))
    assert set(log.fired.values()) == {1}


@pytest.mark.parametrize("name", [*tiny.ATTENTION, "our transformer"])
@pytest.mark.parametrize("head", [0, 3])
def test_one_head_equals_a_raw_hook(name: str, head: int) -> None:
    model = get(name)
    ids = tokens(model)
    path = {
        "gpt2": "transformer.h.1.attn.c_proj",
        "gpt_neox": "gpt_neox.layers.1.attention.dense",
        "gpt_neox_sequential": "gpt_neox.layers.1.attention.dense",
        "our transformer": "blocks.1.attn.proj",
    }.get(name, "model.layers.1.self_attn.o_proj")

    def cut(x: torch.Tensor) -> torch.Tensor:
        width = x.shape[-1] // 4
        x[..., head * width : (head + 1) * width] = 0
        return x

    with edit(model, zero(f"L1.z[{head}]")):
        assert torch.equal(output(model, ids), with_raw_hook(model, path, cut, ids))


def test_case_11_grouped_queries_only_that_query_heads_slice_changes() -> None:
    model = hf("llama_gqa")
    ids = tokens(model)
    seen: list[torch.Tensor] = []
    o_proj = model.module.get_submodule("model.layers.0.self_attn.o_proj")
    clean = capture(model, ids, "L0.z")["L0.z"]
    with edit(model, zero("L0.z[3]")):
        handle = o_proj.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
        output(model, ids)
        handle.remove()
    assert torch.equal(seen[0][..., :24], clean.flatten(2)[..., :24])
    assert not seen[0][..., 24:].any() and clean[:, :, 3].abs().min() > 0


def test_case_15_the_users_own_hooks_stay_and_fire() -> None:
    model = hf("llama")
    ids = tokens(model)
    fired: list[str] = []
    block = model.module.get_submodule("model.layers.0")
    before = block.register_forward_hook(lambda *_: fired.append("before"))
    with edit(model, zero("L0.resid_post")):
        inside = block.register_forward_hook(lambda *_: fired.append("inside"))
        output(model, ids)
    after = block.register_forward_hook(lambda *_: fired.append("after"))
    output(model, ids)
    for handle in (before, inside, after):
        handle.remove()
    assert fired == ["before", "inside", "before", "inside", "after"]


def test_hooks_do_not_outlive_an_exception() -> None:
    model = hf("llama")
    ids = tokens(model)
    clean = output(model, ids)
    with pytest.raises(KeyError), edit(model, zero("L0.resid_post")):
        raise KeyError("the body's own error, not one about firings")
    with pytest.raises(InputError), edit(model, replace("L0.z[1]", torch.zeros(2))):
        output(model, ids)
    lstm = ours("lstm")
    with pytest.raises(KeyError), edit(lstm, zero("L0.state@1")):
        raise KeyError
    assert "forward" not in vars(lstm.module.blocks[0])
    assert torch.equal(clean, output(model, ids))


def test_zero_firings_is_an_error() -> None:
    model = hf("llama")
    with pytest.raises(InterventionError, match=r"zero at L1\.z\[2\]"), edit(model, zero("L1.z[2]")):
        pass
    with (
        pytest.raises(InterventionError, match="fired zero times"),
        edit(model, zero("L0.resid_post"), zero("L1.resid_post")),
    ):
        model.module.get_submodule("model.layers.0.mlp")(torch.zeros(1, 1, 32))


def test_edits_at_one_site_apply_in_the_order_given() -> None:
    model = hf("gpt_neox")
    ids = tokens(model)
    plus, double = (
        Edit(site("L0.resid_post"), lambda x: x + 1.0),
        Edit(site("L0.resid_post"), lambda x: 2 * x),
    )
    clean = capture(model, ids, "L0.resid_post")["L0.resid_post"]
    for edits, expected in (((plus, double), 2 * (clean + 1)), ((double, plus), 2 * clean + 1)):
        with edit(model, *edits) as log:
            assert torch.equal(capture(model, ids, "L0.resid_post")["L0.resid_post"], expected)
        assert log.fired == {"L0.resid_post": 2} and log.counts == [1, 1]
    with edit(model, [zero("L0.z[1]"), Edit(site("L0.z"), lambda x: x + 1.0)]):
        z = capture(model, ids, "L0.z")["L0.z"]
    assert torch.equal(z[:, :, 1], torch.ones_like(z[:, :, 1]))


def test_shapes_the_edit_sees_are_those_of_capture() -> None:
    model = hf("llama_wide")
    ids = tokens(model)
    for text in ("L0.z", "L0.z[1]", "L0.z@2", "L0.z[1]@-1", "L1.resid_pre@0", "L-1.resid_post", "L1.mlp_out"):
        seen: list[torch.Size] = []

        def look(x: torch.Tensor, seen: list[torch.Size] = seen) -> torch.Tensor:
            seen.append(x.shape)
            return x

        with edit(model, Edit(site(text), look)):
            output(model, ids)
        assert seen == [capture(model, ids, text)[text].shape]


def test_a_position_edit_touches_only_that_position() -> None:
    model = hf("olmo2")
    ids = tokens(model)
    clean = capture(model, ids, "L0.resid_post")["L0.resid_post"]
    with edit(model, zero("L0.resid_post@4")):
        found = capture(model, ids, "L0.resid_post")["L0.resid_post"]
    others = [i for i in range(9) if i != 4]
    assert torch.equal(found[:, others], clean[:, others]) and not found[:, 4].any()
    with pytest.raises(InputError, match="has 9 tokens"), edit(model, zero("L0.resid_post@-10")):
        output(model, ids)


def test_replace_and_mean_check_shapes() -> None:
    model = hf("llama")
    ids = tokens(model)
    with (
        pytest.raises(InputError, match=r"\(3, 9\).*\(3, 9, 32\)"),
        edit(model, replace("L0.resid_post", torch.zeros(3, 9))),
    ):
        output(model, ids)
    with (
        pytest.raises(InputError, match=r"\(7,\).*\(3, 9, 8\)"),
        edit(model, mean("L0.z[1]", torch.zeros(7))),
    ):
        output(model, ids)
    value = torch.arange(72.0).reshape(9, 8)
    with edit(model, mean("L0.z[1]", value)):
        z = capture(model, ids, "L0.z[1]")["L0.z[1]"]
    assert torch.equal(z, value.expand(3, 9, 8))


@pytest.mark.parametrize(
    "fn", [lambda x: x[:, :1], lambda x: x.double(), lambda x: x.sum(), lambda x: x.numpy(), lambda x: None]
)
def test_an_edit_that_changes_shape_or_dtype_is_an_error(fn: Callable[[Any], Any]) -> None:
    model = hf("llama")
    for text in ("L0.resid_post", "L0.z[2]"):
        with pytest.raises(InterventionError), edit(model, Edit(site(text), fn, "odd")):
            output(model, tokens(model))


def test_an_edit_may_return_a_view_of_its_argument_or_write_into_it() -> None:
    model = hf("llama")
    ids = tokens(model)
    clean = capture(model, ids, "L0.resid_post")["L0.resid_post"]

    def in_place(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(3)

    for fn, expected in (
        (lambda x: x[:, :1].expand_as(x), clean[:, :1].expand_as(clean)),
        (lambda x: x.flip(1), clean.flip(1)),
        (in_place, 3 * clean),
    ):
        with edit(model, Edit(site("L0.resid_post"), fn)):
            assert torch.equal(capture(model, ids, "L0.resid_post")["L0.resid_post"], expected)


@settings(max_examples=20, deadline=None)
@given(rank=st.integers(1, 8), seed=st.integers(0, 1000), centred=st.booleans())
def test_erase_equals_the_projection_in_numpy(rank: int, seed: int, centred: bool) -> None:
    model = hf("gpt2")
    ids = tokens(model)
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(32, rank)))
    m = rng.normal(size=32) if centred else np.zeros(32)
    x = capture(model, ids, "L0.resid_post")["L0.resid_post"].numpy().astype(np.float64)
    with edit(model, erase("L0.resid_post", q, m if centred else None)):
        found = capture(model, ids, "L0.resid_post")["L0.resid_post"]
    np.testing.assert_allclose(found, m + (x - m) @ (np.eye(32) - q @ q.T), rtol=1e-5, atol=1e-5)
    with edit(model, erase("L0.resid_post", q, m, mode="origin")):
        found = capture(model, ids, "L0.resid_post")["L0.resid_post"]
    np.testing.assert_allclose(found, x @ (np.eye(32) - q @ q.T), rtol=1e-5, atol=1e-5)


def test_erase_refuses_a_basis_that_is_none() -> None:
    with pytest.raises(InputError, match="orthonormal"):
        erase("L0.resid_post", torch.ones(32, 2))
    with pytest.raises(InputError, match="orthonormal"):
        erase("L0.resid_post", 2 * torch.eye(32)[:, :1])
    with pytest.raises(InputError, match="did you mean 'mean'"):
        erase("L0.resid_post", torch.eye(32)[:, :1], mode="means")  # type: ignore[arg-type]
    model = hf("gpt2")
    with (
        pytest.raises(InputError, match=r"\(16, 1\)"),
        edit(model, erase("L0.resid_post", torch.eye(16)[:, 0])),
    ):
        output(model, tokens(model))


def test_case_17_half_precision_ablating_an_all_zero_head_does_nothing() -> None:
    model = hf("llama")
    module = tiny.hf("llama").bfloat16()
    half = Model(**{**vars(model), "module": module, "name": "half"})
    projection = module.get_submodule("model.layers.0.self_attn.o_proj")
    with torch.no_grad():
        projection.weight[:, :8] = 0
        module.get_submodule("model.layers.0.self_attn.v_proj").weight[:8] = 0
    ids = tokens(half)
    clean = output(half, ids)
    with edit(half, zero("L0.z[0]")) as log:
        assert torch.equal(clean, output(half, ids))
    assert log.total == 1


def test_an_edit_keeps_gradients() -> None:
    model = hf("llama")
    direction = torch.zeros(32, requires_grad=True)
    with edit(model, Edit(site("L0.resid_post"), lambda x: x + direction)):
        model.module(input_ids=tokens(model)).logits.sum().backward()
    model.module.zero_grad()
    assert direction.grad is not None and direction.grad.abs().sum() > 0


@pytest.mark.parametrize("given", ["L0.z[1]", 3, None, ["L0.z[1]"], [3], torch.ones(2)])
def test_what_is_no_edit_is_named(given: Any) -> None:
    needed = r"an edit is needed, as cg\.zero\('L0\.z\[1\]'\)"
    with pytest.raises(InputError, match=needed) as caught, edit(hf("llama"), given):
        pass
    assert "\n" not in str(caught.value)


def test_values_that_are_no_numbers_are_refused_when_made() -> None:
    for value in ("abc", None, [[1.0], [1.0, 2.0]], [1j], np.array(["a"])):
        for make in (mean, replace, erase):
            with pytest.raises(InputError, match=r"L0\.z\[1\] must be (real )?numbers"):
                make("L0.z[1]", value)
    for basis in (torch.eye(8)[None], 1.0):
        with pytest.raises(InputError, match=r"is not \(d, r\)"):
            erase("L0.z[1]", basis)
    with pytest.raises(InputError, match="vector"):
        erase("L0.z[1]", torch.eye(8)[:, :1], mean=0.5)
    with pytest.raises(InputError, match="must be numbers"):
        erase("L0.z[1]", torch.eye(8)[:, :1], mean="abc")
