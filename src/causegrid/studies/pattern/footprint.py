"""What a pattern-selectivity cell will take, told before anything starts: memory, and forward passes of one prompt.

From the cell's config and the model's own config alone: no weights are loaded.  The config of a Hugging Face id that
is not in the cache is fetched where the hub answers; where it is not at hand the size is not known, and the sentence
says so.

Memory is the sum of the weights in the cell's number type; the residuals the planner keeps (those of the clean
pass and those of conditions that wait where they part, each up to its cap); the logits of one forward with the
two copies its metrics make, or those of ordinary text at every position, whichever are more; and the activations of the
largest forward with the attention rows taken from it.  Measured peaks of tiny cells are a half to all of it.  Passes
are counted in `passes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from causegrid.interventions.sweep import CHUNK, FORKS, FULL_BATCH, KEPT_RESIDUALS
from causegrid.interventions.text import WINDOW
from causegrid.models.memory import gigabytes
from causegrid.models.outline import outlined
from causegrid.models.pretrained import as_dtype
from causegrid.signatures.generic import TOKENS_PER_BATCH
from causegrid.studies.pattern.passes import BATCH, TOKENS, n_conditions, n_draws, passes, sizes
from causegrid.studies.placement import device

if TYPE_CHECKING:
    from causegrid.studies.pattern_selectivity import PatternCell

WIDTHS = 8  # a block's activations in one forward, in widths of the model
WINDOWS = 8  # of ordinary text in one forward, about
ROW_BYTES = 12  # of attention to one position: float32, and float64 where it is summed


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
    counts, open_ended = passes(cell, None if shapes is None else shapes.config)
    if shapes is None:
        return Footprint(passes=counts, open_ended=open_ended)
    size = as_dtype(cell.dtype).itemsize
    n_params = sum(p.numel() for p in shapes.parameters())
    width, layers = int(shapes.config.hidden_size), int(shapes.config.num_hidden_layers)
    vocabulary = int(shapes.get_output_embeddings().weight.shape[0])
    heads = layers * int(getattr(shapes.config, "num_attention_heads", 0) or 0)
    measured = sizes(cell).measured
    kept = min(KEPT_RESIDUALS, measured * TOKENS * width * size * (layers - 1))
    waiting = max(
        n_conditions(cell) * min(BATCH, measured),
        min(CHUNK, n_draws(cell)) * min(BATCH, measured, cell.matched_null.n_prompts),
    )
    forks = min(FORKS, waiting * TOKENS * width * size)
    full = FULL_BATCH["cpu" if device() == "cpu" else "cuda"]
    rows = max(min(BATCH, measured), full // TOKENS)
    synthetic = min(TOKENS_PER_BATCH, cell.generic.n * cell.generic.length)
    tokens = max(rows * TOKENS, synthetic)
    return Footprint(
        passes=counts,
        n_params=n_params,
        weights=n_params * size,
        residuals=kept + forks,
        logits=3 * max(rows, WINDOWS * WINDOW) * vocabulary * 4,
        activations=WIDTHS * tokens * width * size + ROW_BYTES * synthetic * heads,
        open_ended=open_ended,
    )


def _count(n: int) -> str:
    return f"{n / 1e9:.3g} B" if n >= 1e9 else f"{n / 1e6:.3g} M"
