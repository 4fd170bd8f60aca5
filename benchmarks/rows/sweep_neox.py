"""Every single head of a small GPT-NeoX with a vocabulary of 50,304, against the same parties as `sweeps.py`.

Ours and the plain loop run in full every round, the other tools on a sample that is multiplied.  The weights
are random: speed does not depend on their values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import timing
from benchmarks.bench import Figure, Note, Result, Say, figure, row
from benchmarks.competitors.client import Competitor
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
)
from benchmarks.workload import Job, Work, sample, tiny
from causegrid.interventions.heads import Ablator
from causegrid.interventions.sweep import Planner


@row("sweep-neox", title="Every single head of a small GPT-NeoX with a vocabulary of 50,304")
def run(quick: bool, say: Say) -> list[Result]:
    """All single heads, ours and the plain loop in full every round, the other tools on a sample."""
    with timing.threads(1 if quick else THREADS):
        work = tiny("gpt_neox", **TINY) if quick else tiny("gpt_neox")
        with tools(work, "neox", say, quick=quick) as others:
            return _neox(work, others, say, rounds=2 if quick else 7)


def _neox(work: Work, others: dict[str, Competitor], say: Say, *, rounds: int) -> list[Result]:
    jobs = [Job("single", h, (h,)) for h in work.heads]
    few = sample(jobs, 8)
    party = Party(work)

    def ours() -> dict[Job, np.ndarray]:
        planner = Planner(work.model, work.prompts)
        ablator = Ablator(work.model, work.prompts, planner=planner)
        runs = planner.run(conditions(ablator, jobs))
        return {job: values for job, (_, values) in zip(jobs, runs, strict=True)}

    off = {tool: off_from_tool(party.plain, one, few[:4]) for tool, one in others.items()}
    seconds: dict[str, list[float]] = {tool: [] for tool in others}

    def tool_call(tool: str) -> Callable[[], None]:
        return lambda: seconds[tool].append(sum(others[tool].seconds([j.layers for j in few])))

    calls = [ours, lambda: [party(j) for j in jobs], *(tool_call(t) for t in others)]
    mine, plain, *_ = timing.interleaved(*calls, rounds=rounds)
    settings = f"{work.model.n_layers} blocks of {work.model.n_heads} heads, width {work.model.d_model}"
    about = (
        f"{len(jobs)} head sets, {len(work.prompts)} prompts of {work.tokens.shape[1]} tokens, {settings}."
    )
    common: dict[str, Any] = dict(kind="speedup", ours=mine, threads=torch.get_num_threads(), target=4.0)
    name = "Every single head, small GPT-NeoX"
    found: list[Result] = [
        figure(
            name,
            PLAIN,
            other=plain,
            difference=off_from_plain(party.plain, work, ours()),
            tolerance=METRIC_TOLERANCE,
            note=about
            + "  The clean pass is in our time.  Equal: margin and answer probability of every prompt.",
            **common,
        )
    ]
    for tool, one in others.items():
        scaled = np.asarray(seconds[tool][-rounds:]) * len(jobs) / len(few)
        found.append(
            figure(
                name,
                f"{TOOLS[tool]} {one.version}",
                other=scaled,
                difference=off[tool],
                tolerance=LOGIT_TOLERANCE,
                note=f"{len(few)} head sets timed each round, multiplied to {len(jobs)}.",
                **common,
            )
        )
    if not others:
        found.append(Note(title=f"{name}: other tools", text="Skipped in a quick run."))
    for one_found in found:
        if isinstance(one_found, Figure):
            say(f"{one_found.against}: {one_found.ratio:.2f} x, off by {one_found.difference:.1e}")
    return found
