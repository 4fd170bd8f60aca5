"""Generic attention classes on a synthetic batch: random ids with one repeated pair A B ... A.

Streamed: per batch of sequences the query rows are contracted with one weight per (class, position), so
nothing of size (sequences x heads x positions) is ever kept.

Rules (MEASURES 2.3).  `paper`: the background is 50 fixed random positions (seed 0; draws that fall on a
fixed target are dropped), which overlap the induction target's range and cap induction near 235x at length
256.  `strict`: per sequence, all positions that are no class's target.  Thresholds are the published ones
under both.  The earlier A stands in the range the published batch used, 20..127 of 256, scaled to the length.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from causegrid.errors import InputError
from causegrid.models.forward import position_limit
from causegrid.models.heads import require_attention
from causegrid.models.record import Model
from causegrid.signatures.attention import Floats
from causegrid.signatures.batches import Ints
from causegrid.signatures.screens.base import (
    GenericScreen,
    RepeatedPairs,
    Rules,
    check_rules,
    ratio,
    screens,
)

CLASS_THRESHOLD = 30.0
UNCLASSIFIED = "unclassified"
N_BACKGROUND = 50
SHORTEST = 16
TOKENS_PER_BATCH = 8192

log = logging.getLogger(__name__)


def repeated_pairs(
    n_tokens: int, *, n: int, length: int, seed: int = 0, leave_out: tuple[int, ...] = ()
) -> RepeatedPairs:
    """`n` sequences of `length` random ids below `n_tokens`, `leave_out` never used, with A B at a random
    place in the first half and A again as the last token; A and B occur nowhere else.

    Raises InputError when the length is under 16 or fewer than 4 ids are usable.
    """
    if length < SHORTEST:
        raise InputError(f"synthetic batch of length {length}: at least {SHORTEST} positions are needed")
    usable = np.setdiff1d(np.arange(n_tokens), np.array(leave_out, dtype=np.int64))
    if len(usable) < 4:
        raise InputError(f"synthetic batch from {len(usable)} usable token ids: at least 4 are needed")
    rng = np.random.default_rng(seed)
    pair = np.stack([rng.integers(len(usable), size=n), rng.integers(len(usable) - 1, size=n)])
    pair[1] += pair[1] >= pair[0]
    low, high = np.sort(pair, axis=0)
    filler = rng.integers(len(usable) - 2, size=(n, length))
    filler += filler >= low[:, None]
    filler += filler >= high[:, None]
    first = rng.integers(max(1, 20 * length // 256), length // 2, size=n)
    each = np.arange(n)
    filler[each, first] = pair[0]
    filler[each, first + 1] = pair[1]
    filler[:, -1] = pair[0]
    return RepeatedPairs(tokens=usable[filler].astype(np.int64), first=first.astype(np.int64))


def longest_input(model: Model) -> int | None:
    """The number of positions the model has been given, or None when it states no limit."""
    if model.is_hf:
        return position_limit(model)
    stated = model.config.get("max_length")
    return stated if isinstance(stated, int) and stated > 0 else None


def usable_ids(model: Model) -> tuple[int, tuple[int, ...]]:
    """(vocabulary size, ids to leave out): no special tokens, no rows beyond the tokenizer's words."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return model.n_tokens, ()
    size = min(model.n_tokens, len(tokenizer))
    return size, tuple(int(i) for i in tokenizer.all_special_ids if i < size)


def generic_screens() -> list[GenericScreen]:
    """The registered generic classes, sorted by name."""
    return [s for _, s in screens.items() if isinstance(s, GenericScreen)]


def fixed_background(length: int) -> Ints:
    """The paper's background: 50 draws from 1..L-2 under seed 0, those on L-2 .. L-6 dropped."""
    draws = np.random.RandomState(0).randint(1, length - 1, size=N_BACKGROUND)
    return draws[draws < length - 6].astype(np.int64)


def position_weights(batch: RepeatedPairs, classes: list[GenericScreen], rules: Rules) -> Floats:
    """(n, L, classes + 1): weights whose sum over positions is each class's mean attention to its target; the
    last column is the background."""
    n, length = batch.tokens.shape
    weights = np.zeros((n, length, len(classes) + 1))
    rows = np.arange(n)[:, None]
    for c, screen in enumerate(classes):
        places = screen.places(batch)  # (n, k)
        weights[rows, places, c] = 1.0 / places.shape[1]
    if rules == "paper":
        background = fixed_background(length)
        if not background.size:
            raise InputError(f"length {length} leaves none of the paper's background positions; use strict")
        weights[:, :, -1] = np.bincount(background, minlength=length) / background.size
    else:
        free = ~(weights[:, :, :-1] > 0).any(axis=2)
        weights[:, :, -1] = free / np.maximum(free.sum(axis=1, keepdims=True), 1)
    return weights


def class_masses(rows: Floats, weights: Floats) -> Floats:
    """rows (n_layers, n, H, L), weights (n, L, K) -> sums over sequences (K, n_layers, H), float64."""
    return np.asarray(np.einsum("lnhp,npk->klh", rows.astype(np.float64), weights, optimize=True))


def classify(masses: Floats, classes: list[GenericScreen], rules: Rules, **facts: Any) -> pd.DataFrame:
    """Mean masses (classes + 1, n_layers, H), the background last -> the table of `generic_classes`."""
    selectivity = ratio(masses[:-1], masses[-1])  # (C, n_layers, H)
    best = selectivity.argmax(axis=0)
    names = np.array([c.name for c in classes])
    best_class = np.where(selectivity.max(axis=0) >= CLASS_THRESHOLD, names[best], UNCLASSIFIED)
    tables = []
    layer, head = (i.ravel() for i in np.indices(best.shape))
    for c, screen in enumerate(classes):
        selected: NDArray[np.bool_] = selectivity[c] >= screen.threshold
        if screen.must_be_best:
            selected = selected & (best == c)
        columns = {
            "class": screen.name,
            "layer": layer,
            "head": head,
            "selectivity": selectivity[c].ravel(),
            "target_mass": masses[c].ravel(),
            "best_class": best_class.ravel(),
            "selected": selected.ravel(),
            "rules": rules,
            **facts,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def generic_classes(
    model: Model, *, n: int = 2000, length: int = 256, seed: int = 0, rules: Rules = "strict"
) -> pd.DataFrame:
    """Selectivity of every head for every generic class (MEASURES 2.3).

    Columns `class, layer, head, selectivity, target_mass, best_class, selected, rules, n, length`; a row per
    class and head.  `best_class` is `unclassified` under 30x.  `length` is cut to the model's own number of
    positions, which the column (and a log line) says.
    Raises InputError for a model without attention or an unknown rule set.
    """
    check_rules(rules)
    require_attention(model)
    from causegrid.sites.rows import query_rows

    limit = longest_input(model)
    if limit is not None and limit < length:
        log.warning("%s has %d positions: synthetic batch cut from length %d", model.name, limit, length)
        length = limit
    size, leave_out = usable_ids(model)
    batch = repeated_pairs(size, n=n, length=length, seed=seed, leave_out=leave_out)
    classes = generic_screens()
    masses = np.zeros((len(classes) + 1, model.n_layers, model.n_heads))
    step = max(1, TOKENS_PER_BATCH // length)
    for start in range(0, n, step):
        tokens, first = batch.tokens[start : start + step], batch.first[start : start + step]
        weights = position_weights(RepeatedPairs(tokens=tokens, first=first), classes, rules)
        rows = query_rows(model, torch.from_numpy(tokens))  # (n_layers, b, H, L)
        masses += class_masses(rows.float().cpu().numpy(), weights)
    return classify(masses / n, classes, rules, n=n, length=length)
