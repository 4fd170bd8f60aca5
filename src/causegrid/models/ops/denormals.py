"""Numbers under 1e-38, which processors handle a hundred times slower than others.

A recurrent state whose gate is held shut decays into them, and a forward then takes seven times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed() -> Iterator[None]:
    """Such numbers are 0 in here, on this thread; outside they are kept, as torch starts."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
