"""Hand-made effect and null tables, shaped like those of a head ablation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, count, islice, product

import numpy as np
import pandas as pd

from causegrid.evidence.verdicts import verdict

N = 40
MARGIN = [4.0] * N  # baseline margin 4: removable 4, minimum effect 0.2
TOP1 = [1.0] * 32 + [0.0] * 8  # baseline 0.8: removable 0.8, minimum effect 0.04
CEILING = [1.0] * N


def jitter(mean: float, size: float = 0.1) -> list[float]:
    """N values of that mean, alternating by +-size: the interval is about +-0.31 size wide."""
    return [mean + (size if i % 2 else -size) for i in range(N)]


def flips(lost: int, clean: Sequence[float] = TOP1) -> list[float]:
    """Top-1 changes: the first `lost` right prompts turn wrong."""
    values, left = [], lost
    for c in clean:
        values.append(-1.0 if c == 1 and left > 0 else 0.0)
        left -= c == 1
    return values


def row(
    group: str,
    heads: Sequence[str],
    values: Sequence[float],
    clean: Sequence[float] = MARGIN,
    metric: str = "logit_diff",
    mode: str = "mean",
    **more: object,
) -> dict[str, object]:
    """One row without an interval, so that it is taken from `values`."""
    effect = float(np.nanmean(values))
    baseline = float(np.nanmean(np.where(np.isnan(values), np.nan, clean)))
    return {
        "group": group,
        "heads": list(heads),
        "mode": mode,
        "metric": metric,
        "n": int(np.sum(~np.isnan(values))),
        "baseline": baseline,
        "ablated": baseline + effect,
        "effect": effect,
        "low": np.nan,
        "high": np.nan,
        "clean": list(clean),
        "values": list(values),
        **more,
    }


def draws(heads: Sequence[str], n: int, n_heads: int = 40) -> list[list[str]]:
    """The first `n` groups of other heads with as many per layer."""
    layers: dict[str, list[str]] = {}
    for h in heads:
        layers.setdefault(h.split("H")[0], []).append(h)
    pools = []
    for layer, own in layers.items():
        others = [f"{layer}H{i}" for i in range(n_heads) if f"{layer}H{i}" not in own]
        pools.append(combinations(others, len(own)))
    found = ([h for part in parts for h in part] for parts in product(*pools))
    return list(islice(found, n))


_number = count()


def null(
    group: str,
    heads: Sequence[str],
    effects: Sequence[float],
    metric: str = "logit_diff",
    mode: str = "mean",
    clean: Sequence[float] = MARGIN,
    named: bool = True,
) -> list[dict[str, object]]:
    """Null rows of these effects, one per distinct draw."""
    baseline = float(np.mean(clean))
    rows = []
    for drawn, effect in zip(draws(heads, len(effects)), effects, strict=True):
        rows.append(
            {
                "group": f"draw-{next(_number):05d}",
                "heads": drawn,
                "mode": mode,
                "metric": metric,
                "n": len(clean),
                "baseline": baseline,
                "ablated": baseline + effect,
                "effect": float(effect),
                "clean": list(clean),
                **({"null_for": group} if named else {}),
            }
        )
    return rows


def frame(*parts: object) -> pd.DataFrame:
    """Rows and lists of rows -> a table."""
    rows: list[object] = []
    for part in parts:
        rows += part if isinstance(part, list) else [part]
    return pd.DataFrame(rows)


def quiet(n: int = 199, width: float = 0.1) -> np.ndarray:
    """A null of n effects spread evenly over +-width."""
    return np.linspace(-width, width, n)


def judge(effects: pd.DataFrame, draws_table: pd.DataFrame, **options: object) -> pd.DataFrame:
    """The verdict, by group, on the margin alone unless said otherwise."""
    options.setdefault("metrics", ("logit_diff",))
    return verdict(effects, draws_table, **options).set_index("group")  # type: ignore[arg-type]
