"""Every kind of component of every family: removed as often as the model runs, right, and put back bit for bit.

Oracles are float64 loops over numpy arrays, one position at a time.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import tiny
from causegrid.errors import InputError, InterventionError
from causegrid.interventions.components import components
from causegrid.interventions.gates import silu_inverse
from causegrid.interventions.removal import removed
from causegrid.models.record import models

OURS = {
    "lstm": {},
    "gru": {},
    "mamba": {"n_state": 8},
    "mamba signed": {"n_state": 8, "signed": True},
    "mamba2": {"n_state": 8, "head_dim": 8, "n_groups": 2, "chunk": 4},
    "transformer": {"n_heads": 4},
    "transformer rope": {"n_heads": 4, "positions": "rope"},
}
HF = ["mamba", "mamba2", "gpt_neox", "llama_gqa", "gpt2", "olmo2", "olmoe"]
KINDS = {
    "lstm": "input_gate forget_gate output_gate state",
    "gru": "reset_gate update_gate state",
    "mamba": "conv mixer gate state",
    "mamba signed": "conv mixer gate state",
    "mamba2": "conv mixer gate state",
    "transformer": "attention mlp",
    "transformer rope": "attention mlp",
    "hf mamba": "conv mixer gate state",
    "hf mamba2": "conv mixer gate state",
    "hf gpt_neox": "attention mlp",
    "hf gpt2": "attention mlp",
    "hf llama_gqa": "attention mlp mlp_gate",
    "hf olmo2": "attention mlp mlp_gate",
    "hf olmoe": "attention mlp",
}


@pytest.fixture(scope="module")
def family(wrapped):
    made = {}

    def get(name):
        if name not in made:
            if name.startswith("hf "):
                made[name] = wrapped(tiny.hf(name.removeprefix("hf ")), name.removeprefix("hf "))
            else:
                make = models.get(name.split()[0])
                made[name] = make(
                    name.split()[0], n_tokens=97, n_out=97, d_model=32, n_layers=2, seed=3, **OURS[name]
                )
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():  # weights large enough to matter
                for key, p in made[name].module.named_parameters():
                    if "conv1d" in key:
                        p.copy_(torch.randn(p.shape, generator=generator))
                    elif name == "hf mamba" and "dt_proj.weight" in key:
                        p.mul_(0.25)  # steps of a size that occurs: softplus of -30, not of -130
                    elif not name.startswith("hf ") and p.dim() == 2 and "A_log" not in key:
                        p.mul_(3.0)
                    elif key.endswith("bias"):
                        p.add_(0.1 * torch.randn(p.shape, generator=generator))
        return made[name]

    return get


def tokens(seed=0, batch=3, length=11):
    return torch.from_numpy(np.random.default_rng(seed).integers(3, 97, (batch, length)))


def trace(model):
    """All that could be left behind: parameters by object and value, hooks, attributes on instances."""
    parameters = {key: (id(p), p.detach().clone()) for key, p in model.module.named_parameters()}
    around = [
        (
            len(m._forward_hooks),
            len(m._forward_pre_hooks),
            {k: id(v) for k, v in vars(m).items() if callable(v)},
        )
        for m in model.module.modules()
    ]
    return parameters, around, getattr(getattr(model.module, "config", None), "_attn_implementation", None)


def same(before, after):
    assert before[1:] == after[1:] and before[0].keys() == after[0].keys()
    for key, (who, value) in before[0].items():
        assert after[0][key][0] == who and torch.equal(after[0][key][1], value), key


def given(component, mode):
    return component.means(tokens(7, 8), 3) if mode == "mean" else None


@pytest.mark.parametrize("name", KINDS)
def test_every_removal_fires_acts_and_leaves_no_trace(name, family):
    model = family(name)
    clean, before = model(tokens()), trace(model)
    found = components(model)
    assert list(found) == KINDS[name].split()
    for kind, component in found.items():
        for mode in component.modes:
            for layers, count in ((None, 2), (1, 1)):
                with removed(component, mode, layers, means=given(component, mode)) as log:
                    inside = model(tokens())
                    model(tokens(1))
                assert log.total == 2 * count and log.forwards == 2, (kind, mode)
                assert inside.isfinite().all() and not torch.equal(inside, clean), (kind, mode)
                same(before, trace(model))
                assert torch.equal(model(tokens()), clean), (kind, mode)
            with (
                pytest.raises(ValueError, match="mine"),
                removed(component, mode, means=given(component, mode)),
            ):
                model(tokens())
                raise ValueError("mine")
            same(before, trace(model))


@pytest.mark.parametrize("name", KINDS)
def test_removals_stay_causal(name, family):
    """A later token changes nothing earlier: what lets one forward stand for all shorter lengths."""
    model = family(name)
    other = tokens()
    other[:, 6:] = tokens(9)[:, 6:]
    for component in components(model).values():
        for mode in component.modes:
            with removed(component, mode, means=given(component, mode)):
                first, second, short = model(tokens()), model(other), model(tokens()[:, :6])
            torch.testing.assert_close(first[:, :6], second[:, :6], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(first[:, :6], short, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [n for n in KINDS if "gate state" in KINDS[n] or n in ("lstm", "gru")])
def test_a_reset_state_leaves_only_what_the_mixer_reads_now(name, family):
    """Without the convolution, two sequences that share a token agree at its position, whatever came before."""
    model = family(name)
    found = components(model)
    one, other = tokens(), tokens(9)
    other[:, 4] = one[:, 4]
    conv = [removed(found["conv"], "identity")] if "conv" in found else []
    with removed(found["state"], "reset"):
        if conv:
            with conv[0]:
                first, second = model(one), model(other)
        else:
            first, second = model(one), model(other)
    torch.testing.assert_close(first[:, 4], second[:, 4], atol=2e-5, rtol=1e-4)
    assert (first[:, 5] - second[:, 5]).abs().max() > 0.01


# recurrent steps in float64


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def recurrent(model, ids, forced, reset):
    """Logits (B, L, C): torch's documented LSTM and GRU equations, gates in `forced` held, state reset or not."""
    w = {k: v.detach().double().numpy() for k, v in model.module.state_dict().items()}
    x = w["embed.weight"][ids.numpy()]  # (B, L, d)
    d = x.shape[-1]
    for layer in range(2):
        wi, wh, bi, bh = (
            w[f"blocks.{layer}.{k}_l0"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h = c = np.zeros((len(x), d))
        out = []
        hold = forced if isinstance(forced, dict) else {}

        def gate(name, value, hold=hold):
            return np.full_like(value, hold[name]) if name in hold else sigmoid(value)

        for t in range(x.shape[1]):
            if reset:
                h, c = np.zeros_like(h), np.zeros_like(c)
            a, b = x[:, t] @ wi.T + bi, h @ wh.T + bh
            if model.family == "lstm":
                i, f, g, o = np.split(a + b, 4, axis=1)
                c = gate("forget_gate", f) * c + gate("input_gate", i) * np.tanh(g)
                h = gate("output_gate", o) * np.tanh(c)
            else:
                (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
                r, z = gate("reset_gate", ar + br), gate("update_gate", az + bz)
                h = (1 - z) * np.tanh(an + r * bn) + z * h
            out.append(h)
        x = np.stack(out, axis=1)
    return x @ w["head.weight"].T + w["head.bias"]


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_gates_held_and_states_reset_equal_a_float64_loop(name, family):
    model = family(name)
    np.testing.assert_allclose(model(tokens()), recurrent(model, tokens(), {}, False), atol=2e-5)
    for kind, component in components(model).items():
        for mode in component.modes:
            held = {} if kind == "state" else {kind: {"open": 1.0, "shut": 0.0}[mode]}
            with removed(component, mode):
                inside = model(tokens())
            expected = recurrent(model, tokens(), held, kind == "state")
            np.testing.assert_allclose(inside, expected, atol=2e-5, err_msg=f"{kind} {mode}")


def test_saturated_gates_are_exactly_one_and_zero(family):
    for name, kind, row in (("lstm", "forget_gate", 1), ("gru", "update_gate", 1)):
        model = family(name)
        for mode, value in (("open", 1.0), ("shut", 0.0)):
            with removed(components(model)[kind], mode):
                block = model.module.blocks[0]
                d = block.hidden_size
                bias = (block.bias_ih_l0 + block.bias_hh_l0)[row * d : (row + 1) * d].detach()
                assert not block.weight_ih_l0[row * d : (row + 1) * d].any()
                assert not block.weight_hh_l0[row * d : (row + 1) * d].any()
                assert (torch.sigmoid(bias) == value).all()
                model(tokens())


# state space steps in float64


def silu(x):
    return x * sigmoid(x)


def weights(model):
    w = {k: v.detach().double().numpy() for k, v in model.module.state_dict().items()}
    return {
        k.replace("backbone.", "").replace("layers.", "blocks.").replace("embeddings.", "embed."): v
        for k, v in w.items()
    }


def ssm(model, ids, *, reset=False, gate=None, drop=None, mixer_out=None):
    """Logits of a Mamba or Mamba-2: one position at a time.  `gate`: value per layer in place of SiLU(z);
    `drop`: layers whose mixer adds `mixer_out` (0 when None)."""
    w = weights(model)
    signed = bool(model.config.get("signed", False))
    eps = getattr(getattr(model.module, "config", None), "layer_norm_epsilon", 1e-5)
    x = w["embed.weight"][ids.numpy()]
    gates = []
    for layer in range(2):
        p = {k.split("mixer.")[1]: v for k, v in w.items() if k.startswith(f"blocks.{layer}.mixer.")}
        norm = w[f"blocks.{layer}.norm.weight"]
        u = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * norm
        mamba1 = p["A_log"].ndim == 2
        width = p["out_proj.weight"].shape[1]
        channels, _, taps = p["conv1d.weight"].shape
        both = u @ p["in_proj.weight"].T
        if mamba1:
            inner, z = both[..., :width], both[..., width:]
        else:
            z, inner, dts = np.split(both, [width, width + channels], axis=-1)
        held = silu(z) if gate is None else np.broadcast_to(gate[layer], z.shape)
        gates.append(silu(z))
        out = np.zeros_like(u)
        state = None
        past = np.concatenate([np.zeros((len(x), taps - 1, channels)), inner], axis=1)
        for t in range(x.shape[1]):
            v = silu((past[:, t : t + taps] * p["conv1d.weight"][:, 0].T).sum(1) + p["conv1d.bias"])  # (B, C)
            if mamba1:
                n = p["A_log"].shape[1]
                step, b, c = np.split(v @ p["x_proj.weight"].T, [p["dt_proj.weight"].shape[1], -n], axis=1)
                step, b = (v @ p["x_proj.weight"].T)[:, : -2 * n], (v @ p["x_proj.weight"].T)[:, -2 * n : -n]
                dt = np.log1p(np.exp(step @ p["dt_proj.weight"].T + p["dt_proj.bias"]))  # (B, E)
                decay = np.exp(dt[..., None] * -np.exp(p["A_log"]))  # (B, E, N)
                decay = 2 * decay - 1 if signed else decay
                new = (dt * v)[..., None] * b[:, None]
                state = new if reset or state is None else decay * state + new
                y = ((state * c[:, None]).sum(-1) + p["D"] * v) * held[:, t]
            else:
                heads = p["A_log"].shape[0]
                n = (channels - width) // 4  # two groups
                xs = v[:, :width].reshape(len(v), heads, -1)
                b = v[:, width : width + 2 * n].reshape(-1, 2, n).repeat(heads // 2, axis=1)
                c = v[:, width + 2 * n :].reshape(-1, 2, n).repeat(heads // 2, axis=1)
                dt = np.log1p(np.exp(dts[:, t] + p["dt_bias"]))  # (B, H)
                new = (dt[..., None] * xs)[..., None] * b[:, :, None]
                decay = np.exp(dt * -np.exp(p["A_log"]))[..., None, None]
                state = new if reset or state is None else decay * state + new
                y = ((state * c[:, :, None]).sum(-1) + p["D"][:, None] * xs).reshape(len(v), width)
                y = (y * held[:, t]).reshape(len(v), 2, -1)
                y = (y / np.sqrt((y**2).mean(-1, keepdims=True) + eps)).reshape(len(v), width)
                y = y * p["norm.weight"]
            out[:, t] = y @ p["out_proj.weight"].T
        if drop is not None:
            out = np.zeros_like(out) if mixer_out is None else np.broadcast_to(mixer_out[layer], out.shape)
        x = x + out
    final = w.get("norm.weight", w.get("norm_f.weight"))
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * final
    head = w.get("head.weight", w.get("lm_head.weight"))
    return x @ head.T + w.get("head.bias", 0.0), gates


SSM = ["mamba", "mamba signed", "mamba2", "hf mamba", "hf mamba2"]


@pytest.mark.parametrize("name", SSM)
def test_state_gate_and_mixer_equal_a_float64_loop(name, family):
    model = family(name)
    found = components(model)
    plain, _ = ssm(model, tokens())
    scale = np.abs(plain).max()
    np.testing.assert_allclose(model(tokens()), plain, atol=1e-4 * scale)
    with removed(found["state"], "reset"):
        inside = model(tokens())
    expected, _ = ssm(model, tokens(), reset=True)
    assert np.abs(expected - plain).max() > 1e-2 * scale
    np.testing.assert_allclose(inside, expected, atol=1e-4 * scale)

    with removed(found["gate"], "open"):
        inside = model(tokens())
    np.testing.assert_allclose(inside, ssm(model, tokens(), gate=[1.0, 1.0])[0], atol=1e-4 * scale)

    _, gates = ssm(model, tokens(7, 8))
    means = found["gate"].means(tokens(7, 8), 3)
    for layer in range(2):
        np.testing.assert_allclose(means[layer], gates[layer].mean(0), atol=1e-4)
    with removed(found["gate"], "mean", means=means):
        inside = model(tokens())
    expected, _ = ssm(model, tokens(), gate=[g.mean(0) for g in gates])
    np.testing.assert_allclose(inside, expected, atol=2e-4 * scale)

    with removed(found["mixer"], "zero"):
        inside = model(tokens())
    np.testing.assert_allclose(inside, ssm(model, tokens(), drop=True)[0], atol=1e-4 * scale)


def test_silu_inverse():
    y = torch.tensor([-5.0, -0.2784645, -0.1, 0.0, 1.0, 30.0])
    x = silu_inverse(y)
    torch.testing.assert_close(
        torch.nn.functional.silu(x), y.clamp(min=-0.2784645).double(), atol=1e-6, rtol=1e-6
    )
    assert x[4].item() == pytest.approx(1.278464542761)


# what is added to the residual, and attention to oneself


def added(model, name, layer, part):
    """The raw modules of a residual model whose output is added."""
    if not name.startswith("hf "):
        return getattr(model.module.blocks[layer], {"attention": "attn", "mlp": "mlp"}[part])
    if "olmo2" in name:
        block = model.module.model.layers[layer]
        return block.post_attention_layernorm if part == "attention" else block.post_feedforward_layernorm
    if "gpt_neox" in name:
        return getattr(model.module.gpt_neox.layers[layer], part)
    if "gpt2" in name:
        return getattr(model.module.transformer.h[layer], {"attention": "attn", "mlp": "mlp"}[part])
    return getattr(model.module.model.layers[layer], {"attention": "self_attn", "mlp": "mlp"}[part])


ATTENDING = [n for n in KINDS if "attention" in KINDS[n]]


@pytest.mark.parametrize("name", ATTENDING)
@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_what_is_added_is_zero_or_the_mean_of_raw_hooks(name, part, family):
    model = family(name)
    component = components(model)[part]
    seen = []

    def first(output):
        return output[0] if isinstance(output, tuple) else output

    module = added(model, name, 1, part)
    handle = module.register_forward_hook(lambda _m, _a, out: seen.append(first(out).detach()))
    model(tokens(7, 8))
    handle.remove()
    mean = torch.cat(seen).double().mean(0)  # (L, d)
    means = component.means(tokens(7, 8), 3)
    torch.testing.assert_close(means[1], mean, atol=1e-5, rtol=1e-5)
    longer = torch.cat([mean, mean.mean(0, keepdim=True).expand(2, -1)]).float()
    for mode, value in (("zero", torch.zeros_like(longer)), ("mean", longer)):
        handle = module.register_forward_hook(
            lambda _m, _a, out, v=value: (
                (v.expand_as(first(out)), *out[1:]) if isinstance(out, tuple) else v.expand_as(out).clone()
            )
        )
        expected = model(tokens(2, length=13))
        handle.remove()
        with removed(component, mode, 1, means=means):
            inside = model(tokens(2, length=13))
        torch.testing.assert_close(inside, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ATTENDING)
def test_self_attention_is_a_mask_that_leaves_the_diagonal(name, family):
    """One-token sequences attend to themselves alone: where positions do not tell, every position gives what
    its token gives alone."""
    model = family(name)
    component = components(model)["attention"]
    one, other = tokens(), tokens(9)
    other[:, 4] = one[:, 4]
    with removed(component, "self"):
        first, second = model(one), model(other)
        alone = model(one[:, :1])
        rope = model(one.flatten()[:, None]).view(first.shape) if name not in POSITIONED else None
    torch.testing.assert_close(first[:, 4], second[:, 4], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(first[:, :1], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone, model(one[:, :1]), atol=1e-5, rtol=1e-5)  # nothing removed there
    if rope is not None:
        torch.testing.assert_close(first, rope, atol=1e-5, rtol=1e-5)
    with removed(component, "self", 1):
        partly = model(one)
    assert (partly - first).abs().max() > 1e-3 and (partly - model(one)).abs().max() > 1e-3


POSITIONED = ("transformer", "hf gpt2")  # learned positions tell the same token apart


# refusals


def test_a_removal_that_ran_less_often_than_the_model_is_an_error(family):
    model = family("lstm")
    component = components(model)["state"]
    with pytest.raises(InterventionError, match="in 0 forwards"), removed(component, "reset"):
        pass

    def beside():
        with removed(component, "reset"):
            model(tokens())
            model.module.blocks[0](torch.zeros(1, 3, 32))  # once more than the model

    with pytest.raises(InterventionError, match="L0: 2, L1: 1"):
        beside()


def test_what_cannot_be_removed_is_refused(family):
    model = family("mamba")
    gate = components(model)["gate"]
    with pytest.raises(InputError, match=r"unknown mode of gate 'opne'.*'open'"), removed(gate, "opne"):
        pass
    with pytest.raises(InputError, match="2 layers"), removed(gate, "open", 2):
        pass
    with pytest.raises(InputError, match="no layers"), removed(gate, "open", []):
        pass
    with pytest.raises(InputError, match=r"reference tokens .* layers \[0, 1\]"), removed(gate, "mean"):
        pass
    wrong = {0: torch.zeros(11, 3), 1: torch.zeros(11, 3)}
    with pytest.raises(InputError, match=r"\(positions, 64\)"), removed(gate, "mean", means=wrong):
        model(tokens())
    bare = models.get("mamba")("mamba", n_tokens=9, n_out=3, d_model=16, n_layers=1, conv=False)
    assert "conv" not in components(bare)
    tied = copy.copy(family("hf llama_gqa"))
    assert tied.module.model.layers[0].mlp.act_fn is not None
    relu = torch.nn.ReLU()
    layer = tied.module.model.layers[0].mlp
    before, layer.act_fn = layer.act_fn, relu
    try:
        assert components(tied)["mlp_gate"].layers == (1,)
        with (
            pytest.raises(InputError, match=r"layer 0 .* no 'mlp_gate'"),
            removed(components(tied)["mlp_gate"], "open", 0),
        ):
            pass
    finally:
        layer.act_fn = before
