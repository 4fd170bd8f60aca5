"""The published rules (arXiv 2606.05378), with their known weaknesses: no p-value, no interval.

Specificity here is |effect| / |mean of the null|, infinite where that mean is nearer 0 than 0.5 pp; draws
that go the other way inflate it.  The paper states its rules for top-1, in words; what they leave open is
*ours*: a margin's 10 pp is 10 % of its baseline, "about zero" is less than that, "single-head ablations
confirm" is at least half of the heads helping alone, a primary has at least the minimum effect, a group
measured on too few prompts is `not testable`, and what no rule takes is `inconclusive` (MEASURES 4.2,
`rules = "paper"`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from causegrid.evidence import effects as sizes
from causegrid.evidence.readings import SLACK, Reading
from causegrid.evidence.rulings import Evidence, Ruling, amount, effect_text, too_few_prompts


def ratio(reading: Reading) -> float:
    """The published specificity: |effect| / |null mean|, infinite for a null mean about 0.

    Where nothing can be removed no null mean is about 0: with one of exactly 0 the specificity is that of no
    effect, 0, or unknown, NaN.
    """
    infinite = reading.thresholds.paper_infinite
    if reading.measured.metric not in sizes.ACCURACIES:
        infinite *= reading.removable
    mean = abs(reading.null_mean)
    if math.isnan(mean):
        return math.nan
    if mean < infinite:
        return math.inf
    if mean == 0:
        return math.nan if reading.matched else 0.0
    return abs(reading.matched) / mean


def judge(readings: Sequence[Reading], evidence: Evidence) -> dict[str, Ruling]:
    """Group -> ruling for the readings of one metric of one cell."""
    specific = [r for r in readings if _harms(r, evidence)]
    first = min(specific, key=lambda r: (r.effect, r.measured.heads, r.measured.group), default=None)
    return {r.measured.group: _one(r, first, specific, evidence) for r in readings}


def _harms(reading: Reading, evidence: Evidence) -> bool:
    """Whether a group may be primary: competing, not saturated, a harm of interest, at least 3x."""
    if not reading.defined or too_few_prompts(reading) or reading.saturated:
        return False
    if not evidence.members[reading.measured.group].competes:
        return False
    specific = ratio(reading) >= evidence.thresholds.specificity - SLACK
    return specific and reading.large_enough and reading.effect < 0


def _one(reading: Reading, first: Reading | None, specific: Sequence[Reading], evidence: Evidence) -> Ruling:
    m, t = reading.measured, evidence.thresholds
    if not reading.defined:
        return Ruling(
            verdict="not testable", reason=f"{m.metric} does not exist here: the prompts have no foil"
        )
    few = too_few_prompts(reading)
    if few:
        return Ruling(verdict="not testable", reason=few)
    if reading.null.size and not reading.apart.size:
        return Ruling(
            verdict="not testable (draws)", reason="every random draw holds some of the group's own heads"
        )
    text, times = _effect(reading), ratio(reading)
    against = f"{text}, {_times(reading)}"
    large = t.paper_large if m.metric in sizes.ACCURACIES else t.paper_large * reading.removable
    if reading is first:
        return Ruling(verdict="primary", reason=f"the largest specific harm, {against}", significant=True)
    if reading in specific and abs(m.effect) >= large - SLACK:
        reason = f"harms, {against}, but {first.measured.group if first else ''} harms more"
        return Ruling(verdict="secondary", reason=reason, significant=True)
    if reading.saturated:
        return Ruling(verdict="saturated", reason="the group and its random draws both remove all there is")
    alone = evidence.alone(reading)
    helping = sum(s.effect > 0 for s in alone.values())
    small = abs(m.effect) < large - SLACK
    if m.effect > 0 and not small and alone and helping >= t.singles_confirm * len(m.heads):
        reason = f"removing it helps, {text}; {helping} of {len(m.heads)} heads help alone"
        return Ruling(verdict="interferer", reason=reason, significant=True)
    pattern = evidence.patterns.get(m.group)
    if small and pattern is not None and pattern.present:
        return Ruling(
            verdict="correlate", reason=f"its pattern is there ({pattern.text}), its effect small: {text}"
        )
    away = abs(reading.matched - reading.null_mean)
    if away <= t.paper_null_sd * reading.null_sd + SLACK or times <= t.paper_null_ratio + SLACK:
        return Ruling(verdict="null", reason=f"like its random draws: {against}{_spread(reading)}")
    if not evidence.members[m.group].competes:
        why = evidence.members[m.group].why
        return Ruling(verdict="descriptive", reason=f"not ranked, {why}: {against}")
    return Ruling(verdict="inconclusive", reason=f"no published rule takes it: {against}{_spread(reading)}")


def _effect(reading: Reading) -> str:
    """The effect in words, with its interval where there is one."""
    m = reading.measured
    known = not (math.isnan(m.low) or math.isnan(m.high))
    return effect_text(reading) if known else amount(m.effect, m.metric)


def _times(reading: Reading) -> str:
    """The specificity in words: `3.2x its null`, or why it is no number."""
    times, metric = ratio(reading), reading.measured.metric
    if not reading.null.size:
        return "without random draws to compare it with"
    if math.isinf(times):
        return f"its random draws about 0 (mean {amount(reading.null_mean, metric)})"
    if math.isnan(times):
        return "no specificity: nothing can be removed, and its random draws remove nothing"
    return f"{_number(times)}x its null"


def _spread(reading: Reading) -> str:
    """`, z -2.1`, or why there is none; nothing without draws, which `_times` says."""
    n = reading.apart.size
    if n == 0:
        return ""
    if n == 1:
        return ", no z: one draw has no spread"
    if not reading.null_sd > 0:
        return f", no z: its {n} draws do not differ"
    return f", z {_number(reading.z)}"


def _number(value: float) -> str:
    """Two digits, without an exponent for what is large."""
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
