"""Planted models: small attention-only models in which the role of every head is known, because it was set.

A verdict rule that is not tried on known answers is an opinion (MEASURES 4.4).  The residual stream is cut into
named parts: `content` (what a token is about: values are unit vectors, fillers random ones), `kind` (first,
target, distractor, query), `out` (a logit per value, read by the head) and `dead` (read by nothing).  Half of the
values are answers and half foils, so that a constant can speak for the one and against the other.

- Every head has the same keys (kinds, and random views of the content) and its key-value group's own rotation of
  the content as values: a role is in the query and output weights alone, so grouped queries change nothing.
- The query's token holds the answer in `out` already, more or less strongly: the margin no head makes.
- A role head attends to one kind, more or less sharply as the cue has it, and writes its part of the group's
  share of the margin, more for some values than for others: effects differ between prompts.
- Every other head attends broadly and writes noise: its contribution to a prompt's margin has about the
  standard deviation `noise`, a share of the margin, and it stirs the content that later blocks read.
- No norm, no MLP: what a head adds to the margin can be worked out by hand (the tests do).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from causegrid.errors import InputError, unknown
from causegrid.headnames import head_name
from causegrid.models.record import Model

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Role = Literal["primary", "secondary", "correlate", "interferer", "bos-interferer", "null"]

VALUES = 8  # the first half are answers, the second foils
ANSWERS = VALUES // 2
FILLERS, CUES, SLOTS, DEAD = 32, 8, 3, 4
FIRST, TARGET, DISTRACTOR, QUERY = range(4)  # kinds of token
KINDS = 4
CONTENT = slice(0, VALUES)
KIND = slice(VALUES, VALUES + KINDS)
OUT = slice(VALUES + KINDS, 2 * VALUES + KINDS)
UNREAD = slice(2 * VALUES + KINDS, 2 * VALUES + KINDS + DEAD)
WIDTH = UNREAD.stop
HEAD_DIM = 8
VIEWS = HEAD_DIM - KINDS  # key components that look at the content
MARGIN = 4.0  # logits
SHARP = (3.0, 5.0)  # score of a role head's target over the others, on average over the cues
WOBBLE = 1.0  # standard deviation of that score over the cues
UNEVEN = 0.5  # log standard deviation of what a role head says of each value
SPREAD = 0.5  # the cue's margin is this much stronger or weaker, prompt by prompt
STIR = 0.05  # content written by a head without a role

# role -> (kind it attends to, sign of what it does to the margin)
ROLES: Mapping[str, tuple[int | None, float]] = {
    "primary": (TARGET, 1.0),
    "secondary": (TARGET, 1.0),
    "correlate": (TARGET, 0.0),
    "interferer": (DISTRACTOR, -1.0),
    "bos-interferer": (FIRST, -1.0),
    "null": (None, 0.0),
}
TARGETS = {FIRST: "first", TARGET: "target", DISTRACTOR: "distractor", None: "target"}


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A group of `size` heads in one role.  `share`: what the group adds to (an interferer: takes from) the
    margin, as a share of it.  `placement`: the layers its heads are spread over."""

    role: Role
    share: float = 0.0
    size: int = 3
    placement: Literal["early", "late", "spread", "one"] = "spread"

    @property
    def target(self) -> str:
        """The named position its pattern is scored on."""
        return TARGETS[ROLES[self.role][0]]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A planted model, its groups (name -> heads) and their plants."""

    model: Model
    groups: Mapping[str, list[str]]
    plants: Mapping[str, Plant]


@dataclass(frozen=True, kw_only=True)
class PlantedPrompts:
    """Distinct prompts: `tokens` (B, L), `answers` and `foils` (B,) value ids, `positions[name]` (B,)."""

    tokens: Ints
    answers: Ints
    foils: Ints
    positions: Mapping[str, Ints]


class Attention(nn.Module):
    """Causal self-attention without biases; `n_kv_heads` keys and values serve `n_heads` queries."""

    def __init__(self, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.q = nn.Linear(WIDTH, n_heads * HEAD_DIM, bias=False)
        self.k = nn.Linear(WIDTH, n_kv_heads * HEAD_DIM, bias=False)
        self.v = nn.Linear(WIDTH, n_kv_heads * HEAD_DIM, bias=False)
        self.proj = nn.Linear(n_heads * HEAD_DIM, WIDTH, bias=False)
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, d) -> (B, L, d)."""
        batch, length, _ = x.shape
        last = x.permute(1, 2, 0).contiguous()  # (L, d, B)

        def heads(part: nn.Linear, count: int) -> Tensor:
            made = (part.weight @ last).view(length, count, HEAD_DIM, batch)
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

    def __init__(self, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.attn = Attention(n_heads, n_kv_heads)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, d) -> (B, L, d)."""
        out: Tensor = x + self.attn(x)
        return out


class PlantedModule(nn.Module):
    """Token ids (B, L) -> logits (B, L, 8), one per value; with `last` (B, 8)."""

    def __init__(self, n_tokens: int, n_layers: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, WIDTH)
        self.blocks = nn.ModuleList([Block(n_heads, n_kv_heads) for _ in range(n_layers)])
        self.head = nn.Linear(WIDTH, VALUES, bias=False)

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        x = self.embed(tokens)  # (B, L, d)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x[:, -1] if last else x)
        return logits


# token ids: the first one, fillers, a target and a distractor for each value, a cue of each strength per answer
_FILLER = 1
_TARGET = _FILLER + FILLERS
_DISTRACTOR = _TARGET + ANSWERS
_CUE = _DISTRACTOR + ANSWERS
N_TOKENS = _CUE + ANSWERS * CUES
LENGTH = SLOTS + 2


def planted_prompts(n: int, *, seed: int | Sequence[int]) -> PlantedPrompts:
    """`n` distinct prompts: first token, target and distractor among fillers in any order, a cue as query."""
    rng = np.random.default_rng(seed)
    found = np.empty((0, LENGTH + 2), dtype=np.int64)
    while len(found) < n:
        size = n + 16
        answer, foil = rng.integers(ANSWERS, size=(2, size))
        slots = rng.integers(_FILLER, _FILLER + FILLERS, size=(size, SLOTS))
        place = rng.permuted(np.tile(np.arange(SLOTS), (size, 1)), axis=1)[:, :2]  # (size, 2)
        rows = np.arange(size)
        slots[rows, place[:, 0]] = _TARGET + answer
        slots[rows, place[:, 1]] = _DISTRACTOR + foil
        cue = _CUE + answer * CUES + rng.integers(CUES, size=size)
        made = np.column_stack([np.zeros(size, dtype=np.int64), slots, cue, place + 1])
        found = np.concatenate([found, made])
        _, first = np.unique(found, axis=0, return_index=True)
        found = found[np.sort(first)]
    found = found[:n]
    tokens, place = found[:, :LENGTH], found[:, LENGTH:]
    rows = np.arange(n)
    return PlantedPrompts(
        tokens=tokens,
        answers=tokens[rows, place[:, 0]] - _TARGET,
        foils=tokens[rows, place[:, 1]] - _DISTRACTOR + ANSWERS,
        positions={
            "first": np.zeros(n, dtype=np.int64),
            "target": place[:, 0].copy(),
            "distractor": place[:, 1].copy(),
        },
    )


def plant(
    plants: Sequence[Plant],
    *,
    n_layers: int = 4,
    n_heads: int = 12,
    n_kv_heads: int | None = None,
    noise: float = 0.05,
    tail: Literal["normal", "heavy"] = "normal",
    seed: int | Sequence[int] = 0,
) -> Planted:
    """A model with these groups planted in heads drawn at random; groups are named by their role (`null-2` ...).

    `noise`: per-prompt standard deviation of one role-less head's contribution, as a share of the margin;
    `tail="heavy"`: each of them louder or quieter by a log-normal factor.  A function of `seed`.
    Raises InputError for an unknown role or when a layer has too few heads for the groups.
    """
    kv = n_kv_heads or n_heads
    if n_heads % kv:
        raise InputError(f"{n_heads} heads cannot share {kv} key-value heads: give a divisor of {n_heads}")
    for one in plants:
        if one.role not in ROLES:
            raise unknown("role", one.role, ROLES)
    rng = np.random.default_rng(seed)
    placed = _places(plants, n_layers, n_heads, rng)
    groups: dict[str, list[str]] = {}
    named: dict[str, Plant] = {}
    roles: dict[tuple[int, int], tuple[Plant, float]] = {}
    for one, heads in zip(plants, placed, strict=True):
        count = sum(p.role == one.role for p in named.values())
        name = one.role + (f"-{count + 1}" if count else "")
        groups[name], named[name] = [head_name(*h) for h in sorted(heads)], one
        parts = rng.dirichlet(np.full(len(heads), 20.0))  # nearly equal parts of the group's share
        roles |= {h: (one, one.share * float(part)) for h, part in zip(heads, parts, strict=True)}
    module = PlantedModule(N_TOKENS, n_layers, n_heads, kv).eval()
    spoken = sum(ROLES[p.role][1] * p.share for p in plants)
    with torch.no_grad():
        table = _embedding(1.0 - spoken, rng)
        module.embed.weight.copy_(torch.from_numpy(table))
        module.head.weight.zero_()
        module.head.weight[:, OUT] = torch.eye(VALUES)
        for layer, block in enumerate(module.blocks):
            own = {h: roles[layer, h] for h in range(n_heads) if (layer, h) in roles}
            _fill(block.attn, own, table[_CUE:, CONTENT], noise, tail, rng)  # type: ignore[arg-type]
    model = Model(
        name="planted",
        family="planted",
        module=module,
        n_layers=n_layers,
        d_model=WIDTH,
        n_tokens=N_TOKENS,
        n_out=VALUES,
        n_heads=n_heads,
        head_dim=HEAD_DIM,
        n_kv_heads=kv,
        source=f"planted by hand, seed {seed}",
    )
    return Planted(model=model, groups=groups, plants=named)


def _places(
    plants: Sequence[Plant], n_layers: int, n_heads: int, rng: np.random.Generator
) -> list[list[tuple[int, int]]]:
    """Distinct heads for each group, spread over its layers as evenly as can be."""
    free = {layer: [int(h) for h in rng.permutation(n_heads)] for layer in range(n_layers)}
    found = []
    for one in plants:
        half = math.ceil(n_layers / 2)
        layers = {
            "early": list(range(half)),
            "late": list(range(n_layers - half, n_layers)),
            "one": [int(rng.integers(n_layers))],
        }.get(one.placement, list(range(n_layers)))
        order = [int(x) for x in rng.permutation(layers)]
        heads = []
        for i in range(one.size):
            layer = order[i % len(order)]
            if not free[layer]:
                raise InputError(f"layer {layer} has {n_heads} heads, too few for the groups planted in it")
            heads.append((layer, free[layer].pop()))
        found.append(heads)
    return found


def _embedding(spoken_by_cue: float, rng: np.random.Generator) -> Floats:
    table = np.zeros((N_TOKENS, WIDTH))
    table[:, CONTENT] = rng.normal(size=(N_TOKENS, VALUES)) / math.sqrt(VALUES)
    table[0, CONTENT] = 1 / math.sqrt(VALUES)
    table[0, KIND.start + FIRST] = 1
    for a in range(ANSWERS):
        for token, kind, value in ((_TARGET + a, TARGET, a), (_DISTRACTOR + a, DISTRACTOR, ANSWERS + a)):
            table[token, CONTENT] = np.eye(VALUES)[value]
            table[token, KIND.start + kind] = 1
        for i in range(CUES):
            strength = 1 + SPREAD * (2 * i / (CUES - 1) - 1)
            table[_CUE + a * CUES + i, OUT.start + a] = MARGIN * spoken_by_cue * strength
            table[_CUE + a * CUES + i, KIND.start + QUERY] = 1
    return table


def _fill(
    attn: Attention,
    roles: Mapping[int, tuple[Plant, float]],
    cues: Floats,
    noise: float,
    tail: str,
    rng: np.random.Generator,
) -> None:
    """Write one layer's weights; `roles`: head -> (its plant, its own share of the margin); `cues`: contents."""
    n_heads, kv = attn.n_heads, attn.n_kv_heads
    q = np.zeros((n_heads, HEAD_DIM, WIDTH))
    k = np.zeros((kv, HEAD_DIM, WIDTH))
    v = np.zeros((kv, HEAD_DIM, WIDTH))
    out = np.zeros((n_heads, WIDTH, HEAD_DIM))
    for g in range(kv):
        k[g, :KINDS, KIND] = np.eye(KINDS)
        k[g, KINDS:, CONTENT] = rng.normal(size=(VIEWS, VALUES))
        v[g, :, CONTENT] = np.linalg.qr(rng.normal(size=(VALUES, VALUES)))[0]
    asks = KIND.start + QUERY
    for h in range(n_heads):
        back = v[h * kv // n_heads, :, CONTENT].T  # values -> content
        one, share = roles.get(h, (None, 0.0))
        kind = None if one is None else ROLES[one.role][0]
        if one is None or kind is None:
            q[h, :, asks] = rng.normal(size=HEAD_DIM) * math.sqrt(HEAD_DIM) / 2
            loud = noise * MARGIN / math.sqrt(0.6) * (math.exp(rng.normal()) if tail == "heavy" else 1.0)
            out[h, OUT] = loud * rng.normal(size=(VALUES, VALUES)) @ back
            out[h, CONTENT] = STIR * rng.normal(size=(VALUES, VALUES)) @ back
            continue
        sharp, wobble = rng.uniform(*SHARP), WOBBLE * rng.normal(size=VALUES)
        q[h, kind, asks] = sharp * math.sqrt(HEAD_DIM)
        q[h, kind, CONTENT] = wobble * math.sqrt(HEAD_DIM)
        score = np.exp(sharp + cues @ wobble)
        held = float((score / (score + LENGTH - 1)).mean())  # attention its target gets
        if one.role == "correlate":
            out[h, UNREAD] = rng.normal(size=(DEAD, VALUES)) @ back
        else:
            out[h, OUT] = MARGIN * share / held * _says(one.role, rng) @ back
    for module, weight in (
        (attn.q, q.reshape(-1, WIDTH)),
        (attn.k, k.reshape(-1, WIDTH)),
        (attn.v, v.reshape(-1, WIDTH)),
        (attn.proj, out.transpose(1, 0, 2).reshape(WIDTH, -1)),
    ):
        module.weight.copy_(torch.from_numpy(weight))


def _says(role: str, rng: np.random.Generator) -> Floats:
    """content -> logits of one role, on average 1 of margin where its target holds all attention."""
    says = np.zeros((VALUES, VALUES))
    half = np.arange(ANSWERS)
    gain = np.exp(UNEVEN * rng.normal(size=ANSWERS))
    gain /= gain.mean()
    if role == "interferer":
        says[half + ANSWERS, half + ANSWERS] = gain  # the foil it sees
    elif role == "bos-interferer":
        says[:ANSWERS], says[ANSWERS:] = -0.5 / math.sqrt(VALUES), 0.5 / math.sqrt(VALUES)  # always the same
    else:
        says[half, half] = gain  # the answer it sees
    return says
