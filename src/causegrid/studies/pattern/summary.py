"""What a finished pattern-selectivity grid says, as small tables: can the model do the task, and every group's effect
with its null and verdict.  For pages of results (`causegrid report DIR --page FILE`).

Margins in logits, accuracies as fractions.  Groups stand under the rules that lead; descriptive ones are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from causegrid.evidence.effects import effect_interval, wilson
from causegrid.evidence.nulls import benjamini_hochberg

MARGIN, TOP1 = "logit_diff", "top1"
ACROSS = "p over all cells"  # Benjamini and Hochberg's, over the margin's raw p of every competing group


def summaries(cells: Sequence[Mapping[str, Any]]) -> dict[str, pd.DataFrame]:
    """All tables for which a cell has something, of cells as `Study.claims` gets them."""
    judged = [(c, table) for c in cells if (table := _leading(c)) is not None]
    verdicts = pd.DataFrame([row for c, table in judged for row in _verdicts(c, table)])
    if len(verdicts):
        verdicts[ACROSS] = [_p(p) for p in benjamini_hochberg(verdicts[ACROSS].astype(float))]
    found = {"tasks": pd.DataFrame([_task(c, table) for c, table in judged]), "verdicts": verdicts}
    return {name: table for name, table in found.items() if len(table)}


def _leading(cell: Mapping[str, Any]) -> pd.DataFrame | None:
    """Competing groups under the leading rules, None where nothing was judged."""
    found = cell["tables"]("verdicts")
    if found is None or not len(found):
        return None
    mine = found[found["leads"].astype(bool) & (found["kind"] == "competing")]
    return mine if len(mine) else None


def _task(cell: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """What the untouched model does on the prompts measured on, and the verdicts that came of it."""
    facts, once = cell["facts"], table.drop_duplicates("group")
    return {
        **_names(cell),
        **_untouched(cell["tables"]("prompts")),
        "heads": int(facts["n_layers"]) * int(facts["n_heads"]),
        "words dropped": int(facts["n_dropped"]),
        "verdicts": ", ".join(f"{n} {v}" for v, n in once["combined"].value_counts(sort=False).items()),
    }


def _untouched(prompts: pd.DataFrame | None) -> dict[str, Any]:
    """Margin and top-1 over the prompts measured on, with their intervals."""
    if prompts is None:  # the file cannot be read, which was said
        return dict.fromkeys(("prompts", "margin, logits", "top-1"), "–")
    measured = prompts[prompts["half"] == "measured on"]
    margins, right = measured[MARGIN], int(measured[TOP1].sum())
    low, high = effect_interval(margins, MARGIN)
    least, most = wilson(right, len(measured))
    return {
        "prompts": len(measured),
        "margin, logits": f"{margins.mean():.2f} [{low:.2f}, {high:.2f}]",
        "top-1": f"{right / len(measured):.2f} [{least:.2f}, {most:.2f}]",
    }


def _verdicts(cell: Mapping[str, Any], table: pd.DataFrame) -> list[dict[str, Any]]:
    """One row per group: the margin's numbers, top-1's effect, the verdict under both rule sets."""
    rows = []
    for group, part in table.groupby("group", sort=False):
        by: dict[str, Mapping[Any, Any]] = {str(r["metric"]): r for r in part.to_dict("records")}
        if MARGIN not in by:
            continue
        m = by[MARGIN]
        rows.append(
            {
                **_names(cell),
                "group": group,
                "heads": len(m["heads"]),
                "margin effect": _effect(m),
                "null": _null(m),
                "corrected p": _p(m["p_holm"]),
                ACROSS: m["p"],  # corrected when all cells are there
                "top-1 effect": _effect(by[TOP1]) if TOP1 in by else "–",
                "verdict": m["combined"],
                "marks": ", ".join(m["marks"]) if len(m["marks"]) else "",
                "other rules": m["other"] or "–",
            }
        )
    return rows


def _p(p: float) -> str:
    return "–" if pd.isna(p) else f"{p:.3f}"


def _null(row: Mapping[Any, Any]) -> str:
    """`-0.14 ± 0.26 (97 of 129)`: mean and sd of the draws without the group's own heads, how many of all."""
    if not row["n_null"] > 0:
        return "–"
    known = f"{row['null_mean']:+.2f} ± {row['null_sd']:.2f} " if row["null_sd"] == row["null_sd"] else ""
    of = f"{int(row['n_apart'])} of " if "n_apart" in row else ""  # cells judged before it was counted
    return f"{known}({of}{int(row['n_null'])})"


def _effect(row: Mapping[Any, Any]) -> str:
    return f"{row['effect']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"


def _names(cell: Mapping[str, Any]) -> dict[str, Any]:
    config = cell["config"]
    return {"task": config["task"], "model": config["model"], "seed": config.get("seed", 0)}
