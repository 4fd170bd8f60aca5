"""A plain pre-norm Transformer, GPT-2-like: attention and MLP with biases, GELU, LayerNorm.

Width 128, four blocks, four heads, learned positions up to 256: 828,168 parameters with 8 tokens in and 8 classes
out, the size the other families are compared at.  Positions are one of `learned`, `sinusoidal`, `rope`, `none`,
recorded in the config, because positions never trained on make a learned scheme's out-of-length numbers
meaningless.  With `rope` or `none`, and no start token (our tasks have none), a run of one token at the start gives
the same output at each of its positions: softmax over equal values returns that value, however many there are.  So
these schemes cannot learn Parity or Dyck's depth exactly, at any size or budget.  Attention goes through one
attribute, `attend(q, k, v) -> out` with (B, H, L, d_h) each, so rows can be recorded without touching anything
else; the heads' outputs z are the input of `proj`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.errors import InputError, unknown
from causegrid.models.record import Model, models
from causegrid.models.sizes import require_sizes

SCHEMES = ("learned", "sinusoidal", "rope", "none")
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal scaled dot-product attention: q, k, v (B, H, L, d_h) -> (B, H, L, d_h)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sinusoids(n: int, width: int) -> Tensor:
    """Sines and cosines of position (n, width), sines first (Vaswani et al. 2017, section 3.5)."""
    half = width // 2
    rates = torch.exp(-math.log(10000.0) * torch.arange(half) / half)
    angles = torch.arange(n)[:, None] * rates  # (n, width / 2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions on x (B, H, L, d_h), halves paired (Su et al., arXiv 2104.09864, section 3.4)."""
    angles = sinusoids(x.shape[-2], x.shape[-1]).to(x)
    sin, cos = angles.chunk(2, dim=-1)  # (L, d_h / 2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Multi-head causal self-attention: (B, L, d) -> (B, L, d)."""

    def __init__(self, d_model: int, n_heads: int, rope: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.rope = rope
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)
        self.attend: Attend = attend

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, d) -> (B, L, d)."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.n_heads, width // self.n_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, L, d_h) each
        if self.rope:
            q, k = rotate(q), rotate(k)
        z = self.attend(q, k, v)
        out: Tensor = self.proj(z.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, d_model: int, n_heads: int, expand: int, rope: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attn = Attention(d_model, n_heads, rope)
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, expand * d_model), nn.GELU(), nn.Linear(expand * d_model, d_model)
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, d) -> (B, L, d)."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Transformer(nn.Module):
    """Token ids (B, L) -> logits (B, L, n_out)."""

    def __init__(
        self,
        n_tokens: int,
        n_out: int,
        *,
        d_model: int,
        n_layers: int,
        n_heads: int,
        expand: int,
        positions: str,
        max_length: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, d_model)
        self.scheme = positions
        self.positions = nn.Embedding(max_length, d_model) if positions == "learned" else None
        rope = positions == "rope"
        self.blocks = nn.ModuleList([Block(d_model, n_heads, expand, rope) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_out)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:  # GPT-2's initialisation: residual writers shrink with depth
                writes = name.endswith(("proj.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layers) if writes else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """Token ids (B, L) -> logits (B, L, n_out), or (B, n_out) at the last position with `last`.

        Raises InputError when L is beyond the learned positions.
        """
        x = self.embed(tokens)  # (B, L, d)
        length = tokens.shape[1]
        if self.positions is not None:
            limit = self.positions.num_embeddings
            if length > limit:
                raise InputError(
                    f"length {length} is beyond this Transformer's {limit} learned positions: use at most "
                    f"{limit}, or build it with max_length={length} or positions='sinusoidal'"
                )
            x = x + self.positions.weight[:length]
        elif self.scheme == "sinusoidal":
            x = x + sinusoids(length, x.shape[-1]).to(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x[:, -1] if last else x)
        logits: Tensor = self.head(x)
        return logits


@models.register("transformer")
def make(
    name: str,
    *,
    n_tokens: int,
    n_out: int,
    seed: int = 0,
    d_model: int = 128,
    n_layers: int = 4,
    n_heads: int = 4,
    expand: int = 4,
    positions: str = "learned",
    max_length: int = 256,
) -> Model:
    """A Transformer with fresh weights, a function of `seed`; `positions` is learned, sinusoidal, rope or none.

    Raises InputError on another positional scheme or a width the heads do not divide into even parts.
    """
    require_sizes(
        name, d_model=d_model, n_layers=n_layers, n_heads=n_heads, expand=expand, max_length=max_length
    )
    if positions not in SCHEMES:
        raise unknown("positional scheme", positions, SCHEMES)
    if d_model % n_heads or d_model // n_heads % 2:
        raise InputError(f"d_model {d_model} cannot be cut into {n_heads} heads of even width")
    options = dict(
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        expand=expand,
        positions=positions,
        max_length=max_length,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # a GPU's stream is left alone
        module = Transformer(n_tokens, n_out, **options)  # type: ignore[arg-type]
    return Model(
        name=name,
        family="transformer",
        module=module.eval(),
        n_layers=n_layers,
        d_model=d_model,
        n_tokens=n_tokens,
        n_out=n_out,
        n_heads=n_heads,
        head_dim=d_model // n_heads,
        n_kv_heads=n_heads,
        source=f"fresh weights, seed {seed}",
        config={"n_tokens": n_tokens, "n_out": n_out, "seed": seed, **options},
    )
