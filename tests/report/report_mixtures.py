"""Tables of a mixture of experts and of training checkpoints, as the study writes them, beside a made-up cell's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from report_runs import GROUPS, Made, pattern_tables

MIXED = (22, 23, 24, 25)  # layers with experts
EXPERTS, CHOSEN, ABLATED = 16, 4, 6
TOKENS = {"step0": 0.0, "step500": 1e9, "step2000": 4e9, "step8000": 1.6e10}
WITHOUT_DRAWS = "previous-token"


def mixture_tables(
    cell: Mapping[str, Any], *, layers: tuple[int, ...] = MIXED, experts: int = EXPERTS
) -> Made:
    """`pattern_tables` with experts in `layers` and four checkpoints; the first expert of a layer is used too much to
    compare."""
    tables, facts = pattern_tables(cell)
    rng = np.random.default_rng(cell["seed"])
    return {**tables, **_experts(rng, layers, experts), **_training(rng, tables["spectrum"])}, facts


def _experts(rng: np.random.Generator, layers: tuple[int, ...], experts: int) -> dict[str, pd.DataFrame]:
    use, effects, changes = [], [], []
    for layer in layers:
        share = np.r_[0.9, rng.dirichlet(np.full(experts - 1, 5.0)) * (CHOSEN - 0.9)]
        for where, more in (("query", 0.01), ("all", 0.0)):
            use += [
                {"layer": layer, "expert": e, "where": where, "share": s + more, "low": s - 0.02, "high": s + 0.03,
                 "weight": 0.3 * s, "weight_low": 0.2 * s, "weight_high": 0.4 * s, "n": 64}
                for e, s in enumerate(share)
            ]  # fmt: skip
        for e in range(ABLATED):
            for metric, scale in (("logit_diff", 0.2), ("top1", 0.02)):
                value = scale * rng.standard_normal()
                null = dict.fromkeys(("null_mean", "null_sd", "p", "p_min"), np.nan)
                if e:
                    null = {"null_mean": 0.1 * scale, "null_sd": 0.5 * scale, "p": 0.4, "p_min": 2 / 5}
                effects.append({
                    "group": f"L{layer}E{e}", "layer": layer, "expert": e, "share": share[e], "tokens": 40 - e,
                    "mode": "zero", "metric": metric, "n": 24, "baseline": 1.0, "ablated": 1.0 + value,
                    "effect": value, "low": value - scale, "high": value + scale, "values": [value] * 24, **null,
                    "n_null": ABLATED - 2 if e else 0,
                })  # fmt: skip
    for place, group in enumerate(GROUPS):
        for mode in ("mean", "zero"):
            for where in ("query", "all"):
                for layer in (*layers, -1):
                    share = 0.1 * (place + 1) + 0.02 * rng.random() + (mode == "zero") * 0.1
                    drawn = group != WITHOUT_DRAWS
                    null = (0.06, 0.05, 0.08) if drawn else (np.nan, np.nan, np.nan)
                    changes.append({
                        "group": group, "mode": mode, "where": where, "layer": layer, "share": share,
                        "low": share - 0.03, "high": share + 0.04,
                        **dict(zip(("null_mean", "null_low", "null_high"), null, strict=True)),
                        "n_null": 5 if drawn else 0, "n": 24, "effect": GROUPS[group][1],
                    })  # fmt: skip
    decisions = {"prompt": 0, "position": range(24), "query": False, "layer": layers[0]}
    decisions |= {"chosen": [[0, 1]] * 24, "weights": [[0.5, 0.5]] * 24, "logits": [[0.0] * experts] * 24}
    return {
        "routing": pd.DataFrame(use), "routes": pd.DataFrame(decisions), "expert_effects": pd.DataFrame(effects),
        "routing_changes": pd.DataFrame(changes),
    }  # fmt: skip


def _training(rng: np.random.Generator, spectrum: pd.DataFrame) -> dict[str, pd.DataFrame]:
    heads = spectrum[["layer", "head"]]
    parts = []
    for step, (revision, tokens) in enumerate(TOKENS.items()):
        pr = 1 + (step + 1) * rng.random(len(heads))
        parts.append(heads.assign(revision=revision, tokens=tokens, pr=pr, low=pr - 0.1, high=pr + 0.2, n=64))
        parts[-1]["halves"] = [[p, p] for p in pr]
    over = pd.concat(parts, ignore_index=True)
    area = 4 * rng.random(len(heads))
    integral = heads.assign(
        integral=area, low=area - 0.1, high=area + 0.2, mean=pr, spread=0.05, n_checkpoints=3
    )
    return {"checkpoints": over, "pr_integral": integral}
