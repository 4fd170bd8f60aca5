"""The claims of study S over finished cells (MEASURES 4.3): one small file each, found by the registry in `base`.

A claim is a function of all finished cells under `@claims.register(id)`; it says which cells it used, which it
left out, and why the result is what it is.  Rules that hold for every claim are in `state/finished.py`: what a cell
that learned to L may be used for, that lengths never mix in one test, and how those left out are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from causegrid.studies.state.anchors import anchor_claims
from causegrid.studies.state.claims.base import claims
from causegrid.studies.state.finished import cell_of

__all__ = ["claims", "state_claims"]


def state_claims(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every registered claim over finished cells, then the published figures that are only set beside ours."""
    found = [cell_of(c) for c in cells]
    return [
        *(test(found).record() for _, test in claims.items()),
        *(anchor.record() for anchor in anchor_claims(found)),
    ]
