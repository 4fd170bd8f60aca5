"""The page's data on a pattern-selectivity run: one block per cell, since cells differ in model and groups.

What is judged by both rule sets stands under the leading one; the other's verdicts go along as `beside`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from causegrid.report.across import across_cells, leading
from causegrid.report.rows import DECIMALS, Columns, columns, packed, plain

if TYPE_CHECKING:
    import pandas as pd

    from causegrid.runs.store import CellRecord

METRICS = ("logit_diff", "top1")
EXAMPLES = 2
EFFECT = ("group", "role", "mode", "metric", "n", "baseline", "ablated", "effect", "low", "high")
VERDICT = (
    "group",
    "heads",
    "kind",
    "mode",
    "metric",
    "n",
    "baseline",
    "effect",
    "low",
    "high",
    "null_mean",
    "null_sd",
    "n_null",
    "n_apart",
    "null_prompts",
    "excess",
    "p",
    "p_holm",
    "p_bh",
    "p_min",
    "specificity",
    "verdict",
    "marks",
    "reason",
    "combined",
    "differs",
    "role",
    "rules",
    "other",
)
BESIDE = ("group", "metric", "rules", "verdict", "combined", "marks", "reason")
BOS_HEADS = ("group", "head", "best_class", "bos", "bos_mass", "metric", "effect", "low", "high")
BOS_GROUPS = (
    "group", "metric", "mode", "n_heads", "n_bos", "effect", "low", "high", "singles_sum", "bos_sum", "again",
    "again_effect", "again_low", "again_high", "note",
)  # fmt: skip
VARIANT = ("group", "role", "mode", "metric", "variant", "n", "baseline", "effect", "low", "high")
ROUTING = ("layer", "expert", "where", "share", "low", "high", "weight", "weight_low", "weight_high")
EXPERT = (
    "group", "layer", "share", "tokens", "metric", "n", "effect", "low", "high", "null_mean", "null_sd", "n_null", "p",
    "p_min",
)  # fmt: skip
REROUTED = (
    "group", "mode", "where", "layer", "share", "low", "high", "null_mean", "null_low", "null_high", "n_null", "n",
    "effect", "effect_low", "effect_high",
)  # fmt: skip
CHECKPOINT = ("revision", "tokens", "layer", "head", "pr", "low", "high")
REST = ("revision", "tokens", "middle", "low", "high", "n")
INTEGRAL = ("layer", "head", "integral", "low", "high", "mean", "spread", "n_checkpoints")
REST_QUANTILES = {"low": 0.05, "middle": 0.5, "high": 0.95}  # of the ratios of heads outside every group
NOTE = ("group", "n_null", "wanted", "n_possible", "exhaustive", "contaminated", "stopped", "why")


def section(cells: Sequence[CellRecord]) -> dict[str, Any]:
    """Everything the page draws, from the finished cells' tables."""
    across = across_cells(cells)
    return {"cells": [_cell(c, across[across["cell"] == c.id]) for c in cells]}


def _cell(cell: CellRecord, across: pd.DataFrame) -> dict[str, Any]:
    prompts = cell.table("prompts")
    measured = prompts[prompts["half"] == "measured on"] if prompts is not None else None
    dropped = cell.table("dropped")
    effects = _of_metrics(cell.table("effects"))
    singles = cell.table("singles")
    verdicts = cell.table("verdicts")
    return {
        **{k: cell.config[k] for k in ("task", "model", "seed", "rules", "modes")},
        "facts": plain({k: v for k, v in cell.facts.items() if k != "fingerprint"}),
        "baseline": {} if measured is None else {m: _mean(measured, m) for m in (*METRICS, "restricted")},
        "examples": {} if measured is None else columns(measured.head(EXAMPLES), ["text", "answer", "foil"]),
        "dropped": [] if dropped is None else [str(x) for x in dropped["dropped"]],
        "verdicts": columns(_corrected(verdicts, across), VERDICT),
        "beside": columns(_beside(verdicts), BESIDE),
        "effects": columns(effects, EFFECT),
        "singles": columns(_of_metrics(singles), EFFECT),
        "nulls": _draws(cell.table("nulls")),
        "notes": columns(cell.table("null_notes"), NOTE),
        "groups": columns(
            cell.table("groups"), ["group", "heads", "note", "pattern_score", "pattern_p99", "pattern"]
        ),
        "screens": columns(
            _of_singles(cell.table("screens"), singles), ["screen", "layer", "head", "target_mass"]
        ),
        "spectrum": columns(cell.table("spectrum"), ["layer", "head", "pr", "low", "high", "n"]),
        "text": columns(cell.table("text"), ["group", "mode", "clean", "ablated", "increase", "low", "high"]),
        "bos": columns(cell.table("bos"), BOS_HEADS),
        "bos_groups": columns(cell.table("bos_groups"), BOS_GROUPS),
        "variants": columns(cell.table("by_variant"), VARIANT),
        **_mixture(cell),
        **_training(cell),
    }


def _mixture(cell: CellRecord) -> dict[str, Any]:
    """The tables only a mixture of experts has, less the decisions themselves (`routes`), token by token."""
    return {
        "routing": _short(cell.table("routing"), ROUTING),
        "experts": _short(_of_metrics(cell.table("expert_effects")), EXPERT),
        "rerouted": _short(cell.table("routing_changes"), REROUTED),
    }


def _training(cell: CellRecord) -> dict[str, Any]:
    """Participation ratios over training: the groups' heads one by one, the others as quantiles a checkpoint.

    A checkpoint of a large model has a thousand heads, and a line for each would show none.
    """
    table, groups = cell.table("checkpoints"), cell.table("groups")
    found: dict[str, Any] = {"integrals": _short(cell.table("pr_integral"), INTEGRAL)}
    if table is None:
        return found | {"checkpoints": {}, "rest": {}}
    wanted = set() if groups is None else {str(h) for heads in groups["heads"] for h in heads}
    own = ("L" + table["layer"].astype(str) + "H" + table["head"].astype(str)).isin(wanted)
    ratios = table[~own].groupby(["tokens", "revision"], sort=True)["pr"]
    rest = ratios.agg(n="count").assign(**{k: ratios.quantile(q) for k, q in REST_QUANTILES.items()})
    return found | {"checkpoints": _short(table[own], CHECKPOINT), "rest": _short(rest.reset_index(), REST)}


def _short(table: pd.DataFrame | None, names: Sequence[str]) -> Columns:
    """`columns` with the decimals of tables of a thousand rows, their columns of words packed."""
    found = columns(None if table is None else table.round(DECIMALS), names)
    return {c: packed(values) for c, values in found.items()}


def _corrected(verdicts: pd.DataFrame | None, across: pd.DataFrame) -> pd.DataFrame | None:
    """The leading rows with `p_bh` over all cells."""
    if verdicts is None:
        return None
    keys = ["group", "metric"]
    return leading(verdicts).merge(across[[*keys, "p_bh"]], on=keys, how="left")


def _beside(verdicts: pd.DataFrame | None) -> pd.DataFrame | None:
    """The rows under the other rule set; none in a table of one."""
    return None if verdicts is None or "leads" not in verdicts else verdicts[~verdicts["leads"].astype(bool)]


def _of_metrics(table: pd.DataFrame | None) -> pd.DataFrame | None:
    return table if table is None or "metric" not in table else table[table["metric"].isin(METRICS)]


def _mean(prompts: pd.DataFrame, metric: str) -> dict[str, Any]:
    """Mean of the untouched model with its standard error over prompts."""
    values = prompts[metric].dropna() if metric in prompts else prompts.iloc[:0, 0]
    n = len(values)
    return plain({"mean": values.mean(), "se": values.std(ddof=1) / n**0.5, "n": n}) if n > 1 else {}


def _draws(nulls: pd.DataFrame | None) -> dict[str, dict[str, list[float | None]]]:
    """metric -> group -> the effect of each of its draws."""
    found: dict[str, dict[str, list[float | None]]] = {m: {} for m in METRICS}
    if nulls is not None and len(nulls):
        for (metric, group), rows in nulls.groupby(["metric", "null_for"], sort=False):
            if metric in found:
                found[str(metric)][str(group)] = plain(list(rows["effect"]))
    return found


def _of_singles(screens: pd.DataFrame | None, singles: pd.DataFrame | None) -> pd.DataFrame | None:
    """Screen rows of the heads that were ablated alone: what the selectivity plot needs."""
    if screens is None or singles is None:
        return None
    names = "L" + screens["layer"].astype(str) + "H" + screens["head"].astype(str)
    return screens[names.isin(set(singles["group"]))]
