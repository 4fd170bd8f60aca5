"""Mamba: pre-norm residual blocks around a selective state space with a short causal convolution.

Gu and Dao, arXiv 2312.00752, figure 3; sizes N = 16, expansion 2, four taps, step rank ceil(d / 16).
Parameter names and shapes inside a block are those of transformers' Mamba, so `from_hf` only renames.
Everything a site may want is a module that is really called or an attribute: `mixer.conv1d` (the
convolution, before its activation), `mixer.act` (its output is the scan's input), `mixer.scan` (swap in
`scan.reference` with `on_state` to see or edit the state).  `conv=False` builds the block without the
convolution, SiLU kept (the train-time removal of MEASURES 3.3); `signed=True` lets the decay be negative
(`scan.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from causegrid.models.ops.conv import CausalConv
from causegrid.models.ops.narrow import NarrowLinear
from causegrid.models.ops.norm import RMSNorm
from causegrid.models.ops.scan import selective_scan
from causegrid.models.record import Model, models
from causegrid.models.sizes import require_sizes


def step_bias(n: int) -> Tensor:
    """Biases (n,) whose softplus is log-uniform in 0.001 .. 0.1: the step sizes Mamba starts from."""
    dt = torch.exp(torch.empty(n).uniform_(math.log(1e-3), math.log(1e-1)))
    return dt + torch.log(-torch.expm1(-dt))


class Mixer(nn.Module):
    """The selective state space of one block: (B, L, d) -> (B, L, d); E = expand x d channels."""

    def __init__(
        self, d_model: int, *, n_state: int, expand: int, taps: int, rank: int, conv: bool, signed: bool
    ) -> None:
        super().__init__()
        width = expand * d_model
        self.sizes = (rank, n_state, n_state)
        self.signed = signed
        self.in_proj = nn.Linear(d_model, 2 * width, bias=False)
        self.conv1d = CausalConv(width, taps) if conv else nn.Identity()
        self.act = nn.SiLU()
        self.x_proj = nn.Linear(width, rank + 2 * n_state, bias=False)
        self.dt_proj = NarrowLinear(rank, width)
        self.A_log = nn.Parameter(torch.arange(1.0, n_state + 1).log().repeat(width, 1))  # (E, N)
        self.D = nn.Parameter(torch.ones(width))
        self.out_proj = nn.Linear(width, d_model, bias=False)
        self.scan: Callable[..., Tensor] = selective_scan
        with torch.no_grad():
            nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
            self.dt_proj.bias.copy_(step_bias(width))

    def forward(self, u: Tensor) -> Tensor:
        """u (B, L, d) -> (B, L, d)."""
        x, gate = self.in_proj(u).chunk(2, dim=-1)  # (B, L, E) each
        x = self.act(self.conv1d(x))
        step, b, c = self.x_proj(x).split(self.sizes, dim=-1)  # (B, L, rank), (B, L, N), (B, L, N)
        y = self.scan(  # softplus of the step and SiLU of the gate are done inside: (B, L, E)
            *(x, self.dt_proj(step), -torch.exp(self.A_log), b, c, self.D),
            **dict(signed=self.signed, softplus=True, gate=gate),
        )
        out: Tensor = self.out_proj(y)
        return out


class Block(nn.Module):
    """x + mixer(norm(x)); also the block of Mamba-2."""

    def __init__(self, d_model: int, mixer: nn.Module) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model)
        self.mixer = mixer

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, d) -> (B, L, d)."""
        out: Tensor = x + self.mixer(self.norm(x))
        return out


class MambaStack(nn.Module):
    """Token ids (B, L) -> logits (B, L, n_out), around any mixer of the Mamba kind."""

    def __init__(self, n_tokens: int, n_out: int, d_model: int, mixers: list[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, d_model)
        self.blocks = nn.ModuleList([Block(d_model, mixer) for mixer in mixers])
        self.norm = RMSNorm(d_model)
        self.head = nn.Linear(d_model, n_out, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """Token ids (B, L) -> logits (B, L, n_out), or (B, n_out) at the last position with `last`."""
        x = self.embed(tokens)  # (B, L, d)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x[:, -1] if last else x))
        return logits


def from_hf(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of transformers' `MambaForCausalLM` or `Mamba2ForCausalLM` under our names (same sizes)."""
    names = {"embeddings": "embed", "layers": "blocks", "norm_f": "norm", "lm_head": "head"}
    renamed = {}
    for key, value in state.items():
        parts = key.removeprefix("backbone.").split(".")
        renamed[".".join([names.get(parts[0], parts[0]), *parts[1:]])] = value
    return renamed


@models.register("mamba")
def make(
    name: str,
    *,
    n_tokens: int,
    n_out: int,
    seed: int = 0,
    d_model: int = 128,
    n_layers: int = 4,
    n_state: int = 16,
    expand: int = 2,
    taps: int = 4,
    rank: int | None = None,
    conv: bool = True,
    signed: bool = False,
) -> Model:
    """A Mamba with fresh weights, a function of `seed`; `conv=false` leaves its convolution out.

    `signed=true` lets the decay be negative; `rank` defaults to ceil(d_model / 16).
    """
    require_sizes(name, d_model=d_model, n_layers=n_layers, n_state=n_state, expand=expand, taps=taps)
    rank = math.ceil(d_model / 16) if rank is None else rank
    require_sizes(name, rank=rank)
    inner = dict(n_state=n_state, expand=expand, taps=taps, rank=rank, conv=conv, signed=signed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # a GPU's stream is left alone
        mixers: list[nn.Module] = [Mixer(d_model, **inner) for _ in range(n_layers)]  # type: ignore[arg-type]
        module = MambaStack(n_tokens, n_out, d_model, mixers)
    return Model(
        name=name,
        family="mamba",
        module=module.eval(),
        n_layers=n_layers,
        d_model=d_model,
        n_tokens=n_tokens,
        n_out=n_out,
        source=f"fresh weights, seed {seed}",
        config=dict(n_tokens=n_tokens, n_out=n_out, seed=seed, d_model=d_model, n_layers=n_layers, **inner),
    )
