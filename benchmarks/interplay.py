"""One long run of ours, stopped every few seconds so that the others take a turn on the same machine.

A sweep takes minutes and the machine's speed drifts meanwhile, so a ratio of two totals would compare two
times of day.  `Pauses` is handed to the sweep as its `progress`: when enough time has passed it stops our
clock, lets every other party run one head set, and starts the clock again.  Each stretch of ours is thus
measured in units of a neighbour: `cost` = sum over stretches of (our seconds / the neighbour's seconds per
head set), the number of plain head sets that would have taken as long.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.workload import Job

Party = Callable[[Job], float]  # runs one head set, returns its seconds


class Pauses:
    """`plain` runs at every pause, `others` at every `often`-th; `jobs` are taken in turn."""

    def __init__(
        self,
        plain: Party,
        others: Mapping[str, Party],
        jobs: Sequence[Job],
        *,
        every: float,
        often: int = 3,
    ) -> None:
        self.plain, self.others, self.every, self.often = plain, dict(others), every, often
        self._jobs = itertools.cycle(jobs)
        self.ours: list[float] = []  # our seconds in each stretch
        self.neighbour: list[float] = []  # plain seconds at the pause after it
        self.versus: dict[str, list[float]] = {name: [] for name in others}  # theirs / plain, same pause
        self._since = time.perf_counter()

    def start(self) -> None:
        """Start the clock of a stretch."""
        self._since = time.perf_counter()

    def __call__(self, _done: int, _total: int | None) -> None:
        """The sweep's progress: pause when it is time."""
        if time.perf_counter() - self._since >= self.every:
            self.pause()

    def pause(self) -> None:
        """End a stretch, let the others run, start the next stretch."""
        self.ours.append(time.perf_counter() - self._since)
        job = next(self._jobs)
        self.neighbour.append(self.plain(job))
        if (len(self.ours) - 1) % self.often == 0:
            for name, party in self.others.items():
                self.versus[name].append(party(job) / self.neighbour[-1])
        self.start()

    @property
    def seconds(self) -> float:
        """Our own seconds in all."""
        return float(np.sum(self.ours))

    @property
    def cost(self) -> float:
        """Our run in plain head sets, each stretch over the mean of the pauses around it."""
        after = np.asarray(self.neighbour)
        before = np.concatenate([after[:1], after[:-1]])
        return float(np.sum(np.asarray(self.ours) / ((before + after) / 2)))
