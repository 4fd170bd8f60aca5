"""First-token (BOS) heads: attend to position 0 (MEASURES 2.3)."""

from __future__ import annotations

import numpy as np

from causegrid.signatures.batches import Ints
from causegrid.signatures.screens.base import RepeatedPairs, generic_screen


@generic_screen("first-token", note="position 0; at 30x")
def places(batch: RepeatedPairs) -> Ints:
    """(n, k) target positions."""
    n = len(batch.tokens)
    return np.zeros((n, 1), dtype=np.int64)
