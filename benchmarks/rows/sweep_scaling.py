"""How a sweep's cost grows: prompts, heads, blocks, prompt length, null draws, and memory with the conditions.

Small random GPT-NeoX models on one thread; every size runs once per round, medians over rounds.  The plain
loop costs the same for every head set, so it runs on a few and is multiplied by their number.  Every sweep of
ours starts from a new planner, so the clean pass is in its time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import causegrid as cg
from benchmarks import memory, timing
from benchmarks.bench import Curve, Equality, Result, Say, row
from benchmarks.competitors.plain import Plain
from benchmarks.workload import Job, Work, sample, tiny
from causegrid.interventions.heads import Ablator
from causegrid.interventions.sweep import Condition, Planner

BASE: dict[str, Any] = dict(
    layers=6, heads=4, width=128, vocabulary=5000, n_prompts=16, length=16, n_groups=0
)
SMALL: dict[str, Any] = dict(layers=3, heads=4, width=32, vocabulary=200, n_prompts=8, length=6, n_groups=0)
TIMED = 4  # head sets the plain loop runs
FLAT = 16.0  # MiB by which the peak at ten times the conditions may differ


def sizes(quick: bool) -> dict[str, tuple[str, list[int]]]:
    """Setting -> (axis label, values)."""
    if quick:
        return {"n_prompts": ("prompts", [4, 8]), "layers": ("blocks", [2, 4])}
    return {
        "n_prompts": ("prompts", [16, 32, 64, 128]),
        "heads": ("heads per block, all of them ablated one by one", [4, 8, 16, 32]),
        "layers": ("blocks, all heads ablated one by one", [3, 6, 12, 24]),
        "length": ("prompt length", [16, 32, 64, 128]),
    }


def ours(work: Work, jobs: Sequence[Job]) -> Callable[[], None]:
    """A sweep from a new planner."""

    def go() -> None:
        planner = Planner(work.model, work.prompts)
        ablator = Ablator(work.model, work.prompts, planner=planner)
        for _ in planner.run(ablator.conditions({j.name: list(j.heads) for j in jobs}, "zero")):
            pass

    return go


def plain(work: Work, jobs: Sequence[Job]) -> tuple[Callable[[], None], float]:
    """(a plain loop over a few jobs, what its time is multiplied by)."""
    loop = Plain(copy.deepcopy(work.model.module), work.tokens)
    few = sample(jobs, TIMED)
    return (lambda: [loop.last_logits(j.layers) for j in few] and None), len(jobs) / len(few)


def curve(
    name: str, x: str, xs: Sequence[int], works: Sequence[tuple[Work, list[Job]]], *, rounds: int, note: str
) -> Curve:
    """Seconds of both at every size."""
    mine = [ours(work, jobs) for work, jobs in works]
    loops = [plain(work, jobs) for work, jobs in works]
    taken = timing.interleaved(*mine, *(call for call, _ in loops), rounds=rounds)
    middle = [float(np.median(t)) for t in taken]
    series = {
        "causegrid": middle[: len(xs)],
        "plain hooks": [s * times for s, (_, times) in zip(middle[len(xs) :], loops, strict=True)],
    }
    return Curve(
        name=name,
        x=x,
        xs=[float(v) for v in xs],
        series=series,
        y="seconds",
        exponent={key: timing.growth(xs, values) for key, values in series.items()},
        note=note,
    )


def singles(work: Work) -> list[Job]:
    """Every head alone."""
    return [Job("single", h, (h,)) for h in work.heads]


def null(work: Work, n: int) -> list[Job]:
    """`n` matched draws for a group of three heads in three blocks."""
    last = work.model.n_layers - 1
    group = [f"L{layer}H0" for layer in (last // 3, last // 2 + 1, last)]
    draws = cg.matched_random(group, n_heads=work.model.n_heads, n=n, seed=0)
    if len(draws) < n:
        raise ValueError(f"only {len(draws)} draws of {n} exist")
    return [Job("draw", f"draw-{i}", tuple(d)) for i, d in enumerate(draws)]


def stream(ablator: Ablator, n: int) -> Iterator[Condition]:
    """`n` conditions of two heads, made as they are taken."""
    model = ablator.model
    rng = np.random.default_rng(0)
    for i in range(n):
        picks = rng.choice(model.n_layers * model.n_heads, 2, replace=False)
        heads = [f"L{p // model.n_heads}H{p % model.n_heads}" for p in picks]
        [one] = ablator.conditions({f"condition {i}": heads}, "zero")
        yield Condition(one.name, one.edits)  # without keys: each is computed, none is remembered


def peaks(xs: Sequence[int]) -> list[float]:
    """Peak MiB of a streamed sweep of each number of conditions."""
    work = tiny("gpt_neox", **{**SMALL, "heads": 16})
    found = []
    for n in xs:
        planner = Planner(work.model, work.prompts)
        ablator = Ablator(work.model, work.prompts, planner=planner)
        assert planner.clean is not None  # so that what a first forward allocates is not counted

        def go(planner: Planner = planner, ablator: Ablator = ablator, n: int = n) -> None:
            for _ in planner.run(stream(ablator, n)):
                pass

        found.append(memory.peak(go))
    return found


@row("sweep-scaling", title="How a sweep grows")
def run(quick: bool, say: Say) -> list[Result]:
    """Five curves of time, one of peak memory."""
    base, rounds = (SMALL, 1) if quick else (BASE, 2)
    every = "Zero ablation of every single head; the plain loop ran {} head sets a size, multiplied."
    found: list[Result] = []
    with timing.threads(1):
        for setting, (x, xs) in sizes(quick).items():
            works = [tiny("gpt_neox", **{**base, setting: value}) for value in xs]
            jobs = [(work, singles(work)) for work in works]
            note = every.format(TIMED) + "  One thread."
            found.append(curve(f"Sweep against {x.split(',')[0]}", x, xs, jobs, rounds=rounds, note=note))
            say(_shown(found[-1]))
        work = tiny("gpt_neox", **{**base, "heads": 8})
        xs = [4, 8] if quick else [40, 80, 160, 320]
        draws = [(work, null(work, n)) for n in xs]
        note = (
            "Draws of one null of three heads; the longer the null, the more draws begin alike.  One thread."
        )
        found.append(curve("Sweep against null draws", "draws", xs, draws, rounds=rounds, note=note))
        say(_shown(found[-1]))
        xs = [20, 40] if quick else [100, 300, 1000, 3000, 10_000]
        mib = peaks(xs)
        found.append(
            Curve(
                name="Peak memory of a streamed sweep",
                x="conditions",
                xs=[float(v) for v in xs],
                series={"causegrid": mib},
                y="MiB",
                exponent={},
                note="Above the level after the clean pass; conditions come from a generator, 512 at a time.",
            )
        )
        say(f"peak MiB at {xs}: {[round(v, 1) for v in mib]}")
        if not quick:
            found.append(
                Equality(
                    name="Peak memory of a streamed sweep, 1,000 and 10,000 conditions",
                    against="each other, MiB",
                    difference=abs(mib[-1] - mib[xs.index(1000)]),
                    tolerance=FLAT,
                )
            )
    return found


def _shown(result: Result) -> str:
    assert isinstance(result, Curve)
    return f"{result.name}: " + ", ".join(f"{k} x^{v[0]:.2f}" for k, v in result.exponent.items())
