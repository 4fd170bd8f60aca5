"""The strict rules: what we would defend in review (MEASURES 4.2, `rules = "strict"`), in its order.

Holm runs over all competing groups, one without draws as if its p were 1; descriptive groups pass the same steps
on their raw p, and where a competing group would be ranked or called an interferer they read `descriptive`.
A margin that moves less than it does between batch layouts is never significant (MEASURES 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from causegrid.evidence.effects import paired_difference
from causegrid.evidence.family import possible_draws, too_few_others
from causegrid.evidence.nulls import holm
from causegrid.evidence.readings import SLACK, Measured, Reading
from causegrid.evidence.rulings import (
    Evidence,
    Ruling,
    amount,
    confirmed,
    effect_text,
    rank_text,
    too_few_prompts,
    without_effect,
)


def judge(readings: Sequence[Reading], evidence: Evidence) -> dict[str, Ruling]:
    """Group -> ruling for the readings of one metric of one cell."""
    adjusted = corrected(readings, evidence)
    family = sum(evidence.members[r.measured.group].competes for r in readings)
    rulings: dict[str, Ruling] = {}
    harmful: list[Reading] = []
    for reading in readings:
        group = reading.measured.group
        ruling = _apart(reading, evidence, adjusted.get(group), family)
        if ruling is None:
            harmful.append(reading)
        else:
            rulings[group] = ruling
    listed = ", ".join(sorted(g for g in adjusted if evidence.members[g].competes))
    others = [r for r in readings if r not in harmful and evidence.members[r.measured.group].competes]
    rulings.update(_order(harmful, listed, others))
    return {r.measured.group: rulings[r.measured.group] for r in readings}


def corrected(readings: Sequence[Reading], evidence: Evidence) -> dict[str, Fraction]:
    """Group with draws -> Holm-corrected p over the competing groups; descriptive groups keep their raw p.

    A competing group without draws counts in the family (MEASURES 4.1: m is the number of groups, and the number of
    draws is chosen by it), with a p of 1.
    """
    ps = {r.measured.group: r.p.exact for r in readings if r.p is not None}
    names = [r.measured.group for r in readings if evidence.members[r.measured.group].competes]
    family = dict(zip(names, holm([ps.get(g, Fraction(1)) for g in names]), strict=True))
    return {g: family.get(g, p) for g, p in ps.items()}


def _apart(reading: Reading, evidence: Evidence, p: Fraction | None, family: int) -> Ruling | None:
    """Every rule but the order among harmful competing groups; None for those."""
    m, t = reading.measured, evidence.thresholds
    member = evidence.members[m.group]

    def ruling(verdict: str, reason: str, significant: bool = False) -> Ruling:
        prefix = "" if member.competes else f"Not ranked, {member.why}: "
        return Ruling(verdict=verdict, reason=prefix + reason, significant=significant)

    if not reading.defined:
        return ruling("not testable", f"{m.metric} does not exist here: the prompts have no foil")
    few = too_few_prompts(reading)
    if few:
        return ruling("not testable", few)
    if evidence.floors[m.group]:
        return ruling("not testable", evidence.floors[m.group])
    draws = _draws(reading, evidence, family)
    if draws:
        return ruling("not testable (draws)", draws)
    if reading.saturated:
        return ruling("saturated", "the group and its random draws both remove all there is to remove")
    if reading.headroom < reading.minimum - SLACK and m.high >= 0:
        room = amount(reading.headroom, m.metric).lstrip("+")
        return ruling(
            "no headroom", f"{effect_text(reading)}: only {room} above the baseline, help cannot show"
        )
    failed = _failed(reading, p, t.level, t.specificity)
    if failed:
        verdict, why = without_effect(reading, evidence)
        zero = _exactly_zero(m)
        return ruling(verdict, f"{effect_text(reading)} is not significant ({failed}); {why}{zero}")
    if reading.unreliable:
        return ruling(
            "unreliable null", f"{effect_text(reading)} would be significant, but {reading.unreliable}"
        )
    helps = m.effect > 0
    if not member.competes:
        way = "helps" if helps else "harms"
        return ruling(
            "descriptive", f"removing it {way}: {effect_text(reading)}, raw p {float(p or 0):.2g}", True
        )
    if helps:
        count, known = confirmed(reading, evidence)
        verdict = "interferer" if count >= t.singles_confirm * len(m.heads) else "interferer (joint)"
        alone = f"{count} of {len(m.heads)} heads help alone" + (
            "" if known else " (none was measured alone)"
        )
        return ruling(verdict, f"removing it helps, {effect_text(reading)}; {alone}", True)
    return None


def _failed(reading: Reading, p: Fraction | None, level: float, specificity: float) -> str:
    """Why an effect is not significant, its null's reliability aside; empty when it is."""
    if p is None or p > Fraction(str(level)):
        return "no null" if p is None else f"corrected p {float(p):.2g}{_shared(reading)}"
    if reading.within_noise:
        return "inside the noise floor"
    if not reading.excludes_zero:
        return "its interval holds 0"
    if not reading.large_enough:
        return "smaller than the minimum effect"
    if not reading.apart.size:
        return "every random draw holds some of its heads, so it has no specificity"
    if reading.specificity < specificity - SLACK:
        return f"specificity {reading.specificity:.2g}x"
    return ""


def _shared(reading: Reading) -> str:
    """That the draws which do as much all hold heads of the group: then a part of it does what it does."""
    alike = reading.as_extreme(reading.null)
    enough = reading.apart.size >= reading.thresholds.apart
    if not alike or not enough or reading.as_extreme(reading.apart):
        return ""
    return (
        f": {alike} of {reading.null.size} draws do as much, and each holds heads of the group"
        if alike > 1
        else f": 1 of {reading.null.size} draws does as much, and it holds heads of the group"
    )


def _draws(reading: Reading, evidence: Evidence, family: int) -> str:
    """Why the draws cannot decide; empty when they can.  A null stopped early has decided."""
    m = reading.measured
    if reading.p is None:
        why = too_few_others(m.heads, evidence.heads_per_layer) if evidence.heads_per_layer else ""
        return why or "there are no random draws for it"
    m_tests = family if evidence.members[m.group].competes else 1
    level = Fraction(str(evidence.thresholds.level))
    least = min(Fraction(1), m_tests * reading.p.exact_min)
    if least <= level or (reading.p.settled and _more_would_do(reading, evidence, m_tests, level)):
        return ""
    text = f"{reading.p.n} distinct draws cannot give a corrected p below {float(least):.3g}"
    return f"{text}; {rank_text(reading)}" if len(m.heads) == 1 else text


def _more_would_do(reading: Reading, evidence: Evidence, m_tests: int, level: Fraction) -> bool:
    """Whether all the draws that exist could have reached the level: then a short null was stopped early."""
    heads = reading.measured.heads
    if evidence.heads_per_layer is None:
        return len(heads) > 1
    possible = possible_draws(heads, evidence.heads_per_layer, own=reading.own)
    return m_tests * Fraction(2, 1 + possible) <= level


def _exactly_zero(m: Measured) -> str:
    if m.values.size and not np.any(m.values[~np.isnan(m.values)]):
        return "; the effect is exactly 0 on every prompt"
    return ""


def _order(harmful: Sequence[Reading], listed: str, others: Sequence[Reading]) -> dict[str, Ruling]:
    """Rule 4: the largest is primary, those it does not plainly exceed co-primary, the others secondary.

    `others`: competing groups that are not significant.  One of them may harm more: that is said, and marked.
    """
    if not harmful:
        return {}
    first, *rest = sorted(harmful, key=lambda r: (r.effect, r.measured.heads, r.measured.group))
    name = first.measured.group
    more = [r for r in others if r.defined and r.effect < first.effect]
    what = "largest significant harm" if more else "largest harm"
    reason = f"the {what}, {effect_text(first)}, of the groups listed: {listed}"
    if more:
        said = ", ".join(f"{r.measured.group} ({effect_text(r)})" for r in more)
        reason += f"; not the largest: {said} {'harms' if len(more) == 1 else 'harm'} more without being significant"
    marks = ("not the largest",) if more else ()
    rulings = {name: Ruling(verdict="primary", reason=reason, significant=True, marks=marks)}
    for reading in rest:
        group, metric = reading.measured.group, reading.measured.metric
        pair = _paired(reading.measured, first.measured)
        if pair is None or len(pair[0]) < 2:
            verdict, why = "secondary", f"no per-prompt values, or too few, to pair it with {name}"
        else:
            difference = paired_difference(*pair, metric=metric)
            low, high = amount(difference.low, metric), amount(difference.high, metric)
            verdict = "co-primary" if difference.holds_zero else "secondary"
            holds = "holds" if difference.holds_zero else "excludes"
            why = f"the paired difference to {name} [{low}, {high}] {holds} 0"
        rulings[group] = Ruling(
            verdict=verdict,
            reason=f"harms, {effect_text(reading)}; {why}",
            significant=True,
        )
    return rulings


def _paired(
    a: Measured, b: Measured
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]] | None:
    """Values of both on the prompts where both have one; None when they share none."""
    own = a.prompts if a.prompts is not None else tuple(range(a.values.size))
    other = b.prompts if b.prompts is not None else tuple(range(b.values.size))
    if not a.values.size or not b.values.size:
        return None
    place = {prompt: i for i, prompt in enumerate(other)}
    shared = [(i, place[prompt]) for i, prompt in enumerate(own) if prompt in place]
    if not shared:
        return None
    left, right = (list(x) for x in zip(*shared, strict=True))
    first, second = a.values[left], b.values[right]
    known = ~np.isnan(first - second)
    return first[known], second[known]
