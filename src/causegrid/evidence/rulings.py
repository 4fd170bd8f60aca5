"""What a rule set answers for one group on one metric, and the words it answers in (MEASURES 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from causegrid import headnames
from causegrid.evidence.family import Membership
from causegrid.evidence.readings import Head, Reading, inside
from causegrid.evidence.thresholds import Thresholds

VERDICTS = (
    "primary",
    "co-primary",
    "secondary",
    "interferer",
    "interferer (joint)",
    "correlate",
    "null",
    "inconclusive",
    "unreliable null",
    "saturated",
    "no headroom",
    "not testable",
    "not testable (draws)",
    "descriptive",  # a group outside the family that would otherwise be ranked
)
MARKS = (
    "margin-not-argmax",
    "argmax-not-margin",
    "constant writer",
    "redundant",
    "breaks ordinary text",
    "contaminated",
    "overlapping null",
    "not the largest",
    "pattern unknown",
)


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """A verdict with the sentence that explains it."""

    verdict: str
    reason: str
    significant: bool = False
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Single:
    """One head's effect alone on one metric."""

    effect: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Whether a group's pattern is there: its score beyond the random-target null's 99th percentile."""

    present: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that a rule set may look at for one cell."""

    members: Mapping[str, Membership]
    singles: Mapping[tuple[Head, str], Single]
    patterns: Mapping[str, Pattern]
    floors: Mapping[str, str]  # group -> why the model fails the task's floor, empty when it does not
    heads_per_layer: int | None  # of the model, when it was given
    thresholds: Thresholds

    def alone(self, reading: Reading) -> dict[Head, Single]:
        """The single-head effects known of the group's heads, on the reading's metric."""
        m = reading.measured
        return {h: self.singles[h, m.metric] for h in m.heads if (h, m.metric) in self.singles}


def amount(value: float, metric: str) -> str:
    """An effect in its unit: logits for the margin, percentage points otherwise."""
    return f"{value:+.3g} logits" if metric == "logit_diff" else f"{100 * value:+.3g} pp"


def effect_text(reading: Reading) -> str:
    """The effect with its interval, in words."""
    m = reading.measured
    return f"{amount(m.effect, m.metric)} [{amount(m.low, m.metric)}, {amount(m.high, m.metric)}]"


def too_few_prompts(reading: Reading) -> str:
    """Why the prompts are too few to judge anything; empty when they are enough, or not counted in the table."""
    m, least = reading.measured, reading.thresholds.min_prompts
    if m.n is None or m.n >= least:
        return ""
    have = "1 prompt has" if m.n == 1 else f"{m.n} prompts have"
    return f"only {have} a value for {m.metric}; at least {least} are needed"


def confirmed(reading: Reading, evidence: Evidence) -> tuple[int, int]:
    """(heads of the group that help alone with an interval above 0, heads measured alone)."""
    alone = evidence.alone(reading)
    return sum(s.low > 0 for s in alone.values()), len(alone)


def rank_text(reading: Reading) -> str:
    """A single head's place among its layer's heads, by harm."""
    layer = reading.measured.heads[0][0]
    place, of = rank(reading)
    name = headnames.head_name(*reading.measured.heads[0])
    return f"{name} ranks {place} of {of} heads of layer {layer} by harm"


def rank(reading: Reading) -> tuple[int, int]:
    """(place by harm, of how many): a single head among the other heads of its layer; ties share it."""
    p = reading.p
    if p is None:
        return 1, 1
    return 1 + p.n - p.n_help, 1 + p.n


def without_effect(reading: Reading, evidence: Evidence) -> tuple[str, str]:
    """Rule 5, what a group that is not significant is: (verdict, why)."""
    m = reading.measured
    bound = amount(reading.minimum, m.metric).lstrip("+")
    if not inside(m.low, m.high, reading.minimum):
        return (
            "inconclusive",
            f"its interval reaches beyond ± {bound}, so an effect of interest is not excluded",
        )
    pattern = evidence.patterns.get(m.group)
    if pattern is None:
        return "null", f"its interval lies inside ± {bound}; whether its pattern is there is not known"
    if pattern.present:
        return "correlate", f"its pattern is there ({pattern.text}), its interval lies inside ± {bound}"
    return "null", f"its pattern is not there ({pattern.text}), its interval lies inside ± {bound}"
