"""Time things side by side.

Load on a shared machine swings by a factor of two within seconds, so two things are compared only inside
one round: a, b, a, b, ...  The ratio of each round is taken, and of the ratios the median and the
quartiles.  A growth exponent is the slope of least squares in log-log, with a 95 % t interval.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


def interleaved(*callables: Callable[[], Any], rounds: int = 5, warmup: int = 1) -> list[Seconds]:
    """Seconds of each callable in each round, one array (rounds,) per callable; `warmup` rounds are untimed.

    Garbage is collected between rounds and not within them.  Each round begins with the next callable: whoever
    comes first finds the caches cold.
    """
    for _ in range(warmup):
        for call in callables:
            call()
    taken = np.empty((len(callables), rounds))
    on = gc.isenabled()
    try:
        for i in range(rounds):
            gc.collect()
            gc.disable()
            for turn in range(len(callables)):
                k = (i + turn) % len(callables)
                start = time.perf_counter()
                callables[k]()
                taken[k, i] = time.perf_counter() - start
    finally:
        if on:
            gc.enable()
    return list(taken)


def ratio(a: Sequence[float] | Seconds, b: Sequence[float] | Seconds) -> tuple[float, float, float]:
    """Median, lower and upper quartile over rounds of a / b.  Raises ValueError on unequal numbers of rounds."""
    above, below = np.asarray(a, float), np.asarray(b, float)
    if above.shape != below.shape or above.size == 0:
        raise ValueError(f"{above.size} and {below.size} rounds cannot be compared one by one")
    low, middle, high = np.percentile(above / below, [25, 50, 75])
    return float(middle), float(low), float(high)


def growth(xs: Sequence[float] | Seconds, cost: Sequence[float] | Seconds) -> list[float]:
    """[exponent, low, high] of cost ~ x^exponent: least squares in log-log with a 95 % t interval.

    Two points give the exponent with an infinite interval replaced by the exponent itself.
    """
    x, y = np.log(np.asarray(xs, float)), np.log(np.asarray(cost, float))
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"an exponent needs as many costs as sizes, two at least: {len(x)} and {len(y)}")
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    if len(x) == 2:
        return [slope, slope, slope]
    from scipy.stats import t

    left = y - y.mean() - slope * centred
    error = float(np.sqrt(left @ left / (len(x) - 2) / (centred @ centred)))
    half = float(t.ppf(0.975, len(x) - 2)) * error
    return [slope, slope - half, slope + half]


@contextmanager
def threads(n: int) -> Iterator[None]:
    """torch on `n` threads inside, as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
