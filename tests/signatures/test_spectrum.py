"""Participation ratio against numpy's SVD; the spectrum of tiny models against plain hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_cells import prompt_set, tiny_model

from causegrid.errors import InputError
from causegrid.signatures import participation_ratio, pr_integral, spectrum


def oracle(m, kind):
    s = np.linalg.svd(np.asarray(m, dtype=np.float64), compute_uv=False)
    if kind == "moment":
        return (s**2).sum() ** 2 / (s**4).sum()
    p = s**2 / (s**2).sum()
    p = p[p > 0]
    return np.exp(-(p * np.log(p)).sum())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 12), st.integers(1, 12), st.floats(-6, 6),
    st.sampled_from(["entropy", "moment"]),
)  # fmt: skip
def test_ratio_is_the_svds_and_lies_in_its_bounds(seed, n, d, rank, exponent, kind):
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=min(rank, d)) * 4)
    m = (rng.normal(size=(n, len(scales))) * scales) @ rng.normal(size=(len(scales), d)) * 10.0**exponent
    got = participation_ratio(m.astype(np.float32), kind)
    assert got == pytest.approx(oracle(m.astype(np.float32), kind), rel=1e-7)
    assert 1 - 1e-9 <= got <= min(n, d) + 1e-9


def test_known_values_and_no_centring():
    assert participation_ratio(np.eye(7)) == pytest.approx(7)
    assert participation_ratio(np.eye(7), "moment") == pytest.approx(7)
    constant = np.tile([3.0, 4.0], (50, 1)) + np.random.default_rng(0).normal(size=(50, 2)) * 1e-4
    assert participation_ratio(constant) == pytest.approx(1, abs=1e-5)  # centred it would be near 2


def test_batches_equal_single_matrices_and_zero_is_undefined():
    m = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(participation_ratio(m), [participation_ratio(x) for x in m])
    assert np.isnan(participation_ratio(np.zeros((4, 3))))


def test_half_precision_does_not_overflow():
    m = torch.full((64, 8), 3e4, dtype=torch.float16)
    assert participation_ratio(m) == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: participation_ratio(np.eye(2), "mass"), "moment"),
        (lambda: participation_ratio(np.ones(3)), "matrix"),
        (lambda: participation_ratio(np.full((2, 2), np.inf)), "not finite"),
        (lambda: pr_integral([0, 10], [1, 2]), "at least 2"),
        (lambda: pr_integral([1, 20, 10], [1, 2, 3]), "ascending"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_integral_is_the_trapezoid_over_log_tokens_without_step_zero():
    tokens, pr = [0, np.e, np.e**2, np.e**4], [9.0, 2.0, 0.5, 4.0]
    assert pr_integral(tokens, pr) == pytest.approx((1 + 0) / 2 * 1 + (0 + 3) / 2 * 2)
    both = pr_integral(tokens, np.stack([pr, pr], axis=1))
    np.testing.assert_allclose(both, [3.5, 3.5])


@pytest.mark.parametrize("family", ["gpt_neox", "llama_wide", "olmo2"])
def test_spectrum_of_a_tiny_model_against_plain_hooks(family):
    model = tiny_model(family)
    prompts = prompt_set(n=24)
    table = spectrum(model, prompts, seed=3)
    assert len(table) == model.n_layers * model.n_heads
    projection = {"gpt_neox": lambda m, l: m.gpt_neox.layers[l].attention.dense}.get(
        family, lambda m, l: m.model.layers[l].self_attn.o_proj
    )
    for layer in range(model.n_layers):
        seen = []
        handle = projection(model.module, layer).register_forward_pre_hook(
            lambda _, a, seen=seen: seen.append(a[0])
        )
        with torch.no_grad():
            for tokens in prompts.tokens:
                model.module(input_ids=torch.tensor(tokens)[None], use_cache=False)
        handle.remove()
        z = torch.stack([s[0, -1] for s in seen]).reshape(len(prompts), model.n_heads, -1).numpy()
        for head in range(model.n_heads):
            row = table[(table["layer"] == layer) & (table["head"] == head)].iloc[0]
            assert row["pr"] == pytest.approx(oracle(z[:, head], "entropy"), rel=1e-4)
            assert row["moment"] == pytest.approx(oracle(z[:, head], "moment"), rel=1e-4)
            assert row["low"] <= row["pr"] <= row["high"] <= min(len(prompts), z.shape[2])
            assert row["low"] < row["high"] and row["n"] == 24


def test_spectrum_is_a_function_of_the_seed_and_refuses_what_has_no_heads():
    model, prompts = tiny_model("gpt2"), prompt_set(n=8)
    assert spectrum(model, prompts, seed=1).equals(spectrum(model, prompts, seed=1))
    assert not spectrum(model, prompts, seed=1).equals(spectrum(model, prompts, seed=2))
    with pytest.raises(InputError, match="no attention"):
        spectrum(tiny_model("mamba"), prompts)
    with pytest.raises(InputError, match="at least 4"):
        spectrum(model, prompts.subset([0, 1]))


def test_bfloat16_outputs_are_measured_in_float32():
    model = tiny_model("gpt_neox", dtype=torch.bfloat16)
    table = spectrum(model, prompt_set(n=12))
    assert np.isfinite(table["pr"]).all() and (table["pr"] >= 1).all()
