"""Activation patching: how much of a clean run one activation carries back into a corrupted run
(MEASURES 3.4).

recovery = mean(LD_patched - LD_corrupt) / mean(LD_clean - LD_corrupt), a ratio of means over pairs, not
clipped, with LD = logit(clean label) - logit(corrupt label) at the readout.  Pairs whose denominator is under
0.5 logits are left out and counted.  Cells whose answer is known without a model are marked
`by construction`: the last block's output, a whole residual, positions behind the readout, and positions
before the two sequences differ.

Blocks below the patched one are not run again: their corrupted output is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError
from causegrid.evidence.effects import resamples
from causegrid.models.forward import logits, token_ids
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.address import sites as parse
from causegrid.sites.capture import capture
from causegrid.sites.edit import edit, replace
from causegrid.sites.prefix import skip_blocks
from causegrid.sites.table import require

MIN_DENOMINATOR = 0.5  # logits


def patch_recovery(
    model: Model,
    clean: Any,
    corrupt: Any,
    sites: str | Site | Iterable[str | Site],
    clean_labels: Any,
    corrupt_labels: Any,
    *,
    readout: int = -1,
    batch: int = 64,
) -> pd.DataFrame:
    """Patch the clean activation into the corrupted run at each site, one at a time.

    `clean`, `corrupt`: token ids (B, L) of equal shape; `clean_labels`, `corrupt_labels` (B,): the two
    outputs compared at position `readout`.  Sites may name a position (`L1.resid_post@20`) or none (all).

    One row per site: `site, layer, kind, position` (None = all)`, recovery, low, high` (95 % bootstrap over
    pairs)`, n, left_out, mark` ("" or `by construction`).  Raises InputError for shapes that do not fit,
    sites the model cannot edit, a position out of range, or no pair left.
    """
    spots = [require(model, spot, "edit") for spot in parse(sites)]
    first, second = token_ids(model, clean), token_ids(model, corrupt)
    if first.shape != second.shape:
        raise InputError(
            f"clean {tuple(first.shape)} and corrupted {tuple(second.shape)} tokens differ in shape"
        )
    n, length = first.shape
    if not -length <= readout < length:
        raise InputError(f"readout {readout} is out of range: the sequences have {length} tokens")
    for spot in spots:
        if spot.position is not None and not -length <= spot.position < length:
            raise InputError(f"position {spot.position} of {spot} is out of range: there are {length} tokens")
    labels = [
        (v if isinstance(v, Tensor) else torch.as_tensor(np.asarray(v))).to(model.device)
        for v in (clean_labels, corrupt_labels)
    ]
    if any(v.shape != (n,) for v in labels):
        raise InputError(f"labels at the readout have shape (B,) = ({n},), one per pair")
    read = readout % length

    def difference(scores: Tensor, rows: slice) -> NDArray[np.float64]:
        at = scores[:, read]
        mine, other = (at.gather(1, v[rows, None])[:, 0].double() for v in labels)
        values: NDArray[np.float64] = (mine - other).cpu().numpy()
        return values

    whole = list(dict.fromkeys(Site(s.layer, s.kind, s.head) for s in spots))
    starts = sorted({_start(s) for s in spots} - {0})
    boundary = {start: Site(start - 1, "resid_post") for start in starts}
    before, after = np.empty(n), np.empty(n)
    patched = np.empty((len(spots), n))
    for s in range(0, n, batch):
        rows = slice(s, s + batch)
        given = capture(model, first[rows], whole)
        stored = capture(model, second[rows], list(boundary.values())) if boundary else {}
        after[rows] = difference(logits(model, first[rows]), rows)
        before[rows] = difference(logits(model, second[rows]), rows)
        for i, spot in enumerate(spots):
            value = given[str(Site(spot.layer, spot.kind, spot.head))]
            value = value if spot.position is None else value[:, spot.position]
            start = _start(spot)
            with ExitStack() as scope:
                if start:
                    scope.enter_context(skip_blocks(model, start, stored[str(boundary[start])]))
                scope.enter_context(edit(model, replace(spot, value)))
                patched[i, rows] = difference(logits(model, second[rows]), rows)

    denominator = after - before
    kept = denominator >= MIN_DENOMINATOR
    if not kept.any():
        raise InputError(
            f"none of the {n} pairs moves the readout by {MIN_DENOMINATOR} logits: nothing to recover"
        )
    differs = (first != second).int().argmax(1).cpu().numpy()  # first changed position, (B,)
    rows_out = []
    for spot, values in zip(spots, patched, strict=True):
        gain = (values - before)[kept]
        low, high = _interval(gain, denominator[kept])
        rows_out.append(
            {
                "site": str(spot),
                "layer": spot.layer,
                "kind": spot.kind,
                "position": None if spot.position is None else spot.position % length,
                "recovery": float(gain.mean() / denominator[kept].mean()),
                "low": low,
                "high": high,
                "n": int(kept.sum()),
                "left_out": int((~kept).sum()),
                "mark": _mark(model, spot, read, length, differs[kept]),
            }
        )
    return pd.DataFrame(rows_out)


def _start(spot: Site) -> int:
    """The block to start from: the patched one, since its output is edited where it leaves."""
    return max(spot.layer, 0)


def _mark(model: Model, spot: Site, read: int, length: int, differs: NDArray[np.int64]) -> str:
    position = None if spot.position is None else spot.position % length
    last = spot.kind == "resid_post" and spot.layer == model.n_layers - 1
    whole = position is None and spot.kind in ("resid_pre", "resid_post")
    outside = position is not None and (position > read or position < int(differs.min()))
    return "by construction" if last or whole or outside else ""


def _interval(gain: NDArray[np.float64], denominator: NDArray[np.float64]) -> tuple[float, float]:
    """95 % percentile bootstrap over pairs of the ratio of means."""
    ratios = np.concatenate([(w @ gain) / (w @ denominator) for w in resamples(len(gain))])
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
