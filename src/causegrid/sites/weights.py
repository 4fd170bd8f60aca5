"""Scoped weight substitution, for parts a hook cannot reach (Mamba's convolution, MEASURES 3.3).

The parameter *object* is swapped and put back; its storage is never written to, so restoring is exact by
construction.  The price: another module tied to the same storage keeps the old values, and the experiment
would remove half of what it says.  So shared storage is noticed and refused unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn

from causegrid.errors import InputError, unknown


@contextmanager
def substitute(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    root: nn.Module | None = None,
    shared: Literal["refuse", "alone"] = "refuse",
) -> Iterator[None]:
    """Run the body with parameters or buffers of `module` replaced; `tensors` maps dotted names to values.

    Values have the shape of what they replace and are cast to its dtype and device.  At exit, also after an
    exception, the very same objects are back.  `root` is the whole model: parameters tied to the replaced
    ones are looked for in it (in `module` alone without it).  `shared="alone"` replaces one of several tied
    parameters and leaves the others.

    Raises InputError for an unknown name, another shape, or a parameter whose storage is shared.
    """
    known: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    known.update(module.named_buffers(remove_duplicate=False))
    swaps: list[tuple[nn.Module, str, Tensor, Tensor]] = []
    for name, value in tensors.items():
        if name not in known:
            raise unknown(f"parameter of {type(module).__name__}", name, known)
        old = known[name]
        if old.shape != value.shape:
            raise InputError(
                f"a value of shape {tuple(value.shape)} cannot stand for {name!r} of shape {tuple(old.shape)}"
            )
        if shared == "refuse":
            _refuse_shared(
                root or module, name, old, {id(known[other]) for other in tensors if other in known}
            )
        new: Tensor = value.detach().to(old.device, old.dtype)
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        path, _, leaf = name.rpartition(".")
        swaps.append((module.get_submodule(path), leaf, old, new))
    done: list[tuple[nn.Module, str, Tensor]] = []
    try:
        for owner, leaf, old, new in swaps:
            done.append((owner, leaf, old))
            setattr(owner, leaf, new)  # not `_parameters`: recurrent layers keep a flat list beside it
        yield
    finally:
        for owner, leaf, old in reversed(done):
            setattr(owner, leaf, old)


def _refuse_shared(root: nn.Module, name: str, old: Tensor, replaced: set[int]) -> None:
    low, high = _extent(old)
    owners = [
        other
        for other, parameter in root.named_parameters(remove_duplicate=False)
        if _extent(parameter)[0] < high and low < _extent(parameter)[1]
    ]
    distinct = [other for other in owners if id(root.get_parameter(other)) not in replaced]
    twice = [other for other in owners if root.get_parameter(other) is old]
    if distinct or len(twice) > 1:
        raise InputError(
            f"{name!r} shares its storage: {', '.join(owners)} are one tensor; replacing one leaves the "
            "others (pass shared='alone' to do that)"
        )


def _extent(tensor: Tensor) -> tuple[int, int]:
    """First and last byte a tensor covers: files loaded at once put many tensors into one storage."""
    if tensor.numel() == 0:
        return (0, 0)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return (start, start + span * tensor.element_size())
