"""Attention-pattern screens: which heads look where the task says, and is that beyond chance.

The query rows of all prompts are taken once and every screen scores them.  Tables hold *all* heads with a
`selected` column.  How each rule set scores and selects is in `screens/base`.

The random-target null (MEASURES 2.3) draws, for every prompt on its own, any position but the query and
asks how much attention it holds; a thousand such draws give a 99th percentile even where a prompt has five
tokens.  The statistic is the attention the target holds (the numerator of every screen), mean over the
group's heads and the prompts; a screen with two targets takes the larger, for the draws as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from causegrid.errors import InputError, unknown
from causegrid.evidence.thresholds import PATTERN_ROUNDING
from causegrid.headnames import head_name
from causegrid.headnames import heads as parse_heads
from causegrid.models.heads import require_attention
from causegrid.models.record import Model
from causegrid.signatures.attention import Attention, Floats, attention
from causegrid.signatures.batches import Prompts
from causegrid.signatures.generic import generic_classes
from causegrid.signatures.screens.base import GenericScreen, Rules, Screen, TaskScreen, check_rules
from causegrid.signatures.screens.base import screens as registry
from causegrid.tasks.base import PromptSet, PromptTask

DRAWS_AT_ONCE = 250


def score_screen(rows: Attention, name: str, *, rules: Rules = "strict") -> pd.DataFrame:
    """One task screen on rows already taken: `screen, layer, head, score, target_mass, selected, rank, rules,
    n`, one row per head.  `rank` counts the selected from 1, 0 for the others; `n` is the prompts scored.

    Raises InputError when the screen is generic or the rows lack a named position it needs.
    """
    check_rules(rules)
    found: Screen = registry.get(name)
    if not isinstance(found, TaskScreen):
        raise InputError(f"screen {name!r} runs on the synthetic batch, not on a task's prompts")
    fit = rows.having(found.needs, wanted_by=f"screen {name!r}")
    scored = found.score(fit, rules)
    rank = np.zeros(scored.score.size, dtype=np.int64)
    order = np.argsort(-scored.score.ravel(), kind="stable")
    chosen = order[scored.eligible.ravel()[order]][: found.top]
    rank[chosen] = np.arange(1, len(chosen) + 1)
    layer, head = (i.ravel() for i in np.indices(scored.score.shape))
    return pd.DataFrame(
        {
            "screen": name,
            "layer": layer,
            "head": head,
            "score": scored.score.ravel(),
            "target_mass": scored.target_mass.ravel(),
            "selected": rank > 0,
            "rank": rank,
            "rules": rules,
            "n": len(fit),
        }
    )


def fitting(positions: Iterable[str]) -> list[str]:
    """Names of the task screens whose needs these named positions meet, sorted."""
    have = set(positions)
    return [n for n, s in registry.items() if isinstance(s, TaskScreen) and have.issuperset(s.needs)]


def generic_table(classes: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one class of a `generic_classes` table, in the columns of `score_screen`."""
    own = classes[classes["class"] == name].reset_index(drop=True)
    order = own["selectivity"].where(own["selected"]).rank(ascending=False, method="first")
    return pd.DataFrame(
        {
            "screen": name,
            "layer": own["layer"],
            "head": own["head"],
            "score": own["selectivity"],
            "target_mass": own["target_mass"],
            "selected": own["selected"],
            "rank": order.fillna(0).astype(np.int64),
            "rules": own["rules"],
            "n": own["n"],
        }
    )


def screens(
    model: Model,
    prompts: Prompts | Attention,
    names: Sequence[str] | None = None,
    rules: Rules = "strict",
    *,
    n_sequences: int = 2000,
    sequence_length: int = 256,
    seed: int = 0,
    batch_size: int = 32,
) -> pd.DataFrame:
    """Several screens on one set of prompts, rows taken once; the generic ones share one synthetic batch.

    `prompts` may be the `Attention` of earlier rows.  `names=None`: all task screens that fit its positions.
    Columns as `score_screen`.  Every prompt given is used: hand over the half on which heads are chosen.
    """
    check_rules(rules)
    rows = prompts if isinstance(prompts, Attention) else None
    if names is None:
        rows = rows or attention(model, prompts, batch_size=batch_size)  # type: ignore[arg-type]
        names = fitting(rows.positions)
    wanted: list[Screen] = [registry.get(name) for name in names]
    if rows is None and any(isinstance(s, TaskScreen) for s in wanted):
        rows = attention(model, prompts, batch_size=batch_size)  # type: ignore[arg-type]
    classes = None
    if any(isinstance(s, GenericScreen) for s in wanted):
        classes = generic_classes(model, n=n_sequences, length=sequence_length, seed=seed, rules=rules)
    tables = []
    for found in wanted:
        if isinstance(found, GenericScreen):
            assert classes is not None
            tables.append(generic_table(classes, found.name))
        else:
            assert rows is not None
            tables.append(score_screen(rows, found.name, rules=rules))
    if not tables:
        raise InputError("no screens to run: name some, or use prompts whose named positions fit one")
    return pd.concat(tables, ignore_index=True)


def screen(
    model: Model,
    task: PromptTask | PromptSet,
    name: str,
    *,
    rules: Rules = "strict",
    n: int = 100,
    seed: int = 0,
    bos: str = "none",
    n_sequences: int = 2000,
    sequence_length: int = 256,
) -> pd.DataFrame:
    """One screen of one task on one model, a row per head; columns as `score_screen`.

    Given a task, `n` prompts are drawn; `strict` scores the *first* of their `halves()`, so that effects can
    be measured on the second, `paper` all of them.  A PromptSet is used as it is.  A generic class
    (`induction`, ...) runs on `n_sequences` synthetic sequences of `sequence_length` instead.
    Raises InputError for an unknown screen, named positions the task lacks, a model without attention.
    """
    check_rules(rules)
    require_attention(model)
    found: Screen = registry.get(name)
    if isinstance(found, GenericScreen):
        table = generic_classes(model, n=n_sequences, length=sequence_length, seed=seed, rules=rules)
        return generic_table(table, name)
    if isinstance(task, PromptSet):
        prompts = task
    else:
        drawn = prompts_of(model, task, n=n, seed=seed, bos=bos)
        prompts = drawn.halves()[0] if rules == "strict" and len(drawn) > 1 else drawn
    missing = [p for p in found.needs if p not in prompts.positions]
    if missing:
        known = ", ".join(prompts.positions) or "none"
        raise InputError(
            f"screen {name!r} needs the named positions {', '.join(found.needs)}; "
            f"task {prompts.task!r} has {known}"
        )
    return score_screen(attention(model, prompts), name, rules=rules)


def prompts_of(model: Model, task: Any, *, n: int, seed: int, bos: str) -> PromptSet:
    """The task's prompts for this model's tokenizer.  Raises InputError for a state task or no tokenizer."""
    if getattr(task, "kind", "") != "prompt":
        raise InputError(f"task {getattr(task, 'name', task)!r} has no prompts: screens need a prompt task")
    if model.tokenizer is None:
        raise InputError(f"model {model.name!r} has no tokenizer: give a PromptSet of token ids")
    made: PromptSet = task.prompts(model.tokenizer, n, seed=seed, bos=bos)
    return made


def selected_heads(table: pd.DataFrame) -> dict[str, list[str]]:
    """A table of screens -> screen name to its selected heads (`L3H1`), best first; empty lists included."""
    chosen: dict[str, list[str]] = {}
    for name, rows in table.groupby("screen", sort=False):
        best = rows[rows["selected"]].sort_values("rank", kind="stable")
        chosen[str(name)] = [
            head_name(int(x), int(y)) for x, y in zip(best["layer"], best["head"], strict=True)
        ]
    return chosen


def target_names(rows: Attention, target: str | Sequence[str]) -> tuple[str, ...]:
    """A task screen's name, one named position, or several -> the named positions that are the target.

    Raises InputError naming the positions there are.
    """
    if not isinstance(target, str):
        return tuple(name for t in target for name in target_names(rows, t))
    if target in rows.positions:
        return (target,)
    found = registry.get(target) if target in registry else None
    if isinstance(found, TaskScreen):
        rows.having(found.targets, wanted_by=f"screen {target!r}")
        return found.targets
    raise unknown("target position", target, rows.positions, "or the name of a task screen")


def target_mass(rows: Attention, names: Sequence[str]) -> Floats:
    """Attention to the target, the largest where several are named: (n_layers, H)."""
    return np.asarray(np.maximum.reduce([rows.mass(name) for name in names]))


def random_masses(rows: Attention, *, n: int, seed: int) -> Floats:
    """Attention to random targets, one position per prompt and draw, any but the query, mean over prompts:
    (n, n_layers, H).

    Raises InputError when no prompt has a position besides its query.
    """
    fit = rows if bool((rows.lengths > 1).all()) else rows.keep(rows.lengths > 1)
    if not len(fit):
        raise InputError("every prompt is one token long: there is no position to draw a random target from")
    rng = np.random.default_rng(seed)
    n_layers, count, n_heads, width = fit.rows.shape
    flat = fit.rows.transpose(0, 2, 1, 3).reshape(n_layers * n_heads, count * width)
    offsets = np.arange(count) * width
    out = np.empty((n, n_layers, n_heads))
    for start in range(0, n, DRAWS_AT_ONCE):
        size = min(DRAWS_AT_ONCE, n - start)
        drawn = rng.integers(fit.lengths - 1, size=(size, count))  # (size, B), the query is the last
        marks = np.zeros((count * width, size), dtype=np.float32)
        marks[offsets + drawn, np.arange(size)[:, None]] = 1
        out[start : start + size] = (flat @ marks).T.reshape(size, n_layers, n_heads) / count
    return out


def null_masses(rows: Attention, n_targets: int, *, n: int, seed: int) -> Floats:
    """Random-target masses (n, n_layers, H); with several targets the largest of as many draws."""
    draws = [random_masses(rows, n=n, seed=seed + 7919 * k) for k in range(n_targets)]
    return np.asarray(np.maximum.reduce(draws))


def pattern_null(
    rows: Attention, target: str | Sequence[str], *, n: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """Each head's attention to a target against its random-target null (MEASURES 2.3).

    `target`: a task screen's name or one or more named positions.  Columns `layer, head, score` (mean
    attention to the target), `p99` (99th percentile of `n` random targets), `beyond`, `n`.
    """
    names = target_names(rows, target)
    fit = rows.having(names, wanted_by=f"target {', '.join(names)}")
    score = target_mass(fit, names)
    p99 = np.quantile(null_masses(fit, len(names), n=n, seed=seed), 0.99, axis=0)
    layer, head = (i.ravel() for i in np.indices(score.shape))
    columns = {"layer": layer, "head": head, "score": score.ravel(), "p99": p99.ravel()}
    return pd.DataFrame({**columns, "beyond": (score > p99 + PATTERN_ROUNDING).ravel(), "n": n})


def group_pattern_score(
    rows: Attention,
    group: str | Iterable[str | tuple[int, int]],
    target: str | Sequence[str],
    *,
    n: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """A group's attention to its target (mean over its heads) against the random-target null.

    -> {"score", "p99", "beyond"}: whether the pattern is there at all (MEASURES 4.2, rule 5).
    Raises InputError for an empty group, heads the model lacks, or an unknown target.
    """
    members = parse_heads(group)
    if not members:
        raise InputError("the group has no heads")
    for layer, head in members:
        if not (layer < rows.n_layers and head < rows.n_heads):
            raise InputError(
                f"no head {head_name(layer, head)}: there are {rows.n_layers} layers of {rows.n_heads} heads"
            )
    names = target_names(rows, target)
    fit = rows.having(names, wanted_by=f"target {', '.join(names)}")
    layers = sorted({layer for layer, _ in members})
    part = Attention(rows=fit.rows[layers], lengths=fit.lengths, positions=fit.positions, task=fit.task)
    index = (np.array([layers.index(m[0]) for m in members]), np.array([m[1] for m in members]))
    score = float(target_mass(part, names)[index].mean())
    null = null_masses(part, len(names), n=n, seed=seed)[:, *index].mean(axis=1)
    p99 = float(np.quantile(null, 0.99))
    return {"score": score, "p99": p99, "beyond": score > p99 + PATTERN_ROUNDING}
