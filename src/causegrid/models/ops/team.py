"""Compiled loops over the batch on torch's own threads.

torch's OpenMP threads keep spinning for some milliseconds after each operation; a second pool of threads
then shares the cores with them and gains little (Mamba's step gained 15 % from a second core that way).  So
the kernels run as one more parallel region of the OpenMP library torch has loaded, on the same threads and
on as many as torch was told to use.  Where that library lacks GNU's entry point (Windows), threads of Python
stand in.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

Kernel = Callable[[int, int, int], None]

_SMALL = 1 << 17  # elements of an activation below which a second thread costs more than it brings
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def workers_for(batch: int, size: int) -> int:
    """Workers `over_batch` uses for this batch and activation size: fixed for a fixed thread count."""
    return 1 if size < _SMALL else max(1, min(torch.get_num_threads(), batch))


def over_batch(kernel: Kernel, batch: int, size: int) -> None:
    """Call `kernel(worker, low, high)` for each of `workers_for(batch, size)` ranges of `batch` rows.

    `size` is the number of elements of one activation.  The kernel must release the GIL to gain anything.
    """
    workers = workers_for(batch, size)
    if workers == 1:
        kernel(0, 0, batch)
        return
    edges = [batch * i // workers for i in range(workers + 1)]
    numbers = itertools.count()
    errors: list[BaseException] = []

    def member(_: Any = None) -> None:
        try:
            while (i := next(numbers)) < workers:  # a team smaller than asked for still does it all
                kernel(i, edges[i], edges[i + 1])
        except BaseException as error:  # raised below: an exception cannot leave a foreign thread
            errors.append(error)

    if _parallel is not None:
        _parallel(_BODY(member), None, workers, 0)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(member, range(workers)))
    if errors:
        raise errors[0]


def _entry() -> Any:
    """GNU OpenMP's `void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned)`, None without one."""
    try:
        found = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = (_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return found


_parallel = _entry()
