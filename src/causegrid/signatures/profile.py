"""Probe profile of one model on one state task: accuracy by layer, with everything it must be held against.

Definitions: MEASURES 2.1.  Intervals are percentile bootstraps over test *sequences*, since positions of one
sequence are not independent.

Profile summary (*ours*): with base the best no-model baseline, gain = max(0, (acc - base) / (1 - base)), as
being worse than a lookup table is no gain.  The profile starts from gain 0 before the embedding output;
increments below 0 are clipped.  `last_block_share` is the last block's increment over the sum of increments,
`depth_centre` their centre of mass with the embedding output at 0 and the last block at 1.  Both are
undefined (NaN) when `total_gain`, the gain of the best layer, is under 0.05.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from causegrid.errors import InputError
from causegrid.evidence.effects import bootstrap_mean
from causegrid.models.record import Model
from causegrid.signatures.activations import N_POSITIONS, Activations, check_label, collect
from causegrid.signatures.baselines import control_labels, no_model_baselines, shuffled_accuracy
from causegrid.signatures.probes import Probe, balanced

NO_MODEL = ["baseline_majority", "baseline_position", "baseline_token", "baseline_token_pair"]
MIN_GAIN = 0.05


def profile_of(
    activations: Activations,
    label: str | None = None,
    *,
    untrained: Activations | None = None,
    probes: dict[int, Probe] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The profile of one label from captured activations; columns as `probe_profile`.

    `probes` (from `fit_probes`) are fitted here when not given; `untrained`: the untrained model's
    activations on the same sequences (None: that baseline is NaN).
    """
    name = check_label(activations.labels, label)
    train, test = activations.train, activations.test
    y_train, y_test = train.y[name], test.y[name]
    no_model = no_model_baselines(activations, name)
    control_train, control_test = control_labels(activations, activations.labels[name], seed)
    table = []
    for layer in activations.layers:
        x, x_test = train.x[layer], test.x[layer]
        probe = probes[layer] if probes is not None else Probe().fit(x, y_train)
        predicted = probe.predict(x_test)
        right = predicted == y_test
        low, high = bootstrap_mean(test.per_sequence(right))
        accuracy = float(right.mean())
        control = Probe().fit(x, control_train).accuracy(x_test, control_test)
        fresh = float("nan")
        if untrained is not None:
            plain = Probe().fit(untrained.train.x[layer], y_train)
            fresh = plain.accuracy(untrained.test.x[layer], y_test)
        table.append(
            {
                "layer": layer,
                "label": name,
                "length": activations.length,
                "accuracy": accuracy,
                "low": low,
                "high": high,
                "balanced": balanced(predicted, y_test),
                "n_train": train.n_sequences,
                "n_test": test.n_sequences,
                **{f"baseline_{key}": value for key, value in no_model.items()},
                "baseline_untrained": fresh,
                "baseline_shuffled": shuffled_accuracy(x, y_train, x_test, y_test, seed),
                "baseline_control": control,
                "selectivity": accuracy - control,
                "n_positions": len(test.position) // test.n_sequences,
            }
        )
    return pd.DataFrame(table)


def probe_profile(
    model: Model,
    task: Any,
    *,
    length: int = 40,
    n_train: int = 400,
    n_test: int = 200,
    labels: Sequence[str] | str | None = None,
    seed: int = 0,
    untrained: Model | Literal[False] | None = None,
    n_positions: int | None = N_POSITIONS,
) -> pd.DataFrame:
    """Probe accuracy at the embedding output (layer -1) and every block output, per label (MEASURES 2.1).

    Columns `layer, label, length, accuracy, low, high, balanced, n_train, n_test` (sequences),
    `baseline_majority, baseline_position, baseline_token, baseline_token_pair, baseline_untrained,
    baseline_shuffled, baseline_control, selectivity, n_positions` (per sequence; None takes all).
    `labels`: which of the task's labels, default all.  `untrained`: the model to compare with, None makes one
    of the same sizes, False leaves the column NaN.
    Raises InputError for prompt tasks, unknown labels, and labels with a single class in the training split.
    """
    if getattr(task, "kind", "") != "state":
        raise InputError(f"task {getattr(task, 'name', task)!r} has no states to probe: use a state task")
    asked = [labels] if isinstance(labels, str) else labels
    names = list(task.labels) if asked is None else [check_label(task.labels, n) for n in asked]
    sizes: dict[str, Any] = dict(
        length=length, n_train=n_train, n_test=n_test, seed=seed, n_positions=n_positions
    )
    activations = collect(model, task, **sizes)
    fresh: Activations | None = None
    if untrained is not False:
        if untrained is None:
            from causegrid.models import untrained as make_untrained

            other: Model = make_untrained(model, seed=seed)
        else:
            other = untrained
        fresh = collect(other, task, **sizes)
    tables = [profile_of(activations, name, untrained=fresh, seed=seed) for name in names]
    return pd.concat(tables, ignore_index=True)


def profile_summary(profile: pd.DataFrame) -> pd.DataFrame:
    """One row per label and length: `label, length, base, total_gain, last_block_share, depth_centre`.

    Raises InputError when a layer is missing or there twice.
    """
    table = []
    for (label, length), rows in profile.groupby(["label", "length"], sort=False):
        ordered = rows.sort_values("layer")
        layers = ordered["layer"].to_numpy()
        if len(layers) < 2 or not np.array_equal(layers, np.arange(-1, len(layers) - 1)):
            raise InputError(f"profile of label {label!r}: layers must be -1, 0, 1, ..., got {list(layers)}")
        base = float(ordered[NO_MODEL].to_numpy().max())
        accuracy = ordered["accuracy"].to_numpy(dtype=np.float64)
        gain = np.maximum((accuracy - base) / (1 - base), 0) if base < 1 else np.zeros(len(layers))
        increments = np.maximum(np.diff(gain, prepend=0.0), 0)  # (n_layers + 1,)
        share = centre = float("nan")
        if gain.max() >= MIN_GAIN:
            share = float(increments[-1] / increments.sum())
            centre = float(increments @ np.linspace(0, 1, len(layers)) / increments.sum())
        table.append(
            {
                "label": label,
                "length": length,
                "base": base,
                "total_gain": float(gain.max()),
                "last_block_share": share,
                "depth_centre": centre,
            }
        )
    columns = ["label", "length", "base", "total_gain", "last_block_share", "depth_centre"]
    return pd.DataFrame(table, columns=columns)
