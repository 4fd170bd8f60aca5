"""Greater-than heads: at the query, attend to the start year's last digits (MEASURES 2.3)."""

from __future__ import annotations

from causegrid.signatures.attention import Attention
from causegrid.signatures.screens.base import Rules, Scored, against_others, task_screen


@task_screen(
    "gt", needs=("DD",), targets=("DD",), note="a(DD) / mean over the other positions but the one before it"
)
def score(attention: Attention, rules: Rules) -> Scored:
    """Ratio to the mean over the other positions except the one before DD; strict leaves position 0 out."""
    dd = attention.positions["DD"]
    others = attention.elsewhere([dd, dd - 1], first=rules == "paper")
    return against_others(attention.mass("DD"), others, rules)
