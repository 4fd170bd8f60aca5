"""What a cell cannot be run on, said before any number is made, with what can be run instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from causegrid.errors import InputError
from causegrid.models.record import Model


def require_attention(model: Model) -> None:
    """Raises InputError for a model without attention heads: no screen, no head to ablate."""
    if model.n_heads < 1:
        parts = " and its convolution" if model.family.startswith("mamba") else ""
        raise InputError(
            f"model {model.name!r} ({model.family}) has no attention heads, so there is nothing to screen or to "
            f"ablate here; `study: state-encoding` measures it by its block outputs{parts} (probes, erasure), and "
            f"`causegrid check {model.name}` lists what can be read and edited in it"
        )


def require_groups(groups: Mapping[str, Sequence[str]], task: str, model: str) -> None:
    """Raises InputError when no screen picked a head: nothing can be ablated, so nothing can be judged."""
    if not groups:
        raise InputError(
            f"no screen picked a head on task {task!r} with model {model!r}: there is nothing to ablate; "
            "name other groups in the study, or use rules: paper"
        )
