"""Recurrent states: what a layer carries from one position to the next.

A hook on a block sees outputs, and writing an output does not enter the recurrence.  So a state is read and
written where it is carried: while a tap is in force the block's recurrence is run in steps, the tap sees the
state after a position and may return another one, and the recurrence goes on from there.
States: GRU h (B, d); LSTM h and c side by side (B, 2 d); Mamba (B, E, N); Mamba-2 (B, H, P, N).
Running in steps is another order of summation: an edit that changes nothing equals the plain forward to
rounding, not bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from causegrid.errors import InputError
from causegrid.models.mamba2 import ssd_steps
from causegrid.models.ops.scan import reference


@dataclass(eq=False)
class StateTap:
    """`fn(t, state)` after position `position` (None = every one); a returned tensor replaces the state."""

    position: int | None
    fn: Callable[[int, Tensor], Tensor | None]


_taps: WeakKeyDictionary[nn.Module, list[StateTap]] = WeakKeyDictionary()
_before: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # what the attribute held, None = nothing
_ATTRIBUTES: dict[str, Callable[..., Tensor]] = {"scan": reference, "ssd": ssd_steps}


@contextmanager
def tapped(module: nn.Module, tap: StateTap) -> Iterator[None]:
    """Run the body with a tap on `module`: an `nn.GRU`, an `nn.LSTM`, or a mixer with `scan` or `ssd`.

    Several taps on one module apply in the order they were set.  Raises InputError for other modules and
    for recurrent layers that are stacked, bidirectional or not batch first.
    """
    name = _attribute(module)
    if module not in _taps:
        _taps[module] = []
        _before[module] = vars(module).get(name)
        vars(module)[name] = (
            partial(_in_steps, module, module.forward)
            if name == "forward"
            else partial(_scan_in_steps, module, _ATTRIBUTES[name])
        )
    _taps[module].append(tap)
    try:
        yield
    finally:
        _taps[module].remove(tap)
        if not _taps[module]:
            del _taps[module]
            del vars(module)[name]
            before = _before.pop(module)
            if before is not None:
                vars(module)[name] = before


def _attribute(module: nn.Module) -> str:
    """Which attribute of the module holds its recurrence."""
    if isinstance(module, nn.GRU | nn.LSTM):
        if module.num_layers != 1 or module.bidirectional or not module.batch_first:
            raise InputError("states are read from one-layer, one-way, batch-first recurrent modules only")
        return "forward"
    for name in _ATTRIBUTES:
        if hasattr(module, name):
            return name
    raise InputError(f"{type(module).__name__} has no recurrent state to tap")


def _apply(module: nn.Module, length: int, t: int, state: Tensor) -> Tensor:
    for tap in _taps[module]:
        if tap.position is None or _index(tap.position, length) == t:
            new = tap.fn(t, state)
            state = state if new is None else new
    return state


def _index(position: int, length: int) -> int:
    if not -length <= position < length:
        raise InputError(f"state position {position} is out of range: the input has {length} tokens")
    return position % length


def _scan_in_steps(
    module: nn.Module, steps: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    return steps(x, *args, **kwargs, on_state=partial(_apply, module, x.shape[1]))


def _in_steps(module: nn.Module, forward: Callable[..., Any], x: Tensor, hx: Any = None) -> Any:
    """An `nn.GRU` or `nn.LSTM` run in pieces that end where a tap looks: x (B, L, d) -> (out, state)."""
    length = x.shape[1]
    everywhere = any(tap.position is None for tap in _taps[module])
    wanted = {_index(tap.position, length) for tap in _taps[module] if tap.position is not None}
    ends = list(range(length)) if everywhere else sorted(wanted | {length - 1})
    pieces, start = [], 0
    for end in ends:
        out, hx = forward(x[:, start : end + 1], hx)
        state = (torch.cat(hx, dim=-1) if isinstance(hx, tuple) else hx)[0]  # (B, d or 2 d)
        new = _apply(module, length, end, state)
        if new is not state:
            width = out.shape[-1]
            h = new[None, :, :width].contiguous()
            hx = (h, new[None, :, width:].contiguous()) if isinstance(hx, tuple) else h
            out = torch.cat([out[:, :-1], new[:, None, :width]], dim=1)
        pieces.append(out)
        start = end + 1
    return torch.cat(pieces, dim=1), hx
