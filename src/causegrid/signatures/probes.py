"""The linear probe: multinomial logistic regression on frozen hidden states (MEASURES 2.1).

L2 with C = 1 on features standardised on the training split, fitted close to the one optimum there is (see
`logistic`): to a gradient of 1e-4, which on the models it was measured on (trained and untrained, with
shuffled and control labels) moved no test accuracy by more than 0.05 percentage points from a fit to 1e-7.
That is no bound: where a label has a few rows in tens of thousands the gradient is small before its plane is
found, the fit stops early, as scikit-learn's default does, and balanced accuracy is below the optimum's.

The fitted plane is taken back to *raw* feature space, where erasure needs it: for labels of two classes too
the weight has one row per class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from causegrid.errors import InputError
from causegrid.signatures.logistic import Ints, solve
from causegrid.signatures.standard import Floats32, Standard, matrix, standard

MAX_ITER = 500
TOLERANCE = 1e-4


class Probe:
    """Multinomial logistic regression; after `fit`:

    `classes` (C,): the labels seen, ascending; `weight` (C, d) and `bias` (C,), float32, in raw feature
    space: `x @ weight.T + bias` are the class scores; `n_iter`: solver iterations; `converged`: whether the
    gradient came down to `tol`.
    Features that are constant on the training split get weight 0.
    """

    def __init__(self, *, c: float = 1.0, max_iter: int = MAX_ITER, tol: float = TOLERANCE) -> None:
        self.c, self.max_iter, self.tol = c, max_iter, tol
        self.classes: Ints = np.empty(0, dtype=np.int64)
        self.weight: Floats32 = np.empty((0, 0), dtype=np.float32)
        self.bias: Floats32 = np.empty(0, dtype=np.float32)
        self.n_iter = 0
        self.converged = False

    def fit(self, x: Any, y: Any, *, start: Floats32 | None = None) -> Probe:
        """x (N, d), or its `Standard` where several labels are fitted on it; y (N,) integer labels.
        Returns itself.

        `start`: class scores (N, C) of a probe of the same rows on features near these, from which the solver
        walks: the optimum is the same, to `tol`, and sooner reached.
        Raises InputError when shapes disagree, values are not finite, or y holds a single class.
        """
        features, labels = x if isinstance(x, Standard) else matrix(x), _labels(y)
        if len(features) != len(labels):
            raise InputError(f"probe of {len(features)} rows and {len(labels)} labels: must be equal")
        self.classes, index = np.unique(labels, return_inverse=True)
        if len(self.classes) < 2:
            found = self.classes[0] if len(self.classes) else "no label at all"
            raise InputError(f"cannot fit a probe: the training split has a single class ({found})")
        ready = features if isinstance(features, Standard) else standard(features)
        if start is not None and start.shape != (len(labels), len(self.classes)):
            raise InputError(
                f"cannot start from scores of shape {start.shape}: here are {len(labels)} rows and "
                f"{len(self.classes)} classes"
            )
        plane = solve(ready, index, c=self.c, tol=self.tol, max_iter=self.max_iter, start=start)
        self.n_iter, self.converged = plane.n_iter, plane.gradient <= self.tol
        weight = plane.weight * ready.scale  # (C, d)
        bias = plane.bias - weight @ ready.centre.astype(np.float64)
        if len(self.classes) == 2:  # opposite to the last bit
            weight, bias = (np.stack([-v[1], v[1]]) for v in (weight, bias))
        self.weight, self.bias = weight.astype(np.float32), bias.astype(np.float32)
        return self

    def scores(self, x: Any) -> Floats32:
        """Class scores of x (N, d): (N, C).  Raises InputError before `fit`."""
        if not len(self.classes):
            raise InputError("this probe has not been fitted yet")
        return np.asarray(matrix(x) @ self.weight.T + self.bias)

    def predict(self, x: Any) -> Ints:
        """The most likely label of each row of x (N, d): (N,)."""
        return np.asarray(self.classes[self.scores(x).argmax(axis=1)])

    def accuracy(self, x: Any, y: Any) -> float:
        """Share of rows whose label is predicted, 0..1."""
        return float((self.predict(x) == _labels(y)).mean())

    def balanced_accuracy(self, x: Any, y: Any) -> float:
        """Mean recall over the labels that occur in y, 0..1."""
        return balanced(self.predict(x), _labels(y))


def balanced(predicted: Ints, truth: Ints) -> float:
    """Mean recall over the labels that occur in `truth`."""
    values, index = np.unique(truth, return_inverse=True)
    hits = np.bincount(index, weights=predicted == truth, minlength=len(values))
    return float((hits / np.bincount(index, minlength=len(values))).mean())


def _labels(y: Any) -> Ints:
    labels = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"probe labels must be one integer per row, got {labels.dtype} of shape {labels.shape}"
        )
    return labels.astype(np.int64)
