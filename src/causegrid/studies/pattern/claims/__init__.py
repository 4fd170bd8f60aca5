"""The claims of study P over finished cells (MEASURES 4.3): one small file each, found by the registry in `base`.

A claim is a function of one table, the competing groups of all finished cells under their leading rules; it
says which cells it used and why the result is what it is.  A claim whose cells are not there is `not enough
evidence`, with what is missing, and never a contradiction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from causegrid.studies.pattern.anchors import anchor_claims
from causegrid.studies.pattern.claims.base import claims, group_table

__all__ = ["claims", "pattern_claims"]


def pattern_claims(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every registered claim over finished cells, then the published cells beside ours."""
    groups = group_table(cells)
    return [
        *(test(groups).record() for _, test in claims.items()),
        *(anchor.record() for anchor in anchor_claims(cells)),
    ]
