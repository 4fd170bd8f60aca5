"""One forward pass, the same for every model: token ids in, float32 logits out.

Design choices:
- The module is called as it is; nothing is left behind.  Evaluation mode is set for the call and every
  submodule gets back the mode it had.
- `torch.no_grad`, not inference mode: inference tensors cannot be written to afterwards, and edits do.
- cuDNN computes in full float32, not in TF32 (`full_float32`), so that a GPU's logits are the CPU's.
- A model with a readout takes task ids and gives class logits; only `arguments` and `call` know.
- No cache: a cached key or state from an earlier call would make a forward depend on the one before it.
- Padding is on the left only, and the mask always comes with the positions derived from it: without them
  a model with absolute positions shifts its logits by several units.  Models that are not known to ignore
  left padding exactly refuse a mask; `last_logits` batches prompts of equal length and never pads.
- Mamba and Mamba-2 in transformers zero the padded inputs before the input projection and again after the
  convolution, so the state stays zero until the first real token.  That is exact only when the input
  projection has no bias: with `use_bias=True` the convolution of the first real tokens sees the bias
  where an unpadded run sees zeros, so such a model refuses a mask too.
- Prompts longer than the positions a Hugging Face config states are refused, also where the positions are
  rotary and the module would run: its answers there are not the model's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from causegrid.errors import InputError
from causegrid.models.record import Model

RECURRENT = ("mamba", "mamba2", "falcon_mamba")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every submodule is in the mode it was found in."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def full_float32() -> Iterator[None]:
    """cuDNN without TF32 inside: torch allows it there by default, and it cuts the products of a float32
    LSTM, GRU or convolution to half precision's 10 bits.  Matrix products are left as the caller set them.
    """
    cudnn: Any = torch.backends.cudnn
    try:
        before = cudnn.allow_tf32
    except RuntimeError:  # set part by part through torch's newer flags: somebody's choice
        yield
        return
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


@functools.cache
def _forward_parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def _takes(module: nn.Module) -> frozenset[str]:
    return _forward_parameters(type(module).forward)


def token_ids(model: Model, tokens: Any) -> Tensor:
    """Nested lists, numpy or torch (B, L) -> int64 ids (B, L) on the model's device.

    Raises InputError when they are not whole numbers in a rectangle, or an id is outside the vocabulary, or
    the sequence is longer than the positions the model states (`position_limit`).
    """
    try:
        given = tokens if isinstance(tokens, Tensor) else torch.as_tensor(np.asarray(tokens))
    except (ValueError, TypeError):
        raise InputError(
            "token ids must form a rectangle (B, L) of whole numbers; for prompts of several lengths "
            "use last_logits, or pad on the left and pass a mask"
        ) from None
    if given.dim() != 2 or given.numel() == 0:
        raise InputError(f"token ids must have shape (B, L), none of them 0; got {tuple(given.shape)}")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"token ids must be whole numbers, got {given.dtype}")
    low, high = torch.stack(torch.aminmax(given)).tolist()  # one look at the device, not two
    if low < 0 or high >= model.n_tokens:
        bad = low if low < 0 else high
        raise InputError(
            f"token id {bad} is outside the vocabulary of {model.name!r}: "
            f"its {model.n_tokens} ids are 0 to {model.n_tokens - 1}"
        )
    limit = position_limit(model)
    if limit is not None and given.shape[1] > limit:
        raise InputError(f"{given.shape[1]} tokens are too many for {model.name!r}: it has {limit} positions")
    return given.to(device=model.device, dtype=torch.long)


def position_limit(model: Model) -> int | None:
    """The longest prompt, in tokens, that a Hugging Face model states in its config
    (`max_position_embeddings`); None for our own families and for configs without it, as Mamba's.
    """
    stated = getattr(getattr(model.module, "config", None), "max_position_embeddings", None)
    return stated if type(stated) is int and stated > 0 else None


def padding_refused(model: Model) -> str:
    """Why this model takes no mask, or "" when left padding is exact for it."""
    if not model.is_hf:
        return f"the {model.family} family takes batches of equal length only"
    taken = _takes(model.module)
    if "attention_mask" not in taken:
        return f"the forward of {model.family} takes no attention mask"
    if "position_ids" in taken:
        return ""
    if model.family in RECURRENT:
        biased = bool(getattr(model.module.config, "use_bias", False))
        return (
            "its input projection has a bias, which enters the convolution at padded places" if biased else ""
        )
    return f"left padding is not known to be exact for {model.family}"


def padding(model: Model, mask: Any, shape: torch.Size) -> Tensor | None:
    """A checked left-padding mask (B, L), int64, 1 = real token; None when nothing is padded.

    Raises InputError for another shape, values other than 0 and 1, a row without a real token, padding on
    the right or in the middle, and for models whose left padding is not exact.
    """
    if mask is None:
        return None
    given = mask if isinstance(mask, Tensor) else torch.as_tensor(np.asarray(mask))
    if given.shape != shape:
        raise InputError(f"the mask has shape {tuple(given.shape)}, the token ids have {tuple(shape)}")
    real = given.to(device=model.device, dtype=torch.long)
    if bool(((given != 0) & (given != 1)).any()):
        raise InputError("the mask may hold only 0 (padding) and 1 (real token)")
    if bool((real[:, 1:] < real[:, :-1]).any()) or bool((real[:, -1] == 0).any()):
        row = int(((real[:, 1:] < real[:, :-1]).any(dim=1) | (real[:, -1] == 0)).nonzero()[0])
        raise InputError(
            f"the mask of row {row} ends in padding or has a gap: pad on the left only (0 ... 0 1 ... 1)"
        )
    if bool((real == 1).all()):
        return None
    reason = padding_refused(model)
    if reason:
        raise InputError(
            f"{model.name!r} takes no padding mask: {reason}; "
            "batch prompts of equal length (last_logits does)"
        )
    return real


def arguments(model: Model, tokens: Any, *, mask: Any = None, last: bool = False) -> dict[str, Any]:
    """Arguments that call `model.module` on these tokens.

    Own families: `tokens`, and `last` where they take it.  Hugging Face models: `input_ids`,
    `use_cache=False`, with padding `attention_mask` and the `position_ids` derived from it (where the model
    takes them), with `last` `logits_to_keep=1` (where it takes it).  Raises InputError as `token_ids` and
    `padding` do.
    """
    ids = token_ids(model, tokens)
    real = padding(model, mask, ids.shape)
    taken = _takes(model.module)
    if not model.is_hf:
        return {"tokens": ids, "last": True} if last and "last" in taken else {"tokens": ids}
    if model.readout is not None:
        ids = model.readout.enter(ids)
    call: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if real is not None:
        call["attention_mask"] = real
        if "position_ids" in taken:
            call["position_ids"] = (real.cumsum(dim=1) - 1).clamp(min=0)
    if last and "logits_to_keep" in taken:
        call["logits_to_keep"] = 1
    return call


def call(model: Model, tokens: Any, *, mask: Any = None, last: bool = False) -> Tensor:
    """The module on `tokens`: logits (B, L, n_out) in the module's dtype, or (B, n_out) with `last`.

    Neither the mode nor gradients are touched: `logits` is this in evaluation mode without gradients.
    """
    given = arguments(model, tokens, mask=mask, last=last)
    with full_float32():
        if model.is_hf:
            out: Tensor = model.module(**given).logits
            if model.readout is not None:
                out = model.readout.classes(out)
        else:
            out = model.module(given.pop("tokens"), **given)
    return out[:, -1] if last and out.dim() == 3 else out


def logits(model: Model, tokens: Any, *, mask: Any = None, last: bool = False) -> Tensor:
    """Token ids (B, L) -> float32 logits (B, L, n_out); with `last` those of the last position, (B, n_out).

    `mask` (B, L): 1 = real token, left padding only; logits of padded positions mean nothing.  Evaluation
    mode, no gradient, no cache.  NaN and infinite logits are handed on as they are.
    Raises InputError for ids outside the vocabulary and masks the model cannot take exactly.
    """
    with evaluating(model.module), torch.no_grad():
        return call(model, tokens, mask=mask, last=last).float()


def last_logits(model: Model, ragged: Sequence[Any], *, batch_size: int = 32) -> Tensor:
    """Prompts of any lengths -> float32 logits (B, n_out) at each one's last token, in the order given.

    Prompts of equal length share a batch of at most `batch_size`, so nothing is ever padded.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    prompts = [np.asarray(p.cpu() if isinstance(p, Tensor) else p) for p in ragged]
    for i, prompt in enumerate(prompts):
        if prompt.ndim != 1 or prompt.size == 0:
            raise InputError(f"prompt {i} must be a list of at least one token id, got shape {prompt.shape}")
    by_length: dict[int, list[int]] = {}
    for i, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(i)
    out = torch.empty(len(prompts), model.n_out, device=model.device)
    for members in by_length.values():
        for start in range(0, len(members), batch_size):
            batch = members[start : start + batch_size]
            out[batch] = logits(model, np.stack([prompts[i] for i in batch]), last=True)
    return out


def noise_floor(model: Model, ragged: Sequence[Any], *, batch_size: int = 32, repeats: int = 1) -> Tensor:
    """Per prompt, how far its clean last logits move when nothing is done to the model: (B,), in logits.

    The largest absolute difference of any logit between one run in batches and the same prompts run one by
    one (in pairs of copies where no two prompts share a length), and `repeats` further runs in batches: a
    change of rounding or routing, never an effect (MEASURES 3, general rules).
    """
    batched = last_logits(model, ragged, batch_size=batch_size)
    lengths = [len(p) for p in ragged]
    if batch_size > 1 and len(set(lengths)) < len(lengths):
        others = [last_logits(model, ragged, batch_size=1)]
    else:
        others = [torch.cat([last_logits(model, [p, p], batch_size=2)[:1] for p in ragged])]
    others += [last_logits(model, ragged, batch_size=batch_size) for _ in range(repeats)]
    return torch.stack([(other - batched).abs().amax(dim=1) for other in others]).amax(dim=0)


def fingerprint(model: Model, n: int = 8) -> list[float]:
    """A few last-position logits on a fixed token sequence: a manifest can tell by them whether a model is
    the one it names.  Compare to about 1e-4: the same weights elsewhere in memory differ in the last bit.
    """
    ids = (torch.arange(min(12, position_limit(model) or 12)) * 7 + 1) % model.n_tokens  # (12,) or fewer
    row = logits(model, ids[None], last=True)[0].cpu()
    picks = torch.linspace(0, model.n_out - 1, min(n, model.n_out)).long()
    return [float(v) for v in row[picks]]


def check_finite(model: Model) -> None:
    """Raises InputError naming the first parameter that holds NaN or infinity."""
    for name, parameter in model.module.named_parameters():
        total = parameter.detach().float().sum()
        if not bool(torch.isfinite(total)) and not bool(torch.isfinite(parameter).all()):
            kind = "NaN" if bool(torch.isnan(parameter).any()) else "infinity"
            raise InputError(f"the weights of {model.name!r} are not finite: {name} holds {kind}")
