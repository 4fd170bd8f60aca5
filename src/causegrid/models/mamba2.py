"""Mamba-2: the state space in its matrix form, one scalar decay per head.

Dao and Gu, arXiv 2405.21060, sections 6 and 7; sizes N = 64, heads of width 32, expansion 2, four taps,
`n_groups` heads sharing B and C.  Parameter names and shapes are those of transformers' Mamba-2
(`mamba.from_hf` renames).  `ssd` works in chunks: inside a chunk the scan is a masked attention-like matrix
product, between chunks a recurrence over a few states; a sequence that fits one chunk is one product.
`ssd_steps` is the step-by-step recurrence it must equal, and the place to see or edit the state: put it in
`mixer.ssd` with `on_state`.  Decays enter as differences of cumulative sums, never as quotients.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causegrid.errors import InputError
from causegrid.models.conv import CausalConv
from causegrid.models.mamba import MambaStack, step_bias
from causegrid.models.record import Model, models


def ssd_steps(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    chunk: int = 0,
    on_state: Callable[[int, Tensor], Tensor] | None = None,
) -> Tensor:
    """h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t, y_t = h_t C_t, one position at a time (`chunk` is unused).

    x (B, L, H, P), dt (B, L, H), A (H,), B and C (B, L, G, N), head h in group h // (H / G) -> (B, L, H, P).
    `on_state(t, h)` sees the state h (B, H, P, N) after position t and returns the one to go on with.
    """
    batch, length, heads, width = x.shape
    share = heads // B.shape[2]
    h = x.new_zeros(batch, heads, width, B.shape[-1])
    out = []
    for t in range(length):
        b, c = (v[:, t].repeat_interleave(share, dim=1) for v in (B, C))  # (B, H, N)
        new = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, :, None]  # (B, H, P, N)
        h = torch.exp(dt[:, t] * A)[..., None, None] * h + new
        if on_state is not None:
            h = on_state(t, h)
        out.append((h * c[:, :, None]).sum(-1))
    return torch.stack(out, dim=1)


def ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, chunk: int = 64) -> Tensor:
    """The same as `ssd_steps`, same shapes, as matrix products over chunks of `chunk` positions."""
    batch, length, heads, width = x.shape
    groups, n_state = B.shape[2:]
    size = min(chunk, length)
    k = -(-length // size)
    pad = k * size - length
    if pad:  # a padded position has dt = 0: it decays nothing and adds nothing
        x, dt, B, C = (F.pad(v, (0, 0) * (v.dim() - 2) + (0, pad)) for v in (x, dt, B, C))
    share = heads // groups
    # (B, K, G, H/G, T, P), (B, K, G, H/G, T), (B, K, G, 1, T, N)
    u = (x * dt[..., None]).view(batch, k, size, groups, share, width).permute(0, 1, 3, 4, 2, 5)
    sums = (dt * A).view(batch, k, size, groups, share).permute(0, 1, 3, 4, 2).cumsum(-1)
    b = B.view(batch, k, size, groups, 1, n_state).permute(0, 1, 3, 4, 2, 5)
    c = C.view(batch, k, size, groups, 1, n_state).permute(0, 1, 3, 4, 2, 5)
    later = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1)
    decay = (sums[..., :, None] - sums[..., None, :]).masked_fill(later, -math.inf).exp()  # (..., T, T)
    y = ((c @ b.mT) * decay) @ u
    if k > 1:
        left = (sums[..., -1:] - sums).exp()[..., None]  # decay from each position to the chunk's end
        ends = (u * left).mT @ b  # (B, K, G, H/G, P, N): what each chunk adds to the state
        whole = sums[..., -1].exp()[..., None, None]  # decay over each chunk
        before = [torch.zeros_like(ends[:, 0])]
        for i in range(k - 1):
            before.append(whole[:, i] * before[-1] + ends[:, i])
        y = y + sums.exp()[..., None] * (c @ torch.stack(before, dim=1).mT)
    return y.permute(0, 1, 4, 2, 3, 5).reshape(batch, k * size, heads, width)[:, :length]


class GatedNorm(nn.Module):
    """RMS norm of x silu(gate), by group of channels: x, gate (B, L, E) -> (B, L, E)."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate (B, L, E) -> (B, L, E)."""
        x = x * F.silu(gate)
        parts = x.view(*x.shape[:-1], self.groups, -1)
        return F.rms_norm(parts, parts.shape[-1:], eps=1e-5).flatten(-2) * self.weight


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
        x = x.reshape(*x.shape[:2], heads, head_dim)  # (B, L, H, P)
        b, c = (v.reshape(*v.shape[:2], groups, n_state) for v in (b, c))  # (B, L, G, N)
        dt = F.softplus(step + self.dt_bias)  # (B, L, H)
        y = self.ssd(x, dt, -torch.exp(self.A_log), b, c, chunk=self.chunk) + self.D[:, None] * x
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
    """A Mamba-2 with fresh weights, a function of `seed`.  InputError when the widths do not divide."""
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
        torch.manual_seed(seed)
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
