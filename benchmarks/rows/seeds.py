"""A cell's three seeds on two cores: one after another on two threads, side by side, stacked in one model.

Side by side is what `causegrid run --workers 2` does: a process per run with one thread, two at a time, the
third when one is free.  The processes are started and have trained once before anything is timed, as in a
grid, where a worker lives for many cells.  Whole runs of `causegrid.train` are timed, with everything a run
does besides steps, at one length.  With more cells than these three seeds no worker waits for the third.

Stacked seeds share one call: the Transformer's weights get a leading axis and `torch.func.vmap` does the rest.
The other families have no such form: torch has no batching rule for its GRU and LSTM, and the scans are
compiled loops.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import steps, timing
from benchmarks.bench import Figure, Note, Result, Say, figure, row

FAMILIES = {"transformer": "Transformer", "mamba": "Mamba", "mamba2": "Mamba-2", "lstm": "LSTM", "gru": "GRU"}
SEEDS = (0, 1, 2)
FIRST = 10  # steps whose losses are compared: later ones drift apart by rounding alone
Job = tuple[str, int, int, int, int]  # family, seed, steps, batch, length


def one_run(job: Job) -> list[float]:
    """A training run from fresh weights; the losses of its first steps."""
    import causegrid as cg

    family, seed, n, batch, length = job
    task = cg.task("s3")
    model = cg.model(family, task=task, seed=seed)
    done = cg.train(
        model,
        task,
        steps=n,
        seed=seed,
        batch=batch,
        length=length,
        schedule="fixed",
        eval_lengths=(),
        n_eval=8,
    )
    losses: list[float] = done.history.loss.tolist()[:FIRST]
    return losses


def stacked_step(modules: Sequence[nn.Module], tokens: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """A function that takes one step of all `modules` as one model; tokens, labels (S, B, L); losses (S,)."""
    weights, buffers = torch.func.stack_module_state(list(modules))
    optimizer = torch.optim.AdamW(list(weights.values()), lr=0.0, weight_decay=0.01, fused=True)

    def one(own: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor) -> Any:
        return torch.func.functional_call(modules[0], (own, rest), (x,))

    def step() -> Tensor:
        logits = torch.func.vmap(one)(weights, buffers, tokens)  # (S, B, L, classes)
        each = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
        losses = each.view(len(modules), -1).mean(1)
        optimizer.zero_grad()
        torch.autograd.backward(losses.sum())
        grads = [w.grad for w in weights.values() if w.grad is not None]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)  # (S,), each seed clipped
        for g in grads:
            g.mul_((1.0 / norms).clamp(max=1.0).view(-1, *[1] * (g.dim() - 1)))
        optimizer.step()
        return losses.detach()

    return step


def side_by_side(quick: bool, say: Say) -> list[Figure]:
    """Three runs in two processes of one thread, against the three in turn on two threads."""
    n, batch, length = (2, 4, 8) if quick else (20, 64, 40)
    threads = 1 if quick else 2
    results: list[Figure] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for family, name in list(FAMILIES.items())[: 1 if quick else None]:
            jobs: list[Job] = [(family, seed, n, batch, length) for seed in SEEDS]
            found: dict[str, list[list[float]]] = {}

            def parallel(jobs: list[Job] = jobs, found: dict[str, Any] = found) -> None:
                found["parallel"] = list(pool.map(one_run, jobs))

            def in_turn(jobs: list[Job] = jobs, found: dict[str, Any] = found) -> None:
                with timing.threads(threads):
                    found["in turn"] = [one_run(job) for job in jobs]

            ours, other = timing.interleaved(parallel, in_turn, rounds=1 if quick else 3)
            off = (torch.tensor(found["parallel"]) - torch.tensor(found["in turn"])).abs().max().item()
            results.append(
                figure(
                    f"{name}, three seeds side by side",
                    f"the three one after another on {threads} thread{'s' * (threads > 1)}",
                    "speedup",
                    ours=ours,
                    other=other,
                    threads=threads,
                    target=None,
                    difference=off,
                    tolerance=1e-3,
                    note=f"{n} steps each; equal: the losses of the first {min(n, FIRST)} steps of every seed.",
                )
            )
            say(f"{name}: side by side {results[-1].ratio:.2f} x")
    return results


def stacked(quick: bool, say: Say) -> Figure:
    """One step of three Transformers as one, against three steps."""
    sizes = dict(d_model=32, n_layers=1) if quick else dict(d_model=128, n_layers=4)
    data = [steps.batch(4, 8, seed=s) if quick else steps.batch(64, 40, seed=s) for s in SEEDS]
    modules = [steps.build("transformer", seed=s, **sizes).module for s in SEEDS]
    together = stacked_step(modules, torch.stack([t for t, _ in data]), torch.stack([l for _, l in data]))
    apart = [steps.training_step(module, *pair) for module, pair in zip(modules, data, strict=True)]
    with torch.no_grad():
        wanted = torch.stack([steps.loss_of(m, *pair)[0] for m, pair in zip(modules, data, strict=True)])
    off = (together() - wanted).abs().max().item()
    with timing.threads(1 if quick else 2):
        ours, other = timing.interleaved(
            together, lambda: [step() for step in apart], rounds=2 if quick else 7
        )
    result = figure(
        "Transformer, one step of three seeds stacked by vmap",
        "three steps one after another",
        "speedup",
        ours=ours,
        other=other,
        threads=1 if quick else 2,
        target=None,
        difference=off,
        tolerance=1e-5,
        note="Equal: the loss of every seed.",
    )
    say(f"Transformer: stacked {result.ratio:.2f} x")
    return result


@row("seeds", title="Three seeds of a cell")
def run(quick: bool, say: Say) -> Sequence[Result]:
    """Which way of training three seeds is faster, by family."""
    parallel, one = side_by_side(quick, say), stacked(quick, say)
    wins = [found.name.split(",")[0] for found in parallel if found.low > 1.0]
    text = (
        f"Side by side is faster than one after another for {', '.join(wins) or 'no family'} "
        f"(lower quartile above 1); three stacked Transformers take {1 / one.ratio:.2f} times as long as three "
        "in turn.  `causegrid run --workers 2` runs cells side by side, one thread each."
    )
    return [*parallel, one, Note(title="Three seeds", text=text)]
