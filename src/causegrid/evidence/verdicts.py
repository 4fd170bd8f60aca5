"""The verdict on every group of one cell: tables in, a table out (MEASURES 4.2).

This file only gathers: readings from the tables, the family, what is known beside them (single heads, the
other mode, patterns, ordinary text), then one of two rule sets (`rules_strict`, `rules_paper`), then marks.
The margin decides; top-1 saturates and hides interferers at the ceiling, so it is shown beside.  The
published rules decide on top-1, as the paper does.  Without a foil there is no margin: top-1 decides, which
is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd

from causegrid.errors import InputError, unknown
from causegrid.evidence import effects as sizes
from causegrid.evidence import rules_paper, rules_strict
from causegrid.evidence.effects import bootstrap_mean
from causegrid.evidence.family import Membership, family, too_few_others
from causegrid.evidence.marks import MARGIN, TOP1, marks
from causegrid.evidence.readings import Head, Measured, NullTable, Reading, measured, one_mode
from causegrid.evidence.rulings import MARKS, VERDICTS, Evidence, Pattern, Ruling, Single, rank
from causegrid.evidence.thresholds import PATTERN_ROUNDING, Thresholds

__all__ = ["MARKS", "RULES", "VERDICTS", "Thresholds", "task_floor", "verdict"]

RULES = ("strict", "paper")
_MODE = {"strict": "mean", "paper": "zero"}
_Rows = dict[str, dict[str, Measured]]  # group -> metric -> row


def verdict(
    effects: pd.DataFrame,
    null: pd.DataFrame,
    *,
    rules: str = "strict",
    metrics: Sequence[str] = ("logit_diff", "top1"),
    mode: str | None = None,
    singles: pd.DataFrame | None = None,
    other_mode: pd.DataFrame | None = None,
    patterns: Mapping[str, Any] | pd.DataFrame | None = None,
    text: pd.DataFrame | None = None,
    model_floor: float | None = None,
    heads_per_layer: int | None = None,
    groups_kind: Mapping[str, str] | None = None,
    thresholds: Thresholds | None = None,
) -> pd.DataFrame:
    """One row per group x metric, in the order of `effects`, for the groups of one cell (task, model).

    `effects`, `null`: tables as `ablate_heads` gives.  A null row is of the group in its `null_for`, else
    to every group with as many heads per layer; a column `prompts` (lists of prompt numbers) says on which
    prompts each was measured.  Of several modes, `mode` is judged (default: mean; `paper`: zero).
    `metrics`: the first decides (`paper`: top-1 does); the floor also reads `restricted` when it is there.
    `singles`: effects of heads alone (single-head groups of `effects` count too).
    `other_mode`: the same groups under another mode (other modes of `effects` count too).
    `patterns`: group -> {"score", "p99"}, {"beyond"} or a bool, or a table with these columns.
    `text`: a table `group, clean, ablated` of the loss on ordinary text.
    `model_floor`: least answer-against-foil accuracy.
    `heads_per_layer`: of the model, to tell whole layers and impossible draws (else the largest index seen).
    `groups_kind`: group -> "competing" | "descriptive", where it is not to be worked out.

    Columns: `group, heads, kind, mode, metric, n, baseline, ablated, effect, low, high, null_mean, null_sd,
    n_null, n_apart` (draws without the group's own heads, whose mean and sd those are, and z and specificity
    too)`, null_prompts` (how many the null was measured on)`, excess` (effect on them - null mean)`, p,
    p_holm` (NaN outside the family)`, p_min, z, specificity, verdict, marks` (list)`, reason,
    rank, rank_of` (a single head among its layer's, 1 = most harmful)`, singles_sum` (of its heads alone)`,
    combined` (the group's verdict)`, differs` (another metric's verdict is not the combined one).
    Raises InputError: a missing column, a competing group without draws, unknown rules, metric, mode, group,
    a null whose clean values (`baseline`, `clean`, where the tables have them) are not the group's.
    """
    if rules not in RULES:
        raise unknown("rule set", rules, RULES)
    for metric in metrics:
        if metric not in sizes.METRICS:
            raise unknown("metric", metric, sizes.METRICS)
    limits = thresholds or Thresholds()
    if model_floor is not None:
        limits = replace(limits, model_accuracy=model_floor)
    judged, rest, mode = one_mode(effects, mode, _MODE[rules])
    rows = _by_group(measured(judged, "effects"), metrics)
    draws = NullTable(null, mode)
    sets = {group: next(iter(by_metric.values())).heads for group, by_metric in rows.items()}
    if not draws.heads and heads_per_layer is None:
        raise InputError("null: the table has no rows; ablate the draws of matched_random")
    members = family(sets, heads_per_layer or _seen(sets, draws), groups_kind)
    _check_heads(sets, heads_per_layer)
    evidence = Evidence(
        members=members,
        singles=_singles(singles, rows, mode),
        patterns=_patterns(patterns, rows),
        floors={g: _floor(by_metric, limits) if rules == "strict" else "" for g, by_metric in rows.items()},
        heads_per_layer=heads_per_layer,
        thresholds=limits,
    )
    readings = _readings(rows, draws, sets, evidence, metrics)
    rulings: dict[str, dict[str, Ruling]] = {group: {} for group in rows}
    adjusted: dict[tuple[str, str], float] = {}
    judge = rules_strict.judge if rules == "strict" else rules_paper.judge
    for metric in metrics:
        of_metric = [by_metric[metric] for by_metric in readings.values() if metric in by_metric]
        for group, p in rules_strict.corrected(of_metric, evidence).items():
            adjusted[group, metric] = float(p)
        for group, ruling in judge(of_metric, evidence).items():
            rulings[group][metric] = ruling
    first = TOP1 if rules == "paper" and TOP1 in metrics else metrics[0]
    order = [first, *(m for m in metrics if m != first)]
    others = _others(other_mode, rest, mode)
    rises = _text(text, rows, mode)
    given = {str(g): h for g, h in zip(judged["group"], judged["heads"], strict=True)}
    table = []
    for group, by_metric in readings.items():
        found = marks(by_metric, rulings[group], others.get(group, {}), rises.get(group), evidence)
        combined, missing = _combined(by_metric, rulings[group], order)
        differs = any(rulings[group][m].verdict != combined for m, r in by_metric.items() if r.defined)
        for metric, reading in by_metric.items():
            ruling = rulings[group][metric]
            row = _row(reading, ruling, members[group], evidence, rules)
            row["heads"] = given[group]
            row["p_holm"] = adjusted.get((group, metric), math.nan) if members[group].competes else math.nan
            row["marks"] = found[metric]
            row["reason"] = ruling.reason + missing
            row["combined"], row["differs"] = combined, differs
            table.append(row)
    result = pd.DataFrame(table)
    result.attrs = {"rules": rules, "mode": mode, "thresholds": asdict(limits)}
    return result


def task_floor(
    effects: pd.DataFrame, *, mode: str | None = None, thresholds: Thresholds | None = None
) -> str:
    """Why the model of an effects table fails the task's floor, so that no group of it can be judged; empty when
    it passes (MEASURES 4.2, rule 1).  A null need not be drawn then.
    """
    rows = _by_group(measured(one_mode(effects, mode, _MODE["strict"])[0], "effects"), (MARGIN, TOP1))
    return _floor(next(iter(rows.values())), thresholds or Thresholds())


def _by_group(rows: Sequence[Measured], metrics: Sequence[str]) -> _Rows:
    grouped: _Rows = {}
    for row in rows:
        by_metric = grouped.setdefault(row.group, {})
        if row.metric in by_metric:
            raise InputError(
                f"effects: group {row.group!r} has two rows for {row.metric!r}; give one cell at a time"
            )
        if any(r.heads != row.heads for r in by_metric.values()):
            raise InputError(f"effects: group {row.group!r} has different heads in different rows")
        by_metric[row.metric] = row
    if not grouped:
        raise InputError("effects: the table has no rows, so there is nothing to judge")
    for group, by_metric in grouped.items():
        if not any(m in by_metric for m in metrics):
            raise InputError(f"effects: group {group!r} has none of the metrics {', '.join(metrics)}")
    return grouped


def _seen(sets: Mapping[str, tuple[Head, ...]], draws: NullTable) -> int:
    """A lower bound of the heads per layer: the largest index seen, plus 1."""
    return 1 + max(index for heads in (*sets.values(), draws.heads) for _, index in heads)


def _check_heads(sets: Mapping[str, tuple[Head, ...]], heads_per_layer: int | None) -> None:
    for group, heads in sets.items():
        for layer, index in heads:
            if heads_per_layer is not None and index >= heads_per_layer:
                raise InputError(
                    f"effects: group {group!r} has head L{layer}H{index}, but the model has "
                    f"{heads_per_layer} heads per layer (H0 to H{heads_per_layer - 1})"
                )


def _readings(
    rows: _Rows,
    draws: NullTable,
    sets: Mapping[str, tuple[Head, ...]],
    evidence: Evidence,
    metrics: Sequence[str],
) -> dict[str, dict[str, Reading]]:
    found: dict[str, dict[str, Reading]] = {}
    for group, by_metric in rows.items():
        competitors = (h for g, h in sets.items() if g != group and evidence.members[g].competes)
        foreign = frozenset(head for heads in competitors for head in heads) - frozenset(sets[group])
        found[group] = {
            m: draws.reading(by_metric[m], foreign, evidence.thresholds) for m in metrics if m in by_metric
        }
        for reading in found[group].values():
            bare = reading.defined and not reading.null.size and evidence.members[group].competes
            cannot = evidence.heads_per_layer and too_few_others(sets[group], evidence.heads_per_layer)
            if bare and not cannot and not evidence.floors[group]:
                raise InputError(
                    f"null: no draw belongs to group {group!r} on {reading.measured.metric!r} (as many heads "
                    "per layer and none of its own, or its name in 'null_for')"
                )
    return found


def _singles(table: pd.DataFrame | None, rows: _Rows, mode: str) -> dict[tuple[Head, str], Single]:
    found = [m for by_metric in rows.values() for m in by_metric.values()]
    if table is not None and len(table):
        alone, _, _ = one_mode(table, mode or None, mode)
        found += measured(alone, "singles")
    return {
        (m.heads[0], m.metric): Single(effect=m.effect, low=m.low, high=m.high)
        for m in found
        if len(m.heads) == 1
    }


def _patterns(given: Mapping[str, Any] | pd.DataFrame | None, rows: _Rows) -> dict[str, Pattern]:
    if given is None:
        return {}
    if isinstance(given, pd.DataFrame):
        given = {str(r["group"]): r for r in given.to_dict("records")}
    found = {}
    for group, value in given.items():
        if group not in rows:
            raise unknown("group in patterns", group, rows)
        if isinstance(value, bool | np.bool_):
            found[group] = Pattern(present=bool(value), text="as given")
        elif "score" in value and "p99" in value:
            score, p99 = float(value["score"]), float(value["p99"])
            found[group] = Pattern(
                present=score > p99 + PATTERN_ROUNDING, text=f"score {score:.3g}, 99th percentile {p99:.3g}"
            )
        elif "beyond" in value:
            found[group] = Pattern(present=bool(value["beyond"]), text="as given")
        else:
            raise InputError(f"patterns: group {group!r} needs a score and its p99, or a bool, not {value!r}")
    return found


def _floor(rows: Mapping[str, Measured], limits: Thresholds) -> str:
    """Why the model fails the task's floor; empty when it passes (MEASURES 4.2, rule 1)."""
    margin, restricted, top1 = rows.get(MARGIN), rows.get("restricted"), rows.get(TOP1)
    if margin is None or math.isnan(margin.baseline):
        if top1 is None:
            return ""
        low = bootstrap_mean(top1.clean)[0] if top1.clean.size else top1.baseline
        return "" if low > 0 else f"the model is not above chance: top-1 {top1.baseline:.0%}, from {low:.0%}"
    known = margin.clean[~np.isnan(margin.clean)]
    low = bootstrap_mean(known)[0] if known.size else margin.baseline
    if not low > 0:
        return (
            f"the model does not do the task: margin {margin.baseline:+.3g} logits, interval from {low:+.3g}"
        )
    if restricted is not None and not math.isnan(restricted.baseline):
        accuracy = restricted.baseline
    elif known.size:
        accuracy = float((known > 0).mean())
    else:
        return ""
    if accuracy < limits.model_accuracy:
        least = f"{limits.model_accuracy:.0%}"
        return f"the model does not do the task: answer against foil {accuracy:.0%}, below {least}"
    return ""


def _others(
    given: pd.DataFrame | None, rest: pd.DataFrame, mode: str
) -> dict[str, dict[str, list[Measured]]]:
    found: dict[str, dict[str, list[Measured]]] = {}
    for table in (given, rest):
        if table is not None and len(table):
            for m in measured(table, "other_mode"):
                if m.mode != mode:
                    found.setdefault(m.group, {}).setdefault(m.metric, []).append(m)
    return found


def _text(table: pd.DataFrame | None, rows: _Rows, mode: str) -> dict[str, float]:
    """Group -> rise of the loss on ordinary text, as a share of the clean loss."""
    if table is None or not len(table):
        return {}
    for column in ("group", "clean", "ablated"):
        if column not in table.columns:
            raise InputError(f"text: column {column!r} is missing; give group, clean, ablated")
    if "mode" in table.columns and mode:
        table = table[table["mode"] == mode]
    triples = zip(table["group"], table["clean"], table["ablated"], strict=True)
    return {str(g): float(a - c) / float(c) for g, c, a in triples if str(g) in rows and c > 0}


def _combined(
    readings: Mapping[str, Reading], rulings: Mapping[str, Ruling], order: Sequence[str]
) -> tuple[str, str]:
    """(the group's verdict, what to say when the deciding metric does not exist)."""
    for metric in order:
        if metric in readings and readings[metric].defined:
            said = (
                "" if metric == order[0] else f". There is no {order[0]} here (no foil), so {metric} decides"
            )
            return rulings[metric].verdict, said
    return "not testable", ""


def _row(
    reading: Reading, ruling: Ruling, member: Membership, evidence: Evidence, rules: str
) -> dict[str, Any]:
    m, p = reading.measured, reading.p
    single = len(m.heads) == 1 and p is not None
    place, of = rank(reading) if single else (math.nan, math.nan)
    alone = evidence.alone(reading)
    return {
        "group": m.group,
        "heads": "",
        "kind": member.kind,
        "mode": m.mode,
        "metric": m.metric,
        "n": 0 if m.n is None else m.n,
        "baseline": m.baseline,
        "ablated": m.ablated,
        "effect": m.effect,
        "low": m.low,
        "high": m.high,
        "null_mean": reading.null_mean,
        "null_sd": reading.null_sd,
        "n_null": int(reading.null.size),
        "n_apart": int(reading.apart.size),
        "null_prompts": reading.n_prompts,
        "excess": reading.matched - reading.null_mean,
        "p": p.p if p else math.nan,
        "p_holm": math.nan,
        "p_min": p.p_min if p else math.nan,
        "z": reading.z,
        "specificity": reading.specificity if rules == "strict" else rules_paper.ratio(reading),
        "verdict": ruling.verdict,
        "marks": [],
        "reason": ruling.reason,
        "rank": place,
        "rank_of": of,
        "singles_sum": sum(s.effect for s in alone.values()) if len(alone) == len(m.heads) else math.nan,
    }
