"""Local heads: attend to the four positions L-3 .. L-6, their mean counts (MEASURES 2.3)."""

from __future__ import annotations

import numpy as np

from causegrid.signatures.batches import Ints
from causegrid.signatures.screens.base import RepeatedPairs, generic_screen


@generic_screen("local", note="the mean of L-3 .. L-6; at 30x")
def places(batch: RepeatedPairs) -> Ints:
    """(n, k) target positions."""
    n, length = batch.tokens.shape
    return np.tile(np.arange(length - 6, length - 2), (n, 1))
