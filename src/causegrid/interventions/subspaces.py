"""Directions and subspaces at a block output, and what is left when they are erased (MEASURES 3.2).

A subspace is a basis Q (d, r) with orthonormal columns, float64.  Erasing it around the training mean m is
x' = m + (x - m)(I - Q Q^T); `origin` mode projects through 0.  Nothing is cast to float32 on the way: a basis
rounded to it leaves a hundred-millionth of the state, and a fresh probe, which standardises its features, reads
that wherever little else is left beside it.

Erasing at the output of block l needs nothing below it again: `erased_behaviour` stores that output once
and runs only the blocks above it, for every basis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError

Mode = Literal["mean", "origin"]
ROUNDING = 1e-6  # of the largest singular value of a float32 weight
Array = Tensor | NDArray[Any]
A = TypeVar("A", Tensor, NDArray[Any])


def _tensor(x: Any) -> Tensor:
    """Anything array-like -> float64 tensor on the CPU."""
    tensor = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    return tensor.detach().to("cpu", torch.float64)


def _rows(x: Any) -> Tensor:
    """(..., d) -> (N, d)."""
    tensor = _tensor(x)
    if tensor.ndim < 2:
        raise InputError(f"expected activations of shape (..., d), got {tuple(tensor.shape)}")
    return tensor.reshape(-1, tensor.shape[-1])


def _check_rank(rank: int, most: int, what: str) -> None:
    if not 1 <= rank <= most:
        raise InputError(f"rank {rank} is out of range for {what}: allowed are 1 to {most}")


def _row_space(weight: Array) -> tuple[Tensor, Tensor]:
    """Singular values and right-singular rows of a probe's weight (C, d), the class mean taken out."""
    w = _tensor(weight)
    if w.ndim != 2:
        raise InputError(f"a probe's weight has shape (classes, d), not {tuple(w.shape)}")
    if w.shape[0] == 1:  # one row for two classes: the other is its negative
        w = torch.cat([-w, w]) / 2
    _, s, vh = torch.linalg.svd(w - w.mean(0), full_matrices=False)
    return s, vh


def row_space(weight: Array) -> int:
    """Rank of a probe's class-centred weight (C, d): singular values under 1e-6 of the largest are rounding,
    as where the activations fill fewer dimensions than there are classes."""
    s, _ = _row_space(weight)
    return int((s > s[0] * ROUNDING).sum()) if float(s[0]) > 0 else 0


def probe_directions(weight: Array, rank: int) -> Tensor:
    """Leading `rank` directions (d, rank) of a probe's weight (C, d) in the raw feature space.

    The class mean is taken out first: a vector added to all classes' weights changes no prediction.  At rank
    C - 1 it is the full row space.  Raises InputError for a rank outside 1 .. min(C - 1, d), or one the
    weight does not have (`row_space`).  MEASURES 3.2.
    """
    _, vh = _row_space(weight)
    classes = max(2, len(weight))
    _check_rank(rank, min(classes - 1, vh.shape[1]), f"a probe of {classes} classes")
    present = row_space(weight)
    if rank > present:
        raise InputError(f"rank {rank} is out of range: this probe's weight has rank {present}")
    basis: Tensor = vh[:rank].T.contiguous()
    return basis


def principal(x: Array, rank: int) -> Tensor:
    """Leading `rank` principal components (d, rank) of activations x (..., d), around their mean."""
    vectors = spectrum(x).vectors
    _check_rank(rank, len(vectors), f"activations of width {len(vectors)}")
    return vectors[:, :rank].contiguous()


def singular(x: Array, rank: int) -> Tensor:
    """Leading `rank` right-singular directions (d, rank) of activations x (..., d), *not* centred."""
    vectors = spectrum(x, centred=False).vectors
    _check_rank(rank, len(vectors), f"activations of width {len(vectors)}")
    return vectors[:, :rank].contiguous()


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """`values` (d,), descending, and `vectors` (d, d) of the covariance of activations, float64."""

    values: Tensor
    vectors: Tensor


def spectrum(x: Array, *, centred: bool = True) -> Spectrum:
    """The spectrum of activations x (..., d), around their mean or, not `centred`, around 0."""
    rows = _rows(x)
    if centred:
        rows = rows - rows.mean(0)
    values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
    return Spectrum(values=values.flip(0).clamp_min(0.0), vectors=vectors.flip(1))


def random_basis(d: int, rank: int, seed: int) -> Tensor:
    """A uniformly random subspace (d, rank): QR of a Gaussian matrix, a function of the seed."""
    _check_rank(rank, d, f"width {d}")
    draw = np.random.default_rng(seed).standard_normal((d, rank))
    q, r = np.linalg.qr(draw)
    return torch.from_numpy(q * np.sign(np.diag(r)))


def removed_variance(x: Array, basis: Array) -> float:
    """The fraction of the total variance of x (..., d) that lies in the subspace (d, r), 0..1."""
    rows = _rows(x)
    rows = rows - rows.mean(0)
    total = float(rows.pow(2).sum())
    return float((rows @ _tensor(basis)).pow(2).sum()) / total if total > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class MatchedPrincipal:
    """Principal components matched to a subspace: `basis` (d, r), their `components` (0 = leading), the
    variance fractions `removed` and `target`, and `mark` ("" or "variance unmatched")."""

    basis: Tensor
    components: tuple[int, ...]
    removed: float
    target: float
    mark: str


def matched_principal(x: Array, basis: Array) -> MatchedPrincipal:
    """`matched_components` of x (..., d) for the rank of a basis (d, r) and the variance it removes."""
    return matched_components(spectrum(x), _tensor(basis).shape[1], removed_variance(x, basis))


def matched_components(found: Spectrum, rank: int, target: float) -> MatchedPrincipal:
    """The `rank` principal components whose removed variance (fraction) is nearest `target`.

    Exhaustive up to 50 000 sets; beyond that the best contiguous window of components, improved by replacing
    two of them at a time until nothing is gained.  Marked `variance unmatched` beyond a factor of 2
    (MEASURES 3.2).
    """
    values, vectors = found.values, found.vectors
    _check_rank(rank, len(values), f"activations of width {len(values)}")
    share = (values / values.sum()).numpy() if float(values.sum()) > 0 else values.numpy()
    chosen = _nearest_set(share, rank, target)
    removed = float(share[list(chosen)].sum())
    near = 0.5 * target <= removed <= 2.0 * target
    return MatchedPrincipal(
        basis=vectors[:, list(chosen)].contiguous(),
        components=chosen,
        removed=removed,
        target=target,
        mark="" if near else "variance unmatched",
    )


def _nearest_set(share: NDArray[np.float64], rank: int, target: float) -> tuple[int, ...]:
    d = len(share)
    if 2 * rank > d and rank < d:  # the same choice, by the fewer components left out
        kept_out = _nearest_set(share, d - rank, float(share.sum()) - target)
        return tuple(i for i in range(d) if i not in kept_out)
    if comb(d, rank) <= 50_000:
        sets = np.array(list(itertools.combinations(range(d), rank)))
        return tuple(int(i) for i in sets[np.abs(share[sets].sum(1) - target).argmin()])
    sums = np.convolve(share, np.ones(rank), "valid")
    start = int(np.abs(sums - target).argmin())
    chosen = np.arange(start, start + rank)
    while True:
        miss = abs(share[chosen].sum() - target)
        best, after = chosen, miss
        for pair in itertools.combinations(range(rank), 2):
            kept = np.delete(chosen, pair)
            rest = np.setdiff1d(np.arange(d), kept)
            off = np.abs(share[kept].sum() - target + share[rest][:, None] + share[rest][None, :])
            np.fill_diagonal(off, np.inf)
            i, j = np.unravel_index(off.argmin(), off.shape)
            if off[i, j] < after:
                best, after = np.append(kept, rest[[i, j]]), off[i, j]
        # summed anew, as `miss` will be: below rounding the two disagree, and the search would never end
        if max(after, abs(share[best].sum() - target)) >= 0.99 * miss:
            return tuple(sorted(int(i) for i in chosen))
        chosen = best


def erase_from(x: A, basis: Array, mean: Array | None, mode: Mode = "mean") -> A:
    """x (..., d) without its component in the subspace: x' = m + (x - m)(I - Q Q^T), or x(I - Q Q^T).

    Same type, device and dtype as x.  Raises InputError for an unknown mode or `mean` mode without a mean.
    """
    if mode not in ("mean", "origin"):
        raise InputError(f"unknown erasure mode {mode!r}: allowed are 'mean', 'origin'")
    if mode == "mean" and mean is None:
        raise InputError("erasing around the mean needs the mean; give it, or mode='origin'")
    if isinstance(x, Tensor):
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        q = torch.as_tensor(basis).to(x.device, work)
        y = x.to(work)
        centred = y if mode == "origin" else y - torch.as_tensor(mean).to(x.device, work)
        return (y - (centred @ q) @ q.T).to(x.dtype)
    q_np = _tensor(basis).numpy().astype(x.dtype)
    delta = x if mode == "origin" else x - _tensor(mean).numpy().astype(x.dtype)
    erased: NDArray[Any] = x - (delta @ q_np) @ q_np.T
    return erased


class Fitted(Protocol):
    """What `inlp` needs of a fitted probe: `weight` (C, d) in the raw feature space, asked for only when another
    erasure follows, held-out `accuracy`, and whether that is no more than is known without x (`at_baseline`)."""

    accuracy: float
    at_baseline: bool

    @property
    def weight(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Inlp:
    """`basis` (d, r) erased in all; `accuracies` of the fresh probe before each erasure and after the last;
    `removed`: the last probe was at its baseline, as `fit` has it (`Fitted.at_baseline`)."""

    basis: Tensor
    accuracies: tuple[float, ...]
    removed: bool


def inlp(x: Array, y: Array, fit: Callable[[Any, Any], Fitted], *, max_iter: int = 20) -> Inlp:
    """Iterative null-space projection (Ravfogel et al. 2020): fit a probe, erase its row space, repeat until
    a fresh probe is at its baseline, `max_iter` erasures were made, or a probe adds no direction.

    `fit(x, y)` is given erased activations (N, d), numpy float32, around the mean, and does its own held-out
    split.  Raises InputError for max_iter < 1.
    """
    if max_iter < 1:
        raise InputError(f"max_iter {max_iter} is out of range: at least 1")
    rows = _rows(x)
    mean = rows.mean(0)
    left = rows - mean
    labels = np.asarray(y.cpu() if isinstance(y, Tensor) else y).reshape(-1)
    basis = torch.zeros(rows.shape[1], 0, dtype=torch.float64)
    probe = fit(rows.float().numpy(), labels)
    accuracies = [float(probe.accuracy)]
    while not probe.at_baseline and len(accuracies) <= max_iter and basis.shape[1] < rows.shape[1]:
        basis, new = extended(basis, probe.weight)
        if not new.shape[1]:  # what the probe still reads is the rounding of what is erased
            break
        left = left - (left @ new) @ new.T
        probe = fit((left + mean).float().numpy(), labels)
        accuracies.append(float(probe.accuracy))
    return Inlp(basis=basis, accuracies=tuple(accuracies), removed=bool(probe.at_baseline))


def extended(basis: Tensor | None, weight: Array) -> tuple[Tensor, Tensor]:
    """(the basis (d, r), or none yet, with the class-centred row space of `weight` (C, d) added, the columns that
    are new in it); orthonormal columns."""
    whole, own = _row_space(weight)
    if basis is None:
        basis = torch.zeros(own.shape[1], 0, dtype=torch.float64)
    w = _tensor(weight)
    s, vh = _row_space(w - (w @ basis) @ basis.T)
    new = vh[s > whole[0] * ROUNDING].T
    grown: Tensor = torch.linalg.qr(torch.cat([basis, new], 1))[0]
    return grown, grown[:, basis.shape[1] :]


@dataclass(frozen=True, kw_only=True)
class Leace:
    """An affine eraser x' = x - (x - bias) right^T left^T, float64, usable as the function of an edit at
    (..., d)."""

    left: Tensor
    right: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., d) -> x', same device and dtype; computed in float64 for float64 x, else in float32."""
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        left, right, bias = (t.to(x.device, work) for t in (self.left, self.right, self.bias))
        y = x.to(work)
        return (y - ((y - bias) @ right.T) @ left.T).to(x.dtype)


def leace(x: Array, y: Array) -> Leace:
    """Least-squares concept erasure (Belrose et al. 2023) of the classes y (N,) from x (N, d).

    After it no linear probe on the same data beats the majority.  Fitted by `concept-erasure`, the authors'
    own, in float64 and without its regularisers (shrinkage, the trace constraint, a coarse threshold on
    singular values): each trades the guarantee on the data given for something else.
    """
    from concept_erasure import LeaceFitter

    rows = _rows(x)
    labels = torch.as_tensor(np.asarray(y.cpu() if isinstance(y, Tensor) else y)).reshape(-1).long()
    if len(labels) != len(rows):
        raise InputError(f"{len(rows)} activations but {len(labels)} labels")
    classes, index = torch.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError("only one class among the labels: nothing to erase")
    one_hot = torch.nn.functional.one_hot(index, len(classes)).to(rows.dtype)
    fitter = LeaceFitter(
        rows.shape[1],
        len(classes),
        dtype=rows.dtype,
        shrinkage=False,
        constrain_cov_trace=False,
        svd_tol=1e-6,
    )
    fitter.update(rows, one_hot)
    eraser = fitter.eraser
    return Leace(left=eraser.proj_left, right=eraser.proj_right, bias=eraser.bias)
