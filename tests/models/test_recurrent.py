"""LSTM and GRU: sizes, and equality with the cells torch gives for one step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from causegrid.models.record import models


@pytest.mark.parametrize(("family", "count"), [("lstm", 530_440), ("gru", 398_344)])
def test_natural_sizes(family: str, count: int) -> None:
    model = models.get(family)(family, n_tokens=8, n_out=8)
    assert model.n_params == count
    assert len(model.module.blocks) == model.n_layers == 4
    assert not model.is_hf


@pytest.mark.parametrize("family", ["lstm", "gru"])
def test_logits_are_the_cells_stepped_by_hand(family: str) -> None:
    module = models.get(family)(family, n_tokens=5, n_out=3, d_model=16, n_layers=2).module
    tokens = torch.randint(5, (2, 7))
    x = module.embed.weight[tokens]
    for block in module.blocks:
        cell = (nn.LSTMCell if family == "lstm" else nn.GRUCell)(16, 16)
        cell.load_state_dict({name.removesuffix("_l0"): value for name, value in block.state_dict().items()})
        state, out = None, []
        for t in range(7):
            state = cell(x[:, t], state)
            out.append(state[0] if family == "lstm" else state)
        x = torch.stack(out, dim=1)
    want = x @ module.head.weight.T + module.head.bias
    assert torch.allclose(module(tokens), want, atol=1e-6)
    assert torch.allclose(module(tokens, last=True), want[:, -1], atol=1e-6)


@pytest.mark.parametrize("family", ["lstm", "gru"])
def test_config_builds_it_again(family: str) -> None:
    model = models.get(family)(family, n_tokens=5, n_out=3, seed=4, d_model=16, n_layers=2)
    again = models.get(family)("again", **model.config)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    )
