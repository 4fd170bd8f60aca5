"""The memory of a strided tensor as one row of numbers, for compiled loops that read slices where they lie.

numba compiles a function again for every memory layout of its arrays; a row with strides beside it has one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def flat(v: Tensor) -> tuple[Any, tuple[int, ...]]:
    """The memory from v's first number to its last, and v's strides but the last one, which is 1.

    v is float32 on the CPU and not empty; it is copied only where its last axis is not dense.
    """
    v = v.detach()
    if v.stride(-1) != 1:
        v = v.clone(memory_format=torch.contiguous_format)
    extent = 1 + sum((n - 1) * stride for n, stride in zip(v.shape, v.stride(), strict=True))
    return v.as_strided((extent,), (1,)).numpy(), v.stride()[:-1]
