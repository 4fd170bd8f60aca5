"""Whether a model has attention heads, and what to run where it has none: one answer for every measure of heads."""

from __future__ import annotations

from causegrid.errors import InputError
from causegrid.models.record import Model


def require_attention(model: Model) -> None:
    """Raises InputError, naming what can be run instead, for a model without attention heads."""
    if model.n_heads < 1:
        erased = "erases directions from them"
        if model.family.startswith("mamba"):
            erased += " and removes its convolution"
        raise InputError(
            f"model {model.name!r} ({model.family}) has no attention heads, so there is nothing to screen or to "
            "ablate here; what can be run instead: `study: state-encoding`, which probes its block outputs, "
            f"{erased}, and `causegrid check {model.name}`, which lists what can be read and edited in it"
        )
