"""Do the intervals of group effects hold the effect they are about?

A planted model's effects are measured on a large set of prompts, which is then the population: samples are drawn
from it with replacement, so its mean is the truth exactly.  Under mean ablation the reference is a sample too.
Two truths are kept: `given`, the population's effect under the very reference the sample used, and `effect`,
under a large one.  An interval over prompts claims the first; readers take it for the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causegrid.evidence.effects import effect_interval
from causegrid.interventions.heads import Ablator
from causegrid.interventions.reference import Mode
from causegrid.interventions.sweep import Planner
from causegrid.models.planted import planted_prompts
from causegrid.studies.calibrating.replicate import METRICS, planted, prompt_set

if TYPE_CHECKING:
    from causegrid.studies.calibration import PlantedFamily

POPULATION = 512
SAMPLES = 10


def interval_trials(family: PlantedFamily, n_prompts: int, seed: list[int]) -> pd.DataFrame:
    """One row per group, mode, metric and sample: `truth, given, mean`, then the ends of the percentile interval
    (`low, high`) and of the expanded one (`low_t, high_t`)."""
    made = planted(family, [*seed, 1])
    every = prompt_set(planted_prompts(2 * POPULATION + n_prompts, seed=[*seed, 2]))
    population = every.subset(range(POPULATION))
    large = every.subset(range(POPULATION, 2 * POPULATION))
    small = every.subset(range(2 * POPULATION, 2 * POPULATION + n_prompts))
    planner = Planner(made.model, population, batch=POPULATION, stack=1)
    whole = Ablator(made.model, population, reference=large, planner=planner)
    sampled = Ablator(made.model, population, reference=small, planner=planner)
    rng = np.random.default_rng([*seed, 3])
    picks = rng.integers(POPULATION, size=(SAMPLES, n_prompts))
    rows: list[dict[str, Any]] = []
    groups = {name: list(heads) for name, heads in made.groups.items()}
    modes: tuple[Mode, ...] = ("mean", "zero")
    for mode in modes:
        truth = _values(whole.table(groups, mode, intervals=False))
        under = _values(sampled.table(groups, mode, intervals=False))
        for (group, metric), values in under.items():
            shared = {
                "group": group,
                "role": made.plants[group].role,
                "mode": mode,
                "metric": metric,
                "truth": float(truth[group, metric].mean()),
                "given": float(values.mean()),
            }
            for pick in picks:
                sample = values[pick]
                low, high = effect_interval(sample, metric, expanded=False)
                low_t, high_t = effect_interval(sample, metric)
                ends = {"low": low, "high": high, "low_t": low_t, "high_t": high_t}
                rows.append(shared | {"mean": float(sample.mean())} | ends)
    return pd.DataFrame(rows)


def _values(table: pd.DataFrame) -> dict[tuple[str, str], np.ndarray[Any, Any]]:
    wanted = table[table["metric"].isin(METRICS)]
    return {
        (str(g), str(m)): np.asarray(v, dtype=np.float64)
        for g, m, v in zip(wanted["group"], wanted["metric"], wanted["values"], strict=True)
    }
