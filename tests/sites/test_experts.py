from __future__ import annotations

import pytest
import torch
from site_models import hf, output, tokens, traces

from causegrid.errors import InputError, InterventionError
from causegrid.sites import ablate_expert, capture, expert_layers, n_experts, recorded_routes


@pytest.mark.parametrize("name", ["olmoe", "mixtral"])
def test_case_19_expert_ablation_zeroes_the_combine_weight_after_the_choice(name: str) -> None:
    model = hf(name)
    ids = tokens(model)
    found, clean = traces(model), output(model, ids)
    mlp = model.module.get_submodule("model.layers.0.mlp")
    plain = capture(model, ids, ["L0.mlp_out", "L0.resid_pre"])
    inputs: list[torch.Tensor] = []
    handle = mlp.register_forward_pre_hook(lambda _m, args: inputs.append(args[0].detach()))
    output(model, ids)
    handle.remove()
    for expert in range(4):
        with ablate_expert(model, 0, expert) as log:
            cut = capture(model, ids, "L0.mlp_out")["L0.mlp_out"]
        flat = inputs[0].reshape(-1, 32)
        weights, chosen = (flat @ mlp.gate.weight.T).softmax(-1).topk(2, dim=-1)
        if name == "mixtral":  # normalised over the chosen, before anything is zeroed
            weights = weights / weights.sum(-1, keepdim=True)
        used = (chosen == expert).any(-1)
        assert log.fired == 1 and log.tokens == int(used.sum())
        gate, up = (flat @ mlp.experts.gate_up_proj[expert].T).chunk(2, dim=-1)
        one = (torch.nn.functional.silu(gate) * up) @ mlp.experts.down_proj[expert].T
        share = (weights * (chosen == expert)).sum(-1, keepdim=True)
        expected = plain["L0.mlp_out"].reshape(-1, 32) - share * one
        torch.testing.assert_close(cut.reshape(-1, 32), expected, rtol=1e-4, atol=1e-4)
        difference = (cut - plain["L0.mlp_out"]).reshape(-1, 32).abs().amax(-1)
        assert not difference[~used].any() and difference[used].all()
    assert traces(model) == found and torch.equal(clean, output(model, ids))


def test_case_18_repeated_runs_are_measured() -> None:
    model = hf("olmoe")
    ids = tokens(model)
    runs = torch.stack([output(model, ids) for _ in range(5)])
    assert (runs - runs[0]).abs().max() < 1e-5


def test_mistakes_are_named() -> None:
    model = hf("olmoe")
    assert n_experts(model, 0) == 4
    with pytest.raises(InputError, match="has 4 experts"), ablate_expert(model, 0, 4):
        pass
    with pytest.raises(InputError, match="has 2 layers"), ablate_expert(model, 2, 0):
        pass
    with pytest.raises(InputError, match="no experts"), ablate_expert(hf("llama"), 0, 0):
        pass
    with pytest.raises(InterventionError, match="never ran"), ablate_expert(model, 0, 0):
        pass


@pytest.mark.parametrize("name", ["olmoe", "mixtral", "qwen2_moe"])
def test_recorded_routes_are_the_softmax_and_its_largest(name: str) -> None:
    model = hf(name)
    ids, found = tokens(model), traces(model)
    inputs: dict[int, torch.Tensor] = {}
    handles = [
        model.module.get_submodule(f"model.layers.{layer}.mlp").register_forward_pre_hook(
            lambda _m, args, layer=layer: inputs.__setitem__(layer, args[0].detach().reshape(-1, 32))
        )
        for layer in expert_layers(model)
    ]
    with recorded_routes(model) as routes:
        output(model, ids)
    for handle in handles:
        handle.remove()
    assert list(routes) == list(inputs) == ([1] if name == "qwen2_moe" else [0, 1])
    for layer, one in routes.items():
        gate = model.module.get_submodule(f"model.layers.{layer}.mlp.gate")
        logits = inputs[layer] @ gate.weight.T
        weights, chosen = logits.softmax(-1).topk(2, dim=-1)
        if name == "mixtral":
            weights = weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(one.logits, logits)
        torch.testing.assert_close(one.weights, weights)
        assert torch.equal(one.chosen, chosen) and one.chosen.shape == (ids.numel(), 2)
    assert traces(model) == found


def test_one_recorded_forward_is_one() -> None:
    model = hf("mixtral")
    for n in (0, 2):
        with pytest.raises(InterventionError, match=f"ran {n} times"), recorded_routes(model):
            for _ in range(n):
                output(model, tokens(model))
    with pytest.raises(InputError, match="no experts"), recorded_routes(hf("gpt2")):
        pass


def test_a_dense_layer_of_a_mixture_is_named() -> None:
    model = hf("qwen2_moe")
    assert n_experts(model, 1) == 4
    with pytest.raises(InputError, match=r"layer 0 of .* is dense.* 1$"), ablate_expert(model, 0, 0):
        pass
