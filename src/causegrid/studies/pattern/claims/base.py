"""What claims share: the registry, the table they read, and the unit in which they count.

The unit is a (task, model): its seeds are not independent, so they vote together, each with its share.  A model of
the same name trained from another seed (`zoo-olmo:seed=1`) is a seed of that model, not another model.  Only
competing groups count, under the rules that lead in their cell; variants of a verdict are merged (`co-primary` is
primary, `interferer (joint)` is interferer).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from causegrid.errors import InputError
from causegrid.evidence.claims import CONTRADICTED, SUPPORTED, UNDECIDED, Claim
from causegrid.registry import Registry
from causegrid.spec import joined, split

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
COLUMNS = (
    "cell", "task", "model", "seed", "family", "group", "heads", "metric", "baseline", "effect", "null_sd", "verdict",
    "combined", "differs",
)  # fmt: skip

claims: Registry[Callable[[pd.DataFrame], Claim]] = Registry("claim", "causegrid.studies.pattern.claims")


def group_table(cells: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Competing groups of every cell under its leading rules, one row per metric, with the cell's names."""
    tables = []
    for c in cells:
        found = c["tables"]("verdicts")
        if found is None or not len(found):
            continue
        if "leads" in found:
            found = found[found["leads"].astype(bool)]
        found = found[found["kind"] == "competing"].assign(
            cell=c["id"],
            task=c["config"]["task"],
            model=trained_from_any_seed(c["config"]["model"]),
            seed=c["config"].get("seed", 0),
            family=c["facts"].get("family", ""),
        )
        found[["verdict", "combined"]] = found[["verdict", "combined"]].replace(SAME)
        tables.append(found.reindex(columns=list(COLUMNS)))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))


def trained_from_any_seed(model: str) -> str:
    """The model's name without the seed it was trained from."""
    try:
        name, options = split(model)
    except InputError:  # a path with a colon
        return model
    return joined(name, {option: value for option, value in options.items() if option != "seed"})


def once(groups: pd.DataFrame) -> pd.DataFrame:
    """One row per group of a cell, for its combined verdict."""
    return groups.drop_duplicates(["cell", "group"])


def ids(groups: pd.DataFrame) -> tuple[str, ...]:
    """The cells of some rows."""
    return tuple(dict.fromkeys(groups["cell"]))


def undecided(
    id: str, statement: str, figure: Any, missing: str, groups: pd.DataFrame, measured: Any = "-"
) -> Claim:
    """A claim that cannot be tested, with what is missing."""
    return Claim(
        id=id, statement=statement, published=figure, measured=measured, result=UNDECIDED, why=missing,
        cells=ids(groups),
    )  # fmt: skip


def exact(k: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of k of n."""
    interval = stats.binomtest(k, n).proportion_ci(method="exact")
    return float(interval.low), float(interval.high)


def majority(k: int, n: int) -> tuple[float, float, str]:
    """(low, high, result): the exact interval of k of n, and on which side of 1/2 it lies."""
    low, high = exact(k, n)
    return low, high, SUPPORTED if low > 0.5 else CONTRADICTED if high < 0.5 else UNDECIDED
