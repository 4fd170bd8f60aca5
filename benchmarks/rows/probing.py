"""Probing a whole cell, all layers, labels and baselines, against training the median family for 2000 steps.

Probing is what a cell's probe stage does with the study's own sizes: states of the trained and of the
untrained model captured, then every probe, untrained, shuffled and control fit.  Weights are random: labels
that cannot be read are the slow case for a solver.  Training is the median over the families of one
step, times 2000; each round times every family's step beside the probing.

The probe must be the optimum whatever its solver: predictions on the test split are compared with
scikit-learn's own logistic regression, run in float64 to a gradient of 1e-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import steps, timing
from benchmarks.bench import Result, Say, figure, row

STEPS, TARGET = 2000, 0.10
DISAGREE = 0.005  # share of test rows: near ties fall either way


def probe_cell(model: Any, fresh: Any, task: Any, sizes: dict[str, int]) -> None:
    """The probe stage of a cell."""
    from causegrid.signatures import collect, profile_of

    found, plain = (collect(m, task, **sizes) for m in (model, fresh))
    profile_of(found, list(task.labels), untrained=plain)


def disagreement(model: Any, task: Any, sizes: dict[str, int]) -> float:
    """Share of test rows that our probe and scikit-learn's optimum call differently, the last block's states."""
    from sklearn.linear_model import LogisticRegression

    from causegrid.signatures import Probe, collect

    found = collect(model, task, **sizes)
    layer, label = found.layers[-1], next(iter(found.labels))
    x, y = found.train.x[layer].astype(np.float64), found.train.y[label]
    centre, spread = x.mean(0), x.std(0)
    theirs = LogisticRegression(tol=1e-8, max_iter=20_000).fit((x - centre) / spread, y)
    wanted = theirs.predict((found.test.x[layer] - centre) / spread)
    got = Probe(tol=1e-7, max_iter=2000).fit(found.train.x[layer], y).predict(found.test.x[layer])
    return float((got != wanted).mean())


@row("probing", title="Probing a cell")
def run(quick: bool, say: Say) -> Sequence[Result]:
    """S3 with its two labels, a Transformer's five layers, one thread."""
    import causegrid as cg
    from causegrid.models import untrained

    rounds = 1 if quick else 3
    shape = dict(d_model=32, n_layers=1) if quick else {}
    sizes = dict(length=12, n_train=40, n_test=20) if quick else {}
    task = cg.task("s3")
    model = steps.build("transformer", **shape)
    tokens, labels = steps.batch(4, 8) if quick else steps.batch(64, 40)
    with timing.threads(1):
        training = [
            steps.training_step(steps.build(family, **shape).module, tokens, labels)
            for family in steps.FAMILIES
        ]
        fresh = untrained(model, seed=1)
        ours, *families = timing.interleaved(
            lambda: probe_cell(model, fresh, task, sizes), *training, rounds=rounds, warmup=1
        )
        off = disagreement(model, task, sizes or dict(n_train=100, n_test=100))
    step = np.median(families, axis=0)  # (rounds,)
    say(f"probing a cell: {np.median(ours):.1f} s; median step {1e3 * np.median(step):.0f} ms")
    return [
        figure(
            "Probing all layers and labels of a cell, all baselines",
            f"training the median family for {STEPS} steps",
            "cost",
            ours=ours,
            other=step * STEPS,
            threads=1,
            target=TARGET,
            difference=off,
            tolerance=DISAGREE,
            note="five draws each of shuffled labels and control tasks; compared: the share of test rows called "
            "differently by scikit-learn's optimum in float64",
        )
    ]
