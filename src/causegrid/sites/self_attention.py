"""Attention kept to its own position: every head's output is the value of the current token.

Softmax over one key is 1, so nothing is computed: the values go straight to the output projection, repeated
where several query heads share one.  Hugging Face models are reached through transformers' attention registry,
ours through `attend`, as in `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from causegrid.models.record import Model
from causegrid.sites.rows import attending, implementation
from causegrid.sites.table import attention, table

NAME = "causegrid-self"
Fire = Callable[[], None]
_alone: ContextVar[Mapping[int, Fire]] = ContextVar("self_attention", default={})  # noqa: B039 never written to


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    fire = _alone.get().get(id(module))
    if fire is None:
        others: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return others
    fire()
    shared = query.shape[1] // value.shape[1]  # value (B, H_kv, L, d_h)
    return value.repeat_interleave(shared, dim=1).transpose(1, 2).contiguous(), None  # (B, L, H, d_h)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def self_attention(model: Model, layer: int, fire: Fire) -> Iterator[None]:
    """Run the body with one layer's attention kept to its own position; `fire` is called at each forward.

    May be nested for several layers; the others run the stock sdpa attention.  Raises InputError for models
    without attention, or whose attention does not go through transformers' registry.
    """
    module = attention(model, layer)
    if table(model).rows == "attend":

        def wrap(at: int, attend: Any) -> Any:
            def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                fire()
                return v

            return own if at == layer else attend

        with attending(model, wrap):
            yield
        return
    token = _alone.set({**_alone.get(), id(module): fire})
    try:
        with implementation(model.module, NAME):
            yield
    finally:
        _alone.reset(token)
