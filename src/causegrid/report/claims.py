"""Claims as the page's table shows them: every figure as a short text, the interval beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MINUS = "−"
_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z])")
_ASIDE = re.compile(r"\bleft out: |, beside the test: |^Not asked ")


def claim_rows(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """`id, statement, result, published, measured, interval, why, cells` per claim, all text."""
    return [
        {
            "id": str(c.get("id", "")),
            "statement": str(c.get("statement", "")),
            "result": str(c.get("result", "")),
            "published": figure(c.get("published")),
            "measured": figure(c.get("measured")),
            "interval": interval(c.get("low"), c.get("high")),
            "why": str(c.get("why", "")),
            "cells": f"{len(c.get('cells') or ())}",
        }
        for c in claims
    ]


def folded_rows(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """`claim_rows` whose `why` is the reason alone; `aside` has its sentences on cells that are no part of the
    test, which are long and seldom asked for."""
    rows = []
    for row in claim_rows(claims):
        parts = _SENTENCE.split(row["why"].strip())
        why, aside = (
            " ".join(p for p in parts if bool(_ASIDE.search(p)) is folded) for folded in (False, True)
        )
        rows.append({**row, "why": why, "aside": aside})
    return rows


def interval(low: Any, high: Any) -> str:
    """`[0.12, 0.34]`, or nothing where an end is not a number."""
    known = all(isinstance(v, (int, float)) and math.isfinite(v) for v in (low, high))
    return f"[{figure(low)}, {figure(high)}]" if known else ""


def figure(value: Any) -> str:
    """A published or measured figure as text: a number, words, or a mapping of them."""
    if value is None or value == "" or value == "-":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:.3g}".replace("-", MINUS) if math.isfinite(value) else "–"
    if isinstance(value, Mapping):
        if "value" in value:
            sure = value.get("significant", True)
            return figure(value["value"]) + ("" if sure else " (not significant)")
        return ", ".join(f"{k} {figure(v)}" for k, v in value.items() if k not in ("tag", "source", "unit"))
    if isinstance(value, (list, tuple)):
        return ", ".join(figure(v) for v in value)
    return str(value)
