"""Progress of a sweep, told in whole conditions while they are computed batch by batch."""

from __future__ import annotations

from collections.abc import Callable


class Ticker:
    """Turns computed (condition, batch) pairs into `progress(done, total)` of whole conditions."""

    def __init__(
        self, progress: Callable[[int, int | None], None] | None, before: int, size: int, total: int | None
    ) -> None:
        self.progress, self.before, self.size, self.total = progress, before, size, total
        self.share = 1.0  # calls a condition takes on average
        self.calls = 0
        self.told = 0

    def __call__(self) -> None:
        self.calls += 1
        self._tell(min(self.size - 1, int(self.calls / self.share)))

    def close(self) -> None:
        """All conditions of the chunk are done."""
        self._tell(self.size)

    def _tell(self, done: int) -> None:
        if self.progress is not None and done > self.told:
            self.told = done
            self.progress(self.before + done, self.total)
