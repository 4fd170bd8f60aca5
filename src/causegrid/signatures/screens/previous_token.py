"""Previous-token heads: attend to the position before the query (MEASURES 2.3)."""

from __future__ import annotations

import numpy as np

from causegrid.signatures.batches import Ints
from causegrid.signatures.screens.base import RepeatedPairs, generic_screen


@generic_screen(
    "previous-token",
    note="the position before the query; circuit at 100x and its best class",
    threshold=100.0,
    must_be_best=True,
)
def places(batch: RepeatedPairs) -> Ints:
    """(n, k) target positions."""
    n, length = batch.tokens.shape
    return np.full((n, 1), length - 2)
