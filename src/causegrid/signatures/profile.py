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

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from causegrid.errors import InputError
from causegrid.evidence.effects import bootstrap_mean
from causegrid.models.record import Model
from causegrid.signatures.activations import N_POSITIONS, Activations, check_label, collect
from causegrid.signatures.baselines import control_accuracies, no_model_baselines, shuffled_accuracies
from causegrid.signatures.probes import Probe, balanced
from causegrid.signatures.standard import Standard, standard

NO_MODEL = ["baseline_majority", "baseline_position", "baseline_token", "baseline_token_pair"]
MIN_GAIN = 0.05
COLUMNS = [
    *("layer", "label", "length", "accuracy", "low", "high", "balanced", "n_train", "n_test"),
    *NO_MODEL,
    *("baseline_untrained", "baseline_shuffled", "baseline_control", "selectivity", "n_positions"),
    *("shuffled_low", "shuffled_high", "control_low", "control_high", "n_draws"),
]


def profile_of(
    activations: Activations,
    labels: Sequence[str] | str | None = None,
    *,
    untrained: Activations | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """The profile from captured activations; columns as `probe_profile`, labels in the order given.

    `labels`: one or several, default the task's first; `untrained`: the untrained model's activations on the
    same sequences (None: that baseline is NaN); `progress(layers done, layers)`.
    """
    asked = [labels] if labels is None or isinstance(labels, str) else labels
    names = [check_label(activations.labels, name) for name in asked]
    no_model = {name: no_model_baselines(activations, name) for name in names}
    table = []
    for i, layer in enumerate(activations.layers):
        x = standard(activations.train.x[layer])
        plain = None if untrained is None else standard(untrained.train.x[layer])
        for name in names:
            row = _row(activations, name, layer, x, untrained, plain, seed)
            table.append({**row, **{f"baseline_{key}": value for key, value in no_model[name].items()}})
        if progress is not None:
            progress(i + 1, len(activations.layers))
    rows = pd.DataFrame(table, columns=COLUMNS)
    return pd.concat([rows[rows["label"] == name] for name in names], ignore_index=True)


def _row(
    activations: Activations,
    name: str,
    layer: int,
    x: Standard,
    untrained: Activations | None,
    plain: Standard | None,
    seed: int,
) -> dict[str, Any]:
    """One layer and label: the probe and the baselines that need one."""
    test = activations.test
    x_test, y_train, y_test = test.x[layer], activations.train.y[name], test.y[name]
    predicted = Probe().fit(x, y_train).predict(x_test)
    right = predicted == y_test
    low, high = bootstrap_mean(test.per_sequence(right))
    fresh = float("nan")
    if untrained is not None and plain is not None:
        fresh = Probe().fit(plain, y_train).accuracy(untrained.test.x[layer], y_test)
    shuffled = shuffled_accuracies(x, y_train, x_test, y_test, seed)
    control = control_accuracies(activations, name, x, x_test, seed)
    return {
        "layer": layer,
        "label": name,
        "length": activations.length,
        "accuracy": float(right.mean()),
        "low": low,
        "high": high,
        "balanced": balanced(predicted, y_test),
        "n_train": activations.train.n_sequences,
        "n_test": test.n_sequences,
        "baseline_untrained": fresh,
        "baseline_shuffled": float(shuffled.mean()),
        "baseline_control": float(control.mean()),
        "selectivity": float(right.mean() - control.mean()),
        "n_positions": len(test.position) // test.n_sequences,
        "shuffled_low": float(shuffled.min()),
        "shuffled_high": float(shuffled.max()),
        "control_low": float(control.min()),
        "control_high": float(control.max()),
        "n_draws": len(control),
    }


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
    baseline_shuffled, baseline_control, selectivity, n_positions` (per sequence; None takes all),
    `shuffled_low, shuffled_high, control_low, control_high` (smallest and largest of the `n_draws` draws whose
    means the two baselines are), `n_draws`.
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
    return profile_of(activations, names, untrained=fresh, seed=seed)


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
