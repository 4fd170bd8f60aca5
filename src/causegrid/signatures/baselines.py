"""What a probe's accuracy must be held against (MEASURES 2.1).

No model: majority, position-only, token-only, current + previous token.  Each is the best lookup table there
is: the training split's majority class per key, the overall majority for keys never seen.  With a model: the
same probe on the untrained model, on shuffled labels, and on a control task (Hewitt & Liang 2019): a random
class per token type and bucket of ten positions, which a probe can only get right by memorising.  Selectivity
is accuracy minus control accuracy.

One draw of a control task is a poor yardstick: with two tokens and four buckets its accuracy moves by 0.1
from draw to draw.  Shuffles and control tasks are drawn `N_DRAWS` times; mean, smallest and largest are kept.
"""

from __future__ import annotations

import numpy as np

from causegrid.signatures.activations import Activations, Rows
from causegrid.signatures.logistic import Ints
from causegrid.signatures.probes import Probe
from causegrid.signatures.standard import Floats32, Floats64, Standard

BUCKET = 10
N_DRAWS = 5


def looked_up(train_key: Ints, train_y: Ints, test_key: Ints) -> Ints:
    """The training split's majority class per key, for the test keys (all (N,)); ties go to the smaller class."""
    keys, index = np.unique(train_key, return_inverse=True)
    n_classes = int(train_y.max()) + 1
    counts = np.bincount(index * n_classes + train_y, minlength=len(keys) * n_classes)
    per_key = counts.reshape(len(keys), n_classes).argmax(axis=1)  # (K,)
    overall = int(np.bincount(train_y).argmax())
    slot = np.minimum(np.searchsorted(keys, test_key), len(keys) - 1)
    return np.where(keys[slot] == test_key, per_key[slot], overall)


def lookup_accuracy(train_key: Ints, train_y: Ints, test_key: Ints, test_y: Ints) -> float:
    """Accuracy of `looked_up` on the test split."""
    return float((looked_up(train_key, train_y, test_key) == test_y).mean())


def lookup_keys(rows: Rows, n_tokens: int) -> dict[str, Ints]:
    """What each lookup table may look at: `majority` (nothing), `position`, `token`, `token_pair`."""
    return {
        "majority": np.zeros_like(rows.token),
        "position": rows.position,
        "token": rows.token,
        "token_pair": (rows.previous + 1) * n_tokens + rows.token,
    }


def no_model_baselines(activations: Activations, label: str) -> dict[str, float]:
    """`majority`, `position`, `token`, `token_pair`: test accuracies of the lookup tables."""
    train, test = (lookup_keys(rows, activations.n_tokens) for rows in (activations.train, activations.test))
    y_train, y_test = activations.train.y[label], activations.test.y[label]
    return {name: lookup_accuracy(train[name], y_train, test[name], y_test) for name in train}


def control_labels(activations: Activations, n_classes: int, seed: int, draw: int = 0) -> tuple[Ints, Ints]:
    """Control labels of the train and the test rows: a random class per (token, position bucket), every class
    used about equally often over the pairs."""
    buckets = -(-activations.length // BUCKET)
    n_keys = activations.n_tokens * buckets
    rng = np.random.default_rng([seed, n_classes, draw])
    table = rng.permutation(np.arange(n_keys) % n_classes)

    def of(rows: Rows) -> Ints:
        return np.asarray(table[rows.token * buckets + rows.position // BUCKET], dtype=np.int64)

    return of(activations.train), of(activations.test)


def control_accuracies(
    activations: Activations, label: str, x: Standard, test: Floats32, seed: int, n: int = N_DRAWS
) -> Floats64:
    """Accuracies (n,) of probes trained and tested on `n` control tasks with as many classes as `label`, from
    one layer's train and test rows."""
    n_classes = activations.labels[label]
    pairs = (control_labels(activations, n_classes, seed, draw) for draw in range(n))
    return np.array([Probe().fit(x, train_y).accuracy(test, test_y) for train_y, test_y in pairs])


def shuffled_accuracies(
    x: Standard, y_train: Ints, test: Floats32, y_test: Ints, seed: int, n: int = N_DRAWS
) -> Floats64:
    """Accuracies (n,) of probes trained on permuted labels, tested on the real ones: what is left is the label
    distribution."""
    rng = np.random.default_rng([seed, 1])
    return np.array([Probe().fit(x, rng.permutation(y_train)).accuracy(test, y_test) for _ in range(n)])
