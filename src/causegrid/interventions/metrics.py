"""Per-prompt metrics from the logits at the query position (MEASURES 1.4).

Design: answer and foil sets are ragged, so they are padded once into index tensors (`Targets`) and every
metric is a gather and a few reductions over the vocabulary, for many conditions at a time: logits may carry
any number of leading axes in front of (B, V).  The vocabulary is read a few prompts at a time, so that all
passes after the first find it in the cache, and never for an argmax alone, the slowest of them: whether the
best answer equals the largest logit decides, except where another token ties with it.  Every metric is
unchanged when one number is added to all logits of a prompt; means are taken over differences and
probabilities, never over logit levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from causegrid.errors import InputError
from causegrid.tasks import PromptSet

_CACHED = 2**19  # logits on the CPU that are reduced together: two megabytes
_BEST_ANSWER, _OTHER = -1, -2  # in place of a token id
METRICS: tuple[str, ...] = ("top1", "logit_diff", "answer_prob", "answer_rank", "restricted")


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Answer and foil ids of B prompts, padded: `answers` (B, A), `foils` (B, F) and their masks."""

    answers: Tensor
    answer_mask: Tensor
    foils: Tensor
    foil_mask: Tensor

    @classmethod
    def of(cls, prompts: PromptSet, device: torch.device | str = "cpu") -> Targets:
        """Targets of all prompts.  Raises InputError when a prompt has no answer, or answer and foil meet."""
        for i, (answer, foil) in enumerate(zip(prompts.answers, prompts.foils, strict=True)):
            if len(answer) == 0:
                raise InputError(f"prompt {i} of {prompts.task!r} has no answer: {prompts.texts[i]!r}")
            both = np.intersect1d(answer, foil)
            if len(both):
                raise InputError(
                    f"prompt {i} of {prompts.task!r} has token {int(both[0])} as answer and as foil: "
                    f"{prompts.texts[i]!r}"
                )
        answers, answer_mask = _padded(prompts.answers, device)
        foils, foil_mask = _padded(prompts.foils, device)
        return cls(answers=answers, answer_mask=answer_mask, foils=foils, foil_mask=foil_mask)

    def rows(self, index: Sequence[int] | NDArray[np.int64]) -> Targets:
        """The targets of some prompts, in that order."""
        pick = torch.as_tensor(np.asarray(index, dtype=np.int64), device=self.answers.device)
        return Targets(
            answers=self.answers[pick],
            answer_mask=self.answer_mask[pick],
            foils=self.foils[pick],
            foil_mask=self.foil_mask[pick],
        )


def _padded(
    sets: Sequence[NDArray[np.int64]], device: torch.device | str
) -> tuple[Tensor, Tensor]:  # each (B, widest)
    unique = [np.unique(np.asarray(s, dtype=np.int64)) for s in sets]
    width = max([1, *(len(u) for u in unique)])
    ids = np.zeros((len(unique), width), dtype=np.int64)
    mask = np.zeros((len(unique), width), dtype=bool)
    for i, u in enumerate(unique):
        ids[i, : len(u)] = u
        mask[i, : len(u)] = True
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def metric_values(logits: Tensor, targets: Targets) -> Tensor:
    """Logits (..., B, V) at the query position -> (..., B, 5) float64, in the order of `METRICS`.

    `top1`: 1 when the argmax over the vocabulary is an answer.  `logit_diff`: mean answer logit - mean foil
    logit, NaN without foils.  `answer_prob`: probability of the answer set.  `answer_rank`: rank of the best
    answer, 1 = top (1 + the number of tokens strictly above it).  `restricted`: 1 when the best answer is
    strictly above the best foil, NaN without foils.  Logits that are not numbers give NaN everywhere.
    """
    logits = logits.float()
    lead = logits.shape[:-1]
    answers = logits.gather(-1, targets.answers.expand(*lead, -1))  # (..., B, A)
    foils = logits.gather(-1, targets.foils.expand(*lead, -1))  # (..., B, F)
    n_answers = targets.answer_mask.sum(-1)
    n_foils = targets.foil_mask.sum(-1)
    best_answer = torch.where(targets.answer_mask, answers, -torch.inf).amax(-1)  # (..., B)
    best_foil = torch.where(targets.foil_mask, foils, -torch.inf).amax(-1)
    n_best = ((answers == best_answer.unsqueeze(-1)) & targets.answer_mask).sum(-1)

    flat = logits.reshape(-1, logits.shape[-1])  # (R, V)
    read = _read(flat, best_answer.reshape(-1), n_best.reshape(-1))
    total, top, rank = (one.view(lead) for one in read)
    at_top = ((targets.answers == top.unsqueeze(-1)) & targets.answer_mask).any(-1)
    top1 = (at_top | (top == _BEST_ANSWER)).double()
    mean_answer = torch.where(targets.answer_mask, answers, 0.0).double().sum(-1) / n_answers
    mean_foil = torch.where(targets.foil_mask, foils, 0.0).double().sum(-1) / n_foils  # NaN without foils
    prob = torch.where(targets.answer_mask, (answers - total.unsqueeze(-1)).exp(), 0.0).double().sum(-1)
    restricted = (best_answer > best_foil).double()
    restricted = torch.where(n_foils > 0, restricted, torch.nan)

    values = torch.stack([top1, mean_answer - mean_foil, prob, rank.double(), restricted], dim=-1)
    return torch.where(torch.isnan(total).unsqueeze(-1), torch.nan, values)


def _read(logits: Tensor, best: Tensor, n_best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (R, V), the best answer's logit (R,) and how many answers have it -> (logsumexp, top, rank), (R,).

    `top` is the argmax where it can matter, `_BEST_ANSWER` where the best answers stand alone at the top and
    `_OTHER` where no answer is the largest.
    """
    on_cpu = logits.device.type == "cpu"
    size = max(1, _CACHED // logits.shape[1]) if on_cpu else max(1, len(logits))
    scratch = torch.empty_like(logits[:size])
    found = []
    for x, b, n in zip(*(torch.split(one, size) for one in (logits, best, n_best)), strict=True):
        buffer = scratch[: len(x)]
        largest = x.amax(-1)  # NaN in a row with NaN
        shift = torch.where(largest.isinf(), 0.0, largest)
        torch.sub(x, shift.unsqueeze(-1), out=buffer)
        total = buffer.exp_().sum(-1).log() + shift
        first = b == largest
        # tokens above the best answer; where that is the largest, tokens level with it
        least = torch.where(first, b.nextafter(torch.full_like(b, -torch.inf)), b)
        torch.gt(x, least.unsqueeze(-1), out=buffer)
        above = buffer.sum(-1)  # whole numbers below 2**24: exact
        top = torch.where(first, _BEST_ANSWER, _OTHER)
        tied = first & (above != n)
        if not on_cpu:  # an argmax costs less than waiting for the device
            top = torch.where(tied, x.argmax(-1), top)
        elif bool(tied.any()):
            top[tied] = x[tied].argmax(-1)
        found.append((total, top, torch.where(first, 1.0, 1.0 + above)))
    total, top, rank = (torch.cat(parts) for parts in zip(*found, strict=True))
    return total, top, rank


def metrics(logits: Tensor, prompts: PromptSet) -> dict[str, NDArray[np.float64]]:
    """Logits (B, V) of the prompts' last positions -> metric name -> (B,) values; see `metric_values`.

    Raises InputError when the numbers of prompts differ.
    """
    if logits.ndim != 2 or logits.shape[0] != len(prompts):
        raise InputError(f"logits of shape {tuple(logits.shape)} for {len(prompts)} prompts: give (B, V)")
    values = metric_values(logits, Targets.of(prompts, logits.device)).cpu().numpy()
    return {name: values[:, i] for i, name in enumerate(METRICS)}
