"""Ranges of a batch on torch's threads: each row once, errors raised, with and without OpenMP."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from causegrid.models.ops import team

BIG = 1 << 20


@pytest.fixture(params=["openmp", "python"])
def two_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "python":
        monkeypatch.setattr(team, "_parallel", None)
    elif team._parallel is None:
        pytest.skip("no GNU OpenMP entry point here")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_workers_run_at_the_same_time_and_take_each_row_once(two_threads: None) -> None:
    meet = threading.Barrier(2, timeout=60)
    rows: list[int] = []
    workers: set[int] = set()

    def kernel(worker: int, low: int, high: int) -> None:
        meet.wait()  # passes only when both are inside
        workers.add(worker)
        rows.extend(range(low, high))

    for batch in (2, 7):
        rows.clear()
        team.over_batch(kernel, batch, BIG)
        assert sorted(rows) == list(range(batch))
    assert workers == {0, 1} and team.workers_for(7, BIG) == 2


def test_an_error_in_a_worker_is_raised_here(two_threads: None) -> None:
    def kernel(worker: int, low: int, high: int) -> None:
        if worker == 1:
            raise ValueError("row 3")

    with pytest.raises(ValueError, match="row 3"):
        team.over_batch(kernel, 4, BIG)


def test_a_small_activation_or_one_row_stays_on_this_thread(two_threads: None) -> None:
    seen: list[tuple[int, int, int, int]] = []

    def kernel(*given: int) -> None:
        seen.append((threading.get_ident(), *given))

    team.over_batch(kernel, 5, 10)
    team.over_batch(kernel, 1, BIG)
    here = threading.get_ident()
    assert seen == [(here, 0, 0, 5), (here, 0, 0, 1)]
