"""What a state model still gets right when subspaces are erased at a block output (MEASURES 3.2).

The block's clean output is computed once per batch; every basis is erased from that tensor and only the
blocks above it run, so 39 random controls at the last block cost 39 output heads, not 39 forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError
from causegrid.interventions.subspaces import Mode, erase_from
from causegrid.models.forward import logits, token_ids
from causegrid.models.record import Model
from causegrid.sites.address import Site, site
from causegrid.sites.capture import capture
from causegrid.sites.prefix import skip_blocks
from causegrid.sites.table import require

Eraser = Callable[[Tensor], Tensor]


def erased_behaviour(
    model: Model,
    tokens: Any,
    labels: Any,
    where: Site | str,
    bases: Sequence[Any],
    mean: Any = None,
    *,
    mode: Mode = "mean",
    batch: int = 64,
) -> NDArray[np.float64]:
    """Token accuracy per sequence (n_bases, B) of token ids (B, L) against labels (B, L), under each erasure.

    `where` is a block output (`L2.resid_post`, `L-1.resid_post` for the embeddings).  Each of `bases` is a
    basis (d, r), erased at every position around `mean` (d,) or the origin, or a function (B, L, d) ->
    (B, L, d) such as LEACE's, or None for the clean model.  Sequences may be longer than those the basis was
    fitted on.

    Raises InputError for another kind of site, shapes that do not fit, or `mean` mode without a mean.
    """
    spot = require(model, site(where))
    if spot.kind != "resid_post" or spot.position is not None:
        raise InputError(f"subspaces are erased at block outputs (L2.resid_post), not at {spot}")
    ids = token_ids(model, tokens)
    given = labels if isinstance(labels, Tensor) else torch.as_tensor(np.asarray(labels))
    states = given.to(model.device)
    if states.shape != ids.shape:
        raise InputError(f"labels of shape {tuple(states.shape)} for token ids of shape {tuple(ids.shape)}")
    erasers = [_eraser(model, spot, basis, mean, mode) for basis in bases]
    out = np.empty((len(erasers), len(ids)))
    for s in range(0, len(ids), batch):
        part, target = ids[s : s + batch], states[s : s + batch]
        x = capture(model, part, spot)[str(spot)]  # (B, L, d)
        for i, eraser in enumerate(erasers):
            erased = eraser(x)
            if erased.shape != x.shape or erased.dtype != x.dtype:
                raise InputError(f"eraser {i} turned {tuple(x.shape)} {x.dtype} into {tuple(erased.shape)}")
            with skip_blocks(model, spot.layer + 1, erased):
                right = logits(model, part).argmax(-1) == target  # (B, L)
            out[i, s : s + batch] = right.double().mean(1).cpu().numpy()
    return out


def _eraser(model: Model, spot: Site, basis: Any, mean: Any, mode: Mode) -> Eraser:
    if basis is None:
        return lambda x: x
    if callable(basis) and not isinstance(basis, Tensor):
        eraser: Eraser = basis
        return eraser
    q = torch.as_tensor(basis)
    if q.dim() != 2 or q.shape[0] != model.d_model:
        raise InputError(
            f"a basis at {spot} of {model.name!r} has shape ({model.d_model}, rank), not {tuple(q.shape)}"
        )
    gram = q.double().T @ q.double()
    if not torch.allclose(gram, torch.eye(q.shape[1]).to(gram), atol=1e-4):
        raise InputError(f"the columns of a basis for {spot} are not orthonormal")
    return lambda x: erase_from(x, q, mean, mode)
