"""The subspaces a cell erases, fitted once on the training split and applied wherever they are asked for.

Kinds (MEASURES 3.2):
- `probe`: leading directions of the settled probe; `full` is its whole row space.
- `principal`: leading principal components, around the mean.
- `singular`: leading right-singular directions of the *uncentred* activations (MEASURES leaves it open: around
  the mean they would be the principal components once more).  Erased around the mean like all others.
- `inlp`: row spaces of probes of all training rows, one after the other, the first of them the settled one.  How
  many is cross-validated over quarters of the training sequences: as many as a fresh probe needs to read no more,
  on sequences that neither it nor the erasure was fitted on, than the best lookup table (MEASURES says majority;
  but where tokens or positions tell more than that, going on erases them too, and the task then falls for want of
  its input, not of its state).
- `leace`: the authors' affine map; its rank is what it can take at most, C - 1.

C counts the classes seen in training.  All this is a function of the activations and the kinds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError, unknown
from causegrid.evidence.effects import bootstrap_mean
from causegrid.interventions.subspaces import (
    Fitted,
    Spectrum,
    extended,
    inlp,
    leace,
    matched_components,
    probe_directions,
    row_space,
    spectrum,
)
from causegrid.signatures.activations import SETTLED_ITERATIONS, SETTLED_TOLERANCE, Activations
from causegrid.signatures.baselines import looked_up, lookup_keys
from causegrid.signatures.logistic import Ints
from causegrid.signatures.probes import Probe
from causegrid.signatures.standard import Floats32
from causegrid.studies.state.readings import MARGIN, Eraser, check_classes, erased_rows, spread, steady

KINDS = ("probe", "principal", "singular", "inlp", "leace")
INLP_ITERATIONS = 24
FOLDS = 4
Rank = int | str


@dataclass(frozen=True, kw_only=True, eq=False)
class Subspace:
    """What is erased at one layer: `eraser` (a basis (d, rank), an affine map, or None for rank 0) around `mean`
    (d,); `full`: of rank C - 1, or all that this kind can take; `variance` removed on the training split;
    `matched`: equal-rank principal components of nearest variance, with `matched_variance`, `matched_mark`; None
    for principal components themselves and where nothing is erased.

    `iterations`, `removed`: of INLP, None otherwise.
    """

    layer: int
    kind: str
    rank: int
    full: bool
    eraser: Eraser
    mean: NDArray[Any]
    variance: float
    matched: Tensor | None
    matched_variance: float
    matched_mark: str
    iterations: int | None = None
    removed: bool | None = None


def check_kinds(bases: Sequence[str]) -> None:
    """Raises InputError for no kind at all or one that does not exist."""
    if not bases:
        raise InputError(f"no kind of subspace to erase: allowed are {', '.join(KINDS)}")
    for kind in bases:
        if kind not in KINDS:
            raise unknown("kind of subspace", kind, KINDS)


def full_rank(found: Activations, label: str) -> int:
    """Rank of a whole row space: classes seen in training - 1, or the width where that is smaller."""
    width = int(next(iter(found.train.x.values())).shape[1])
    return min(len(np.unique(found.train.y[label])) - 1, width)


def check_ranks(ranks: Sequence[Rank], found: Activations, label: str, bases: Sequence[str]) -> list[int]:
    """The ranks asked for as numbers, ascending.

    Raises InputError for ranks that do not exist at this width, and when only probe directions are asked for
    and none of the ranks is one of theirs.
    """
    width = next(iter(found.train.x.values())).shape[1]
    full = full_rank(found, label)
    for rank in ranks:
        if rank != "full" and (isinstance(rank, str) or not 1 <= rank <= width):
            raise InputError(f"rank {rank!r} does not exist: allowed are 1 to {width} (the width) and 'full'")
    wanted = sorted({full if rank == "full" else int(rank) for rank in ranks})
    ranked = {"probe", "principal", "singular"} & set(bases)
    if ranked and (not wanted or (ranked == set(bases) == {"probe"} and wanted[0] > full)):
        raise InputError(
            f"no rank of {', '.join(map(str, ranks)) or '(none)'} can be erased: label {label!r} has {full + 1} "
            f"classes, so its probe has ranks 1 to {full}"
        )
    return wanted


def fit_subspaces(
    found: Activations,
    *,
    label: str | None = None,
    bases: Sequence[str] = KINDS,
    ranks: Sequence[Rank] = (1, 2, 4, "full"),
    probes: Mapping[int, Probe] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[int, list[Subspace]]:
    """Layer -> its subspaces, kinds in the order given, ranks ascending.

    `probes`: one fitted probe per layer, made here (until their weights have settled) when not given.
    Raises InputError for kinds and ranks that do not exist, and a split of a single class.
    """
    name = label or next(iter(found.labels))
    check_kinds(bases)
    check_classes(found, name)
    wanted = check_ranks(ranks, found, name, bases)
    fitted: dict[int, list[Subspace]] = {}
    for i, layer in enumerate(found.layers):
        at = _Layer(found, name, layer, None if probes is None else probes[layer])
        fitted[layer] = [s for kind in dict.fromkeys(bases) for s in at.kind(kind, wanted)]
        if progress is not None:
            progress(i + 1, len(found.layers), f"fitting subspaces at length {found.length}")
    return fitted


def chosen(
    fitted: Mapping[int, Sequence[Subspace]],
    found: Activations,
    *,
    label: str,
    bases: Sequence[str],
    ranks: Sequence[Rank],
) -> dict[int, list[Subspace]]:
    """Layer -> those of subspaces fitted on `found`, for these kinds and ranks or more, that are asked for.

    Raises InputError for kinds and ranks that do not exist.
    """
    check_kinds(bases)
    wanted = check_ranks(ranks, found, label, bases)

    def asked(s: Subspace) -> bool:
        return s.kind in bases and (
            s.kind in ("inlp", "leace") or s.rank in wanted or ("full" in ranks and s.full)
        )

    return {layer: [s for s in some if asked(s)] for layer, some in fitted.items()}


class _Layer:
    """The fits at one layer; the spectrum is shared by all of them."""

    def __init__(self, found: Activations, label: str, layer: int, probe: Probe | None) -> None:
        self.x, self.y, self.layer = found.train.x[layer], found.train.y[label], layer
        self.rows, self.probe, self.n_tokens = found.train, probe, found.n_tokens
        self.full = full_rank(found, label)
        self.mean = self.x.mean(axis=0, dtype=np.float64)
        self.spectrum: Spectrum = spectrum(self.x)

    def kind(self, kind: str, ranks: Sequence[int]) -> list[Subspace]:
        if kind == "inlp":
            return [self._inlp()]
        if kind == "leace":
            return [self._made(kind, self.full, True, leace(self.x, self.y))]
        if kind == "probe":
            return self._probe(ranks)
        centred = kind == "principal"
        directions = (self.spectrum if centred else spectrum(self.x, centred=False)).vectors
        return [self._made(kind, r, r == self.full, directions[:, :r].contiguous()) for r in ranks]

    def settled(self) -> Probe:
        """The probe whose directions are erased, fitted once."""
        if self.probe is None:
            self.probe = settled_probe(self.x, self.y)
        return self.probe

    def _probe(self, ranks: Sequence[int]) -> list[Subspace]:
        probe = self.settled()
        most = row_space(probe.weight)
        own = sorted({min(r, most) if r == self.full else r for r in ranks} & set(range(1, most + 1)))
        return [self._made("probe", r, r == most, probe_directions(probe.weight, r)) for r in own]

    def _inlp(self) -> Subspace:
        steps, removed = self._iterations()
        before = spread(self.x)

        def probe(x: Floats32, y: Ints) -> Fitted:
            return _Counted(
                self.settled() if np.array_equal(x, self.x) else Probe().fit(steady(x, before), y)
            )

        basis = inlp(self.x, self.y, probe, max_iter=steps).basis if steps else None
        rank = 0 if basis is None else basis.shape[1]
        return self._made("inlp", rank, True, basis if rank else None, iterations=steps, removed=removed)

    def _iterations(self) -> tuple[int, bool]:
        """(how many probes INLP erases, whether that is enough): the fewest after which a fresh probe gains
        nothing over the best lookup table, or so little that the interval over sequences ends within half of
        `MARGIN` (the refit, on other sequences, is to come within all of it), or, where so few sequences allow
        no interval that narrow, one that holds 0."""
        quarters = [self.rows.sequence % FOLDS == q for q in range(FOLDS)]  # (N,) each
        known = self._known(quarters)
        bases: list[Tensor | None] = [None] * FOLDS
        before = spread(self.x)
        left = [
            self.x - self.x[~aside].mean(axis=0, dtype=np.float64) for aside in quarters
        ]  # (N, d) float64
        right = np.empty(len(self.y))
        for steps in range(INLP_ITERATIONS + 1):
            for q, aside in enumerate(quarters):
                erased = steady(left[q].astype(np.float32), before)
                probe = Probe().fit(erased[~aside], self.y[~aside])
                right[aside] = probe.predict(erased[aside]) == self.y[aside]
                bases[q], new = extended(bases[q], probe.weight)
                left[q] -= (left[q] @ new.numpy()) @ new.numpy().T
            gain = (right - known).reshape(self.rows.n_sequences, -1).mean(axis=1)
            low, high = bootstrap_mean(gain)
            if gain.mean() <= 0 or high <= MARGIN / 2 or (low <= 0 and high - low > 2 * MARGIN):
                return steps, True
        return INLP_ITERATIONS, False

    def _known(self, quarters: Sequence[NDArray[np.bool_]]) -> NDArray[np.float64]:
        """Right or wrong per row (N,) of the best lookup table, fitted on the other quarters."""
        found = []
        for key in lookup_keys(self.rows, self.n_tokens).values():
            right = np.empty(len(self.y))
            for aside in quarters:
                right[aside] = looked_up(key[~aside], self.y[~aside], key[aside]) == self.y[aside]
            found.append(right)
        return max(found, key=lambda values: float(values.mean()))

    def _made(self, kind: str, rank: int, full: bool, eraser: Eraser, **more: Any) -> Subspace:
        total = float(self.spectrum.values.sum())
        left = erased_rows(self.x, eraser, self.mean)
        variance = 1 - float(left.var(axis=0, dtype=np.float64).sum()) / total if total > 0 else 0.0
        unmatched = "nothing erased" if not rank else "itself" if kind == "principal" else ""
        matched = None if unmatched else matched_components(self.spectrum, rank, variance)
        return Subspace(
            layer=self.layer,
            kind=kind,
            rank=rank,
            full=full,
            eraser=eraser,
            mean=self.mean,
            variance=max(variance, 0.0),
            matched=None if matched is None else matched.basis,
            matched_variance=float("nan") if matched is None else matched.removed,
            matched_mark=unmatched if matched is None else matched.mark,
            **more,
        )


@dataclass
class _Counted:
    """INLP's next probe of all training rows; how many there are is known beforehand."""

    probe: Probe
    accuracy: float = float("nan")
    at_baseline: bool = False

    @property
    def weight(self) -> Floats32:
        return self.probe.weight


def settled_probe(x: Floats32, y: Ints) -> Probe:
    """A probe whose *weights* have settled: directions to erase need more than its accuracy does."""
    return Probe(tol=SETTLED_TOLERANCE, max_iter=SETTLED_ITERATIONS).fit(x, y)
