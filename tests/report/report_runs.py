"""Run folders of made-up but plausible tables, in the store's own format, without training anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from report_states import STAGES as STATE_STAGES
from report_states import state_cell, state_grid, state_tables

from causegrid.runs import files, store

STAGES = {
    "state-encoding": STATE_STAGES,
    "pattern-selectivity": {
        "prompts": ["prompts", "dropped", "noise_floor"],
        "signatures": ["spectrum", "screens", "groups"],
        "effects": ["effects", "singles", "by_variant", "text"],
        "null": ["nulls", "null_notes"],
        "routing": ["routing", "routes", "expert_effects", "routing_changes"],
        "verdicts": ["bos", "bos_groups", "verdicts"],
        "checkpoints": ["checkpoints", "pr_integral"],
    },
}
Made = tuple[dict[str, pd.DataFrame], dict[str, Any]]


class _Study:
    """What `store.create` asks of a study."""

    said: ClassVar[list[dict[str, Any]]] = []  # its claims over any cells
    stage_versions: ClassVar[dict[str, int]] = {}

    def __init__(self, name: str = "") -> None:
        self.name, self.version = name, 1

    def claims(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [claim | {"cells": [c["id"] for c in cells]} for claim in self.said]


def make_run(
    folder: Path,
    study: str,
    cells: Sequence[Mapping[str, Any]],
    make: Callable[[Mapping[str, Any]], Made],
    *,
    failed: Mapping[int, str] | None = None,
    stopped: Mapping[int, int] | None = None,
    until: str = "",
    claims: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
) -> store.Run:
    """A run whose cells hold the tables of `make`.

    failed: cell's place -> its error line (no stage finished).  stopped: place -> how many stages finished;
    0 leaves no manifest at all.  until: every cell was stopped after this stage, as asked.
    """
    run = store.create(folder, _Study(study), config or {"study": study, "seeds": [0]}, cells)
    for place, (id, cell) in enumerate(run.configs.items()):
        how = "failed" if place in (failed or {}) else "running" if place in (stopped or {}) else "done"
        wanted = list(STAGES[study])
        if until and how == "done":
            how = "stopped"
        finished = wanted.index(until) + 1 if until else len(wanted)
        kept = [] if how == "failed" else wanted[: (stopped or {}).get(place, finished)]
        if how == "running" and not kept:
            continue
        _cell(run, id, cell, make(cell), kept, how, (failed or {}).get(place, ""))
    if claims:
        files.write_json(folder / store.CLAIMS, list(claims))
    return run


def _cell(
    run: store.Run, id: str, config: Mapping[str, Any], made: Made, stages: list[str], how: str, why: str
) -> None:
    path = run.folder / store.CELLS / id
    path.mkdir()
    tables, facts = made
    listed = {}
    for stage in stages:
        for name in STAGES[run.study][stage]:
            if name in tables:
                file = path / f"{name}.parquet"
                tables[name].to_parquet(file, index=False)  # as the store does, without its fsync
                listed[file.name] = {"stage": stage, **files.fingerprint(file)}
    manifest = {
        "id": id, "study": run.study, "version": 1, "config": config, "status": how,
        "stage_names": list(STAGES[run.study]), "stages": dict.fromkeys(stages, 20.0), "files": listed,
        "facts": facts if stages else {}, "versions": {"python": "3.11.7", "torch": "2.13.0", "causegrid": "0.1.0"},
        "error": {"type": "ValueError", "line": why, "stage": "train", "traceback": why} if why else None,
    }  # fmt: skip
    files.write_json(path / store.CELL, manifest)


# --- pattern selectivity -------------------------------------------------------------------------------

GROUPS = {
    "name-mover": (["L24H4", "L23H0", "L22H7", "L22H4", "L23H1"], -1.9, "primary", -0.21),
    "s-inhibition": (["L20H0", "L25H2", "L23H3", "L19H2", "L18H1"], -0.6, "secondary", -0.04),
    "previous-token": (
        ["L19H3", "L16H0", "L11H1", "L22H1", "L13H1", "L10H5", "L1H2", "L2H1", "L10H4", "L13H2", "L1H0", "L11H2"],
        0.05, "correlate", 0.01,
    ),
}  # fmt: skip
UNION = "all groups"
BOUND, ONLY = "layers of name-mover", "only name-mover"


def pattern_cell(
    task: str = "ioi", model: str = "smollm2-135m", seed: int = 0, **config: Any
) -> dict[str, Any]:
    return {
        "study": "pattern-selectivity", "task": task, "model": model, "seed": seed, "rules": "strict",
        "modes": ["mean", "zero"], "matched_null": {"n": 99, "per_group": 40, "n_prompts": 24}, **config,
    }  # fmt: skip


def pattern_tables(cell: Mapping[str, Any]) -> Made:
    """One pattern-selectivity cell of 30 layers with 9 heads: three groups, their union, 119 draws each."""
    rng = np.random.default_rng([cell["seed"], len(cell["task"])])
    n, m, layers, heads = 64, 24, 30, 9
    base = {"logit_diff": 3.1, "top1": 0.83}
    names = [f"L{x}H{h}" for x in range(layers) for h in range(heads)]
    union = [h for g in GROUPS.values() for h in g[0]]

    def effect(
        group: str, members: list[str], mode: str, metric: str, value: float, width: float
    ) -> dict[str, Any]:
        return {
            "group": group, "role": roles.get(group, "group"), "heads": members, "n_heads": len(members), "mode": mode,
            "metric": metric, "n": n, "baseline": base[metric], "ablated": base[metric] + value, "effect": value,
            "low": value - width, "high": value + width, "noise": 0.0, "flag": "", "clean": [base[metric]] * n,
            "values": [value] * n,
        }  # fmt: skip

    effects, singles, nulls, notes, verdicts, text, patterns = [], [], [], [], [], [], []
    roles = {UNION: "union", BOUND: "upper bound", ONLY: "keep only"}
    about = {
        UNION: (union, -2.6, -0.3),
        BOUND: (names[22 * heads : 25 * heads], -2.9, -0.4),
        ONLY: (names[5:], -3.0, -0.8),
    }
    listed = {**{g: (v[0], v[1], v[3]) for g, v in GROUPS.items()}, **about}
    for mode in cell["modes"]:
        for group, (members, margin, top1) in listed.items():
            more = 1.0 if mode == "mean" else 1.6
            effects += [
                effect(group, members, mode, "logit_diff", margin * more, 0.18),
                effect(group, members, mode, "top1", top1 * more, 0.05),
            ]
            text.append(
                {
                    "group": group,
                    "mode": mode,
                    "clean": 3.2,
                    "ablated": 3.3 * more,
                    "increase": 3.3 * more - 3.2,
                }
            )
    for group, (members, margin, verdict, top1) in GROUPS.items():
        for head in members:
            value = margin / len(members) * (0.3 + 1.4 * rng.random())
            singles += [
                effect(head, [head], "mean", "logit_diff", value, 0.04),
                effect(head, [head], "mean", "top1", value / 12, 0.02),
            ]
        draws = {k: w * rng.standard_normal(119) for k, w in (("logit_diff", 0.22), ("top1", 0.02))}
        for metric, values in draws.items():
            nulls += [
                {"null_for": group, "draw": f"draw-{i:04d}", "heads": members, "n_heads": len(members), "mode": "mean",
                 "metric": metric, "n": m, "baseline": base[metric], "effect": v, "contaminated": False}
                for i, v in enumerate(values)
            ]  # fmt: skip
        notes.append({
            "group": group, "wanted": 119, "n_null": 119, "n_possible": 10_000, "exhaustive": False,
            "contaminated": False, "stopped": verdict == "correlate", "why": "",
        })  # fmt: skip
        patterns.append({
            "group": group, "heads": members, "n_heads": len(members), "target": group, "note": "",
            "pattern_score": 0.59, "pattern_p99": 0.16, "pattern": True,
        })  # fmt: skip
        for metric, value, scale in (("logit_diff", margin, 1.0), ("top1", top1, 0.1)):
            verdicts.append({
                "group": group, "heads": members, "kind": "competing", "mode": "mean", "metric": metric, "n": n,
                "baseline": base[metric], "ablated": base[metric] + value, "effect": value, "low": value - 0.18 * scale,
                "high": value + 0.18 * scale, "null_mean": draws[metric].mean(), "null_sd": draws[metric].std(),
                "n_null": 119, "null_prompts": m, "excess": 0.9 * value - draws[metric].mean(), "p": 1 / 60,
                "p_holm": 3 / 60, "p_min": 1 / 60, "z": -4.0, "specificity": 7.123,
                "verdict": verdict if metric == "logit_diff" else "inconclusive",
                "marks": ["margin-not-argmax", "redundant"] if group == "s-inhibition" else [],
                "reason": f"removing it harms: {value:+.3g} logits [{value - 0.18:+.3g}, {value + 0.18:+.3g}], "
                "largest of name-mover, previous-token, s-inhibition",
                "rank": np.nan, "rank_of": np.nan, "singles_sum": value, "combined": verdict, "differs": True,
            })  # fmt: skip
    ruled = [
        {**v, "role": "group", "rules": rules, "leads": rules == cell["rules"], "other": "secondary"}
        for rules in ("strict", "paper") for v in verdicts
    ]  # fmt: skip
    for v in ruled:
        if not v["leads"]:
            v["combined"] = v["verdict"] = "secondary"
            v["reason"], v["other"] = "harms, 4x its null, but another harms more", verdicts[0]["combined"]
    for group, (members, *values) in about.items():
        for metric, value in zip(("logit_diff", "top1"), values, strict=True):
            ruled.append({
                **ruled[0], "group": group, "heads": members, "kind": "descriptive", "metric": metric, "effect": value,
                "low": value - 0.1, "high": value + 0.1, "null_mean": np.nan, "null_sd": np.nan, "n_null": 0,
                "p": np.nan, "p_holm": np.nan, "p_min": np.nan, "specificity": np.nan, "excess": np.nan,
                "verdict": "descriptive", "combined": "descriptive", "reason": f"said of {group}", "marks": [],
                "role": roles[group], "rules": cell["rules"], "leads": True, "other": "descriptive",
            })  # fmt: skip
    bos = [
        {"group": group, "head": e["group"], "best_class": "first-token" if i == 0 else "unclassified", "bos": i == 0,
         "bos_selectivity": 40.0, "bos_mass": 0.8, **{c: e[c] for c in ("metric", "effect", "low", "high")}}
        for group, (members, *_) in GROUPS.items() for i, head in enumerate(members)
        for e in singles if e["group"] == head
    ]  # fmt: skip
    bos_groups = [
        {"group": g, "metric": m, "mode": "mean", "n_heads": len(v[0]), "n_bos": 1, "effect": v[1], "low": v[1] - 0.1,
         "high": v[1] + 0.1, "singles_sum": 1.2 * v[1], "bos_sum": 0.4 * v[1], "again": v[0][1:],
         "again_effect": 0.7 * v[1], "again_low": 0.6 * v[1] - 0.1, "again_high": 0.6 * v[1] + 0.1, "note": "1 fewer"}
        for g, v in GROUPS.items() for m in ("logit_diff", "top1")
    ]  # fmt: skip
    by_variant = [
        {**{c: e[c] for c in ("group", "role", "mode", "metric", "baseline")}, "variant": variant, "n": n // 2,
         "effect": e["effect"] + 0.1 * k, "low": e["low"] - 0.1, "high": e["high"] + 0.2}
        for e in effects if e["role"] in ("group", "union") for k, variant in enumerate(("ABBA", "BABA"))
    ]  # fmt: skip
    prompts = pd.DataFrame({
        "half": ["chosen on"] * n + ["measured on"] * n,
        "text": [f"When Mary and John number {i} went to the shop, John gave a bottle to" for i in range(2 * n)],
        "variant": ["ABBA", "BABA"] * n, "n_tokens": 15, "answer": " Mary", "foil": " John",
        "top1": [np.nan] * n + list(np.r_[np.ones(n - 11), np.zeros(11)]),
        "logit_diff": [np.nan] * n + list(3.1 + rng.standard_normal(n)), "answer_prob": 0.5, "answer_rank": 0.0,
        "restricted": [np.nan] * n + [1.0] * n,
    })  # fmt: skip
    index = pd.DataFrame([{"layer": x, "head": h} for x in range(layers) for h in range(heads)])
    pr = 1 + 7 * rng.random(len(index)) ** 2
    spectrum = index.assign(pr=pr, low=pr - 0.2, high=pr + 0.2, moment=pr, mean=pr, n=n)
    screens = pd.concat([
        index.assign(screen=g, score=rng.random(len(index)), rules="strict", n=n, rank=0)
        .assign(target_mass=[0.3 + 0.6 * rng.random() if x in GROUPS[g][0] else 0.25 * rng.random() for x in names],
                selected=[x in GROUPS[g][0] for x in names])
        for g in GROUPS
    ])  # fmt: skip
    facts = {
        "n_chosen_on": n, "n_measured_on": n, "bos": "none", "n_bos": 0, "n_dropped": 2, "n_layers": layers,
        "n_heads": heads, "family": "llama", "n_params": 134_515_008, "fingerprint": [1.0, 2.0],
    }  # fmt: skip
    tables = {
        "prompts": prompts, "dropped": pd.DataFrame({"dropped": ["Zebediah", "Quintus"]}),
        "noise_floor": pd.DataFrame({"metric": ["top1"], "noise": [0.0]}), "spectrum": spectrum, "screens": screens,
        "groups": pd.DataFrame(patterns), "effects": pd.DataFrame(effects), "singles": pd.DataFrame(singles),
        "text": pd.DataFrame(text), "nulls": pd.DataFrame(nulls), "null_notes": pd.DataFrame(notes),
        "verdicts": pd.DataFrame(ruled), "bos": pd.DataFrame(bos), "bos_groups": pd.DataFrame(bos_groups),
        "by_variant": pd.DataFrame(by_variant),
    }  # fmt: skip
    return tables, facts


CLAIMS = [
    {"id": "S1", "statement": "The layer where the state shows depends on architecture x task", "result": "supported",
     "published": {"mamba": 0.58, "transformer": 0.04}, "measured": -0.31234, "low": -0.5, "high": -0.12,
     "why": "effect -0.312 [-0.5, -0.12], p 0.03, n 6.", "cells": ["a", "b"]},
    {"id": "S5", "statement": "Mamba's Conv1D matters for Parity and S3, not for Dyck", "result": "not enough evidence",
     "published": {"tag": "summary", "s3": -12.64, "parity": -6.83, "dyck": {"value": 4.04, "significant": False}},
     "measured": "-", "low": None, "high": None, "why": "needs paired seeds.", "cells": []},
    {"id": "S6", "statement": "Beyond the trained length: recurrent > state-space > Transformer",
     "result": "contradicted", "published": "recurrent > ssm", "measured": "recurrent 1.00 (n 4), state-space 0.8",
     "low": None, "high": None, "why": "the order is another one.", "cells": ["a"]},
]  # fmt: skip


def both_studies(folder: Path, *, seeds: int = 3) -> SimpleNamespace:
    """A folder of two runs at full size: 2 tasks x 5 families x seeds with a failed and an unfinished cell, and
    three pattern cells of which one is not finished."""
    last = len(state_grid(seeds=seeds))
    extra = [state_cell("dyck", "mamba"), state_cell("dyck", "gru"), state_cell("dyck", "lstm")]
    states = make_run(
        folder / "state-encoding",
        "state-encoding",
        [*state_grid(seeds=seeds), *extra],
        state_tables,
        failed={last: "ValueError: the loss is not finite at step 17"},
        stopped={last + 1: 1, last + 2: 0},
        claims=CLAIMS,
    )
    cells = [pattern_cell(), pattern_cell(seed=1), pattern_cell("variable-binding", seed=0)]
    patterns = make_run(
        folder / "pattern-selectivity", "pattern-selectivity", cells, pattern_tables, stopped={2: 2}
    )
    return SimpleNamespace(folder=folder, states=states, patterns=patterns)
