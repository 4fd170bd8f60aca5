"""One replicate: a planted model, fresh prompts, and the whole procedure of study P, judged by both rule sets.

As in the study, one half of the prompts is the reference of mean ablation and scores the patterns, the other is
measured; the strict rules see mean ablation and the full null, the published ones zero ablation and the
published ten draws.  The groups are the planted ones: nothing is screened, so nothing is missed before the test.
A backup and its primary are measured together as well, as a union, which no rule ranks: for its marks alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causegrid.evidence import SequentialNull, verdict
from causegrid.interventions.heads import Ablator
from causegrid.interventions.reference import Mode
from causegrid.models.planted import Plant, Planted, PlantedPrompts, plant, planted_prompts
from causegrid.signatures.attention import attention
from causegrid.signatures.patterns import group_pattern_score
from causegrid.studies.calibrating.summary import BOTH
from causegrid.studies.pattern.matched_null import matched_null
from causegrid.studies.pattern.stages import subset
from causegrid.tasks import PromptSet

if TYPE_CHECKING:
    from causegrid.studies.calibration import PlantedFamily

NULL_PROMPTS = 64  # as study P
PAPER_DRAWS = 10  # as published
STACK = 12  # conditions a forward: what stays in the processor's cache
METRICS = ("logit_diff", "top1")
BACKED = ("primary", "backup")
MODES: tuple[Mode, ...] = ("mean", "zero")


def prompt_set(made: PlantedPrompts) -> PromptSet:
    """Planted prompts as a prompt set, without a tokenizer."""
    n = len(made.tokens)
    return PromptSet(
        task="planted",
        texts=[f"planted prompt {i}" for i in range(n)],
        tokens=list(made.tokens),
        answers=[np.array([a]) for a in made.answers],
        foils=[np.array([a]) for a in made.foils],
        positions=made.positions,
        variant=["planted"] * n,
        corrupted=[None] * n,
    )


def planted(family: PlantedFamily, seed: list[int]) -> Planted:
    """The family's model of this seed."""
    return plant(
        [Plant(**g.model_dump()) for g in family.groups],
        n_layers=family.layers,
        n_heads=family.heads,
        n_kv_heads=family.kv_heads,
        head_dim=family.head_dim,
        noise=family.noise,
        tail=family.tail,
        seed=seed,
    )


def replicate(family: PlantedFamily, n_prompts: int, seed: list[int]) -> pd.DataFrame:
    """One row per group, rule set and metric: what was planted, what was found."""
    made = planted(family, [*seed, 1])
    prompts = prompt_set(planted_prompts(2 * n_prompts, seed=[*seed, 2]))
    chosen, measured = prompts.subset(range(n_prompts)), prompts.subset(range(n_prompts, 2 * n_prompts))
    draw_seed = int(np.random.default_rng([*seed, 3]).integers(2**31))
    ablator = Ablator(made.model, measured, reference=chosen, seed=draw_seed, stack=STACK)
    pick = subset(n_prompts, NULL_PROMPTS, draw_seed)
    fewer = ablator
    if len(pick) < n_prompts:
        fewer = Ablator(made.model, measured.subset(pick), reference=chosen, seed=draw_seed, stack=STACK)
    groups = {name: list(heads) for name, heads in made.groups.items()}
    alone = {h: [h] for heads in groups.values() for h in heads}
    union = both(made)
    by_mode: dict[Mode, pd.DataFrame] = {mode: ablator.table(groups | union, mode) for mode in MODES}
    effects = pd.concat(by_mode.values(), ignore_index=True)
    rows = attention(made.model, chosen)
    patterns = {
        name: group_pattern_score(rows, heads, made.plants[name].target, seed=draw_seed)
        for name, heads in groups.items()
    }
    found = []
    for rules, mode in zip(("strict", "paper"), MODES, strict=True):
        strict = rules == "strict"
        null, _ = matched_null(
            fewer,
            groups,
            by_mode[mode],
            prompts=pick,
            mode=mode,
            n=99 if strict else PAPER_DRAWS,
            per_group=80 if strict else 1,
            early_stop=strict and family.stop,
            own=strict,
            seed=draw_seed,
        )

        def judged(draws: pd.DataFrame, rules: str = rules, mode: Mode = mode) -> pd.DataFrame:
            return verdict(
                effects,
                draws,
                rules=rules,
                singles=ablator.table(alone, mode),
                patterns=patterns,
                heads_per_layer=made.model.n_heads,
                groups_kind=dict.fromkeys(groups, "competing") | dict.fromkeys(union, "descriptive"),
            )

        found.append(_rows(judged(null), made, rules))
        if strict and not family.stop:  # the same draws, stopped where they would have been
            found.append(_rows(judged(stopped(null, by_mode[mode], pick)), made, "strict, stopped early"))
    return pd.concat(found, ignore_index=True)


def both(made: Planted) -> dict[str, list[str]]:
    """The union of a backup and the primary it stands by for, where there is one; no draws are made for it."""
    of = {
        role: [h for g, heads in made.groups.items() if made.plants[g].role == role for h in heads]
        for role in BACKED
    }
    return {BOTH: [h for heads in of.values() for h in heads]} if of["backup"] else {}


def roles(made: Planted) -> dict[str, str]:
    """Group -> its role as the tables have it: a primary with a backup costs less than its share."""
    found: dict[str, str] = {group: one.role for group, one in made.plants.items()}
    if "backup" in found.values():
        found = {g: "backed primary" if role == "primary" else role for g, role in found.items()}
        found[BOTH] = BOTH
    return found


def stopped(null: pd.DataFrame, effects: pd.DataFrame, prompts: list[int]) -> pd.DataFrame:
    """The draws a sequential null would have used of a full one, group by group."""
    kept = []
    for group, draws in null.groupby("null_for", sort=False):
        needed = 0
        for metric in METRICS:
            row = effects[(effects["group"] == group) & (effects["metric"] == metric)].iloc[0]
            running = SequentialNull(float(np.asarray(row["values"])[prompts].mean()))
            running.add(draws.loc[draws["metric"] == metric, "effect"].to_numpy())
            needed = max(needed, running.n)
        names = list(dict.fromkeys(draws["draw"]))[:needed]
        kept.append(draws[draws["draw"].isin(names)])
    return pd.concat(kept, ignore_index=True)


def _rows(table: pd.DataFrame, made: Planted, rules: str) -> pd.DataFrame:
    """What the calibration keeps of a table of verdicts."""
    table = table[table["metric"].isin(METRICS)]
    role = roles(made)
    share = {g: one.share for g, one in made.plants.items()}
    share[BOTH] = sum(one.share for one in made.plants.values() if one.role == "primary")
    kept: dict[str, Any] = {
        "group": table["group"],
        "role": [role[g] for g in table["group"]],
        "share": [share[g] for g in table["group"]],
        "rules": rules,
        "metric": table["metric"],
        "verdict": table["verdict"],
        "combined": table["combined"],
        "marks": [", ".join(m) for m in table["marks"]],
    }
    numbers = (
        "baseline",
        "effect",
        "low",
        "high",
        "null_mean",
        "null_sd",
        "n_null",
        "p",
        "p_holm",
        "specificity",
    )
    return pd.DataFrame(kept | {c: table[c].astype("float32") for c in numbers}).reset_index(drop=True)
