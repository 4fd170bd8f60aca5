"""Successor heads: at the query, attend to the item itself (MEASURES 2.3)."""

from __future__ import annotations

from causegrid.signatures.attention import Attention
from causegrid.signatures.screens.base import Rules, Scored, against_others, task_screen


@task_screen(
    "successor", needs=("self", "previous"), targets=("self",), note="a(self) / mean other except previous"
)
def score(attention: Attention, rules: Rules) -> Scored:
    """Ratio to the mean over the other positions except the previous item; strict leaves position 0 out."""
    own, previous = attention.positions["self"], attention.positions["previous"]
    others = attention.elsewhere([own, previous], first=rules == "paper")
    return against_others(attention.mass("self"), others, rules)
