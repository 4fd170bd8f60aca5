"""Who takes part in a sweep benchmark: the plain loop, the other tools, ours, and the checks that they agree.

All parties have the same weights, tokens, batch and threads.  The plain loop and the other tools run one head
set at a time and compute the logits of every position, as their users do.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.bench import Say
from benchmarks.competitors import env
from benchmarks.competitors.client import Competitor
from benchmarks.competitors.plain import Plain
from benchmarks.workload import Job, Work, metric_oracle
from causegrid.interventions.heads import Ablator
from causegrid.interventions.metrics import METRICS
from causegrid.interventions.sweep import Condition

THREADS = int(os.environ.get("BENCH_THREADS", "2"))  # of every party of a sweep
PLAIN = "a loop over plain hooks, full logits"
TOOLS = {
    "with_transformer_lens": "TransformerLens",
    "with_nnsight": "nnsight",
    "with_pyvene": "pyvene",
}
METRIC_TOLERANCE, LOGIT_TOLERANCE = 1e-5, 1e-4
TINY: dict[str, Any] = dict(heads=4, width=64, vocabulary=500, n_prompts=16, length=8)


class Party:
    """Plain hooks on a copy of the model, one head set at a time, timed with the metrics it is run for."""

    def __init__(self, work: Work, *, last: bool = False) -> None:
        self.plain = Plain(copy.deepcopy(work.model.module), work.tokens, last=last)
        pairs = zip(work.prompts.answers, work.prompts.foils, strict=True)
        self.targets = [(torch.as_tensor(a), torch.as_tensor(f)) for a, f in pairs]

    def __call__(self, job: Job) -> float:
        start = time.perf_counter()
        logits = self.plain.last_logits(job.layers)  # (B, V)
        chance = torch.softmax(logits, dim=-1)
        picked = [(logits[i, a], logits[i, f], chance[i, a]) for i, (a, f) in enumerate(self.targets)]
        _ = [(float(a.mean() - f.mean()), float(p.sum())) for a, f, p in picked], logits.argmax(dim=-1)
        return time.perf_counter() - start


@contextmanager
def tools(work: Work, folder: str, say: Say, *, quick: bool) -> Iterator[dict[str, Competitor]]:
    """The other tools on the same weights and tokens, each in a process; none in a quick run."""
    with ExitStack() as scope:
        found: dict[str, Competitor] = {}
        if not quick:
            python = env.python(say)
            where = env.scratch(f"models/{folder}")
            transformers.utils.logging.disable_progress_bar()
            work.model.module.save_pretrained(where)
            if work.model.tokenizer is not None:
                work.model.tokenizer.save_pretrained(where)
            for tool in TOOLS:
                say(f"starting {TOOLS[tool]}")
                one = Competitor(python, tool, where, work.tokens.tolist(), threads=THREADS)
                found[tool] = scope.enter_context(one)
        yield found


def turn(tool: Competitor) -> Callable[[Job], float]:
    """A tool as a party of `Pauses`."""
    return lambda job: tool.seconds([job.layers])[0]


def conditions(ablator: Ablator, jobs: Sequence[Job], *, keyed: bool = True) -> list[Condition]:
    """The jobs as conditions under zero ablation; without keys nothing is shared or remembered."""
    made = ablator.conditions({f"{i} {j.name}": list(j.heads) for i, j in enumerate(jobs)}, "zero")
    return made if keyed else [replace(c, keys=()) for c in made]


def off_from_plain(plain: Plain, work: Work, values: Mapping[Job, np.ndarray]) -> float:
    """Largest difference of any prompt's margin or answer probability from the plain loop's, over some jobs."""
    worst = 0.0
    for job, found in values.items():
        for name, wanted in metric_oracle(plain.last_logits(job.layers), work.prompts).items():
            worst = max(worst, float(np.abs(found[:, METRICS.index(name)] - wanted).max()))
    return worst


def off_from_tool(plain: Plain, tool: Competitor, jobs: Sequence[Job]) -> float:
    """Largest difference of any last-position logit between a tool and the plain loop."""
    theirs = tool.logits([j.layers for j in jobs])  # (K, B, V)
    return max(
        float(np.abs(plain.last_logits(j.layers).numpy() - t).max())
        for j, t in zip(jobs, theirs, strict=True)
    )
