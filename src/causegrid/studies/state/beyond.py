"""Subspaces fitted at one length, erased at longer ones (MEASURES 3.2).

Subspace and mean stay those of the fitting length; everything measured is of the longer one: the task on fresh
test sequences, a probe and a *refitted* probe there, their no-model baseline, the reading.  A state that is
carried by other directions further on shows as a fresh probe that reads it again.  Blocks only: the embedding
output holds the token at every length.  Every position counts here:
there are few test sequences, and "at baseline" asks for an interval of 2 percentage points.  The probes are
trained on as many rows as at the fitting length, whatever the number of test sequences: with fewer, a fresh
probe would find less, and every erasure would look more thorough further on.

A length that the model's positions or the task cannot take is no result and no failure: its rows are kept,
without numbers, under a `mark` that says why, so that a table always holds every length asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from causegrid.errors import InputError
from causegrid.models.record import Model
from causegrid.signatures.activations import Activations, check_label, collect
from causegrid.studies.state.erasure import erased_layer, unmeasured
from causegrid.studies.state.fitted import KINDS, Rank, Subspace, chosen, fit_subspaces
from causegrid.studies.state.readings import bench, check_classes


def beyond_table(
    model: Model,
    task: Any,
    *,
    activations: Activations,
    subspaces: Mapping[int, Sequence[Subspace]] | None = None,
    label: str | None = None,
    bases: Sequence[str] = KINDS,
    ranks: Sequence[Rank] = (1, "full"),
    lengths: Sequence[int] = (80, 100, 120),
    n_test: int = 100,
    n_random: int = 19,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """One row per length, block, kind and rank of subspaces fitted on `activations`.

    `subspaces` (of `fit_subspaces` with the same activations, these kinds and ranks or more) are made here when
    not given.  `n_test` sequences of each length test the probes and the task there.
    Columns as `erasure_table`, and `fitted_length` (of `activations`; `variance` and the matched components are
    those of that length) beside `length`, where the subspace is applied; `mark`: why a length has no numbers.
    `refit_control` is not measured here (NaN).
    Raises InputError for no length, lengths and kinds and ranks that do not exist.
    """
    if not lengths or min(lengths) < 1:
        raise InputError(f"lengths {list(lengths)}: at least one is needed, each of 1 or more")
    if n_random < 1:
        raise InputError(f"n_random is {n_random}: at least 1 random subspace is needed")
    name = check_label(activations.labels, label)
    asked: dict[str, Any] = {"label": name, "bases": bases, "ranks": ranks}
    fitted = chosen(subspaces or fit_subspaces(activations, progress=progress, **asked), activations, **asked)
    fitted = {layer: some for layer, some in fitted.items() if layer >= 0}
    tables = []
    total = len(lengths) * len(fitted)
    for i, length in enumerate(lengths):
        n_train = -(-len(activations.train.sequence) // length)
        rows, why = [], ""
        try:
            there = collect(
                model, task, length=length, n_train=n_train, n_test=n_test, seed=seed, n_positions=None
            )
            check_classes(there, name)
        except InputError as error:  # positions, task or classes: no result and no failure
            why = str(error)
            rows = [unmeasured(s, name, length) for some in fitted.values() for s in some]
        else:
            at = bench(model, task, there, name, seed)
            for j, some in enumerate(fitted.values()):
                if some:
                    rows += erased_layer(at, some, n_random=n_random, n_random_refits=0, seed=seed)
                if progress is not None:
                    progress(i * len(fitted) + j + 1, total, f"erasing at length {length}")
        tables.append(pd.DataFrame(rows).assign(mark=why))
    table = pd.concat(tables, ignore_index=True)
    table.insert(3, "fitted_length", activations.length)
    return table.astype({"iterations": "Int64", "removed": "boolean"})
