"""P4: top-1 and the margin disagree about some groups.  Counted where both have a definite verdict."""

from __future__ import annotations

import pandas as pd

from causegrid.evidence.claims import SUPPORTED, UNDECIDED, Claim
from causegrid.studies.pattern.claims.base import UNDECIDED_VERDICTS, claims, exact, ids, undecided
from causegrid.studies.pattern.published import most_harmful, valid

STATEMENT = "Top-1 and the margin disagree about some groups"


@claims.register("P4")
def disagree(groups: pd.DataFrame) -> Claim:
    decided = groups[~groups["verdict"].isin(UNDECIDED_VERDICTS)] if len(groups) else groups
    both = decided.groupby(["cell", "group"])["verdict"].agg(["size", "nunique"]) if len(decided) else None
    both = both[both["size"] > 1] if both is not None else None
    if both is None or not len(both):
        missing = "no group has a definite verdict on both metrics (no headroom or power)."
        return undecided("P4", STATEMENT, _figure(), missing, groups)
    k, n = int((both["nunique"] > 1).sum()), len(both)
    used = groups[groups["cell"].isin(both.index.get_level_values("cell"))]
    low, high = exact(k, n)
    return Claim(
        id="P4", statement=STATEMENT, published=_figure(), measured=f"{k} of {n} groups", low=low, high=high,
        result=SUPPORTED if k else UNDECIDED,
        why=f"of {n} groups with a definite verdict on both, {k} differ.", cells=ids(used),
    )  # fmt: skip


def _figure() -> str:
    shown = next(g for g in valid() if (g.task, g.model, g.group) == ("ioi", "olmoe1b7b", "s-inhibition"))
    first = {m: most_harmful(m) for m in ("top1", "logit_diff")}
    cells = set(first["top1"]) & set(first["logit_diff"])
    differ = sum(first["top1"][c][0] != first["logit_diff"][c][0] for c in cells)
    return (
        f"OLMoE on IOI: s-inhibition moves top-1 by {100 * shown.effects['top1']:+.1f} pp and the margin by "
        f"{shown.effects['logit_diff']:+.1f} logits; the most harmful group differs in {differ} of "
        f"{len(cells)} valid cells"
    )
