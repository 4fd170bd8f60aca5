"""How much memory training a Hugging Face model takes, and calling it, told from its shapes before it starts.

float32 throughout.  Every weight counts once, what is trained four times more: gradient, AdamW's two moments, and
the last good copy that training keeps.  Activations of one batch, per token: `KEPT` x the inputs and outputs of
every matrix (what autograd keeps, with norms, gates and attention beside them), `SCAN` x inner width x state
size of a Mamba block (its scan keeps every position's state without compiled kernels), and `LOGITS` x the rows
of the head.  A rough formula: tests hold it within a factor of 2 of measured peaks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from causegrid.errors import InputError
from causegrid.models import control_group

FLOAT = 4  # bytes
KEPT, SCAN, LOGITS = 1.3, 4.0, 4.0


def training_bytes(module: Any, *, trained: int, rows: int, n_tokens: int) -> int:
    """Bytes that training takes on batches of `n_tokens` tokens, when `trained` parameters move and the head
    has `rows` rows.  Shapes alone are looked at: `module` may be on the meta device.
    """
    weights = n_weights(module, rows) + 4 * trained
    return int(FLOAT * (weights + n_tokens * (_kept(module) + LOGITS * rows)))


def forward_bytes(module: Any, *, rows: int, n_tokens: int) -> int:
    """Bytes that one forward without gradients takes beside the weights: of one block at a time, and the logits."""
    return int(FLOAT * n_tokens * (_kept(module) / int(module.config.num_hidden_layers) + LOGITS * rows))


def _kept(module: Any) -> float:
    """Numbers a token's activations are, of all blocks: what autograd keeps of their matrices, and the scans."""
    head = module.get_output_embeddings()
    matrices = [part for part in module.modules() if is_matrix(part) and part is not head]
    config = module.config
    state = int(getattr(config, "state_size", 0) or 0)
    inner = int(getattr(config, "intermediate_size", 0) or 0)
    if state and not inner:
        inner = int(getattr(config, "num_heads", 0)) * int(getattr(config, "head_dim", 0) or 0)
    scan = SCAN * state * inner * int(config.num_hidden_layers)
    return KEPT * sum(sum(part.weight.shape) for part in matrices) + scan


def n_weights(module: Any, rows: int) -> int:
    """Number of parameters once the head has `rows` rows of its own (the old number: as it is)."""
    head, embed = module.get_output_embeddings().weight, module.get_input_embeddings().weight
    total: int = sum(p.numel() for p in module.parameters())
    if rows == head.shape[0]:
        return total
    return total - (0 if head is embed else int(head.numel())) + rows * int(head.shape[1])


def is_matrix(part: nn.Module) -> bool:
    """Whether a module is a linear map of the last axis: `nn.Linear`, or GPT-2's `Conv1D`."""
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"


def available_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device; for the CPU what the system says is available, and no more than a limit of
    the process's control group leaves.  None when nothing says so."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [n for n in (_system_bytes(), control_group.left_bytes()) if n is not None]
    return min(found, default=None)


def _system_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def require_memory(
    what: str,
    needed: int,
    device: torch.device,
    advice: str = "take a smaller batch or length, method: lora, or readout: head",
) -> None:
    """Raises InputError, with both numbers, when the device has less than `needed` bytes left for `what`."""
    there = available_bytes(device)
    if there is not None and needed > there:
        raise InputError(
            f"{what} needs about {gigabytes(needed)} of memory, {gigabytes(there)} are free on {device}: {advice}"
        )


def gigabytes(n: float) -> str:
    """Bytes -> "1.3 GB"."""
    return f"{n / 1e9:.2g} GB" if n < 1e10 else f"{n / 1e9:.0f} GB"
