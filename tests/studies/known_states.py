"""Parity networks whose answer is known: block 1 writes the parity, and only it, and the head reads or ignores it.

The state sits in coordinate 0 with size 1 and, in the two-direction network, also in coordinate 1 with size 1 and
ten times the within-class noise.  Noise is a fixed function of the tokens, so the model is deterministic.
"""

from __future__ import annotations

import torch
from torch import nn

from causegrid.models.record import Model

WIDTH, BLOCKS = 16, 3
NOISE, WIDE = 1.0, 1.0


def noise(tokens: torch.Tensor, width: int, seed: int) -> torch.Tensor:
    """(B, L, width) in about N(0, 1): a hash of the prefix, unrelated to its parity."""
    generator = torch.Generator().manual_seed(seed)
    length = tokens.shape[1]
    weights = torch.rand(length, width, generator=generator) * 900
    mixed = (tokens[:, :, None] * weights[:length]).cumsum(1) + weights[:length] * 13
    return torch.erfinv((torch.frac(torch.sin(mixed) * 4373.7) * 0.998).clamp(-0.998, 0.998)) * 2**0.5


class Writer(nn.Module):
    """Adds the parity of the prefix to `columns`, each with its own noise, and noise to the rest."""

    def __init__(self, columns: dict[int, float], seed: int) -> None:
        super().__init__()
        self.columns = columns
        self.seed = seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x[:, :, -1] > 0).float()  # the embedding keeps the bit in the last coordinate
        sign = (tokens.cumsum(1) % 2) * 2 - 1
        drawn = noise(tokens, x.shape[2], self.seed)
        out = x + NOISE * drawn
        for column, spread in self.columns.items():
            out[:, :, column] = sign + spread * drawn[:, :, column]
        out[:, :, -1] = x[:, :, -1]
        return out


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


class Net(nn.Module):
    """embedding -> same -> writer -> same -> head; `reads` gives the head's weight on each coordinate."""

    def __init__(
        self, columns: dict[int, float], reads: dict[int, float], aside: bool, width: int, seed: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(2, width)
        self.blocks = nn.ModuleList([Same(), Writer(columns, seed), Same()])
        self.norm = nn.Identity()
        self.head = nn.Linear(width, 2)
        self.aside = aside
        with torch.no_grad():
            self.embed.weight.zero_()
            self.embed.weight[:, -1] = torch.tensor([-1.0, 1.0])
            self.head.weight.zero_()
            self.head.bias.zero_()
            for column, weight in reads.items():
                self.head.weight[1, column] = weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        if self.aside:  # the answer comes past the residual stream, from the tokens themselves
            sign = (tokens.cumsum(1) % 2).float() * 2 - 1
            return torch.stack([-sign, sign], -1) + 0 * self.head(self.norm(x))
        return self.head(self.norm(x))


def known(
    columns: dict[int, float], reads: dict[int, float], aside: bool = False, width: int = WIDTH, seed: int = 7
) -> Model:
    module = Net(columns, reads, aside, width, seed).eval()
    return Model(
        name="known", family="transformer", module=module, n_layers=BLOCKS, d_model=width, n_tokens=2, n_out=2
    )
