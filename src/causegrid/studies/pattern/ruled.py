"""The verdicts of a cell under both rule sets, side by side, and plain sentences on what is only described.

The rules of the study lead: heads were chosen, and the deciding ablation taken, by them.  The other rule set
judges the *same* effects and draws, so where the two differ the rules differ and nothing else does.

A group without a single random draw gets no verdict from either: the published rules, which need no p, would
call it a correlate or an interferer on its pattern or its single heads alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from causegrid.evidence import verdict
from causegrid.evidence.rulings import amount
from causegrid.studies.pattern.conditions import GROUP, KEEP, REPICKED, UNION, UPPER
from causegrid.studies.pattern.variants import JUDGED

RULE_SETS = ("strict", "paper")


def verdicts(
    effects: pd.DataFrame,
    nulls: pd.DataFrame,
    notes: pd.DataFrame,
    *,
    rules: str,
    mode: str,
    floor: str,
    singles: pd.DataFrame,
    groups: pd.DataFrame,
    text: pd.DataFrame | None,
    heads_per_layer: int,
) -> pd.DataFrame:
    """The columns of `evidence.verdict`, with `role`, `rules`, `leads` and `other` (the group's combined verdict
    under the other rule set).

    Groups stand once per rule set, the leading one first; what is described stands once, under the leading one.
    `floor`: why the model fails the task's floor, and no draws were made; empty when there are draws.
    """
    own = effects[effects["role"] == GROUP]
    other = next(r for r in RULE_SETS if r != rules)
    why = {str(r["group"]): str(r["why"]) for r in notes.to_dict("records") if not r["n_null"]}
    tables = {}
    for name in (rules, other):
        if name == "paper" and floor:
            continue
        table = verdict(
            own,
            nulls,
            rules=name,
            mode=mode,
            singles=singles,
            patterns=_patterns(groups, set(own["group"])),
            text=text,
            heads_per_layer=heads_per_layer,
        )
        tables[name] = table if name == "strict" else _without_draws(table, why)
    if floor:
        tables["paper"] = _not_testable(tables["strict"], floor)
    attrs = tables["strict"].attrs | {"rules": rules}
    for name, against in ((rules, other), (other, rules)):
        combined = dict(zip(tables[against]["group"], tables[against]["combined"], strict=True))
        tables[name] = tables[name].assign(
            role=GROUP, rules=name, leads=name == rules, other=[combined[g] for g in tables[name]["group"]]
        )
    described = described_rows(effects[effects["mode"] == mode], rules)
    columns = list(tables[rules].columns)
    whole = [tables[rules], *([described] if len(described) else []), tables[other]]
    found = pd.concat([t.reindex(columns=columns).astype(object) for t in whole], ignore_index=True)
    found = found.infer_objects()
    found.attrs = attrs
    return found


def foreign_text(text: pd.DataFrame, n_tokens: int) -> str:
    """Why the control text says nothing of a model of `n_tokens` words; empty where it does.

    A model whose loss on it is that of a guess among all its tokens or more does not read that text, so neither a rise
    of the loss nor its absence says that ordinary text is spared (**ours**).
    """
    if not len(text):
        return ""
    clean, guess = float(text["clean"].max()), math.log(n_tokens)
    if clean < guess:
        return ""
    return (
        f"the control text is foreign to this model: its loss there, {clean:.3g} nats a token, is no better than a "
        f"guess among {n_tokens} tokens ({guess:.3g})"
    )


def _patterns(groups: pd.DataFrame, measured: set[str]) -> dict[str, dict[str, float]]:
    known = groups[groups["pattern"].notna() & groups["group"].isin(measured)]
    return {
        str(r["group"]): {"score": r["pattern_score"], "p99": r["pattern_p99"]}
        for r in known.to_dict("records")
    }


def _without_draws(table: pd.DataFrame, why: Mapping[str, str]) -> pd.DataFrame:
    bare = table["group"].isin(list(why))
    table.loc[bare, ["verdict", "combined"]] = "not testable (draws)"
    table.loc[bare, "differs"] = False
    table.loc[bare, "reason"] = [why[g] for g in table.loc[bare, "group"]]
    return table


def _not_testable(strict: pd.DataFrame, floor: str) -> pd.DataFrame:
    """The published rules state no floor; a model that cannot do the task has nothing a head could be the cause of."""
    verdicts = dict.fromkeys(("verdict", "combined"), "not testable")
    return strict.assign(**verdicts, differs=False, reason=f"no random draws were made: {floor}")


def described_rows(effects: pd.DataFrame, rules: str) -> pd.DataFrame:
    """Rows of `verdicts` for unions, upper bounds, keep-only and groups picked again; no p, no rank."""
    records: list[dict[str, Any]] = effects.to_dict("records")  # type: ignore[assignment]
    by_key = {(r["group"], r["metric"]): r for r in records}
    rows = []
    for row in records:
        if row["role"] == GROUP or row["metric"] not in JUDGED:
            continue
        of = [by_key[g, row["metric"]] for g in row["of"] if (g, row["metric"]) in by_key]
        rows.append(
            {
                **{
                    c: row[c]
                    for c in ("group", "heads", "mode", "metric", "n", "baseline", "ablated", "effect")
                },
                **{c: row[c] for c in ("low", "high", "role")},
                "kind": "descriptive",
                "n_null": 0,
                "n_apart": 0,
                "null_prompts": 0,
                "verdict": "descriptive",
                "combined": "descriptive",
                "other": "descriptive",
                "marks": [],
                "reason": sentence(row, of),
                "differs": False,
                "rules": rules,
                "leads": True,
            }
        )
    return pd.DataFrame(rows)


def sentence(row: Mapping[str, Any], of: Sequence[Mapping[str, Any]]) -> str:
    """What a described row says of the groups it is about, in words."""
    metric, names = row["metric"], " and ".join(row["of"])
    effect = amount(row["effect"], metric)
    interval = f"[{amount(row['low'], metric)}, {amount(row['high'], metric)}]"
    whole = sum(float(o["effect"]) for o in of)
    if row["role"] == UNION:
        listed = ", ".join(row["of"])
        return f"{listed} removed together: {effect} {interval}; one by one they add up to {amount(whole, metric)}"
    if row["role"] == UPPER:
        layers = len({h.split("H")[0] for h in row["heads"]})
        share = _share(whole, row["effect"])
        return (
            f"all {len(row['heads'])} heads of the {_count(layers, 'layer')} of {names} removed: {effect} {interval}; "
            f"the group alone makes {amount(whole, metric)}{share}"
        )
    if row["role"] == KEEP:
        left, had = (_level(row[c], metric) for c in ("ablated", "baseline"))
        what = "margin" if metric == "logit_diff" else "top-1"
        return (
            f"with all {len(row['heads'])} heads but those of {names} removed, a {what} of {left} is left of {had}"
            f"{_share(row['ablated'], row['baseline']) if row['baseline'] > 0 else ''}"
        )
    assert row["role"] == REPICKED
    return f"{names} without heads of the BOS class: {effect} {interval}, against {amount(whole, metric)} with them"


def _share(part: float, whole: float) -> str:
    """`, 61 % of it`; nothing where a share says nothing: other signs, or a whole of about 0."""
    if not np.isfinite(part) or not np.isfinite(whole) or abs(whole) < 1e-6 or part * whole < 0:
        return ""
    return f", {100 * part / whole:.0f} % of it"


def _level(value: float, metric: str) -> str:
    return f"{value:.3g} logits" if metric == "logit_diff" else f"{100 * value:.3g} %"


def _count(n: int, what: str) -> str:
    return f"{n} {what}s" if n > 1 else what
