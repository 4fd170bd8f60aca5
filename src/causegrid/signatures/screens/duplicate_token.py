"""Duplicate-token heads: at the second A, attend to the first A (MEASURES 2.3)."""

from __future__ import annotations

from causegrid.signatures.batches import Ints
from causegrid.signatures.screens.base import RepeatedPairs, generic_screen


@generic_screen("duplicate-token", note="the earlier A; at 30x")
def places(batch: RepeatedPairs) -> Ints:
    """(n, k) target positions."""
    return batch.first[:, None]
