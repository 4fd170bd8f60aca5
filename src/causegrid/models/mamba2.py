"""Mamba-2: the state space in its matrix form, one scalar decay per head.

Dao and Gu, arXiv 2405.21060, sections 6 and 7; sizes N = 64, heads of width 32, expansion 2, four taps,
heads in `n_groups` groups that share B and C.  Parameter names and shapes are those of transformers' Mamba-2
(`mamba.from_hf` renames).  Everything a site may want is a module that is really called or an attribute:
`mixer.conv1d`, `mixer.act` (its output is what is scanned, with B and C), `mixer.ssd` (swap in `ssd_steps`
with `on_state` to see or edit the state).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.errors import InputError
from causegrid.models.mamba import MambaStack, step_bias
from causegrid.models.ops.conv import CausalConv
from causegrid.models.ops.gated import GatedNorm
from causegrid.models.ops.ssd import ssd, ssd_steps
from causegrid.models.record import Model, models
from causegrid.models.sizes import require_sizes

__all__ = ["Mixer2", "make", "ssd", "ssd_steps"]


class Mixer2(nn.Module):
    """The state space of one block: (B, L, d) -> (B, L, d); E = expand x d channels in H heads."""

    def __init__(
        self,
        d_model: int,
        *,
        n_state: int,
        head_dim: int,
        expand: int,
        taps: int,
        n_groups: int,
        chunk: int,
        conv: bool,
    ) -> None:
        super().__init__()
        width = expand * d_model
        heads = width // head_dim
        self.shape = (heads, head_dim, n_groups, n_state)
        self.chunk = chunk
        self.sizes = (width, n_groups * n_state, n_groups * n_state)
        self.in_proj = nn.Linear(d_model, width + sum(self.sizes) + heads, bias=False)
        self.conv1d = CausalConv(sum(self.sizes), taps) if conv else nn.Identity()
        self.act = nn.SiLU()
        self.dt_bias = nn.Parameter(step_bias(heads))
        self.A_log = nn.Parameter(torch.arange(1.0, heads + 1).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GatedNorm(width, n_groups)
        self.out_proj = nn.Linear(width, d_model, bias=False)
        self.ssd: Callable[..., Tensor] = ssd

    def forward(self, u: Tensor) -> Tensor:
        """u (B, L, d) -> (B, L, d)."""
        heads, head_dim, groups, n_state = self.shape
        gate, mixed, step = self.in_proj(u).split((self.sizes[0], sum(self.sizes), heads), dim=-1)
        x, b, c = self.act(self.conv1d(mixed)).split(self.sizes, dim=-1)
        x = x.unflatten(-1, (heads, head_dim))  # (B, L, H, P)
        b, c = (v.unflatten(-1, (groups, n_state)) for v in (b, c))  # (B, L, G, N)
        dt = F.softplus(step + self.dt_bias)  # (B, L, H)
        y = self.ssd(x, dt, -torch.exp(self.A_log), b, c, self.D, chunk=self.chunk)  # (B, L, H, P)
        out: Tensor = self.out_proj(self.norm(y.flatten(-2), gate))
        return out


@models.register("mamba2")
def make(
    name: str,
    *,
    n_tokens: int,
    n_out: int,
    seed: int = 0,
    d_model: int = 128,
    n_layers: int = 4,
    n_state: int = 64,
    head_dim: int = 32,
    expand: int = 2,
    taps: int = 4,
    n_groups: int = 1,
    chunk: int = 64,
    conv: bool = True,
) -> Model:
    """A Mamba-2 in its matrix form, with fresh weights, a function of `seed`; `conv=false` leaves its convolution out.

    Raises InputError when `head_dim` and `n_groups` do not divide the inner width.
    """
    require_sizes(name, d_model=d_model, n_layers=n_layers, n_state=n_state, head_dim=head_dim, expand=expand)
    require_sizes(name, taps=taps, n_groups=n_groups, chunk=chunk)
    heads = expand * d_model // head_dim
    if heads * head_dim != expand * d_model or heads % n_groups:
        raise InputError(
            f"head_dim {head_dim} and n_groups {n_groups} do not divide the inner width {expand * d_model}"
        )
    inner = dict(
        n_state=n_state,
        head_dim=head_dim,
        expand=expand,
        taps=taps,
        n_groups=n_groups,
        chunk=chunk,
        conv=conv,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # a GPU's stream is left alone
        mixers: list[nn.Module] = [Mixer2(d_model, **inner) for _ in range(n_layers)]  # type: ignore[arg-type]
        module = MambaStack(n_tokens, n_out, d_model, mixers)
    return Model(
        name=name,
        family="mamba2",
        module=module.eval(),
        n_layers=n_layers,
        d_model=d_model,
        n_tokens=n_tokens,
        n_out=n_out,
        source=f"fresh weights, seed {seed}",
        config=dict(n_tokens=n_tokens, n_out=n_out, seed=seed, d_model=d_model, n_layers=n_layers, **inner),
    )
