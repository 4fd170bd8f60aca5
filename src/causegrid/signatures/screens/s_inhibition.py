"""S-inhibition heads: at the query, attend to the subject and not to the indirect object (MEASURES 2.3).

Both rule sets demand max(a(S1), a(S2)) >= 0.1 and at least twice a(IO).  `paper` ranks by that maximum,
`strict` by its difference to a(IO).
"""

from __future__ import annotations

import numpy as np

from causegrid.signatures.attention import Attention
from causegrid.signatures.screens.base import MIN_MASS, Rules, Scored, ratio, task_screen

MIN_RATIO = 2.0


@task_screen(
    "s-inhibition",
    needs=("IO", "S1", "S2"),
    targets=("S1", "S2"),
    note="max(a(S1), a(S2)) with >= 2x a(IO) and >= 0.1; strict ranks by max - a(IO)",
)
def score(attention: Attention, rules: Rules) -> Scored:
    """Ranked by the subject's mass (paper) or its difference to the indirect object's (strict)."""
    subject = np.maximum(attention.mass("S1"), attention.mass("S2"))
    other = attention.mass("IO")
    eligible = (subject >= MIN_MASS) & (ratio(subject, other) >= MIN_RATIO)
    ranked = subject - other if rules == "strict" else subject
    return Scored(score=ranked, target_mass=subject, eligible=eligible)
