"""What an ablated head is replaced by: nothing, a held-out mean, or another prompt's value (MEASURES 3.1).

The reference is a set of prompts of the same task, apart from the evaluated ones.  A layer is read when it is
first asked for and kept: the many draws of a null touch the same few layers.

The mean is per position when every prompt, evaluated or reference, has the same length, since only then does
a position mean the same thing everywhere; otherwise it is pooled over all positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.capture import capture
from causegrid.tasks import PromptSet

Ints = NDArray[np.int64]
Mode = Literal["zero", "mean", "resample"]
MODES: tuple[Mode, ...] = ("zero", "mean", "resample")


class Replacements:
    """Values that stand for heads' `z`, layer by layer, on some evaluated prompts.

    Raises InputError when the reference is empty or holds an evaluated prompt.
    """

    def __init__(
        self, model: Model, prompts: PromptSet, reference: PromptSet | None, *, seed: int, batch: int
    ) -> None:
        if reference is not None:
            _check_apart(prompts, reference)
        self.model = model
        self.prompts = prompts
        self.reference = reference
        self.seed = seed
        self.batch = batch
        lengths = prompts.lengths
        self._members = {int(n): np.flatnonzero(lengths == n) for n in np.unique(lengths)}
        self._means: dict[int, Tensor] = {}  # layer -> (L, H, d_h)
        self._pooled: dict[int, Tensor] = {}  # layer -> (H, d_h)
        self._donated: dict[int, dict[int, Tensor]] = {}  # layer -> length -> (prompts of it, L, H, d_h)

    @property
    def digest(self) -> str:
        """Names the reference and the seed: equal head sets under equal digests are the same ablation."""
        digest = hashlib.sha256(str(self.seed).encode())
        for tokens in self.reference.tokens if self.reference is not None else ():
            digest.update(np.asarray(tokens, dtype=np.int64).tobytes() + b"|")
        return digest.hexdigest()

    def value(self, layer: int, members: list[int], mode: Mode, index: Ints | None) -> Tensor | None:
        """The value of some heads of a layer that broadcasts to (B, L, h, d_h); None for zero.

        `index` (B,) names evaluated prompts of one length; None asks for a mean that fits any text.
        """
        if mode == "zero":
            return None
        if mode == "mean":
            per_position = index is not None and layer in self._means
            return self._means[layer][:, members] if per_position else self._pooled[layer][members]
        assert index is not None
        length = len(self.prompts.tokens[int(index[0])])
        row = torch.from_numpy(np.searchsorted(self._members[length], index)).to(self.model.device)
        return self._donated[layer][length][row][:, :, members]

    def need(self, layers: Iterable[int], mode: Mode) -> None:
        """Read what these layers need and is not there yet, in one pass over the reference.

        Raises InputError when there is no reference, or `resample` finds no prompt of equal length.
        """
        if mode == "zero":
            return
        if self.reference is None:
            raise InputError(
                f"mode {mode!r} needs prompts apart from the evaluated ones: give reference=, or a task "
                "instead of a PromptSet (or mode='zero')"
            )
        have: Mapping[int, Any] = self._pooled if mode == "mean" else self._donated
        missing = [layer for layer in layers if layer not in have]
        if missing and mode == "mean":
            self._read_means(missing, self.reference)
        elif missing:
            donors = self._donors(self.reference)
            for length, members in self._members.items():
                for layer, z in zip(missing, self._read([donors[i] for i in members], missing), strict=True):
                    self._donated.setdefault(layer, {})[length] = z

    def _read_means(self, missing: list[int], reference: PromptSet) -> None:
        lengths = reference.lengths
        one_length = len({*self.prompts.lengths.tolist(), *lengths.tolist()}) == 1
        sums: dict[int, Tensor] = {}  # (L, H, d_h) with one length, else (H, d_h)
        for length in np.unique(lengths):
            tokens = [reference.tokens[int(i)] for i in np.flatnonzero(lengths == length)]
            for layer, z in zip(missing, self._read(tokens, missing), strict=True):
                total = z.sum((0,) if one_length else (0, 1), dtype=torch.float64)
                sums[layer] = sums[layer] + total if layer in sums else total
        for layer, total in sums.items():
            if one_length:
                self._means[layer] = total / len(reference)
                total = total.sum(0)
            self._pooled[layer] = total / int(lengths.sum())

    def _read(self, tokens: Sequence[Ints], layers: list[int]) -> list[Tensor]:
        """`z` (n, L, H, d_h) of each layer for prompts of one length."""
        sites = [Site(layer, "z") for layer in layers]
        parts: list[list[Tensor]] = [[] for _ in sites]
        for s in range(0, len(tokens), self.batch):
            ids = torch.from_numpy(np.stack(tokens[s : s + self.batch]).astype(np.int64))
            found = capture(self.model, ids, sites)
            for part, spot in zip(parts, sites, strict=True):
                part.append(found[str(spot)])
        return [torch.cat(part) for part in parts]

    def _donors(self, reference: PromptSet) -> list[Ints]:
        """For each evaluated prompt, another prompt's tokens of equal length: from the reference where it
        has one, else from the other evaluated prompts.  A function of the seed."""
        rng = np.random.default_rng(self.seed)
        lengths = reference.lengths
        donors = []
        for i, tokens in enumerate(self.prompts.tokens):
            pool = [reference.tokens[int(j)] for j in np.flatnonzero(lengths == len(tokens))]
            if not pool:
                pool = [self.prompts.tokens[int(j)] for j in self._members[len(tokens)] if j != i]
            if not pool:
                raise InputError(
                    f"no other prompt has the {len(tokens)} tokens of {self.prompts.texts[i]!r}: "
                    "mode 'resample' needs one of equal length; use more prompts or mode 'mean'"
                )
            donors.append(pool[int(rng.integers(len(pool)))])
        return donors


def _check_apart(prompts: PromptSet, reference: PromptSet) -> None:
    if len(reference) == 0:
        raise InputError("the reference holds no prompts")
    seen = {np.asarray(t, dtype=np.int64).tobytes() for t in prompts.tokens}
    common = sum(np.asarray(t, dtype=np.int64).tobytes() in seen for t in reference.tokens)
    if common:
        raise InputError(f"{common} of {len(reference)} reference prompts are among the evaluated ones")
