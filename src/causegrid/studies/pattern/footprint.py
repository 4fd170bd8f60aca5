"""What a pattern-selectivity cell will take, told before anything starts: memory, and forward passes of one prompt.

From the cell's config and the model's own config alone: no weights are loaded, nothing is downloaded.  Where the
model's config is not at hand its size is not known, and the sentence says so.

Memory is the sum of the weights in the cell's number type; the residuals the planner keeps (those of the clean
pass and those of conditions that wait where they part, each up to its cap); the logits of one forward with the
two copies its metrics make; and the activations of the largest forward.  Passes are an upper bound: early stopping,
prefix reuse and equal conditions make most runs much cheaper, and a pass may start high in the model.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from causegrid.errors import InputError
from causegrid.interventions.sweep import CHUNK, FORKS, FULL_BATCH, KEPT_RESIDUALS
from causegrid.models.memory import gigabytes
from causegrid.models.pretrained import as_dtype
from causegrid.signatures.generic import TOKENS_PER_BATCH
from causegrid.spec import split
from causegrid.studies.pattern.head_groups import default_names
from causegrid.studies.pattern.routing import N_DRAWS
from causegrid.studies.placement import device
from causegrid.tasks import task

if TYPE_CHECKING:
    from causegrid.studies.pattern_selectivity import PatternCell

TOKENS = 20  # of a prompt, about
BATCH = 64  # prompts of one forward
WIDTHS = 8  # a block's activations in one forward, in widths of the model


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """`passes`: what for -> forward passes of one prompt, at most.  Bytes are None where the size is not known."""

    passes: Mapping[str, int]
    n_params: int | None = None
    weights: int | None = None
    residuals: int | None = None
    logits: int | None = None
    activations: int | None = None
    open_ended: str = ""

    @property
    def memory(self) -> int | None:
        """Bytes in all."""
        parts = (self.weights, self.residuals, self.logits, self.activations)
        return None if None in parts else sum(int(p) for p in parts if p is not None)

    @property
    def n_passes(self) -> int:
        """Forward passes of one prompt in all."""
        return sum(self.passes.values())

    def sentence(self) -> str:
        """One phrase for `causegrid plan`."""
        parts = ", ".join(f"{what} {n:,}" for what, n in self.passes.items())
        passes = f"at most {self.n_passes:,} passes of a prompt{self.open_ended} ({parts})"
        if self.memory is None or self.n_params is None:
            return f"memory not known (the model's config is not at hand); {passes}"
        return f"{_count(self.n_params)} parameters in about {gigabytes(self.memory)}; {passes}"


def footprint(cell: PatternCell) -> Footprint:
    """What one cell takes."""
    shapes = outlined(cell.model)
    passes, open_ended = _passes(cell, shapes)
    if shapes is None:
        return Footprint(passes=passes, open_ended=open_ended)
    size = as_dtype(cell.dtype).itemsize
    n_params = sum(p.numel() for p in shapes.parameters())
    width, layers = int(shapes.config.hidden_size), int(shapes.config.num_hidden_layers)
    vocabulary = int(shapes.get_output_embeddings().weight.shape[0])
    measured = _measured(cell)
    kept = min(KEPT_RESIDUALS, measured * TOKENS * width * size * (layers - 1))
    forks = min(FORKS, CHUNK * BATCH * TOKENS * width * size)
    full = FULL_BATCH["cpu" if device() == "cpu" else "cuda"]
    rows = max(BATCH, full // TOKENS)
    tokens = max(rows * TOKENS, TOKENS_PER_BATCH)
    return Footprint(
        passes=passes,
        n_params=n_params,
        weights=n_params * size,
        residuals=kept + forks,
        logits=3 * rows * vocabulary * 4,
        activations=WIDTHS * tokens * width * size,
        open_ended=open_ended,
    )


@functools.cache
def outlined(name: str) -> Any | None:
    """The module of a model's name on the meta device; None where no config is at hand."""
    from causegrid.models import models
    from causegrid.models.finetuning import outline
    from causegrid.models.zoo import Kept

    base, options = split(name)
    factory = models.get(base) if base in models else None
    try:
        return outline(str(factory.folder(**options)) if isinstance(factory, Kept) else name)
    except (
        InputError,
        AttributeError,
    ):  # its package is not installed, or it is made by code and has no file
        return None


def _measured(cell: PatternCell) -> int:
    """Prompts effects are measured on: half of them under strict, all under paper."""
    return cell.n_prompts // 2 if cell.rules == "strict" else cell.n_prompts


def _passes(cell: PatternCell, shapes: Any | None) -> tuple[dict[str, int], str]:
    """(what for -> passes, what stands behind their sum where a part is not known)."""
    measured, small = _measured(cell), min(cell.matched_null.n_prompts, _measured(cell))
    made = task(cell.task)
    m = len(cell.groups or default_names(list(getattr(made, "targets", ()))))
    conditions = (
        4 * m + len(cell.unions) + 1
    )  # alone, its layers, kept only, picked again; unions and all of them
    draws = m * max(cell.matched_null.n, cell.matched_null.per_group * m - 1)
    found = {
        "synthetic": cell.generic.n,
        "clean": measured,
        "groups": conditions * len(cell.modes) * measured,
    }
    unknown = ""
    heads = experts = 0
    if shapes is not None:
        config = shapes.config
        layers = int(config.num_hidden_layers)
        heads = layers * int(getattr(config, "num_attention_heads", 0) or 0)
        experts = layers * min(cell.experts, n_experts(config))
    if cell.singles == "groups":
        found["single heads"] = 5 * m * measured
    elif heads:
        found["single heads"] = heads * measured
    else:
        unknown = f" and {measured:,} for each head"
    found["null draws"] = draws * small
    if experts:
        found["routing"] = measured + m * (1 + N_DRAWS) * len(cell.modes) * small
        found["experts"] = experts * small
    if cell.checkpoints:
        found["checkpoints"] = len(cell.checkpoints) * (cell.n_prompts - measured or measured)
    return found, unknown


def n_experts(config: Any) -> int:
    """Experts of a layer that a config states, 0 for a dense model."""
    return int(getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0) or 0)


def _count(n: int) -> str:
    return f"{n / 1e9:.3g} B" if n >= 1e9 else f"{n / 1e6:.3g} M"
