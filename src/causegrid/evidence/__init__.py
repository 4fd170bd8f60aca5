"""Does it beat chance?  Arrays and tables in, numbers and tables out; no torch (MEASURES 4)."""

from causegrid.evidence.effects import (
    bootstrap_mean,
    effect_interval,
    minimum_effect,
    paired_difference,
    wilson,
)
from causegrid.evidence.nulls import (
    Draws,
    SequentialNull,
    benjamini_hochberg,
    draws_needed,
    holm,
    matched_random,
    pvalue,
)
from causegrid.evidence.reference import published
from causegrid.evidence.verdicts import MARKS, VERDICTS, Thresholds, task_floor, verdict

__all__ = [
    "MARKS",
    "VERDICTS",
    "Draws",
    "SequentialNull",
    "Thresholds",
    "benjamini_hochberg",
    "bootstrap_mean",
    "draws_needed",
    "effect_interval",
    "holm",
    "matched_random",
    "minimum_effect",
    "paired_difference",
    "published",
    "pvalue",
    "task_floor",
    "verdict",
    "wilson",
]
