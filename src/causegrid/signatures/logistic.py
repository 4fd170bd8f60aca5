"""Multinomial logistic regression with L2, fitted to its optimum in a few steps.

The problem is scikit-learn's `LogisticRegression` to the letter (C = `c`, free intercept, for two classes its
single-row form), and strictly convex up to a vector added to every row, which the penalty settles: there is
one answer, whatever the solver.  scikit-learn's lbfgs walks to it in the features' own coordinates and needs
a hundred steps and more for shuffled and control labels, and for states that are hard to read.  Here lbfgs
(scipy's) runs in coordinates of equal curvature: on principal axes the curvature at the start, every class at
its own frequency p, is p times an axis's energy, plus the penalty, so labels that hold little to find take
two or three steps.  Where classes come apart the curvature falls away row by row: it is measured again after
10 steps, 20 more, and so on, and the walk goes on from there.

Arithmetic on the rows is float32, whose rounding hides gradients below about 3e-6; asked for less, the last
legs are float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from causegrid.signatures.standard import Floats32, Floats64, Standard

Ints = NDArray[np.int64]
MEMORY = 20
FIRST_LEG = 10
SINGLE = 3e-6  # the smallest gradient float32 can be trusted with


@dataclass(frozen=True, kw_only=True)
class Plane:
    """`weight` (C, d) on standardised features and `bias` (C,), float64, columns summing to zero; `n_iter`;
    `gradient`: the largest absolute entry of the mean loss's gradient there."""

    weight: Floats64
    bias: Floats64
    n_iter: int
    gradient: float


class _Loss:
    """The total penalised loss of a plane (C, d + 1), weights on the principal axes and an intercept, and its
    gradient; remembers the last one."""

    def __init__(self, features: Standard, index: Ints, penalty: float) -> None:
        self.turned, self.axes = features.turned, torch.from_numpy(features.axes).double()
        self.index = torch.from_numpy(index)[None]  # (1, N)
        self.energy = torch.from_numpy(features.energy)
        self.share = torch.from_numpy(np.bincount(index) / len(index))[:, None]  # (C, 1)
        self.penalty = penalty
        self.gradient = torch.zeros(len(self.share), len(self.energy) + 1, dtype=torch.float64)

    def log_p(self, plane: Tensor) -> Tensor:
        """Log probability of every class for every row: (C, N)."""
        rounded = plane.to(self.turned.dtype)
        return torch.log_softmax(rounded[:, :-1] @ self.turned.T + rounded[:, -1:], dim=0)

    def __call__(self, plane: Tensor) -> float:
        weight, log_p = plane[:, :-1], self.log_p(plane)
        loss = -log_p.gather(0, self.index).sum(dtype=torch.float64)
        one = log_p.new_full((), -1).expand_as(self.index)
        off = log_p.exp_().scatter_add_(0, self.index, one)  # p - one-hot
        self.gradient[:, :-1] = (off @ self.turned).double() + self.penalty * weight
        self.gradient[:, -1] = off.sum(1)
        return float(loss) + 0.5 * self.penalty * float(weight.square().sum())

    def curvature(self, plane: Tensor) -> Tensor:
        """Second derivatives along each coordinate, the other rows going the other way: (C, d + 1)."""
        if not plane[:, :-1].any():  # every row has the class frequencies
            spread = self.share * (1 - self.share)
            sums = torch.cat([spread * self.energy, spread * len(self.turned)], 1)
        else:
            p = self.log_p(plane).exp_()
            by_row = p * (1 - p)  # (C, N)
            sums = torch.cat([by_row @ self.turned.square(), by_row.sum(1, keepdim=True)], 1).double()
        sums *= len(plane) / (len(plane) - 1)
        sums[:, :-1] += self.penalty
        return sums

    def steepness(self) -> float:
        """Largest absolute entry of the last gradient of the *mean* loss, by standardised features."""
        by_feature = self.gradient[:, :-1] @ self.axes.T
        return float(max(by_feature.abs().max(), self.gradient[:, -1].abs().max())) / len(self.turned)


def solve(
    features: Standard,
    index: Ints,
    *,
    c: float,
    tol: float,
    max_iter: int,
    start: Floats32 | None = None,
) -> Plane:
    """The plane for class indices (N,), each of 0 .. C - 1 there, to a gradient of `tol` or for `max_iter`
    steps.

    `start`: class scores (N, C) of a plane for features near these; the walk begins at the plane that comes
    nearest to them by ridge regression, which principal axes make one product, and at the class frequencies
    without it or where the loss is lower there.
    """
    loss = _Loss(features, index, (2 if index.max() == 1 else 1) / c)
    plane = torch.zeros_like(loss.gradient)
    plane[:, -1:] = loss.share.log()
    if start is not None:
        scores = torch.from_numpy(start).to(loss.turned.dtype)
        level = scores.mean(0)  # (C,)
        weight = ((scores - level).T @ loss.turned).double() / (loss.energy + len(plane) * loss.penalty)
        near = torch.cat([weight, level[:, None].double()], 1)
        near -= near.mean(0)
        plane = near if loss(near) < loss(plane) else plane
    steps, leg = 0, FIRST_LEG
    while steps < max_iter:
        to = max(tol, SINGLE) if loss.turned.dtype == torch.float32 else tol
        plane, taken = _descend(loss, plane, to, min(leg, max_iter - steps))
        steps, leg = steps + taken, 2 * leg
        settled = loss.steepness() <= to or not taken
        if settled and to == tol:
            break
        if settled:
            loss.turned = loss.turned.double()
    plane = plane - plane.mean(0)
    directions = (plane[:, :-1] @ loss.axes.T).numpy()
    return Plane(weight=directions, bias=plane[:, -1].numpy(), n_iter=steps, gradient=loss.steepness())


def _descend(loss: _Loss, origin: Tensor, tol: float, most: int) -> tuple[Tensor, int]:
    """At most so many lbfgs steps from a plane, in coordinates of unit curvature there: (plane, steps taken)."""
    unit = loss.curvature(origin).clamp_min(1e-12).rsqrt()  # (C, d + 1)
    opening = loss(origin)
    # lbfgs opens with a step of length one: in units of the gradient it is Newton's
    unit = unit * (float((loss.gradient * unit).norm()) or 1.0)
    opened = (opening, (loss.gradient * unit).ravel().numpy())
    steps = 0

    def plane(at: Floats64) -> Tensor:
        return origin + torch.from_numpy(at).view(unit.shape) * unit

    def value(at: Floats64) -> tuple[float, Floats64]:
        return (loss(plane(at)), (loss.gradient * unit).ravel().numpy()) if at.any() else opened

    def stop(intermediate_result: OptimizeResult) -> None:
        nonlocal steps
        steps += 1
        if loss.steepness() <= tol:
            raise StopIteration

    options = {"maxiter": most, "maxcor": MEMORY, "gtol": 0, "ftol": 0, "maxfun": 20 * most}
    start = np.zeros(unit.numel())
    found = minimize(value, start, jac=True, method="L-BFGS-B", callback=stop, options=options)
    reached = plane(np.array(found.x))
    loss(reached)
    return reached, steps
