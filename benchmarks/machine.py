"""What the machine can do: its description, its matrix product rate, its copy bandwidth.

A floor is only as good as the rate it is made of.  Rates are therefore taken next to the steps they are
compared with (the machine's speed changes within minutes), as the best of several tries, over the step's
own matrix shapes and a 1024^3 product: the fastest rate seen gives the lowest, most demanding floor.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("causegrid", "torch", "transformers", "numba", "numpy", "scikit-learn")
SQUARE = (1024, 1024, 1024)


def describe() -> dict[str, object]:
    """Processor, cores, memory and the versions that matter; nothing that names a person or a place."""
    return {
        "processor": _from_proc("/proc/cpuinfo", "model name") or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": _cores(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "blas": "MKL" if "mkl" in torch.__config__.show().lower() else "other",
    }


def sgemm(shapes: Sequence[tuple[int, int, int]] = (SQUARE,), *, seconds: float = 0.15) -> float:
    """The best float32 matrix product rate over `shapes` (m, k, n), GFLOP/s, on torch's thread count now.

    Each shape is tried for `seconds`, and its fastest product counts.
    """
    best = 0.0
    for m, k, n in shapes:
        a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
        taken = _fastest(partial(torch.mm, a, b, out=out), seconds)
        best = max(best, 2.0 * m * k * n / taken / 1e9)
    return best


def copy_bandwidth(mib: int = 64, *, seconds: float = 0.15) -> float:
    """Best rate of copying `mib` MiB that no cache holds, bytes read plus bytes written, GB/s."""
    source, target = torch.ones(mib << 18), torch.empty(mib << 18)
    return 2.0 * (mib << 20) / _fastest(lambda: target.copy_(source), seconds) / 1e9


def _fastest(call: Callable[[], object], seconds: float) -> float:
    """Least seconds of one call within `seconds`, of three calls at least; one call before is not counted."""
    call()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> float | None:
    found = _from_proc("/proc/meminfo", "MemTotal")
    return round(int(found.split()[0]) / 2**20, 1) if found else None


def _from_proc(file: str, key: str) -> str | None:
    path = Path(file)
    if not path.exists():
        return None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
