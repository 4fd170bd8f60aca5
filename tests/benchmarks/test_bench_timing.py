"""Ratios, exponents and interleaving against numbers worked out by hand."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from benchmarks import machine, memory, timing


def test_rounds_alternate_and_are_timed_one_by_one() -> None:
    calls: list[str] = []

    def a() -> None:
        calls.append("a")
        time.sleep(0.02)

    def b() -> None:
        calls.append("b")

    first, second = timing.interleaved(a, b, rounds=3, warmup=1)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"  # a warm-up round, then each in turn comes first
    assert first.shape == second.shape == (3,)
    assert (first >= 0.02).all()
    assert (second < first).all()


def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians() -> None:
    # a load that doubles both sides of the second round leaves the ratio at 2
    assert timing.ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.5)
    with pytest.raises(ValueError, match="3 and 2 rounds"):
        timing.ratio([1.0, 2.0, 3.0], [1.0, 2.0])


def test_growth_is_the_exponent_with_a_t_interval() -> None:
    xs = [1.0, 2.0, 4.0, 8.0]
    assert timing.growth(xs, [3 * x**1.5 for x in xs]) == pytest.approx([1.5, 1.5, 1.5])
    noisy = [math.exp(v) for v in (0.0, 1.1, 1.9, 3.2)]
    steps = np.arange(4) * math.log(2)
    slope, at = np.polyfit(steps, [0.0, 1.1, 1.9, 3.2], 1)
    left = np.array([0.0, 1.1, 1.9, 3.2]) - at - slope * steps
    half = 4.302653 * math.sqrt(left @ left / 2 / ((steps - steps.mean()) ** 2).sum())  # t(0.975, 2)
    assert timing.growth(xs, noisy) == pytest.approx([slope, slope - half, slope + half], rel=1e-6)
    with pytest.raises(ValueError, match="two at least"):
        timing.growth([1.0], [1.0])


def test_threads_come_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), timing.threads(2):
        assert torch.get_num_threads() == 2
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_peak_memory_of_one_call_after_a_larger_one() -> None:
    def hold(mib: int) -> None:
        torch.ones(mib << 18).sum()

    assert memory.peak(lambda: hold(200)) == pytest.approx(200, abs=10)
    assert memory.peak(lambda: hold(50)) == pytest.approx(50, abs=10)


def test_the_machine_is_described_without_places_and_its_rates_are_plausible() -> None:
    facts = machine.describe()
    assert "/" not in str(facts["processor"])
    assert facts["versions"]["torch"] == torch.__version__
    assert 0.1 < machine.sgemm([(256, 256, 256)], seconds=0.02) < 20_000
    assert 0.05 < machine.copy_bandwidth(16, seconds=0.02) < 5_000
