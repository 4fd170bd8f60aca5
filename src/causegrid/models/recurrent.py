"""LSTM and GRU: an embedding, four one-layer recurrent blocks of the model's width, a linear head.

One `nn.LSTM` or `nn.GRU` per block (in the faster form of `recurrence`) so that every block's output can be
captured and edited; no residual connection and no norm.  A block returns (output (B, L, d), state), as torch
does.
Natural sizes at width 128: LSTM 530K parameters, GRU 398K.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from causegrid.models.ops.recurrence import GRU, LSTM
from causegrid.models.record import Model, models
from causegrid.models.sizes import require_sizes

_CELLS: dict[str, type[LSTM] | type[GRU]] = {"lstm": LSTM, "gru": GRU}


class Recurrent(nn.Module):
    """Token ids (B, L) -> logits (B, L, n_out)."""

    def __init__(self, cell: str, n_tokens: int, n_out: int, *, d_model: int, n_layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, d_model)
        self.blocks = nn.ModuleList(
            [_CELLS[cell](d_model, d_model, batch_first=True) for _ in range(n_layers)]
        )
        self.norm = nn.Identity()
        self.head = nn.Linear(d_model, n_out)

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """Token ids (B, L) -> logits (B, L, n_out), or (B, n_out) at the last position with `last`."""
        x = self.embed(tokens)  # (B, L, d)
        for block in self.blocks:
            x, _ = block(x)
        logits: Tensor = self.head(self.norm(x[:, -1] if last else x))
        return logits


def _build(
    name: str, family: str, n_tokens: int, n_out: int, seed: int, d_model: int, n_layers: int
) -> Model:
    require_sizes(name, d_model=d_model, n_layers=n_layers)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # a GPU's stream is left alone
        module = Recurrent(family, n_tokens, n_out, d_model=d_model, n_layers=n_layers)
    return Model(
        name=name,
        family=family,
        module=module.eval(),
        n_layers=n_layers,
        d_model=d_model,
        n_tokens=n_tokens,
        n_out=n_out,
        source=f"fresh weights, seed {seed}",
        config=dict(n_tokens=n_tokens, n_out=n_out, seed=seed, d_model=d_model, n_layers=n_layers),
    )


@models.register("lstm")
def lstm(
    name: str, *, n_tokens: int, n_out: int, seed: int = 0, d_model: int = 128, n_layers: int = 4
) -> Model:
    """An LSTM with fresh weights, a function of `seed`."""
    return _build(name, "lstm", n_tokens, n_out, seed, d_model, n_layers)


@models.register("gru")
def gru(
    name: str, *, n_tokens: int, n_out: int, seed: int = 0, d_model: int = 128, n_layers: int = 4
) -> Model:
    """A GRU with fresh weights, a function of `seed`."""
    return _build(name, "gru", n_tokens, n_out, seed, d_model, n_layers)
