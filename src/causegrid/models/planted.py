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
- A backup says what the primary says, but sleeps while it says it: primary heads also write into `done` that the
  answer is said, a backup's query reads it there and looks at the first token instead of the target.  It wakes,
  prompt by prompt, when about one primary head is missing.  Targets and distractors are known to it by their
  `name`, which no head writes into; models without a backup have neither part.
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

from causegrid.errors import InputError, unknown
from causegrid.headnames import head_name
from causegrid.models.planted_module import Attention, PlantedModule
from causegrid.models.record import Model

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Role = Literal["primary", "secondary", "backup", "correlate", "interferer", "bos-interferer", "null"]

VALUES = 8  # the first half are answers, the second foils
ANSWERS = VALUES // 2
FILLERS, CUES, SLOTS, DEAD = 32, 8, 3, 4
FIRST, TARGET, DISTRACTOR, QUERY = range(4)  # kinds of token
KINDS = 4
CONTENT = slice(0, VALUES)
KIND = slice(VALUES, VALUES + KINDS)
OUT = slice(VALUES + KINDS, 2 * VALUES + KINDS)
UNREAD = slice(2 * VALUES + KINDS, 2 * VALUES + KINDS + DEAD)
WIDTH = UNREAD.stop  # of the residual; with a backup two more parts
NAME = slice(WIDTH, WIDTH + VALUES)
DONE = slice(NAME.stop, NAME.stop + ANSWERS)
HEAD_DIM = VALUES  # of a head, at least
VIEWS = HEAD_DIM - KINDS  # key components that look at the content
START = np.full(VALUES, 1 / math.sqrt(VALUES))  # content of the first token
MARGIN = 4.0  # logits
SHARP = (3.0, 5.0)  # score of a role head's target over the others, on average over the cues
WOBBLE = 1.0  # standard deviation of that score over the cues
UNEVEN = 0.5  # log standard deviation of what a role head says of each value
SPREAD = 0.5  # the cue's margin is this much stronger or weaker, prompt by prompt
STIR = 0.05  # content written by a head without a role
REST = 4.0  # score of the first token for a backup
ASLEEP, WAKE = 3.5, 5.0  # its target scores so much less while all is said, and gains so much per head gone

# role -> (kind it attends to, sign of what it does to the margin)
ROLES: Mapping[str, tuple[int | None, float]] = {
    "primary": (TARGET, 1.0),
    "secondary": (TARGET, 1.0),
    "backup": (TARGET, 0.0),  # while the primary is there
    "correlate": (TARGET, 0.0),
    "interferer": (DISTRACTOR, -1.0),
    "bos-interferer": (FIRST, -1.0),
    "null": (None, 0.0),
}
TARGETS = {FIRST: "first", TARGET: "target", DISTRACTOR: "distractor", None: "target"}


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A group of `size` heads in one role.  `share`: what the group adds to (an interferer: takes from) the
    margin, as a share of it; a backup: would add if the primary were silent.  `placement`: the layers its heads are
    spread over, of a backup those of them that come after the primary's.  `bearers`: how many of its heads do what the
    group does, the others attend as they do and add nothing (None: all, about equally)."""

    role: Role
    share: float = 0.0
    size: int = 3
    placement: Literal["early", "late", "spread", "one"] = "spread"
    bearers: int | None = None

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
    head_dim: int = HEAD_DIM,
    noise: float = 0.05,
    tail: Literal["normal", "heavy"] = "normal",
    seed: int | Sequence[int] = 0,
) -> Planted:
    """A model with these groups planted in heads drawn at random; groups are named by their role (`null-2` ...).

    `noise`: per-prompt standard deviation of one role-less head's contribution, as a share of the margin;
    `tail="heavy"`: each of them louder or quieter by a log-normal factor.  A function of `seed`.
    Raises InputError for an unknown role, heads too narrow, a layer with too few heads for the groups, or a backup
    without a primary listed before it and layers after the primary's.
    """
    kv = n_kv_heads or n_heads
    if n_heads % kv:
        raise InputError(f"{n_heads} heads cannot share {kv} key-value heads: give a divisor of {n_heads}")
    for one in plants:
        if one.role not in ROLES:
            raise unknown("role", one.role, ROLES)
    if head_dim < HEAD_DIM:
        raise InputError(f"heads of width {head_dim} cannot carry {VALUES} values: give at least {HEAD_DIM}")
    rng = np.random.default_rng(seed)
    placed = _places(plants, n_layers, n_heads, rng)
    groups: dict[str, list[str]] = {}
    named: dict[str, Plant] = {}
    roles: dict[tuple[int, int], tuple[Plant, float]] = {}
    for one, heads in zip(plants, placed, strict=True):
        count = sum(p.role == one.role for p in named.values())
        name = one.role + (f"-{count + 1}" if count else "")
        groups[name], named[name] = [head_name(*h) for h in sorted(heads)], one
        bearing = len(heads) if one.bearers is None else one.bearers
        if not 1 <= bearing <= len(heads):
            raise InputError(f"{bearing} heads cannot bear the share of a group of {len(heads)}")
        parts = np.zeros(len(heads))
        parts[:bearing] = rng.dirichlet(np.full(bearing, 20.0))  # nearly equal parts of the group's share
        roles |= {h: (one, one.share * float(part)) for h, part in zip(heads, parts, strict=True)}
    backed = [p for p in plants if p.role == "primary"] if any(p.role == "backup" for p in plants) else []
    width = DONE.stop if backed else WIDTH
    module = PlantedModule(
        n_tokens=N_TOKENS,
        n_out=VALUES,
        width=width,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=kv,
        head_dim=head_dim,
    ).eval()
    spoken = sum(ROLES[p.role][1] * p.share for p in plants)
    with torch.no_grad():
        table = _embedding(1.0 - spoken, width, rng)
        module.embed.weight.copy_(torch.from_numpy(table))
        module.head.weight.zero_()
        module.head.weight[:, OUT] = torch.eye(VALUES)
        for layer, block in enumerate(module.blocks):
            own = {h: roles[layer, h] for h in range(n_heads) if (layer, h) in roles}
            _fill(block.attn, own, backed, table[_CUE:, CONTENT], noise, tail, rng)  # type: ignore[arg-type]
    model = Model(
        name="planted",
        family="planted",
        module=module,
        n_layers=n_layers,
        d_model=width,
        n_tokens=N_TOKENS,
        n_out=VALUES,
        n_heads=n_heads,
        head_dim=head_dim,
        n_kv_heads=kv,
        source=f"planted by hand, seed {seed}",
    )
    return Planted(model=model, groups=groups, plants=named)


def _places(
    plants: Sequence[Plant], n_layers: int, n_heads: int, rng: np.random.Generator
) -> list[list[tuple[int, int]]]:
    """Distinct heads for each group, spread over its layers as evenly as can be."""
    free = {layer: [int(h) for h in rng.permutation(n_heads)] for layer in range(n_layers)}
    found: list[list[tuple[int, int]]] = []
    for one in plants:
        half = math.ceil(n_layers / 2)
        layers = {
            "early": list(range(half)),
            "late": list(range(n_layers - half, n_layers)),
            "one": [int(rng.integers(n_layers))],
        }.get(one.placement, list(range(n_layers)))
        if one.role == "backup":
            layers = _after(
                [h for p, hs in zip(plants, found, strict=False) if p.role == "primary" for h in hs], layers
            )
        order = [int(x) for x in rng.permutation(layers)]
        heads = []
        for i in range(one.size):
            layer = order[i % len(order)]
            if not free[layer]:
                raise InputError(f"layer {layer} has {n_heads} heads, too few for the groups planted in it")
            heads.append((layer, free[layer].pop()))
        found.append(heads)
    return found


def _after(primary: Sequence[tuple[int, int]], layers: Sequence[int]) -> list[int]:
    """The layers in which a backup can tell whether the primary's heads have spoken."""
    if not primary:
        raise InputError("a backup has no primary to back up: list a group with that role before it")
    last = max(layer for layer, _ in primary)
    later = [layer for layer in layers if layer > last]
    if not later:
        raise InputError(
            f"no layer is left for a backup after L{last}, the primary's last: place the primary early, the backup late"
        )
    return later


def _embedding(spoken_by_cue: float, width: int, rng: np.random.Generator) -> Floats:
    table = np.zeros((N_TOKENS, width))
    table[:, CONTENT] = rng.normal(size=(N_TOKENS, VALUES)) / math.sqrt(VALUES)
    table[0, CONTENT] = START
    table[0, KIND.start + FIRST] = 1
    for a in range(ANSWERS):
        for token, kind, value in ((_TARGET + a, TARGET, a), (_DISTRACTOR + a, DISTRACTOR, ANSWERS + a)):
            table[token, CONTENT] = np.eye(VALUES)[value]
            table[token, KIND.start + kind] = 1
        for i in range(CUES):
            strength = 1 + SPREAD * (2 * i / (CUES - 1) - 1)
            table[_CUE + a * CUES + i, OUT.start + a] = MARGIN * spoken_by_cue * strength
            table[_CUE + a * CUES + i, KIND.start + QUERY] = 1
    if width > WIDTH:
        table[_TARGET:_CUE, NAME] = table[_TARGET:_CUE, CONTENT]  # targets and distractors
    return table


def _fill(
    attn: Attention,
    roles: Mapping[int, tuple[Plant, float]],
    backed: Sequence[Plant],
    cues: Floats,
    noise: float,
    tail: str,
    rng: np.random.Generator,
) -> None:
    """Write one layer's weights; `roles`: head -> (its plant, its own share of the margin); `backed`: the plants a
    backup stands by for; `cues`: contents."""
    n_heads, kv, head_dim, width = attn.n_heads, attn.n_kv_heads, attn.head_dim, attn.q.in_features
    views, scale = head_dim - KINDS, math.sqrt(head_dim)
    q = np.zeros((n_heads, head_dim, width))
    k = np.zeros((kv, head_dim, width))
    v = np.zeros((kv, head_dim, width))
    out = np.zeros((n_heads, width, head_dim))
    turns = np.zeros((kv, head_dim, VALUES))  # content -> values
    by_name = {h * kv // n_heads for h, (one, _) in roles.items() if one.role == "backup"}
    for g in range(kv):
        k[g, :KINDS, KIND] = np.eye(KINDS)
        seen = rng.normal(size=(views, VALUES)) * math.sqrt(VIEWS / views)
        turns[g] = np.linalg.qr(rng.normal(size=(head_dim, VALUES)))[0]
        if g in by_name:
            k[g, KINDS : KINDS + ANSWERS, NAME] = np.eye(ANSWERS, VALUES)
            v[g, :, NAME], v[g, :, KIND.start + FIRST] = turns[g], turns[g] @ START
        else:
            k[g, KINDS:, CONTENT] = seen
            v[g, :, CONTENT] = turns[g]
    asks = KIND.start + QUERY
    heads, whole = sum(p.size for p in backed), sum(p.share for p in backed)
    for h in range(n_heads):
        back = turns[h * kv // n_heads].T  # values -> content
        one, share = roles.get(h, (None, 0.0))
        kind = None if one is None else ROLES[one.role][0]
        if one is None or kind is None:
            q[h, :, asks] = rng.normal(size=head_dim) * scale / 2
            loud = noise * MARGIN / math.sqrt(0.6) * (math.exp(rng.normal()) if tail == "heavy" else 1.0)
            out[h, OUT] = loud * rng.normal(size=(VALUES, VALUES)) @ back
            out[h, CONTENT] = STIR * rng.normal(size=(VALUES, VALUES)) @ back
            continue
        if one.role == "backup":
            q[h, TARGET, asks] = (REST - ASLEEP + WAKE * heads) * scale
            q[h, FIRST, asks] = REST * scale
            q[h, KINDS : KINDS + ANSWERS, DONE] = -WAKE * heads * scale * np.eye(ANSWERS)
            out[h, OUT] = MARGIN * share * _says(one.role, rng) @ back
            continue
        sharp, wobble = rng.uniform(*SHARP), WOBBLE * rng.normal(size=VALUES)
        q[h, kind, asks] = sharp * scale
        q[h, kind, CONTENT] = wobble * scale
        score = np.exp(sharp + cues @ wobble)
        held = float((score / (score + LENGTH - 1)).mean())  # attention its target gets
        if one.role == "correlate":
            out[h, UNREAD] = rng.normal(size=(DEAD, VALUES)) @ back
        else:
            out[h, OUT] = MARGIN * share / held * _says(one.role, rng) @ back
        if one in backed and whole:
            out[h, DONE] = share / whole / held * np.eye(ANSWERS, VALUES) @ back
    for module, weight in (
        (attn.q, q.reshape(-1, width)),
        (attn.k, k.reshape(-1, width)),
        (attn.v, v.reshape(-1, width)),
        (attn.proj, out.transpose(1, 0, 2).reshape(width, -1)),
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
    if role == "backup":  # and nothing of the first token, at which it looks while it sleeps
        says -= np.outer(says @ START, START)
        says *= VALUES / (VALUES - 1)
    return says
