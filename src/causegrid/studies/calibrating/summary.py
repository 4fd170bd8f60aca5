"""What a finished calibration says, as small tables: error rates, power, confusion, marks, stopping, coverage.

Input are the finished cells; their tables are put together, with the family's settings as columns.
A group's verdict is its combined one: of the margin under the strict rules, of top-1 under the published ones.
Rates are over models, never over groups of one model, where one model can count once only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from causegrid.evidence.calibration import confusion, covered, rates

PRIMARY = ("primary", "co-primary")
FOUND = (*PRIMARY, "secondary", "interferer", "interferer (joint)")
PUBLISHED = ("primary", "secondary", "interferer", "correlate", "null")
LEVEL = 0.05
BOTH = "primary and backup"  # the union of the two: its name, and its role in the tables
SHOWN = {"strict": "strict", "paper": "published"}


def summaries(cells: Sequence[Mapping[str, Any]]) -> dict[str, pd.DataFrame]:
    """All tables for which something was run, of cells as `Study.claims` gets them."""
    verdicts, intervals, nulls = (_trials(cells, name) for name in ("verdicts", "intervals", "nulls"))
    found: dict[str, pd.DataFrame] = {}
    if len(nulls):
        found["nulls"] = levels(nulls)
    if len(verdicts):
        every = verdicts[verdicts["metric"] == "logit_diff"]
        one = every[every["role"] != BOTH]  # a union is not ranked
        planted = one.groupby("family")["role"].transform(lambda r: (r != "null").any())
        found["false positives"] = false_positives(one[~planted])
        found["stopping"] = stopping(one[~planted])
        found["power"] = power(one[one["asks"] == "power"])
        found["concentrated"] = concentrated(one[one["asks"] == "concentrated"])
        circuits = one[one["asks"] == "circuit"]
        for rules in ("strict", "paper"):
            found[f"confusion {rules}"] = roles(circuits[circuits["rules"] == rules])
        found["marks"] = marks(every)
    if len(intervals):
        found["coverage"] = coverage(intervals)
    return {name: table for name, table in found.items() if len(table)}


def _trials(cells: Sequence[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """One table of all cells, with `family, prompts, asks` (the first word of the family's name)."""
    found = []
    for cell in cells:
        table = cell["tables"](name)
        if table is not None:
            family = str(cell["config"]["family"]["name"])
            settings: dict[str, Any] = {"family": family, "prompts": int(cell["config"]["n_prompts"])}
            found.append(table.assign(**settings, asks=family.split(",")[0]))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def levels(table: pd.DataFrame) -> pd.DataFrame:
    """Heads that are all alike: how often the first group's raw p, and any group's corrected p, is small."""
    table = table.assign(raw=table["p"] <= LEVEL, corrected=table["p_holm"] <= LEVEL)
    by = ["family", "draws"]
    raw, corrected = rates(table, by, "raw"), rates(table, by, "corrected")
    kept = raw[by].assign(trials=raw["n"])
    kept["raw p <= .05"] = [_percent(r) for r in raw.to_dict("records")]
    kept["any corrected p <= .05"] = [_percent(r) for r in corrected.to_dict("records")]
    return kept.rename(columns={"draws": "drawn from"})


def false_positives(table: pd.DataFrame) -> pd.DataFrame:
    """Models in which nothing is planted: how often any group is called primary, or anything that was found, and
    how often any corrected p is at or below .05."""
    table = table[table["rules"].isin(list(SHOWN))]
    by = ["family", "prompts", "rules"]
    models = (
        table.assign(
            primary=table["combined"].isin(PRIMARY),
            found=table["combined"].isin(FOUND),
            small_p=table["p_holm"] <= LEVEL,
        )
        .groupby([*by, "replicate"], sort=False)[["primary", "found", "small_p"]]
        .any()
        .reset_index()
    )
    names = {
        "primary": "`primary`",
        "found": "primary, secondary or interferer",
        "small_p": "corrected p <= .05",
    }
    parts = []
    for hit, what in names.items():
        part = rates(models, by, hit).assign(event=what)
        parts.append(part[(part["rules"] == "strict") | (hit != "small_p")])
    return _shown(pd.concat(parts, ignore_index=True))


def stopping(table: pd.DataFrame) -> pd.DataFrame:
    """The same nulls in full and stopped early: errors, draws used, and groups judged alike."""
    full = table[table["family"].isin(table.loc[table["rules"] == "strict, stopped early", "family"])]
    rows = []
    key = ["family", "prompts", "replicate", "group"]
    for (family, prompts), part in full.groupby(["family", "prompts"], sort=False):
        both = {r: part[part["rules"] == r].set_index(key) for r in ("strict", "strict, stopped early")}
        same = both["strict"]["combined"].astype(str) == both["strict, stopped early"]["combined"].astype(str)
        for rules, own in both.items():
            models = (
                own.assign(small=own["p_holm"] <= LEVEL).groupby("replicate")["small"].any().reset_index()
            )
            row = rates(models.assign(rules=rules), ["rules"], "small").iloc[0].to_dict()
            rows.append(
                {"family": family, "prompts": prompts, "null": "stopped early" if "," in rules else "in full"}
                | {"mean draws": float(own["n_null"].mean())}
                | {"models": row["n"], "any corrected p <= .05": _percent(row)}
                | {"same verdict": f"{100 * same.mean():.1f} %"}
            )
    return pd.DataFrame(rows)


def power(table: pd.DataFrame) -> pd.DataFrame:
    """How often the group planted as primary is called so, and how often it is found at all."""
    own = table[(table["role"] == "primary") & table["rules"].isin(list(SHOWN))]
    own = own.assign(primary=own["combined"] == "primary", found=own["combined"].isin(FOUND))
    by = ["share", "prompts", "rules"]
    first, other = rates(own, by, "primary"), rates(own, by, "found")
    table = first[by].assign(models=first["n"])
    table["share"] = [f"{100 * s:.0f} %" for s in table["share"]]
    table["called `primary`"] = [_percent(r) for r in first.to_dict("records")]
    table["found at all"] = [_percent(r) for r in other.to_dict("records")]
    return table.replace({"rules": SHOWN})


def concentrated(table: pd.DataFrame) -> pd.DataFrame:
    """The power where some heads of the group do all of it, by family, and the median of the corrected p; models that
    fail the task's floor are left out of both."""
    own = table[(table["role"] == "primary") & table["rules"].isin(list(SHOWN))]
    floor = own.loc[own["combined"] == "not testable", ["family", "replicate"]].apply(tuple, axis=1)
    own = own[~own[["family", "replicate"]].apply(tuple, axis=1).isin(set(floor))]
    if not len(own):
        return pd.DataFrame()
    own = own.assign(primary=own["combined"] == "primary")
    by = ["family", "prompts", "rules"]
    found = rates(own, by, "primary")
    middle = own.groupby(by, sort=False)["p_holm"].median()
    table = found[by].assign(models=found["n"])
    table["called `primary`"] = [_percent(r) for r in found.to_dict("records")]
    table["corrected p, median"] = [f"{middle[tuple(k)]:.3f}" for k in found[by].to_numpy().tolist()]
    return table.replace({"rules": SHOWN})


def roles(table: pd.DataFrame) -> pd.DataFrame:
    """Planted role x verdict, in per cent of the role's groups; the five verdicts first."""
    counts = confusion(list(table["role"].astype(str)), list(table["combined"].astype(str)))
    order = [v for v in PUBLISHED if v in counts.columns] + sorted(set(counts.columns) - set(PUBLISHED))
    counts = counts[order]
    total = counts.sum(axis=1)
    share = counts.div(total, axis=0).mul(100).map(lambda x: f"{x:.0f}" if x else "")
    return share.rename_axis("planted").reset_index().assign(groups=list(total))


def marks(table: pd.DataFrame) -> pd.DataFrame:
    """How often each role carries the mark `constant writer` under the strict rules, as it stands and with the
    condition that the interval under zero ablation excludes 0; where a backup is planted, also `redundant` under
    either ablation."""
    key = ["family", "prompts", "replicate", "group"]
    zero = table[table["rules"] == "paper"].set_index(key)
    own = table[table["rules"] == "strict"].set_index(key)
    marked = own["marks"].astype(str).str.contains("constant writer")
    sure = ((zero["low"] > 0) | (zero["high"] < 0)).reindex(own.index)
    index = own.index
    own = own.assign(mark=marked, strict=marked & sure).reset_index()
    found, other = rates(own, ["asks", "role"], "mark"), rates(own, ["asks", "role"], "strict")
    kept = found[["asks", "role"]].assign(groups=found["n"])
    kept["`constant writer`"] = [_percent(r) for r in found.to_dict("records")]
    kept["and its zero interval excludes 0"] = [_percent(r) for r in other.to_dict("records")]
    if (table["role"] == BOTH).any():
        joint = zero["marks"].astype(str).str.contains("redundant").reindex(index, fill_value=False)
        own = own.assign(mean=own["marks"].astype(str).str.contains("redundant"), zero=joint.to_numpy())
        for mode in ("mean", "zero"):
            shown = rates(own, ["asks", "role"], mode)
            kept[f"`redundant`, {mode} ablation"] = [_percent(r) for r in shown.to_dict("records")]
    return kept.rename(columns={"asks": "families"})


def coverage(table: pd.DataFrame) -> pd.DataFrame:
    """How often an interval at 95 % holds the effect it is about, by kind of interval and of truth."""
    by = ["metric", "mode", "prompts"]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for kind, low, high in (("percentile", "low", "high"), ("expanded", "low_t", "high_t")):
        for truth, said in (("given", "its own reference"), ("truth", "a large reference")):
            # one correlate writes nothing, exactly: its interval is a point and says nothing of coverage
            own = table[table["role"] != "correlate"]
            own = own.assign(hit=covered(own[low], own[high], own[truth]))
            for r in rates(own, by, "hit").to_dict("records"):
                key = tuple(str(r[b]) for b in by)
                rows.setdefault(key, {"intervals": str(r["n"])})[f"{kind}, {said}"] = (
                    f"{100 * r['rate']:.1f} %"
                )
    made = pd.DataFrame([dict(zip(by, key, strict=True)) | row for key, row in rows.items()])
    made["prompts"] = made["prompts"].astype(int)
    return made.sort_values(by, kind="stable").reset_index(drop=True)


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    kept = table[["event", "family", "prompts", "rules"]].assign(models=table["n"])
    kept["rate"] = [_percent(r) for r in table.to_dict("records")]
    return kept.replace({"rules": SHOWN})


def _percent(row: Mapping[Any, Any]) -> str:
    return f"{100 * row['rate']:.1f} % [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
