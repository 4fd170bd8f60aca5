"""Name movers: at the query, attend to the indirect object and not to the subject (MEASURES 2.3)."""

from __future__ import annotations

import numpy as np

from causegrid.signatures.attention import Attention
from causegrid.signatures.screens.base import Rules, Scored, against_foil, against_others, task_screen


@task_screen(
    "name-mover",
    needs=("IO", "S1", "S2"),
    targets=("IO",),
    note="a(IO) / max(a(S1), a(S2)); strict: a(IO) - a(S)",
)
def score(attention: Attention, rules: Rules) -> Scored:
    """Paper: mean a(IO) / max of the mean a(S1), a(S2).  Strict: the difference of the two."""
    target = attention.mass("IO")
    foil = np.maximum(attention.mass("S1"), attention.mass("S2"))
    return against_foil(target, foil) if rules == "strict" else against_others(target, foil, rules)
