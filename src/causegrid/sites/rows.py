"""Attention rows of the last position, without ever making a full pattern.

Under the default attention of Hugging Face models no weights come back (case 2), and eager attention makes
L x L patterns in every layer.  Instead a function is registered with transformers' `AttentionInterface`
(and its boolean sdpa mask under the same name): it computes the softmax of the last query row, then calls
the stock sdpa function, so the forward itself is the ordinary one.  Our own attention has a swappable
`attend(q, k, v)`.  Rows are float32; keys under the mask get exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from causegrid.errors import InputError, InterventionError
from causegrid.models.forward import logits
from causegrid.models.record import Model
from causegrid.sites.table import attention, table

NAME = "causegrid-rows"
_switchable: set[tuple[type, str]] = set()  # classes that took an implementation by transformers' own door
_sink: ContextVar[Callable[[nn.Module, Tensor], None] | None] = ContextVar("rows", default=None)


def last_row(query: Tensor, key: Tensor, scaling: float | None, mask: Tensor | None) -> Tensor:
    """Softmax row of the last query: query (B, H, L, d_h), key (B, H_kv, L, d_h) -> (B, H, L), float32.

    `mask` is boolean (True = may attend) or additive, broadcastable to (B, H, L, L); None means causal.
    """
    batch, n_heads, _, width = query.shape
    n_kv, length = key.shape[1], key.shape[2]
    scale = width**-0.5 if scaling is None else scaling
    last = query[:, :, -1].reshape(batch, n_kv, n_heads // n_kv, width)  # grouped queries share keys
    scores = (last.float() @ key.float().transpose(-1, -2)).reshape(batch, n_heads, length) * scale
    if mask is not None:
        allowed = mask[:, :, -1, :length]
        boolean = mask.dtype == torch.bool
        scores = scores.masked_fill(~allowed, -torch.inf) if boolean else scores + allowed.float()
    return scores.softmax(-1)


def _record_and_attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    sink = _sink.get()
    if sink is not None:
        with torch.no_grad():
            sink(module, last_row(query, key, kwargs.get("scaling"), attention_mask))
    attended: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **kwargs
    )
    return attended


AttentionInterface.register(NAME, _record_and_attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def implementation(module: Any, name: str) -> Iterator[None]:
    """Run a Hugging Face module with another attention implementation, restored at exit."""
    before = module.config._attn_implementation
    key = (type(module), name)
    if key in _switchable:  # transformers reads the class's source file each time it is asked
        module.config._attn_implementation = name
    else:
        module.set_attn_implementation(name)
    try:
        if module.config._attn_implementation == name:
            _switchable.add(key)
        else:
            raise InputError(
                f"{type(module).__name__} does not use transformers' attention registry: no rows to read"
            )
        yield
    finally:
        module.config._attn_implementation = before


@contextmanager
def attending(model: Model, wrap: Callable[[int, Any], Any]) -> Iterator[None]:
    """Replace every attention module's `attend` by `wrap(layer, attend)`, restored at exit."""
    modules: list[Any] = [attention(model, layer) for layer in range(model.n_layers)]
    own = [vars(module).get("attend") for module in modules]
    try:
        for layer, module in enumerate(modules):
            module.attend = wrap(layer, module.attend)
        yield
    finally:
        for module, before in zip(modules, own, strict=True):
            if before is None:
                vars(module).pop("attend", None)
            else:
                module.attend = before


@contextmanager
def recording(model: Model) -> Iterator[dict[int, Tensor]]:
    """While in force, every forward fills the dict: layer -> last row (B, H, L), float32.

    Raises InputError for models without attention.
    """
    rows: dict[int, Tensor] = {}
    layer_of = {id(attention(model, layer)): layer for layer in range(model.n_layers)}
    if table(model).rows == "attend":

        def wrap(layer: int, attend: Any) -> Any:
            def record(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
                mask = args[0] if args else kwargs.get("mask")
                with torch.no_grad():
                    rows[layer] = last_row(q, k, None, mask)
                return attend(q, k, v, *args, **kwargs)

            return record

        with attending(model, wrap):
            yield rows
        return

    def sink(module: nn.Module, row: Tensor) -> None:
        if id(module) in layer_of:
            rows[layer_of[id(module)]] = row

    token = _sink.set(sink)
    try:
        with implementation(model.module, NAME):
            yield rows
    finally:
        _sink.reset(token)


def query_rows(model: Model, tokens: Any, *, mask: Any = None) -> Tensor:
    """Attention rows of the last position for token ids (B, L) -> (n_layers, B, H, L), float32.

    Each row sums to 1; keys under `mask` (B, L; 1 = real, left padding only) get 0.  About the cost of a
    plain forward.  Raises InputError for models without attention, InterventionError when a layer's
    attention did not go through the registry.
    """
    with recording(model) as rows:
        logits(model, tokens, mask=mask, last=True)
    missing = [layer for layer in range(model.n_layers) if layer not in rows]
    if missing:
        raise InterventionError(f"{model.name}: no attention row came back from layers {missing}")
    stacked = torch.stack([rows[layer] for layer in range(model.n_layers)])
    return stacked.clone() if stacked.is_inference() else stacked


def full_patterns(model: Model, tokens: Any, *, mask: Any = None) -> Tensor:
    """Full attention patterns (n_layers, B, H, L, L), for checks and tests only: eager attention's own
    weights for Hugging Face models, a plain masked softmax for ours."""
    full: dict[int, Tensor] = {}
    if table(model).rows == "attend":

        def wrap(layer: int, attend: Any) -> Any:
            def record(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
                length = q.shape[2]
                scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
                above = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
                full[layer] = scores.masked_fill(above, -torch.inf).softmax(-1)
                return attend(q, k, v, *args, **kwargs)

            return record

        with attending(model, wrap):
            logits(model, tokens, mask=mask, last=True)
    else:
        handles = []

        def keep(layer: int) -> Any:
            def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                full[layer] = output[1]

            return hook

        try:
            for layer in range(model.n_layers):
                handles.append(attention(model, layer).register_forward_hook(keep(layer)))
            with implementation(model.module, "eager"):
                logits(model, tokens, mask=mask, last=True)
        finally:
            for handle in handles:
                handle.remove()
    return torch.stack([full[layer] for layer in range(model.n_layers)])
