"""Peak memory of one call, in MiB above the level before it.

Linux counts a process's highest resident size; the count is set back before the call and read after it.
Memory that the allocator keeps from earlier calls would hide new demand, so it is given back first.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak(call: Callable[[], Any]) -> float:
    """MiB that `call()` needed at its highest, above what the process held before.

    Raises OSError where the system does not count (anything but Linux).
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")
    before = _kib("VmHWM")
    call()
    return (_kib("VmHWM") - before) / 1024


def resident() -> float:
    """MiB that the process holds now."""
    return _kib("VmRSS") / 1024


def _kib(key: str) -> int:
    for line in STATUS.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise OSError(f"this system does not report {key}")
