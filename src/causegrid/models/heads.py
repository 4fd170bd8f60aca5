"""Whether a model has attention heads, and what to run where it has none: one answer for every measure of heads."""

from __future__ import annotations

from pathlib import Path

from causegrid.errors import InputError
from causegrid.models.config import stated
from causegrid.models.record import Model

NO_ATTENTION = ("mamba", "mamba2", "falcon_mamba")  # model types of Hugging Face


def require_attention(model: Model) -> None:
    """Raises InputError, naming what can be run instead, for a model without attention heads."""
    if model.n_heads < 1:
        raise _without(model.name, model.family)


def require_attention_in(folder: str) -> None:
    """The same of a folder, from its config.json alone; of one that we saved, loading it tells.

    Raises InputError also for a folder that holds no model, or whose config.json cannot be read.
    """
    if (Path(folder).expanduser() / "model.json").is_file():
        return
    kind = stated(folder).get("model_type")
    if kind in NO_ATTENTION:
        raise _without(folder, str(kind))


def _without(name: str, family: str) -> InputError:
    erased = "erases directions from them"
    if family.startswith("mamba"):
        erased += " and removes its convolution"
    return InputError(
        f"model {name!r} ({family}) has no attention heads, so there is nothing to screen or to "
        "ablate here; what can be run instead: `study: state-encoding`, which probes its block outputs, "
        f"{erased}, and `causegrid check {name}`, which lists what can be read and edited in it"
    )
