"""Recurrent states: what a layer carries from one position to the next.

A hook on a block sees outputs, and writing an output does not enter the recurrence.  So a state is read and
written where it is carried: while a tap is in force the block's recurrence is run in steps, the tap sees the
state after a position and may return another one, and the recurrence goes on from there.
States: GRU h (B, d); LSTM h and c side by side (B, 2 d); Mamba (B, E, N); Mamba-2 (B, H, P, N).
Running in steps is another order of summation: an edit that changes nothing equals the plain forward to
rounding, not bit for bit.

`restarted` runs the recurrence from its start at every position, so that the current token alone reaches it.
That needs no steps: every position is a sequence of its own, and a scan of one position is a product,
y = (C . B) dt x + D x, without decay or state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
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
Fire = Callable[[], None]


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


@contextmanager
def restarted(module: nn.Module, fire: Fire) -> Iterator[None]:
    """Run the body with `module` (as in `tapped`) starting from its zero state at every position.

    `fire` is called once per forward of the recurrence.  Raises InputError as `tapped` does, and for a module
    with a tap in force.
    """
    name = _attribute(module)
    if module in _taps:
        raise InputError(f"the state of this {type(module).__name__} is tapped: it cannot be restarted too")
    before = vars(module).get(name)
    if name == "forward":
        vars(module)[name] = partial(_each_alone, module.forward, fire)
    else:
        alone: dict[str, Callable[..., Tensor]] = {"scan": _scan_alone, "ssd": _ssd_alone}
        vars(module)[name] = partial(alone[name], fire)
    try:
        yield
    finally:
        del vars(module)[name]
        if before is not None:
            vars(module)[name] = before


def _each_alone(forward: Callable[..., Any], fire: Fire, x: Tensor, hx: Any = None) -> Any:
    """An `nn.GRU` or `nn.LSTM` on x (B, L, d), every position a sequence of its own -> (out, last state)."""
    if hx is not None:
        raise InputError("a recurrence that restarts at every position takes no initial state")
    fire()
    batch, length, width = x.shape
    out, state = forward(x.reshape(batch * length, 1, width))

    def last(s: Tensor) -> Tensor:
        return s.view(1, batch, length, -1)[:, :, -1].contiguous()

    return out.view(batch, length, -1), tuple(map(last, state)) if isinstance(state, tuple) else last(state)


def _scan_alone(
    fire: Fire,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    signed: bool = False,
    softplus: bool = False,
    gate: Tensor | None = None,
) -> Tensor:
    """x, dt, gate (B, L, E), B, C (B, L, N) -> (B, L, E); arguments as `scan.reference`."""
    fire()
    dt = F.softplus(dt) if softplus else dt
    y = (B * C).sum(-1, keepdim=True) * dt * x + D * x
    return y if gate is None else y * F.silu(gate)


def _ssd_alone(
    fire: Fire, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, *, chunk: int = 0
) -> Tensor:
    """x (B, L, H, P), dt (B, L, H), B, C (B, L, G, N) -> (B, L, H, P); arguments as `ssd_steps`."""
    fire()
    products = (B * C).sum(-1).repeat_interleave(x.shape[2] // B.shape[2], dim=-1)  # (B, L, H)
    return (products * dt)[..., None] * x + D[:, None] * x


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
