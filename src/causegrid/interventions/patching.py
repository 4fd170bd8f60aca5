"""Activation patching: how much of a clean run one activation carries back into a corrupted run
(MEASURES 3.4).

recovery = mean(LD_patched - LD_corrupt) / mean(LD_clean - LD_corrupt), a ratio of means over pairs, not
clipped, with LD = logit(clean label) - logit(corrupt label) at the readout.  Pairs whose denominator is under
0.5 logits are left out and counted.  Cells whose answer is known without running the model are marked
`by construction` (`by_construction` says which).

Blocks below the patched one are not run again: their corrupted output is stored once.  One patched run gives
LD at every position, so several readouts of one patch cost one forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from causegrid.sites.table import require, table

MIN_DENOMINATOR = 0.5  # logits
RESIDUAL = ("resid_pre", "resid_post")

Floats = NDArray[np.float64]


class Contrast:
    """LD = logit(first) - logit(second) at the positions `reads`; `first`, `second` (B, R) are output ids."""

    def __init__(self, model: Model, reads: Sequence[int], first: Any, second: Any) -> None:
        ids = [v if isinstance(v, Tensor) else torch.as_tensor(np.asarray(v)) for v in (first, second)]
        self.reads = torch.as_tensor(list(reads), device=model.device)
        self.first, self.second = (v.long().to(model.device) for v in ids)

    def of(self, scores: Tensor, rows: slice) -> Floats:
        """Logits (b, L, n_out) of these rows -> LD (b, R), in float64."""
        at = scores[:, self.reads]
        one, two = (at.gather(2, v[rows, :, None])[..., 0].double() for v in (self.first, self.second))
        values: Floats = (one - two).cpu().numpy()
        return values


def plain_runs(model: Model, tokens: Tensor, contrast: Contrast, *, batch: int = 64) -> Floats:
    """LD of unpatched runs on tokens (B, L): (B, R)."""
    parts = [slice(s, s + batch) for s in range(0, len(tokens), batch)]
    return np.concatenate([contrast.of(logits(model, tokens[rows]), rows) for rows in parts])


def patched_runs(
    model: Model,
    source: Tensor,
    corrupt: Tensor,
    spots: Sequence[Site],
    contrast: Contrast,
    *,
    batch: int = 64,
    ran: Callable[[], None] | None = None,
) -> Floats:
    """LD of runs on `corrupt` (B, L) that take one spot's activation from the run on `source`: (spots, B, R).

    `ran` is called after every patched forward.
    """
    starts = sorted({_start(spot) for spot in spots} - {0})
    below = {start: Site(start - 1, "resid_post") for start in starts}
    out = np.empty((len(spots), len(corrupt), len(contrast.reads)))
    for s in range(0, len(corrupt), batch):
        rows = slice(s, s + batch)
        given = capture(model, source[rows], spots)
        stored = capture(model, corrupt[rows], list(below.values())) if below else {}
        for i, spot in enumerate(spots):
            start = _start(spot)
            with ExitStack() as scope:
                if start:
                    scope.enter_context(skip_blocks(model, start, stored[str(below[start])]))
                scope.enter_context(edit(model, replace(spot, given[str(spot)])))
                out[i, rows] = contrast.of(logits(model, corrupt[rows]), rows)
            if ran is not None:
                ran()
    return out


def recovered(before: Floats, after: Floats, patched: Floats) -> dict[str, float]:
    """`recovery, low, high, n, left_out` from LD of the corrupt, clean and patched runs, (B,) each.

    The interval is a 95 % percentile bootstrap over pairs.  NaN where no pair moves by `MIN_DENOMINATOR`.
    """
    denominator = after - before
    kept = denominator >= MIN_DENOMINATOR
    counts = {"n": int(kept.sum()), "left_out": int((~kept).sum())}
    if not kept.any():
        return {"recovery": np.nan, "low": np.nan, "high": np.nan, **counts}
    gain, denominator = (patched - before)[kept], denominator[kept]
    ratios = np.concatenate([(w @ gain) / (w @ denominator) for w in resamples(len(gain))])
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {
        "recovery": float(gain.mean() / denominator.mean()),
        "low": float(low),
        "high": float(high),
        **counts,
    }


def by_construction(model: Model, spot: Site, read: int, differs: NDArray[np.bool_]) -> bool:
    """Whether the recovery at `spot`, read at position `read`, is known without running the model.

    `differs` (B, L): where the tokens of the pairs differ.  Known are
    - 0: a position behind the readout, or before the first difference; the last block's output, and what its
      parts add, read at another position;
    - 1: the last block's output read at its own position; a whole residual; any residual at the first difference
      read right there, since nothing before it differs; the first block's input at the only difference;
    - 1: the same for the state of a block that puts out its state (LSTM, GRU): at the last block read in place, at
      the first difference read in place, and at the only difference in the first block.
    """
    layers = (spot.layer == 0, spot.layer == model.n_layers - 1)
    residual = spot.kind in RESIDUAL
    if residual and (spot.position is None or (layers[1] and spot.kind == "resid_post")):
        return True
    if spot.position is None:
        return False
    position = spot.position % differs.shape[1]
    changed = np.flatnonzero(differs.any(axis=0))
    if position > read or not len(changed) or position < changed[0]:
        return True
    if layers[1] and position != read and spot.kind in ("attn_out", "mlp_out"):
        return True
    is_output = spot.kind == "state" and not table(model).places["state"].path
    if not residual and not is_output:
        return False
    if read == position and (position == changed[0] or (is_output and layers[1])):
        return True
    embedded = spot.layer == -1 or (layers[0] and spot.kind in ("resid_pre", "state"))
    return embedded and changed.tolist() == [position]


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
        v.cpu().numpy() if isinstance(v, Tensor) else np.asarray(v) for v in (clean_labels, corrupt_labels)
    ]
    if any(v.shape != (n,) for v in labels):
        raise InputError(f"labels at the readout have shape (B,) = ({n},), one per pair")
    read = readout % length
    contrast = Contrast(model, [read], labels[0][:, None], labels[1][:, None])
    after = plain_runs(model, first, contrast, batch=batch)[:, 0]
    before = plain_runs(model, second, contrast, batch=batch)[:, 0]
    kept = after - before >= MIN_DENOMINATOR
    if not kept.any():
        raise InputError(
            f"none of the {n} pairs moves the readout by {MIN_DENOMINATOR} logits: nothing to recover"
        )
    patched = patched_runs(model, first, second, spots, contrast, batch=batch)[..., 0]
    differs = (first != second).cpu().numpy()[kept]  # (kept, L)
    return pd.DataFrame(
        {
            "site": str(spot),
            "layer": spot.layer,
            "kind": spot.kind,
            "position": None if spot.position is None else spot.position % length,
            **recovered(before, after, values),
            "mark": "by construction" if by_construction(model, spot, read, differs) else "",
        }
        for spot, values in zip(spots, patched, strict=True)
    )


def _start(spot: Site) -> int:
    """The block to start from: the patched one, since its output is edited where it leaves."""
    return max(spot.layer, 0)
