"""Products of small matrices inside compiled loops, with a block of the result in registers.

A chunk's matrices have some 40 rows: too small for a BLAS call each, and a loop over arrays keeps every sum
in memory.  Here 4 rows and `lanes.WIDTH` columns of the result stay in registers over the whole sum, and the
zero half of a triangular factor is skipped.  Nothing is checked: arrays are float32 with a dense last axis
(`a` alone may be transposed), their rows padded to a multiple of 4, their columns to a multiple of WIDTH, and
what `product` reads there is finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from causegrid.models.ops.lanes import WIDTH, load, splat, store

FULL = 0
LOWER = 1  # a is lower triangular
UPPER = 2  # a is upper triangular
LOWER_OUT = 3  # only the blocks of the result on or below the diagonal are wanted


_jit: Callable[[Callable[..., None]], Any] = numba.njit(nogil=True)


@_jit
def product(out: Any, a: Any, b: Any, rows: int, columns: int, depth: int, kind: int, add: bool) -> None:
    """out[:rows, :columns] = a[:rows, :depth] @ b[:depth, :columns], or += with `add`."""
    for i in range(0, rows, 4):
        first = i if kind == UPPER else 0
        last = min(depth, i + 4) if kind == LOWER else depth
        for j in range(0, min(columns, i + 4) if kind == LOWER_OUT else columns, WIDTH):
            o0 = o1 = o2 = o3 = splat(np.float32(0.0))
            for k in range(first, last):
                row = load(b, (k, j))
                o0 = o0 + a[i, k] * row
                o1 = o1 + a[i + 1, k] * row
                o2 = o2 + a[i + 2, k] * row
                o3 = o3 + a[i + 3, k] * row
            if add:
                o0, o1 = o0 + load(out, (i, j)), o1 + load(out, (i + 1, j))
                o2, o3 = o2 + load(out, (i + 2, j)), o3 + load(out, (i + 3, j))
            store(out, (i, j), o0)
            store(out, (i + 1, j), o1)
            store(out, (i + 2, j), o2)
            store(out, (i + 3, j), o3)
