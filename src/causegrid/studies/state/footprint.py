"""How much memory each stage of a fine-tuned cell takes, told from shapes before anything starts.

Training is not always the fullest: the stages behind it hold every layer's activations in float32 (those of the
trained model at one or two lengths, the untrained one's and those of a longer length beside them), probing holds two
models, and fitting copies of one layer's rows.  Activations and fits are in the machine's memory also where the
model is on a GPU.  At worst: what a model that learns to a shorter length than trained takes, which is analysed
at both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from causegrid.models.finetuning import needed_bytes
from causegrid.models.memory import FLOAT, forward_bytes, gigabytes, n_weights, require_memory
from causegrid.models.outline import outlined
from causegrid.signatures.activations import N_POSITIONS
from causegrid.studies.state.stages import LEARNED_MINIMUM

if TYPE_CHECKING:
    from causegrid.studies.state_encoding import StateCell

SEQUENCES = 64  # of the largest batch that a stage calls the model on
COPIES, INLP_COPIES = 6, 14  # of one layer's training rows that a fit takes, about


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that one stage takes: `model` on the model's device, `host` in the machine's memory."""

    stage: str
    model: int
    host: int = 0

    @property
    def total(self) -> int:
        """Bytes in all, where both are one memory."""
        return self.model + self.host


def needs(cell: StateCell, module: Any, made: Any) -> list[Need]:
    """What each stage of a fine-tuned cell takes on the task `made`; `module` may be on the meta device."""
    f, t, p, e = cell.fine_tuning, cell.training, cell.probing, cell.erasing
    assert f is not None
    n_classes = int(made.n_classes) if f.readout == "head" else None
    rows = n_classes or int(module.get_output_embeddings().weight.shape[0])
    width, n_layers = int(module.config.hidden_size), int(module.config.num_hidden_layers)
    weights = FLOAT * n_weights(module, rows)

    def layer(n: int) -> int:
        """Activations of n tokens at one layer."""
        return FLOAT * n * width

    def run(length: int) -> int:
        """One batch through the model, every layer's output kept."""
        n = SEQUENCES * length
        return forward_bytes(module, rows=rows, n_tokens=n) + (n_layers + 1) * layer(n)

    def kept(length: int, n_test: int = p.n_test) -> int:
        """Activations of both splits, every layer."""
        return (n_layers + 1) * layer((p.n_train + n_test) * min(length, N_POSITIONS))

    def training(batch: int) -> int:
        size = {"batch": batch, "length": t.length}
        return needed_bytes(module, method=f.method, rank=f.rank, n_classes=n_classes, **size)

    behaviour = SEQUENCES * max(t.length, *cell.eval_lengths)
    evaluated = training(0) + forward_bytes(module, rows=rows, n_tokens=behaviour)
    found = kept(t.length) + (kept(t.length - 1) if t.length > LEARNED_MINIMUM else 0)
    fit = layer(p.n_train * min(t.length, N_POSITIONS))
    stages = [
        Need(stage="train", model=max(training(t.batch), evaluated)),
        Need(stage="probe", model=2 * weights + run(t.length), host=found + kept(t.length) + COPIES * fit),
    ]
    if e:
        fits = fit * (INLP_COPIES if "inlp" in e.bases else COPIES)
        stages.append(Need(stage="erase", model=weights + run(t.length), host=found + fits))
        if e.beyond:
            longest = max(e.beyond.lengths)
            there = (n_layers + 1) * layer(p.n_train * min(t.length, N_POSITIONS) + e.beyond.n_test * longest)
            there *= min(2, len(e.beyond.lengths))  # the next is collected before the last is gone
            stages.append(Need(stage="beyond", model=weights + run(longest), host=found + there + fits))
    if cell.components:
        longest = max(t.length, *cell.eval_lengths)
        stages.append(Need(stage="components", model=weights + run(longest), host=found))
    if cell.patching:
        stages.append(Need(stage="patch", model=weights + run(t.length), host=found))
    return stages


def sentence(cell: StateCell, made: Any) -> str:
    """One phrase for `causegrid plan`: parameters, and memory of the fullest stage; says so when the model's config
    is not at hand."""
    assert cell.fine_tuning is not None
    shapes = outlined(cell.model)
    if shapes is None:
        return "size known once the model is loaded"
    stages = needs(cell, shapes, made)
    most = max(stages, key=lambda need: need.total)
    n = sum(p.numel() for p in shapes.parameters())
    said = (
        f"{cell.fine_tuning.method} fine-tune of {n / 1e6:.3g} M parameters in about {gigabytes(most.total)}"
    )
    return (
        said
        if most.stage == "train"
        else f"{said} (stage {most.stage}; training {gigabytes(stages[0].total)})"
    )


def require_room(cell: StateCell, module: Any, made: Any, device: torch.device) -> None:
    """Raises InputError, naming the stage, when the fullest one needs more memory than there is."""
    stages = needs(cell, module, made)
    if device.type == "cpu":
        _require(cell, max(stages, key=lambda need: need.total), "total", device)
        return
    _require(cell, max(stages, key=lambda need: need.model), "model", device)
    _require(cell, max(stages, key=lambda need: need.host), "host", torch.device("cpu"))


def _require(cell: StateCell, most: Need, where: str, device: torch.device) -> None:
    needed = int(getattr(most, where))
    if most.stage == "train":
        require_memory(f"fine-tuning {cell.model!r}", needed, device)
        return
    advice = "take fewer sequences (probing.n_train, probing.n_test) or a shorter length"
    if most.stage == "beyond":
        advice += ", or leave out erasing.beyond"
    require_memory(f"stage {most.stage!r} on {cell.model!r}", needed, device, advice)
