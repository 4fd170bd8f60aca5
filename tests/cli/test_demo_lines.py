"""The last lines of the demo, from made-up tables."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd

from causegrid.demo import _judged


def test_a_group_is_said_once_under_the_rules_that_lead():
    numbers = {"metric": "logit_diff", "effect": -4.0, "low": -4.5, "high": -3.5}
    verdicts = pd.DataFrame(
        [
            {**numbers, "group": "name-mover", "kind": "competing", "leads": True, "verdict": "primary"},
            {**numbers, "group": "name-mover", "kind": "competing", "leads": False, "verdict": "secondary"},
            {**numbers, "group": "all groups", "kind": "descriptive", "leads": True, "verdict": "primary"},
            {
                **numbers,
                "metric": "top1",
                "group": "x",
                "kind": "competing",
                "leads": True,
                "verdict": "null",
            },
        ]
    )
    singles = pd.DataFrame([{**numbers, "group": "L1H2", "effect": e} for e in (0.5, -2.0, 0.01)])
    singles["group"] = ["L0H0", "L1H1", "L2H2"]
    tables = {"verdicts": verdicts, "singles": singles}
    cell = SimpleNamespace(status="done", config={"task": "ioi", "model": "m"}, table=tables.get)
    (line,) = _judged(SimpleNamespace(cells=lambda: [cell]))
    assert line == (
        "ioi on m: name-mover primary (-4.00 logits [-4.50, -3.50]). "
        "Single heads: most causal L1H1 (-2.00), least L2H2 (+0.01)."
    )
