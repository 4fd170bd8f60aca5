"""The logit lens at the model's own scale."""

from __future__ import annotations

import pytest
import tiny_cells
import torch
from tiny_cells import tiny_model

from causegrid.models import model as make
from causegrid.signatures import logit_lens

HUGGING_FACE = list(tiny_cells.tiny.CONFIGS)
OWN = ["transformer", "mamba", "mamba2", "lstm", "gru"]


@pytest.mark.parametrize("family", HUGGING_FACE)
def test_case_16_last_lens_is_the_models_logits(family):
    model = tiny_model(family)
    tokens = torch.randint(3, 97, (3, 11), generator=torch.Generator().manual_seed(0))
    lens = logit_lens(model, tokens)
    with torch.no_grad():
        wanted = model.module(input_ids=tokens, use_cache=False).logits
    assert lens.shape == (model.n_layers, 3, 11, 97) and lens.dtype == torch.float32
    torch.testing.assert_close(lens[-1], wanted, atol=1e-5, rtol=1e-5)
    assert (lens[0] - wanted).abs().max() > 0.01


@pytest.mark.parametrize("family", OWN)
def test_case_16_last_lens_is_the_logits_of_our_families(family):
    model = make(family, task=tiny_cells.Toy(), seed=0)
    tokens = torch.randint(2, (2, 9), generator=torch.Generator().manual_seed(0))
    lens = logit_lens(model, tokens)
    assert lens.shape == (model.n_layers, 2, 9, 2)
    torch.testing.assert_close(lens[-1], model(tokens), atol=1e-5, rtol=1e-5)
    assert (lens[0] - lens[-1]).abs().max() > 1e-3
