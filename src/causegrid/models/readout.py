"""How a language model sees a state task: which of its tokens stand for the task's, and where a class is read.

Design choices:
- Task ids go in and class logits come out of `forward.call`; `.module` stays the plain Hugging Face model, so
  capture, edits and patching need to know nothing of it.
- A task token is one ordinary vocabulary token: the task's own `token_names` where it states them and they are
  single tokens, then digits and letters, then the first ids that are not special.  No BOS and no separators are
  added: position t of the task is position t of the model.
- A class is read at a row of a new linear head, untied from the embeddings, or (`outputs`) at the vocabulary
  token that names it.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from causegrid.errors import InputError

NAMES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)


@dataclass(frozen=True, kw_only=True)
class StateReadout:
    """Task token i is vocabulary token `inputs[i]`; class c is read at vocabulary token `outputs[c]`, or with
    `outputs` None at row c of the module's own head.  `lr` is the learning rate unless another is asked for.
    """

    task: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] | None
    lr: float

    def enter(self, ids: Tensor) -> Tensor:
        """Task ids (B, L) -> vocabulary ids (B, L)."""
        return torch.tensor(self.inputs, device=ids.device)[ids]

    def classes(self, logits: Tensor) -> Tensor:
        """The module's logits (..., rows of its head) -> class logits (..., C)."""
        if self.outputs is None:
            return logits
        return logits.index_select(-1, torch.tensor(self.outputs, device=logits.device))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        outputs = None if self.outputs is None else list(self.outputs)
        return {"task": self.task, "inputs": list(self.inputs), "outputs": outputs, "lr": self.lr}

    @classmethod
    def from_json(cls, given: Any) -> StateReadout:
        """Raises ValueError when `given` describes no readout."""
        try:
            inputs, outputs = _ids(given["inputs"]), given["outputs"]
            return cls(
                task=str(given["task"]),
                inputs=inputs,
                outputs=None if outputs is None else _ids(outputs),
                lr=float(given["lr"]),
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"no readout: {error}") from None


def _ids(given: Sequence[Any]) -> tuple[int, ...]:
    ids = tuple(int(i) for i in given)
    if not ids or len(set(ids)) < len(ids) or min(ids) < 0:
        raise ValueError("vocabulary ids must be distinct and not negative")
    return ids


def vocabulary_ids(
    n: int, *, n_vocab: int, tokenizer: Any = None, names: Sequence[str] = (), special: Sequence[int] = ()
) -> tuple[int, ...]:
    """`n` distinct ordinary ids below `n_vocab`: single tokens of `names` (all of them or none), else of digits
    and letters, then the lowest free ids that are not special.

    Raises InputError when the vocabulary is too small.
    """
    barred = {int(i) for i in special}
    wanted: list[int] = []
    if tokenizer is not None:
        barred |= {int(i) for i in tokenizer.all_special_ids}
        wanted = _single(tokenizer, names[:n], barred, n_vocab)
        if len(wanted) < n:
            wanted = _single(tokenizer, NAMES, barred, n_vocab)[:n]
    free = (i for i in range(n_vocab) if i not in barred and i not in set(wanted))
    wanted += [i for i, _ in zip(free, range(n - len(wanted)), strict=False)]
    if len(wanted) < n:
        raise InputError(f"a vocabulary of {n_vocab} tokens has no {n} ordinary ones for the task")
    return tuple(wanted)


def _single(tokenizer: Any, names: Sequence[str], barred: set[int], n_vocab: int) -> list[int]:
    """Ids of the names that are one ordinary token each, every id once."""
    found: list[int] = []
    for name in names:
        ids = tokenizer.encode(name, add_special_tokens=False)
        if len(ids) == 1 and ids[0] not in barred and ids[0] not in found and ids[0] < n_vocab:
            found.append(int(ids[0]))
    return found


def special_ids(config: Any) -> list[int]:
    """Ids that a Hugging Face config reserves (bos, eos, pad)."""
    given = [getattr(config, f"{kind}_token_id", None) for kind in ("bos", "eos", "pad")]
    flat = [i for value in given for i in (value if isinstance(value, list) else [value])]
    return [i for i in flat if isinstance(i, int)]


def put_head(
    module: Any, rows: int, *, seed: int = 0, state: Mapping[str, Tensor] | None = None
) -> list[str]:
    """Put a linear head of `rows` outputs in the place of the module's own, untied from its embeddings.

    Weights are normal with the config's `initializer_range`, drawn on the CPU from `seed`, bias 0 (a bias only
    where the old head had one); `state` ("weight", "bias") is used instead where given.  Returns the names of
    the head's parameters.
    """
    old = module.get_output_embeddings()
    weight = old.weight
    bias = getattr(old, "bias", None) is not None
    new = nn.Linear(weight.shape[1], rows, bias=bias, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        if state is None:
            std = float(getattr(module.config, "initializer_range", None) or 0.02)
            drawn = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(seed)) * std
            new.weight.copy_(drawn)
            if bias:
                new.bias.zero_()
        else:
            new.load_state_dict(dict(state))
    module.set_output_embeddings(new)
    if module.get_output_embeddings() is not new:
        raise InputError(
            f"the output head of {type(module).__name__} cannot be replaced: use readout: tokens"
        )
    module.config.tie_word_embeddings = False
    module.all_tied_weights_keys = module.get_expanded_tied_weights_keys(all_submodels=True)
    return head_names(module)


def head_names(module: Any) -> list[str]:
    """Names of the parameters of the module's output head."""
    head = module.get_output_embeddings()
    path = next(name for name, part in module.named_modules() if part is head)
    return [f"{path}.{name}" for name, _ in head.named_parameters()]
