"""P3: all five verdicts occur.  A count: seen at least once, or not seen yet."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from causegrid.evidence.claims import SUPPORTED, UNDECIDED, Claim
from causegrid.studies.pattern.claims.base import claims, ids, once

FIVE = ("primary", "secondary", "interferer", "correlate", "null")


@claims.register("P3")
def five(groups: pd.DataFrame) -> Claim:
    counts = Counter(once(groups)["combined"]) if len(groups) else Counter()
    seen = {v: counts[v] for v in FIVE}
    missing = [v for v, k in seen.items() if not k]
    others = ", ".join(f"{v} {k}" for v, k in counts.items() if v not in FIVE)
    return Claim(
        id="P3", statement="All five verdicts occur: primary, secondary, correlate, interferer, null",
        published="all five, in 12 cells", measured=", ".join(f"{v} {k}" for v, k in seen.items()),
        result=UNDECIDED if missing else SUPPORTED,
        why=(f"not seen yet: {', '.join(missing)}" if missing else "each was seen at least once")
        + (f"; besides: {others}." if others else "."),
        cells=ids(groups),
    )  # fmt: skip
