"""Read activations from the untouched model during one forward.

Nothing is stored that was not asked for, values are detached and never copied unless they are a part of a
larger tensor (a copy of the part frees the rest).  Attention rows come from the same forward (see `rows`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from causegrid.errors import InterventionError
from causegrid.models.forward import logits
from causegrid.models.record import Model
from causegrid.sites.address import Site, sites
from causegrid.sites.hooks import select, tap
from causegrid.sites.rows import recording
from causegrid.sites.states import StateTap, tapped
from causegrid.sites.table import Place, blocks, place, require


def capture(
    model: Model, tokens: Any, where: str | Site | Iterable[str | Site], *, mask: Any = None
) -> dict[str, Tensor]:
    """Activations at `where` for token ids (B, L), keyed by `str(site)` in the order given.

    Shapes: residual kinds (B, L, d_model); `z` (B, L, H, d_h), `z[3]` (B, L, d_h); `pattern` (B, H, L), the
    softmax row of the last position in float32, `pattern[3]` (B, L); `state` (B, L, ...) as in `states`;
    with `@p` the position axis is dropped.
    Detached, on the model's device, in the model's dtype.  `mask` (B, L): 1 = real token, left padding only.
    Edits that are in force are seen.

    Raises InputError for a site the model does not have, InterventionError when a site was never reached.
    """
    spots = list(dict.fromkeys(require(model, spot) for spot in sites(where)))
    found: dict[str, Tensor] = {}
    states: dict[str, list[Tensor]] = {}
    stack = blocks(model)

    def keep(spot: Site, entry: Place) -> Any:
        def reader(value: Tensor) -> None:
            part = select(value.detach(), spot, entry, stack[max(spot.layer, 0)], model.n_heads)
            found[str(spot)] = part if part.numel() == value.numel() else part.clone()

        return reader

    with ExitStack() as scope:
        patterns = [spot for spot in spots if spot.kind == "pattern"]
        rows = scope.enter_context(recording(model)) if patterns else {}
        for spot in spots:
            if spot.kind != "pattern":
                module, entry = place(model, spot)
                if entry.side == "state":
                    steps = states.setdefault(str(spot), [])
                    scope.enter_context(tapped(module, StateTap(spot.position, _append(steps))))
                else:
                    scope.callback(tap(module, entry.side, keep(spot, entry)).remove)
        logits(model, tokens, mask=mask, last=True)
        for spot in patterns:
            if spot.layer in rows:
                found[str(spot)] = _row(rows[spot.layer], spot)
    for spot in spots:
        if states.get(str(spot)):
            steps = states[str(spot)]  # L times (B, ...)
            found[str(spot)] = steps[0] if spot.position is not None else torch.stack(steps, dim=1)
    missing = [str(spot) for spot in spots if str(spot) not in found]
    if missing:
        raise InterventionError(f"{', '.join(missing)} of {model.name}: the module was never called")
    return {str(spot): _plain(found[str(spot)]) for spot in spots}


def _append(steps: list[Tensor]) -> Any:
    def reader(_t: int, state: Tensor) -> None:
        steps.append(state.detach())

    return reader


def _row(row: Tensor, spot: Site) -> Tensor:
    """(B, H, L) -> the head and key position a Site names."""
    if spot.head is not None:
        row = row[:, spot.head]
    return row if spot.position is None else row[..., spot.position]


def _plain(value: Tensor) -> Tensor:
    """A tensor a probe can train on, also when the forward ran in inference mode."""
    return value.clone() if value.is_inference() else value
