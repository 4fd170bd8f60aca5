"""The claims of study P over finished cells (MEASURES 4.3).

Only competing groups are counted, each under its combined verdict (the margin's).  A claim whose cells are
not there is `not enough evidence`, with what is missing, and never a contradiction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from causegrid.evidence.claims import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Claim,
    decide,
    independent,
    proportions,
)
from causegrid.evidence.effects import wilson
from causegrid.evidence.reference import published

FIVE = ("primary", "secondary", "interferer", "correlate", "null")
SAME = {"co-primary": "primary", "interferer (joint)": "interferer"}
UNDECIDED_VERDICTS = (
    "inconclusive",
    "not testable",
    "not testable (draws)",
    "saturated",
    "no headroom",
    "unreliable null",
)
EXPERTS = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe")


def pattern_claims(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """P1 to P5 over finished cells."""
    groups = _groups(cells)
    claims = [
        _primary_differs(groups),
        _previous_token(groups),
        _five(groups),
        _disagree(groups),
        _layer_zero(groups),
    ]
    return [c.record() for c in claims]


def _groups(cells: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Competing groups of every cell, one row per metric, with the cell's names."""
    tables = []
    for c in cells:
        found = c["tables"]("verdicts")
        if found is not None and len(found):
            found = found[found["kind"] == "competing"].assign(
                cell=c["id"],
                task=c["config"]["task"],
                model=c["config"]["model"],
                family=c["facts"].get("family", ""),
            )
            tables.append(found)
    columns = ["cell", "task", "model", "family", "group", "metric", "verdict", "combined", "differs"]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def _once(groups: pd.DataFrame) -> pd.DataFrame:
    """One row per group of a cell, its combined verdict with variants merged."""
    one = groups.drop_duplicates(["cell", "group"]).copy()
    one["combined"] = one["combined"].replace(SAME)
    return one


def _undecided(id: str, statement: str, figure: Any, missing: str, cells: Sequence[str] = ()) -> Claim:
    return Claim(
        id=id,
        statement=statement,
        published=figure,
        measured="-",
        result=UNDECIDED,
        why=missing,
        cells=tuple(cells),
    )


def _ids(groups: pd.DataFrame) -> tuple[str, ...]:
    return tuple(dict.fromkeys(groups["cell"]))


def _primary_differs(groups: pd.DataFrame) -> Claim:
    statement = "For the same task the primary group differs between models"
    figure = "the paper's sentence that no two cells share one is contradicted by its own table"
    one = _once(groups)
    primary = one[one["combined"] == "primary"]
    tasks: dict[str, set[tuple[str, ...]]] = {}
    for task, rows in primary.groupby("task"):
        if rows["model"].nunique() > 1:
            tasks[str(task)] = {tuple(sorted(set(r["group"]))) for _, r in rows.groupby("model")}
    if not tasks:
        return _undecided(
            "P1",
            statement,
            figure,
            "needs one task with a primary group on two models or more.",
            _ids(groups),
        )
    differ = sum(len(kinds) > 1 for kinds in tasks.values())
    low, high = wilson(differ, len(tasks))
    result = SUPPORTED if low > 0.5 else CONTRADICTED if high < 0.5 else UNDECIDED
    return Claim(
        id="P1", statement=statement, published=figure, measured=f"{differ} of {len(tasks)} tasks", low=low, high=high,
        result=result, why=f"tasks with a primary on several models: {', '.join(tasks)}.", cells=_ids(primary),
    )  # fmt: skip


def _previous_token(groups: pd.DataFrame) -> Claim:
    statement = "Previous-token groups are primary in mixture-of-experts models more often than in dense ones"
    figure = "stated by count over cells"
    one = _once(groups)
    rows = one[one["group"] == "previous-token"]
    moe = rows["family"].isin(EXPERTS)
    is_primary = rows["combined"] == "primary"
    if not moe.any() or moe.all():
        return _undecided(
            "P2",
            statement,
            figure,
            "needs previous-token groups on dense and mixture-of-experts models.",
            _ids(rows),
        )
    test = proportions(
        int((is_primary & moe).sum()), int(moe.sum()), int((is_primary & ~moe).sum()), int((~moe).sum())
    )
    result, why = decide(test, 1)
    return Claim(
        id="P2", statement=statement, published=figure, measured=test.effect, low=test.low, high=test.high,
        result=result, why=f"{why}.", cells=_ids(rows),
    )  # fmt: skip


def _five(groups: pd.DataFrame) -> Claim:
    statement = "All five verdicts occur: primary, secondary, correlate, interferer, null"
    counts = Counter(_once(groups)["combined"]) if len(groups) else Counter()
    seen = {v: counts[v] for v in FIVE}
    missing = [v for v, k in seen.items() if not k]
    said = ", ".join(f"{v} {k}" for v, k in seen.items())
    others = ", ".join(f"{v} {k}" for v, k in counts.items() if v not in FIVE)
    return Claim(
        id="P3", statement=statement, published="all five, in 12 cells", measured=said,
        result=UNDECIDED if missing else SUPPORTED,
        why=(f"not seen yet: {', '.join(missing)}" if missing else "each was seen at least once")
        + (f"; besides: {others}." if others else "."),
        cells=_ids(groups),
    )  # fmt: skip


def _disagree(groups: pd.DataFrame) -> Claim:
    statement = "Top-1 and the margin disagree about some groups"
    olmoe = published("pattern-selectivity")["cells"]["ioi"]["olmoe1b7b"]
    shown = next(c for c in olmoe["conditions"] if c["screen"] == "s_inhibition_top5")
    figure = (
        f"OLMoE on IOI: s-inhibition moves top-1 by {shown['delta_top1_pp']:+.1f} pp "
        f"and the margin by {shown['delta_logit_diff']:+.1f} of {olmoe['baseline']['logit_diff']:.1f} logits"
    )
    decided = groups[~groups["verdict"].isin(UNDECIDED_VERDICTS)] if len(groups) else groups
    both = decided.groupby(["cell", "group"])["verdict"].agg(["size", "nunique"]) if len(decided) else None
    both = both[both["size"] > 1] if both is not None else None
    if both is None or not len(both):
        return _undecided(
            "P4", statement, figure, "no group has a definite verdict on both metrics (no headroom or power).",
            _ids(groups),
        )  # fmt: skip
    k, n = int((both["nunique"] > 1).sum()), len(both)
    low, high = wilson(k, n)
    return Claim(
        id="P4", statement=statement, published=figure, measured=f"{k} of {n} groups", low=low, high=high,
        result=SUPPORTED if k else UNDECIDED,
        why=f"of {n} groups with a definite verdict on both, {k} differ.", cells=_ids(decided),
    )  # fmt: skip


def _layer_zero(groups: pd.DataFrame) -> Claim:
    statement = "Groups with heads in layer 0 have a wider null"
    figure = "stated for layer-0-heavy screens"
    rows = groups[(groups["metric"] == "logit_diff") & groups["null_sd"].notna()] if len(groups) else groups
    if len(rows):
        width = rows["null_sd"] / rows["baseline"].abs()
        zero = rows["heads"].map(lambda heads: any(str(h).startswith("L0H") for h in heads))
        if min(int(zero.sum()), int((~zero).sum())) >= 2:
            test = independent(width[zero].to_numpy(), width[~zero].to_numpy())
            result, why = decide(test, 1)
            return Claim(
                id="P5", statement=statement, published=figure, measured=test.effect, low=test.low, high=test.high,
                result=result, why=f"{why} (null sd as a share of the baseline margin).", cells=_ids(rows),
            )  # fmt: skip
    return _undecided(
        "P5", statement, figure, "needs two groups or more with and without layer-0 heads.", _ids(groups)
    )
