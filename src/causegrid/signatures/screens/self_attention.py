"""Self heads: attend to the query position itself (MEASURES 2.3)."""

from __future__ import annotations

import numpy as np

from causegrid.signatures.batches import Ints
from causegrid.signatures.screens.base import RepeatedPairs, generic_screen


@generic_screen("self", note="the query itself; at 30x")
def places(batch: RepeatedPairs) -> Ints:
    """(n, k) target positions."""
    n, length = batch.tokens.shape
    return np.full((n, 1), length - 1)
