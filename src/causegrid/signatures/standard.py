"""Features made ready for probes: standardised on their own rows, and turned to their principal axes.

Everything a probe needs that does not depend on its labels is here, so every label, shuffle and control task
on one layer shares it.  A rotation changes neither the features' distances nor the L2 norm of a weight, hence
not the fit; on principal axes the loss has a curvature known in closed form where a probe starts (see
`logistic`), which is what makes fitting cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError

Floats32 = NDArray[np.float32]
Floats64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Standard:
    """`turned` (N, d) float32 = ((x - centre) * scale) @ axes; `energy` (d,): sums of squares of its columns,
    ascending; `centre`, `scale` (d,) float32; `axes` (d, d) float32, orthonormal."""

    turned: Tensor
    energy: Floats64
    centre: Floats32
    scale: Floats32
    axes: Floats32

    def __len__(self) -> int:
        return len(self.turned)


def standard(x: Any) -> Standard:
    """Features x (N, d), array or tensor -> their `Standard`.

    Raises InputError for other shapes and values that are not finite.
    """
    features = matrix(x)
    centre, scale = standardiser(features)
    if not np.isfinite(centre).all() or not np.isfinite(scale).all():
        raise InputError("probe features hold values that are not finite")
    z = torch.from_numpy((features - centre) * scale)  # (N, d)
    energy, axes = torch.linalg.eigh((z.T @ z).double())
    turn = axes.float()
    return Standard(
        turned=z @ turn,
        energy=energy.clamp_min(0).numpy(),
        centre=centre,
        scale=scale,
        axes=turn.numpy(),
    )


def standardiser(features: Floats32) -> tuple[Floats32, Floats32]:
    """(centre (d,), 1 / standard deviation (d,)) of features (N, d); scale 0 where a feature is constant.

    Squares are float64: float32's overflow beyond 1.8e19.  NaN where a feature holds values that are not
    finite or too far apart for float32.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        centre = features.mean(axis=0, dtype=np.float64)
        off = features - centre.astype(np.float32)
        spread = np.sqrt(np.square(off, dtype=np.float64).mean(axis=0))
        varies = ~(spread <= 1e-6 * np.maximum(np.abs(centre), 1e-12))
        scale = np.where(varies, 1 / np.where(varies, spread, 1), 0)
        scale[np.isinf(spread)] = np.nan
    return centre.astype(np.float32), scale.astype(np.float32)


def matrix(x: Any) -> Floats32:
    """An array or tensor of shape (N, d) as float32.  Raises InputError for another shape."""
    if hasattr(x, "detach"):
        x = x.detach().float().cpu().numpy()
    features = np.asarray(x, dtype=np.float32)
    if features.ndim != 2 or 0 in features.shape:
        raise InputError(f"probe features of shape {features.shape}: (N, d) is needed")
    return features
