"""The forward pass against plain calls of transformers, one unpadded prompt at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from causegrid.errors import InputError
from causegrid.models import check_finite, fingerprint, last_logits, logits, model, noise_floor, wrap
from causegrid.models.forward import position_limit

FAMILIES = list(tiny.CONFIGS)


def prompts(*lengths: int, seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(3, tiny.VOCAB, (n,), generator=draw) for n in lengths]


def single(module: torch.nn.Module, prompt: torch.Tensor) -> torch.Tensor:
    """The oracle: one prompt, no padding, no mask, straight through the module."""
    with torch.no_grad():
        return module(prompt[None], use_cache=False).logits[0].float()


def left_padded(ragged: list[torch.Tensor], length: int, fill: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.full((len(ragged), length), fill)
    mask = torch.zeros(len(ragged), length, dtype=torch.long)
    for row, prompt in enumerate(ragged):
        tokens[row, length - len(prompt) :] = prompt
        mask[row, length - len(prompt) :] = 1
    return tokens, mask


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """To 1e-5 of the largest logit (tiny Mamba's reach 10), or of 1."""
    torch.testing.assert_close(got, want, atol=1e-5 * max(1.0, float(want.abs().max())), rtol=0)


def assert_padding_is_exact(made, ragged, extra=0):
    length = max(len(p) for p in ragged) + extra
    tokens, mask = left_padded(ragged, length)
    everywhere = logits(made, tokens, mask=mask)
    at_end = logits(made, tokens, mask=mask, last=True)
    for row, prompt in enumerate(ragged):
        want = single(made.module, prompt)
        close(everywhere[row, length - len(prompt) :], want)
        close(at_end[row], want[-1])


def test_case_03_left_padding_with_learned_positions(loaded):
    made = loaded("gpt2")
    ragged = prompts(5, 9)
    assert_padding_is_exact(made, ragged)
    tokens, mask = left_padded(ragged, 9)
    with torch.no_grad():  # the fault is real here: a mask without positions moves the logits
        naive = made.module(tokens, attention_mask=mask, position_ids=torch.arange(9)[None]).logits
    assert (naive[0, -1] - single(made.module, ragged[0])[-1]).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_case_04_loss_is_constant_over_the_padding(loaded, family):
    made = loaded(family)
    (prompt,) = prompts(9)
    losses = []
    for pads in range(5):
        tokens, mask = left_padded([prompt], 9 + pads)
        out = logits(made, tokens, mask=mask)[0, pads:]
        losses.append(float(F.cross_entropy(out[:-1], prompt[1:])))
    assert max(losses) - min(losses) < 1e-5


def test_case_05_left_padding_with_rotary_positions(loaded):
    assert_padding_is_exact(loaded("gpt_neox"), prompts(5, 9), extra=2)


@pytest.mark.parametrize("family", tiny.ATTENTION)
def test_case_06_attention_back_ends_agree_on_real_rows(disk, family):
    ragged = prompts(4, 7, 9)
    tokens, mask = left_padded(ragged, 10)
    eager, sdpa = (
        logits(model(disk(family), attn_implementation=kind), tokens, mask=mask) for kind in ("eager", "sdpa")
    )
    real = mask.bool()
    close(eager[real], sdpa[real])


@pytest.mark.parametrize("family", FAMILIES)
def test_case_07_ragged_batch_equals_single_runs(loaded, family):
    made = loaded(family)
    ragged = prompts(3, 11, 6)
    assert_padding_is_exact(made, ragged)
    want = torch.stack([single(made.module, p)[-1] for p in ragged])
    got = last_logits(made, [p.tolist() for p in ragged])
    close(got, want)


@pytest.mark.parametrize("family", FAMILIES)
def test_case_14_a_second_forward_is_bit_equal(loaded, family):
    made = loaded(family)
    (tokens, longer) = prompts(8, 12)
    first = logits(made, tokens[None])
    logits(made, longer[None])
    assert torch.equal(first, logits(made, tokens[None]))


def test_case_17_noise_floor_of_half_precision(disk, loaded):
    ragged = prompts(6, 6, 9, 6)
    half = model(disk("gpt_neox"), dtype="bfloat16")
    assert half.module.dtype == torch.bfloat16
    floor = noise_floor(half, ragged)
    assert floor.shape == (4,)
    one_by_one = torch.stack([single(half.module, p)[-1] for p in ragged])
    batched = last_logits(half, ragged)
    assert batched.dtype == torch.float32
    drift = (batched - one_by_one).abs().amax(dim=1)
    assert (drift <= floor).all()
    assert floor.max() < 0.2
    assert noise_floor(loaded("gpt_neox"), ragged).max() < 1e-5


def test_noise_floor_sees_a_layout_effect(loaded):
    """Rows that depend on the size of their batch show up, also where no two prompts share a length."""
    made = loaded("gpt2")
    hook = made.module.register_forward_hook(
        lambda module, args, out: setattr(out, "logits", out.logits + 0.5 * out.logits.shape[0])
    )
    try:
        np.testing.assert_allclose(noise_floor(made, prompts(4, 4, 4)), [1.0, 1.0, 1.0], atol=1e-5)
        np.testing.assert_allclose(noise_floor(made, prompts(4, 5)), [0.5, 0.5], atol=1e-5)
    finally:
        hook.remove()


def test_case_18_five_runs_of_a_mixture_of_experts(loaded):
    made = loaded("olmoe")
    ragged = prompts(7, 7, 7, 10)
    runs = torch.stack([last_logits(made, ragged) for _ in range(5)])
    spread = (runs - runs[0]).abs().amax(dim=(0, 2))
    floor = noise_floor(made, ragged, repeats=4)
    assert (spread <= floor).all() and floor.max() < 1e-5


@pytest.mark.parametrize("family", ["mamba", "mamba2"])
@pytest.mark.parametrize("pads", [1, 3, 5, 12])
def test_case_21_left_padding_enters_neither_convolution_nor_state(loaded, family, pads):
    assert_padding_is_exact(loaded(family), prompts(7), extra=pads)
    assert_padding_is_exact(loaded(family), prompts(7, 3), extra=pads)


@pytest.mark.parametrize("family", ["mamba", "mamba2"])
def test_case_21_a_biased_input_projection_refuses_the_mask(family):
    module = tiny.hf(family, use_bias=True)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("in_proj.bias"):
                parameter.normal_()
    made = wrap(module, name="biased")
    (prompt,) = prompts(5)
    tokens, mask = left_padded([prompt], 8)
    with torch.no_grad():  # why: transformers' own padding is off by whole logits here
        naive = module(tokens, attention_mask=mask, use_cache=False).logits[0, -1]
    assert (naive - single(module, prompt)[-1]).abs().max() > 0.1
    with pytest.raises(InputError, match="bias"):
        logits(made, tokens, mask=mask)
    assert torch.equal(logits(made, tokens, mask=torch.ones_like(mask)), logits(made, tokens))
    torch.testing.assert_close(last_logits(made, [prompt])[0], single(module, prompt)[-1])


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 1, 1, 0]],  # right
        [[0, 1, 0, 1]],  # gap
        [[0, 0, 0, 0]],  # nothing real
        [[1, 1, 1, 1], [1, 1, 0, 0]],
    ],
)
def test_only_left_padding_is_taken(loaded, rows):
    tokens = torch.full((len(rows), 4), 7)
    with pytest.raises(InputError, match="left only") as error:
        logits(loaded("llama"), tokens, mask=rows)
    assert f"row {len(rows) - 1}" in str(error.value)


def test_bad_masks_are_named(loaded):
    with pytest.raises(InputError, match=r"\(1, 3\).*\(1, 4\)"):
        logits(loaded("llama"), [[1, 2, 3, 4]], mask=[[1, 1, 1]])
    with pytest.raises(InputError, match="only 0"):
        logits(loaded("llama"), [[1, 2, 3, 4]], mask=[[0, 1, 1, 2]])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[1, 97]], "token id 97 .* 0 to 96"),
        ([[1, -3]], "token id -3"),
        ([1, 2], r"shape \(B, L\)"),
        ([[]], r"shape \(B, L\)"),
        ([[1], [1, 2]], "rectangle"),
        ([[1.5, 2.0]], "whole numbers"),
        ([["a", "b"]], "rectangle"),
    ],
)
def test_bad_tokens_are_named(loaded, tokens, message):
    with pytest.raises(InputError, match=message) as error:
        logits(loaded("llama"), tokens)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "mamba"])
def test_more_tokens_than_stated_positions(loaded, family):
    limit = None if family == "mamba" else 64
    assert position_limit(loaded(family)) == limit
    assert logits(loaded(family), torch.full((1, 64), 3)).shape == (1, 64, tiny.VOCAB)
    if limit is None:
        assert logits(loaded(family), torch.full((1, 65), 3)).shape == (1, 65, tiny.VOCAB)
        return
    with pytest.raises(InputError, match=r"65 tokens are too many .* 64 positions"):
        logits(loaded(family), torch.full((1, 65), 3))


@pytest.mark.parametrize("positions", [1, 3, 8])
def test_models_of_few_positions_load_and_have_a_fingerprint(tmp_path, positions):
    tiny.hf("llama", max_position_embeddings=positions).save_pretrained(tmp_path)
    assert len(fingerprint(model(tmp_path))) == 8


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_in_any_form_give_the_same_float32_logits(loaded, family):
    made = loaded(family)
    rows = [[3, 9, 4], [8, 8, 60]]
    want = torch.stack([single(made.module, torch.tensor(r)) for r in rows])
    for form in (
        rows,
        np.array(rows, dtype=np.int32),
        torch.tensor(rows),
        torch.tensor(rows, dtype=torch.int16),
    ):
        close(logits(made, form), want)
    close(made(rows), want)
    close(logits(made, rows, last=True), want[:, -1])


def test_last_keeps_only_the_last_position(loaded):
    made = loaded("gpt2")
    seen = []
    hook = made.module.lm_head.register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape)))
    logits(made, [[1, 2, 3, 4]], last=True)
    hook.remove()
    assert seen == [(1, 1, tiny.VOCAB)]


def test_modes_come_back_part_by_part_and_dropout_is_off():
    made = wrap(tiny.hf("gpt2"), name="dropout")
    made.module.train()
    made.module.transformer.h[1].eval()
    before = {name: part.training for name, part in made.module.named_modules()}
    assert torch.equal(logits(made, [[1, 2, 3]]), logits(made, [[1, 2, 3]]))
    assert before == {name: part.training for name, part in made.module.named_modules()}
    hook = made.module.lm_head.register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        logits(made, [[1, 2, 3]])
    hook.remove()
    assert before == {name: part.training for name, part in made.module.named_modules()}


def test_logits_carry_no_gradient_and_can_be_written(loaded):
    out = logits(loaded("llama"), [[1, 2, 3]])
    assert not out.requires_grad and not out.is_inference()
    out += 1.0


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=9), batch_size=st.integers(1, 4))
def test_last_logits_keeps_the_order_and_the_batch_size(loaded, lengths, batch_size):
    made = loaded("llama_gqa")
    ragged = prompts(*lengths, seed=len(lengths))
    shapes = []
    hook = made.module.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        got = last_logits(made, ragged, batch_size=batch_size)
    finally:
        hook.remove()
    assert max(rows for rows, _ in shapes) <= batch_size and sum(rows for rows, _ in shapes) == len(lengths)
    want = torch.stack([single(made.module, p)[-1] for p in ragged])
    close(got, want)


def test_last_logits_names_an_empty_prompt(loaded):
    with pytest.raises(InputError, match="prompt 1"):
        last_logits(loaded("llama"), [[1, 2], []])
    with pytest.raises(InputError, match="batch_size"):
        last_logits(loaded("llama"), [[1, 2]], batch_size=0)


def test_fingerprint_tells_weights_apart(loaded):
    made = loaded("llama")
    assert fingerprint(made) == fingerprint(made) and len(fingerprint(made)) == 8
    again, other = (fingerprint(wrap(tiny.hf("llama", seed=seed), name="made")) for seed in (0, 1))
    assert again == pytest.approx(fingerprint(made), abs=1e-5)
    assert other != pytest.approx(fingerprint(made), abs=1e-2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(value):
    made = wrap(tiny.hf("llama"), name="broken")
    check_finite(made)
    with torch.no_grad():
        made.module.model.layers[1].mlp.up_proj.weight[3, 4] = value
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        check_finite(made)
