"""The module of planted models: attention alone, no norm, no MLP, so every part adds to the residual as it stands."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention without biases; `n_kv_heads` keys and values serve `n_heads` queries."""

    def __init__(self, width: int, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.q = nn.Linear(width, n_heads * head_dim, bias=False)
        self.k = nn.Linear(width, n_kv_heads * head_dim, bias=False)
        self.v = nn.Linear(width, n_kv_heads * head_dim, bias=False)
        self.proj = nn.Linear(n_heads * head_dim, width, bias=False)
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, d) -> (B, L, d)."""
        batch, length, _ = x.shape
        last = x.permute(1, 2, 0).contiguous()  # (L, d, B)

        def heads(part: nn.Linear, count: int) -> Tensor:
            made = (part.weight @ last).view(length, count, self.head_dim, batch)
            if count < self.n_heads:
                made = made.repeat_interleave(self.n_heads // count, 1)
            return made.permute(3, 1, 0, 2)  # (B, H, L, d_h)

        q, k, v = heads(self.q, self.n_heads), heads(self.k, self.n_kv_heads), heads(self.v, self.n_kv_heads)
        z = self.attend(q, k, v)
        out: Tensor = self.proj(z.transpose(1, 2).reshape(batch, length, -1))
        return out


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: q, k, v (B, H, L, d_h) -> (B, H, L, d_h).

    Position by position with the batch as the last axis in memory: several times faster than sdpa for thousands
    of tiny heads.
    """
    q, k, v = (x.permute(2, 1, 3, 0) for x in (q, k, v))  # (L, H, d_h, B)
    scale, out = q.shape[2] ** -0.5, torch.empty(v.shape, dtype=v.dtype, device=v.device)
    for i in range(len(q)):
        row = ((q[i] * scale) * k[: i + 1]).sum(2).softmax(0)  # (i + 1, H, B)
        out[i] = (row.unsqueeze(2) * v[: i + 1]).sum(0)
    return out.permute(3, 1, 0, 2)


class Block(nn.Module):
    """x + attention(x)."""

    def __init__(self, width: int, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.attn = Attention(width, n_heads, n_kv_heads, head_dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, d) -> (B, L, d)."""
        out: Tensor = x + self.attn(x)
        return out


class PlantedModule(nn.Module):
    """Token ids (B, L) -> logits (B, L, n_out), one per value; with `last` (B, n_out)."""

    def __init__(
        self,
        *,
        n_tokens: int,
        n_out: int,
        width: int,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, width)
        self.blocks = nn.ModuleList([Block(width, n_heads, n_kv_heads, head_dim) for _ in range(n_layers)])
        self.head = nn.Linear(width, n_out, bias=False)

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        x = self.embed(tokens)  # (B, L, d)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x[:, -1] if last else x)
        return logits
