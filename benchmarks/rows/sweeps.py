"""Head-ablation sweep of one cell on SmolLM2-135M against plain hooks, TransformerLens, nnsight and pyvene.

Every head set of one pattern-selectivity cell: the five competing groups, all their unions, every single head,
399 matched draws a group, zero ablation, 64 IOI prompts.  Two rows: all head sets (equal work), and the cell as
the study runs it (each group's null stopped once it is plain), so that one that is interrupted leaves the other.
The cell's verdicts must be those of the full nulls.  The first row leaves its planner's values in `.bench/`, and
the second takes them where they belong to the same prompts, groups, draws and source; else it computes them.

The plain loop costs the same for every head set, so it runs on a seeded sample of them, in turns with ours
(`interplay.py`), and is multiplied by their number; so are the other tools, next to the plain loop.  Only the
sweeps are timed, not the choice of the groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import timing
from benchmarks.bench import Figure, Note, Result, Say, row
from benchmarks.competitors import env
from benchmarks.competitors.client import Competitor
from benchmarks.interplay import Pauses
from benchmarks.kept import Replay, keep, kept, stamp
from benchmarks.parties import (
    LOGIT_TOLERANCE,
    METRIC_TOLERANCE,
    PLAIN,
    THREADS,
    TINY,
    TOOLS,
    Party,
    conditions,
    off_from_plain,
    off_from_tool,
    tools,
    turn,
)
from benchmarks.workload import Job, Work, cell_jobs, sample, smollm2, tiny, unions
from causegrid.evidence import verdict
from causegrid.interventions.heads import Ablator
from causegrid.interventions.sweep import Planner
from causegrid.studies.pattern.matched_null import matched_null

DRAWS = int(os.environ.get("BENCH_DRAWS", "399"))  # a null: 399 are what five competing groups ask for


class Watched(Ablator):
    """An ablator whose every table is a stretch of `pauses`."""

    pauses: Pauses

    def table(self, groups: Any, mode: Any = "zero", **options: Any) -> pd.DataFrame:
        return super().table(groups, mode, **{"progress": self.pauses, **options})


def parts(jobs: Sequence[Job], groups: Sequence[str]) -> list[list[Job]]:
    """The jobs in one part per competing group: its draws, and an equal share of everything else."""
    rest = [j for j in jobs if j.kind != "draw"]
    found = []
    for i, group in enumerate(groups):
        draws = [j for j in jobs if j.kind == "draw" and j.name.rsplit(" ", 1)[0] == group]
        found.append([*rest[i :: len(groups)], *draws])
    return found


def equal_work(
    work: Work, planner: Planner, jobs: Sequence[Job], pauses: list[Pauses]
) -> dict[Job, np.ndarray]:
    """Run every job through one planner, part by part; their values (n_prompts, M)."""
    ablator = Ablator(work.model, work.prompts, planner=planner)
    found: dict[Job, np.ndarray] = {}
    for some, clock in zip(parts(jobs, list(work.groups)), pauses, strict=True):
        clock.start()
        for job, (_, values) in zip(
            some, planner.run(conditions(ablator, some), progress=clock), strict=True
        ):
            found[job] = values
        clock.pause()
    return found


def effects_of(ablator: Ablator, work: Work) -> pd.DataFrame:
    """The effects a cell needs: groups, unions, every single head."""
    sets = {**work.groups, **unions(work.groups), **{h: [h] for h in work.heads}}
    return ablator.table(sets, "zero")


def verdicts(
    ablator: Ablator, work: Work, effects: pd.DataFrame, *, draws: int, early_stop: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(verdicts of the competing groups, notes of their nulls)."""
    null, notes = matched_null(
        ablator,
        work.groups,
        effects,
        prompts=range(len(work.prompts)),
        mode="zero",
        n=draws,
        per_group=1,
        early_stop=early_stop,
    )
    groups = effects[effects["group"].isin(work.groups)]
    singles = effects[effects["n_heads"] == 1]
    table = verdict(groups, null, mode="zero", singles=singles, heads_per_layer=work.model.n_heads)
    return table, notes


def whole(parts_of: Sequence[Pauses], sizes: Sequence[int]) -> tuple[float, float, float]:
    """(ratio of the whole, lower and upper quartile over its parts): plain head sets per unit of ours."""
    each = [n / p.cost for n, p in zip(sizes, parts_of, strict=True)]
    low, high = np.percentile(each, [25, 75])
    return sum(sizes) / sum(p.cost for p in parts_of), float(low), float(high)


@row("sweep-smollm2", title="Head-ablation sweep of one cell, SmolLM2-135M, IOI, 64 prompts")
def run_smollm2(quick: bool, say: Say) -> list[Result]:
    """Equal work, the layers of saving, the other tools."""
    with timing.threads(1 if quick else THREADS):
        work = tiny("llama", **TINY) if quick else smollm2(say)
        with tools(work, "smollm2", say, quick=quick) as others:
            return _smollm2(work, others, quick, say, draws=19 if quick else DRAWS)


@row("sweep-smollm2-cell", title="Whole cell with sequential early stopping, SmolLM2-135M, IOI, 64 prompts")
def run_cell(quick: bool, say: Say) -> list[Result]:
    """The cell as the study runs it, from a fresh planner, against the plain loop over all head sets."""
    with timing.threads(1 if quick else THREADS):
        work = tiny("llama", **TINY) if quick else smollm2(say)
        return [_cell(work, quick, say, draws=19 if quick else DRAWS)]


def _kept(quick: bool) -> Path:
    return env.scratch("sweep") / ("quick.npz" if quick else "smollm2.npz")


def _smollm2(work: Work, others: dict[str, Competitor], quick: bool, say: Say, *, draws: int) -> list[Result]:
    every = 0.2 if quick else 30.0
    jobs = cell_jobs(work, draws=draws)
    picked = sample(jobs, 6 if quick else 64)
    some = picked[: 3 if quick else 5]
    party = Party(work)
    parties = {tool: turn(one) for tool, one in others.items()}
    for job in picked[:2]:  # warm up
        party(job)
    off = {tool: off_from_tool(party.plain, one, some[:3]) for tool, one in others.items()}
    for tool, value in off.items():
        say(f"{TOOLS[tool]} is off the plain loop by {value:.1e}")

    name = work.model.name
    clocks = [Pauses(party, parties, picked, every=every) for _ in work.groups]
    planner = Planner(work.model, work.prompts)
    values = equal_work(work, planner, jobs, clocks)
    keep(_kept(quick), stamp(work, draws), values)
    ratio, low, high = whole(clocks, [len(p) for p in parts(jobs, list(work.groups))])
    plain_s = float(np.mean(np.concatenate([c.neighbour for c in clocks])))
    ours_s = sum(c.seconds for c in clocks)
    say(f"equal work: {len(jobs)} head sets in {ours_s:.0f} s, {ratio:.2f} x")
    kinds = {k: sum(j.kind == k for j in jobs) for k in ("group", "union", "single", "draw")}
    shown = ", ".join(f"{g} {len(h)}" for g, h in work.groups.items())
    common = dict(kind="speedup", threads=torch.get_num_threads())
    found: list[Result] = [
        Figure(
            name=f"Head-ablation sweep, {name}, equal work",
            against=PLAIN,
            ratio=ratio,
            low=low,
            high=high,
            rounds=len(clocks),
            ours_s=ours_s,
            other_s=plain_s * len(jobs),
            target=2.5,
            difference=off_from_plain(party.plain, work, {j: values[j] for j in some}),
            tolerance=METRIC_TOLERANCE,
            note=f"{kinds['group']} groups ({shown} heads), {kinds['union']} unions, {kinds['single']} single heads, "
            f"{kinds['draw']} draws; zero ablation.  The plain loop ran {sum(len(c.ours) for c in clocks)} "
            f"head sets of a seeded sample in turns with ours and is multiplied by {len(jobs)}.  The quartiles "
            "are over the five parts (a group's draws with a fifth of the rest), which differ in how deep "
            f"their heads lie.  {_fewer(draws)}Equal: margin and answer probability of every prompt, on a sample.",
            **common,
        )
    ]
    found += _tools(
        f"Head-ablation sweep, {name}, equal work", others, off, clocks, ratio, ours_s, plain_s, jobs
    )
    found.append(_layers(work, jobs, party, quick))
    return found


def _fewer(draws: int) -> str:
    """What a run with fewer draws than a cell's says about it."""
    if draws >= 399:
        return ""
    return (
        f"A cell of five groups has 399 draws each (`BENCH_DRAWS=399`, over an hour here); this run took {draws}, "
        "which share less of their beginnings and leave less for early stopping to save.  "
    )


def _tools(
    name: str,
    others: Mapping[str, Competitor],
    off: Mapping[str, float],
    clocks: Sequence[Pauses],
    ratio: float,
    ours_s: float,
    plain_s: float,
    jobs: Sequence[Job],
) -> list[Result]:
    if not others:
        return [Note(title=f"{name}: other tools", text="Skipped in a quick run.")]
    found: list[Result] = []
    for tool, one in others.items():
        versus = np.concatenate([c.versus[tool] for c in clocks])  # theirs / plain in the same pause
        low, middle, high = np.percentile(versus, [25, 50, 75])
        found.append(
            Figure(
                name=name,
                against=f"{TOOLS[tool]} {one.version}",
                kind="speedup",
                ratio=float(middle) * ratio,
                low=float(low) * ratio,
                high=float(high) * ratio,
                rounds=len(versus),
                ours_s=ours_s,
                other_s=float(middle) * plain_s * len(jobs),
                threads=torch.get_num_threads(),
                target=2.5,
                difference=off[tool],
                tolerance=LOGIT_TOLERANCE,
                note=f"{middle:.2f} x the plain loop's time for the same head set in the same pause, times the "
                "plain loop's ratio.  Equal: last-position logits against the plain loop, on a sample.",
            )
        )
    return found


def _cell(work: Work, quick: bool, say: Say, *, draws: int) -> Figure:
    jobs = cell_jobs(work, draws=draws)
    picked = sample(jobs, 6 if quick else 64)
    party = Party(work)
    for job in picked[:2]:  # warm up
        party(job)
    every = 0.2 if quick else 30.0
    clock = Pauses(party, {}, picked, every=every)
    early = Watched(work.model, work.prompts)
    early.pauses = clock
    clock.start()
    effects = effects_of(early, work)
    stopped, notes = verdicts(early, work, effects, draws=draws, early_stop=True)
    clock.pause()
    found = kept(_kept(quick), stamp(work, draws))
    say(
        "the full nulls: "
        + ("kept by sweep-smollm2" if found is not None else "nothing kept, computing them")
    )
    # without kept values the planner that stopped early goes on: it remembers the draws it has made
    planner = Replay(work, found) if found is not None else early.planner
    full = Ablator(work.model, work.prompts, planner=planner)
    every_draw, _ = verdicts(full, work, effects_of(full, work), draws=draws, early_stop=False)
    same = ["group", "metric", "verdict"]
    differ = int((stopped[same].to_numpy() != every_draw[same].to_numpy()).any(axis=1).sum())
    used = {r["group"]: int(r["n_null"]) for r in notes.to_dict("records")}
    ratio = len(jobs) / clock.cost
    spread = np.percentile(clock.neighbour, [25, 50, 75]) / np.median(clock.neighbour)
    say(f"whole cell: {clock.seconds:.0f} s, {ratio:.2f} x; draws used {used}; {differ} verdicts differ")
    return Figure(
        name=f"Whole cell with sequential early stopping, {work.model.name}",
        against=PLAIN,
        kind="speedup",
        ratio=ratio,
        low=ratio * float(spread[0]),
        high=ratio * float(spread[2]),
        rounds=len(clock.ours),
        ours_s=clock.seconds,
        other_s=float(np.mean(clock.neighbour)) * len(jobs),
        threads=torch.get_num_threads(),
        target=5.0,
        difference=float(differ),
        tolerance=0.0,
        note=f"One run with effects, noise floor, intervals and verdicts; the plain loop runs every head set "
        f"(no stopping) and computes no intervals.  {_fewer(draws)}Draws used of {draws}: "
        + ", ".join(f"{g} {n}" for g, n in used.items())
        + f".  {_needed(used, draws, len(jobs))}  Quartiles are the plain loop's.  Equal: the number of verdicts "
        "that differ from those of the full nulls.",
    )


def _needed(used: Mapping[str, int], draws: int, total: int) -> str:
    """What stopping can save at most: a group outside its null needs every draw."""
    run = total - sum(draws - n for n in used.values())
    apart = sum(n == draws for n in used.values())
    return (
        f"{apart} of {len(used)} groups stand outside their null and need every draw, so {run} of {total} head sets "
        f"had to run: stopping saves {total / run:.2f} x, the rest is the equal work's saving."
    )


def _layers(work: Work, jobs: Sequence[Job], party: Party, quick: bool) -> Note:
    """What each layer of saving brings, on draws of one null: all of them edit the same layers."""
    first = next(iter(work.groups))
    null = [j for j in jobs if j.kind == "draw" and j.name.rsplit(" ", 1)[0] == first]
    null, some = (null[:8], null[:3]) if quick else (null[:64], null[:5])
    last = Party(work, last=True)
    rounds = 2

    def ours(members: Sequence[Job], *, keyed: bool = False, **options: Any) -> Callable[[], object]:
        ready = []
        for _ in range(rounds):  # one planner a round: a planner remembers; the clean pass is not compared
            planner = Planner(work.model, work.prompts, **options)
            planner.noise_floor  # noqa: B018
            ready.append(Ablator(work.model, work.prompts, planner=planner))
        turns = iter(ready)

        def go() -> object:
            ablator = next(turns)
            return list(ablator.planner.run(conditions(ablator, members, keyed=keyed)))

        return go

    calls: dict[str, tuple[Callable[[], object], int]] = {
        "plain hooks, full logits": (lambda: [party(j) for j in some], len(some)),
        "plain hooks, last position's logits": (lambda: [last(j) for j in some], len(some)),
        "planner, nothing reused": (ours(some, reuse=False, stack=1), len(some)),
        "planner, clean prefix reused": (ours(some, stack=1), len(some)),
        f"planner, {len(null)} draws that share their beginnings": (ours(null, keyed=True), len(null)),
    }
    taken = timing.interleaved(*(call for call, _ in calls.values()), rounds=rounds, warmup=0)
    each = {k: float(np.median(t)) / n for (k, (_, n)), t in zip(calls.items(), taken, strict=True)}
    base = next(iter(each.values()))
    text = "; ".join(f"{k}: {s * 1000:.0f} ms ({base / s:.2f} x)" for k, s in each.items())
    where = ", ".join(map(str, null[0].layers))
    return Note(
        title=f"Layers of saving, {work.model.name}",
        text=f"A head set of the null of {first} (blocks {where} of {work.model.n_layers}) takes, {text}.  "
        "Medians of two rounds in turns.",
    )
