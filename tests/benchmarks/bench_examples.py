"""Results of every kind, made by hand, for the page and the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import bench

MACHINE = {
    "processor": "Example CPU",
    "instructions": "AVX2",
    "cores": 2,
    "memory_gib": 8.0,
    "system": "Linux 6.1",
    "python": "3.11.7",
    "versions": {"torch": "2.13.0"},
    "blas": "MKL",
}


def figure(**changed: Any) -> bench.Figure:
    given = dict(
        name="Small step",
        against="a slow step",
        kind="speedup",
        ratio=41.5,
        low=40.25,
        high=43.0,
        rounds=5,
        ours_s=0.1,
        other_s=4.15,
        threads=1,
        target=40.0,
        difference=1e-7,
        tolerance=1e-5,
        note="How it was compared.",
    )
    return bench.Figure(**{**given, **changed})


CURVE = bench.Curve(
    name="Step against length",
    x="length (tokens)",
    xs=[10.0, 20.0, 40.0],
    series={"Fast": [0.01, 0.02, 0.04], "Slow": [0.011, 0.044, 0.176]},
    y="seconds",
    exponent={"Fast": [1.0, 0.9, 1.1], "Slow": [2.0, 1.9, 2.1]},
    note="One thread.",
)


def write(folder: Path, name: str, results: list[bench.Result], **changed: Any) -> None:
    facts = dict(
        row=name,
        title=f"The {name}",
        run="r1",
        quick=False,
        seconds=60.0,
        finished="2026-01-02T03:04:05+00:00",
        error=None,
        machine=MACHINE,
    )
    bench.write(folder / f"{name}.json", results, **{**facts, **changed})
