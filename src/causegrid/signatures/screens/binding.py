"""Binding heads: at the query, attend to the value bound to the queried name (MEASURES 2.3)."""

from __future__ import annotations

from causegrid.signatures.attention import Attention
from causegrid.signatures.screens.base import Rules, Scored, against_foil, against_others, task_screen

NEEDS = ("binding", "distractor", "query_name")


@task_screen(
    "binding",
    needs=NEEDS,
    targets=("binding",),
    note="a(binding) / mean other except distractor and query name; strict: a(binding) - a(distractor)",
)
def score(attention: Attention, rules: Rules) -> Scored:
    """Paper: ratio to the mean over the other positions.  Strict: difference to the distractor's mass."""
    target = attention.mass("binding")
    if rules == "strict":
        return against_foil(target, attention.mass("distractor"))
    others = attention.elsewhere([attention.positions[n] for n in NEEDS], first=True)
    return against_others(target, others, rules)
