"""A second device on a machine that has none: tensors that say they live on `pretend` and hold CPU data.

`torch.device("meta")` and fake tensors carry no values, so code that looks at one (`int(ids.max())`, a loss)
cannot run on them, and a build of torch without CUDA makes no fake CUDA tensor at all.  Here PrivateUse1 is
registered as a backend in Python, and inside `pretending()` every operation is run on the CPU data behind
its tensors under CUDA's rules: one device per operation, except a CPU number (a tensor without axes), CPU
indices and copies; a CPU generator draws nothing there; `.numpy()` is refused (by torch itself).  A value
computed on `pretend` equals the CPU's, so both can be compared, and `Counts` says how often the host waited.

What this cannot show: kernels that exist on one device only, precision, and time.
Registering is for good in a process, so the checks that use it run in one of their own (`pretend_checks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "pretend"
_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default, _aten._copy_from.default}
_INDEXED = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}


@dataclass
class Counts:
    """`to_host`: copies to the CPU and numbers read; `to_device`: copies the other way; `seeded`: how often
    the device's generators were seeded."""

    to_host: int = 0
    to_device: int = 0
    seeded: int = 0


counts = Counts()


class Pretended(Tensor):
    """A tensor on `pretend`; `.held` is the CPU tensor behind it."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, 0),
        )
        made.held = held.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.data_ptr, Tensor.untyped_storage):  # where the memory really is
            return func(args[0].held)
        if func is Tensor.tolist:
            counts.to_host += 1
            return args[0].held.tolist()
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Pretended):
            args = (args[0], tree_map(_index, args[1], is_leaf=lambda v: isinstance(v, list)), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretended({self.held!r})"


def _index(value: Any) -> Any:
    """Lists and CPU indices follow the tensor they index, as CUDA's do."""
    if isinstance(value, list):
        value = torch.tensor(value)
    return Pretended(value) if isinstance(value, Tensor) and not isinstance(value, Pretended) else value


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Pretended) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    there = any(isinstance(t, Pretended) for t in given)
    asked = kwargs.get("device")
    goes = there if asked is None else torch.device(asked).type == NAME
    _check(func, args, given)
    if goes and kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: expected a {NAME!r} generator, found a CPU one")
    counts.to_host += func is _aten._local_scalar_dense.default and there
    if func in _COPIES:
        if func is _aten.copy_.default:
            source, lands = isinstance(args[1], Pretended), isinstance(args[0], Pretended)
        else:
            source, lands = there, goes
        counts.to_host += source and not lands
        counts.to_device += lands and not source
    if func is _aten.histc.default and not args[0].is_floating_point():  # CUDA's takes whole numbers
        return tree_map(Pretended, func(_held(args[0]).double(), *args[1:], **kwargs).to(args[0].dtype))
    plain_args, plain = tree_map(_held, args), tree_map(_held, kwargs)
    if asked is not None:
        plain["device"] = torch.device("cpu")
    out = func(*plain_args, **plain)
    if func._schema.name.endswith("_") and args and isinstance(args[0], Tensor):
        return args[0]
    if func is _aten.copy_.default or not goes:
        return out
    return tree_map(lambda t: Pretended(t) if isinstance(t, Tensor) else t, out)


def _check(func: Any, args: Any, given: list[Tensor]) -> None:
    """CUDA's rules.  Raises RuntimeError."""
    if func in _COPIES:
        return
    tensors = given
    if func in _INDEXED:  # indices may stay on the CPU, what is indexed and what is written may not
        tensors = [t for t in (args[0], *args[2:3]) if isinstance(t, Tensor)]
        moved = any(isinstance(t, Pretended) for t in tree_leaves(args[1]))
        if moved and not isinstance(args[0], Pretended):
            raise RuntimeError(f"{func}: indices on {NAME!r} for a tensor on the CPU")
    there = [t for t in tensors if isinstance(t, Pretended)]
    here = [t for t in tensors if not isinstance(t, Pretended)]
    written = func._schema.name.endswith("_") and args and not isinstance(args[0], Pretended)
    if there and here and (written or any(t.dim() for t in here)):
        shapes = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
        raise RuntimeError(f"{func}: expected all tensors on the same device: {shapes}")


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Recurrences(TorchFunctionMode):
    """`nn.LSTM` and `nn.GRU` as loops: torch would call cuDNN's own cells, which the CPU does not have."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.lstm, torch.gru) and isinstance(args[0], Pretended):
            return _recurrence(func is torch.lstm, *args[:3])
        return func(*args, **(kwargs or {}))


def _recurrence(lstm: bool, x: Tensor, start: Any, weights: list[Tensor]) -> tuple[Tensor, ...]:
    """One layer, batch first: x (B, L, d) -> (out (B, L, d), h[, c])."""
    w_in, w_state, b_in, b_state = weights
    h, c = (start[0][0], start[1][0]) if lstm else (start[0], start[0])
    out = []
    for t in range(x.shape[1]):
        a, b = x[:, t] @ w_in.T + b_in, h @ w_state.T + b_state
        if lstm:
            i, f, g, o = (a + b).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            (ra, za, na), (rb, zb, nb) = a.chunk(3, dim=1), b.chunk(3, dim=1)
            z = (za + zb).sigmoid()
            h = (1 - z) * (na + (ra + rb).sigmoid() * nb).tanh() + z * h
        out.append(h)
    states = (h[None], c[None]) if lstm else (h[None],)
    return torch.stack(out, dim=1), *states


class _Backend:
    """What torch asks of a device module."""

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        counts.seeded += 1

    def device_count(self) -> int:
        return 1


def register() -> None:
    """Make `pretend` a device of this process, once."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())


@contextmanager
def pretending() -> Iterator[Counts]:
    """Run the body with `pretend` at hand; yields fresh counts."""
    register()
    counts.__init__()  # type: ignore[misc]
    before, inference = torch._C._only_lift_cpu_tensors(), torch.inference_mode
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) makes a CPU tensor first
    torch.inference_mode = torch.no_grad  # type: ignore[misc,assignment]  # wrapped tensors have no such mode
    try:
        with _Operations(), _Recurrences():
            yield counts
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
        torch.inference_mode = inference  # type: ignore[misc]
