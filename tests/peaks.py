"""How much memory a piece of work holds at its fullest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def peak_of(work: Callable[[], Any]) -> int:
    """Largest number of bytes torch held at once, of what it allocated while `work()` ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    changes = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns())])
    return int(held.max())
