"""Where a training run stands, in one file that a killed process leaves whole.

Design choices:
- One safetensors file, no pickle: the tensors, and as metadata one JSON text with the plain facts and with
  `run`, which says whose state this is.  It is written aside and renamed, so the file is the old state or
  the new one; a digest over all of it finds what a rename cannot rule out.  It is not flushed to the disk: a
  kill loses nothing, and after a power cut the digest tells.
- A file that is corrupt, or of another run, is never used: a warning says why and training starts anew.
- Weights that cannot change (frozen ones, under LoRA) are not kept: the run is told apart by a digest of its
  first weights, all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from causegrid.errors import InputError

FORMAT = 1
SHARE = 20  # a write may cost at most one part in so many of the time between two


class Checkpoint:
    """The state of one run at `path`; `run` (JSON-able) tells that run from every other."""

    def __init__(self, path: Path, run: Mapping[str, Any], *, every: float) -> None:
        if path.is_dir():
            raise InputError(f"checkpoint {str(path)!r} is a folder: name a file")
        self.path, self.every = path, every
        self.run: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **run}))
        self._last, self._cost = time.perf_counter(), 0.0

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.perf_counter() - self._last >= max(self.every, SHARE * self._cost)

    def write(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Put this state in the place of the one before."""
        from safetensors.torch import save_file

        start = time.perf_counter()
        kept = _apart(tensors)
        text = json.dumps({"run": self.run, "facts": dict(facts)})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(f".{self.path.name}.tmp")
        try:
            save_file(kept, str(aside), metadata={"state": text, "digest": digest(kept, text)})
            os.replace(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)
        self._last = time.perf_counter()
        self._cost = self._last - start

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """(tensors, facts) of this run, or None when there are none to go on from (a warning says why)."""
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        try:
            with safe_open(str(self.path), framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = about["state"]
            if digest(tensors, text) != about["digest"]:
                raise ValueError("its bytes changed since they were written")
            state = json.loads(text)
            run, facts = dict(state["run"]), dict(state["facts"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            warnings.warn(
                f"checkpoint {str(self.path)!r} is corrupt ({reason}): training starts anew", stacklevel=3
            )
            return None
        for key in dict.fromkeys((*self.run, *run)):
            if run.get(key) != self.run.get(key):
                warnings.warn(
                    f"checkpoint {str(self.path)!r} is of another run ({key} {run.get(key)!r}, here "
                    f"{self.run.get(key)!r}): training starts anew",
                    stacklevel=3,
                )
                return None
        return tensors, facts


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, each in memory of its own: the file format knows no shared (tied) weights."""
    kept: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        kept[name] = value.clone() if place in seen else value
        seen.add(place)
    return kept


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """sha256 over names, shapes, types and values, and `text`."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def array_digest(array: np.ndarray[Any, Any]) -> str:
    """sha256 over an array's values."""
    return digest({"": torch.from_numpy(np.ascontiguousarray(array))})


def moving(module: nn.Module) -> dict[str, Tensor]:
    """What training can change: the state without frozen parameters; not copies."""
    frozen = {n for n, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value.detach() for name, value in module.state_dict().items() if name not in frozen}


def put_back(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy `values`, named as in `moving`, into the module."""
    state = moving(module)
    with torch.no_grad():
        for name, value in values.items():
            state[name].copy_(value)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `<parameter's number>.<name>`."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, values in state.items() for name, value in values.items()}


def put_back_optimizer(optimizer: torch.optim.Optimizer, values: Mapping[str, Tensor]) -> None:
    """The reverse of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in values.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The global generators a module may draw from (dropout)."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def put_back_random_states(device: torch.device, values: Mapping[str, Tensor]) -> None:
    """The reverse of `random_states`; a device the run was not on keeps its own."""
    torch.set_rng_state(values["cpu"])
    if device.type == "cuda" and "cuda" in values:
        torch.cuda.set_rng_state(values["cuda"], device)
