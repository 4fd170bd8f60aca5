"""Induction heads: at the second A, attend to the token after the first A (MEASURES 2.3)."""

from __future__ import annotations

from causegrid.signatures.batches import Ints
from causegrid.signatures.screens.base import RepeatedPairs, generic_screen


@generic_screen("induction", note="the position after the earlier A; circuit at 50x", threshold=50.0)
def places(batch: RepeatedPairs) -> Ints:
    """(n, k) target positions."""
    return batch.first[:, None] + 1
