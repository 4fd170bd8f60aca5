"""P1: for one task the primary group differs between models.

The paper says that no two cells share a primary; its own table contradicts that (the greater-than screen is
the most harmful one in two models), so what is tested is the weaker sentence, by task.  A model's primary is
the group most often primary over its seeds; a task differs when no group is that in every model.
"""

from __future__ import annotations

import pandas as pd

from causegrid.evidence.claims import Claim
from causegrid.studies.pattern.claims.base import claims, ids, majority, once, undecided
from causegrid.studies.pattern.published import most_harmful, skipped

STATEMENT = "For the same task the primary group differs between models"


@claims.register("P1")
def primary(groups: pd.DataFrame) -> Claim:
    one = once(groups)
    rows = one[one["combined"] == "primary"]
    tasks: dict[str, dict[str, set[str]]] = {}
    for (task, model), mine in rows.groupby(["task", "model"]):
        counts = mine["group"].value_counts()
        tasks.setdefault(str(task), {})[str(model)] = set(counts[counts == counts.max()].index)
    several = {task: models for task, models in tasks.items() if len(models) > 1}
    if not several:
        return undecided(
            "P1", STATEMENT, _figure(), "needs one task with a primary group on two models or more.", groups
        )
    differ = [task for task, models in several.items() if not set.intersection(*models.values())]
    low, high, result = majority(len(differ), len(several))
    shown = {
        task: [f"{m} {'/'.join(sorted(g))}" for m, g in models.items()] for task, models in several.items()
    }
    said = "; ".join(f"{task}: {', '.join(found)}" for task, found in shown.items())
    return Claim(
        id="P1", statement=STATEMENT, published=_figure(), measured=f"{len(differ)} of {len(several)} tasks", low=low,
        high=high, result=result, why=f"{said}; the share of tasks against one half.", cells=ids(rows),
    )  # fmt: skip


def _figure() -> str:
    """The most harmful group of each published cell by top-1, by task."""
    tasks: dict[str, list[str]] = {}
    for (task, model), (group, _) in most_harmful("top1", against="").items():
        tasks.setdefault(task, []).append(f"{model} {group}")
    shown = "; ".join(f"{task}: {', '.join(found)}" for task, found in tasks.items())
    return f"most harmful valid group by top-1: {shown}; {skipped()}"
