"""Marks: what a reader should know beside the verdict (MEASURES 4.2).

A mark never changes a verdict.  Marks of one metric stand on its row; `margin-not-argmax`, its mirror and
`breaks ordinary text` are about the group and stand on all its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from causegrid.evidence.readings import SLACK, Measured, Reading, inside
from causegrid.evidence.rulings import MARKS, Evidence, Ruling

MARGIN, TOP1 = "logit_diff", "top1"


def marks(
    readings: Mapping[str, Reading],
    rulings: Mapping[str, Ruling],
    others: Mapping[str, Sequence[Measured]],
    text_rise: float | None,
    evidence: Evidence,
) -> dict[str, list[str]]:
    """Metric -> marks of one group.  All mappings are by metric; `text_rise` is a share of the clean loss."""
    shared = split(readings, rulings)
    if text_rise is not None and text_rise >= evidence.thresholds.text_rise - SLACK:
        shared.append("breaks ordinary text")
    found: dict[str, list[str]] = {}
    for metric, reading in readings.items():
        own = [*shared, *rulings[metric].marks]
        if constant_writer(reading, others.get(metric, ())):
            own.append("constant writer")
        if redundant(reading, evidence):
            own.append("redundant")
        if reading.foreign:
            own.append("contaminated")
        if reading.null.size and reading.apart.size < min(reading.thresholds.apart, reading.null.size):
            own.append("overlapping null")
        if rulings[metric].verdict == "null" and reading.measured.group not in evidence.patterns:
            own.append("pattern unknown")
        found[metric] = sorted(own, key=MARKS.index)
    return found


def split(readings: Mapping[str, Reading], rulings: Mapping[str, Ruling]) -> list[str]:
    """`margin-not-argmax`: the margin falls plainly, top-1 stays; `argmax-not-margin`: its mirror."""
    margin, top1 = readings.get(MARGIN), readings.get(TOP1)
    if margin is None or top1 is None or not (margin.defined and top1.defined):
        return []
    t = margin.thresholds
    found = []
    if rulings[MARGIN].significant and _falls(margin) and _still(top1, t.mark_accuracy):
        found.append("margin-not-argmax")
    if rulings[TOP1].significant and _falls(top1) and _still(margin, margin.minimum):
        found.append("argmax-not-margin")
    return found


def _falls(reading: Reading) -> bool:
    least = reading.thresholds.mark_fall * reading.removable
    return reading.effect < 0 and reading.effect <= SLACK - least


def _still(reading: Reading, bound: float) -> bool:
    return inside(reading.measured.low, reading.measured.high, bound)


def constant_writer(reading: Reading, others: Sequence[Measured]) -> bool:
    """At least the minimum effect under zero ablation, none under mean ablation: the heads add a constant."""
    by_mode = {m.mode: m for m in (*others, reading.measured)}
    if not reading.defined or not {"zero", "mean"} <= set(by_mode):
        return False
    zero, mean = by_mode["zero"], by_mode["mean"]
    return abs(zero.effect) >= reading.minimum - SLACK and inside(mean.low, mean.high, reading.minimum)


def redundant(reading: Reading, evidence: Evidence) -> bool:
    """Group effect at least 3x the sum of its heads' single effects of the same sign (floored)."""
    alone = evidence.alone(reading)
    heads = reading.measured.heads
    if not reading.defined or len(heads) < 2 or len(alone) < len(heads):
        return False
    sign = 1.0 if reading.effect > 0 else -1.0
    total = sum(max(0.0, sign * s.effect) for s in alone.values())
    needed = evidence.thresholds.redundant * max(total, reading.minimum)
    return abs(reading.effect) > 0 and abs(reading.effect) >= needed - SLACK
