"""Write to activations inside one context manager that owns its handles.

The manager counts every firing and raises when an edit never fired: an intervention that did not happen is
an error, never a result (MEASURES 3, general rules).  It removes its own handles and nobody else's, also
when the body raises.  Edits that share a module share one hook, so they apply in the order given and the
tensor is copied once; the model's own tensors are never written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from causegrid.errors import InputError, InterventionError, unknown
from causegrid.models.record import Model
from causegrid.sites.address import Site, site
from causegrid.sites.hooks import select, tap, writable
from causegrid.sites.states import StateTap, tapped
from causegrid.sites.table import Place, Side, blocks, place, require


@dataclass(frozen=True)
class Edit:
    """`fn` maps a site's value (shapes as in `capture`) to its replacement: same shape, same dtype.

    `fn` may write into its argument, which is a copy.  `label` says what it does, for tables.
    """

    site: Site
    fn: Callable[[Tensor], Tensor]
    label: str = "edit"


@dataclass
class EditLog:
    """How often each edit fired: `fired[str(site)]`, summed over the edits at that site."""

    fired: dict[str, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All firings."""
        return sum(self.counts)


def zero(where: Site | str) -> Edit:
    """Set the site to 0."""
    return Edit(site(where), torch.zeros_like, "zero")


def mean(where: Site | str, value: Any) -> Edit:
    """Set the site to a mean: `value` broadcasts to the site's value, so (d,) pooled or (L, d) per position.

    Raises InputError for a value that is no number, and, when it fires, for one that does not broadcast.
    """
    spot = site(where)
    given = _numbers("mean", spot, value)

    def fn(x: Tensor) -> Tensor:
        try:
            return given.to(x).expand_as(x)
        except RuntimeError as error:
            raise InputError(
                f"mean of shape {tuple(given.shape)} does not broadcast to {spot} of shape {tuple(x.shape)}"
            ) from error

    return Edit(spot, fn, "mean")


def replace(where: Site | str, value: Any) -> Edit:
    """Set the site to `value`, of exactly the site's shape.

    Raises InputError for a value that is no number, and, when it fires, for another shape, naming both.
    """
    spot = site(where)
    given = _numbers("replacement", spot, value)

    def fn(x: Tensor) -> Tensor:
        if given.shape != x.shape:
            raise InputError(
                f"replacement of shape {tuple(given.shape)} does not fit {spot} of shape {tuple(x.shape)}"
            )
        return given.to(x)

    return Edit(spot, fn, "replace")


def erase(where: Site | str, basis: Any, mean: Any = None, mode: Literal["mean", "origin"] = "mean") -> Edit:
    """Remove a subspace (MEASURES 3.2): x' = m + (x - m)(I - Q Q^T).

    `basis` Q (d, r) has orthonormal columns, a vector (d,) counts as r = 1; `mean` m (d,) is the mean over
    the training split.  `mode="origin"`, or no mean given, projects through 0.  Computed in float32 at least.

    Raises InputError when the basis is not (d, r) with orthonormal columns or the mean is no vector, and,
    when it fires, when the widths differ.
    """
    spot = site(where)
    if mode not in ("mean", "origin"):
        raise unknown("erase mode", mode, ("mean", "origin"))
    q = _numbers("basis", spot, basis)
    q = q[:, None] if q.dim() == 1 else q
    if q.dim() != 2:
        raise InputError(
            f"basis of shape {tuple(q.shape)} for {spot} is not (d, r), or (d,) for one direction"
        )
    gram = q.double().T @ q.double()
    if not torch.allclose(gram, torch.eye(q.shape[1]).to(gram), atol=1e-4):
        raise InputError(f"basis of shape {tuple(q.shape)} for {spot} has no orthonormal columns (d, r)")
    centre = _numbers("mean", spot, mean) if mean is not None and mode == "mean" else None
    if centre is not None and centre.dim() == 0:
        raise InputError(f"the mean for erasing at {spot} must be a vector (d,), not one number")

    def fn(x: Tensor) -> Tensor:
        if q.shape[0] != x.shape[-1] or (centre is not None and centre.shape[-1] != x.shape[-1]):
            raise InputError(f"basis of shape {tuple(q.shape)} does not fit {spot} of shape {tuple(x.shape)}")
        dtype = torch.promote_types(x.dtype, torch.float32)
        wide, columns = x.to(dtype), q.to(x.device, dtype)
        shifted = wide if centre is None else wide - centre.to(x.device, dtype)
        return (wide - (shifted @ columns) @ columns.T).to(x.dtype)

    return Edit(spot, fn, f"erase {q.shape[1]}")


def _numbers(what: str, spot: Site, value: Any) -> Tensor:
    try:
        given = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        shown = ascii(value) if isinstance(value, (str, type(None))) else type(value).__name__
        raise InputError(f"{what} for {spot} must be numbers, not {shown}") from None
    if given.is_complex():
        raise InputError(f"{what} for {spot} must be real numbers, not {given.dtype}")
    return given


@contextmanager
def edit(model: Model, *edits: Edit | Iterable[Edit]) -> Iterator[EditLog]:
    """Run the body with these edits in force; every forward of the model inside sees them.

    Edits at one site apply in the order given.  Afterwards the model is what it was, bit for bit; hooks of
    others stay.  Raises InputError for what is no edit, and for a site the model does not have or that
    cannot be written, and InterventionError when an edit changes shape or dtype, or fired zero times by the
    end of the body.
    """
    chosen: list[Edit] = []
    for given in edits:
        if isinstance(given, Iterable) and not isinstance(given, (str, Tensor)):
            chosen.extend(_is_edit(one) for one in given)
        else:
            chosen.append(_is_edit(given))
    log = EditLog(fired={}, counts=[0] * len(chosen))
    groups: dict[tuple[int, Side], tuple[nn.Module, Side, list[tuple[int, Edit, Place]]]] = {}
    for index, one in enumerate(chosen):
        spot = require(model, one.site, "edit")
        module, entry = place(model, spot)
        log.fired.setdefault(str(spot), 0)
        if entry.side == "state" and spot.position is None:
            raise InputError(f"editing {spot} needs a position, as in {spot}@-1: later states follow from it")
        groups.setdefault((id(module), entry.side), (module, entry.side, []))[2].append((index, one, entry))
    stack = blocks(model)

    def writer(members: list[tuple[int, Edit, Place]]) -> Callable[[Tensor], Tensor]:
        def write(value: Tensor) -> Tensor:
            value = writable(value)
            for index, one, entry in members:
                part = select(value, one.site, entry, stack[max(one.site.layer, 0)], model.n_heads)
                new = one.fn(part)
                same_kind(one, part, new)
                if new is not part:
                    part.copy_(new.clone() if _overlap(new, part) else new)
                log.counts[index] += 1
                log.fired[str(one.site)] += 1
            return value

        return write

    def state_writer(index: int, one: Edit) -> Callable[[int, Tensor], Tensor]:
        def write(_t: int, state: Tensor) -> Tensor:
            new = one.fn(state.clone())
            same_kind(one, state, new)
            log.counts[index] += 1
            log.fired[str(one.site)] += 1
            return new

        return write

    with ExitStack() as scope:
        for module, side, members in groups.values():
            if side != "state":
                scope.callback(tap(module, side, writer(members)).remove)
                continue
            for index, one, _ in members:
                scope.enter_context(tapped(module, StateTap(one.site.position, state_writer(index, one))))
        yield log
    silent = [
        f"{one.label} at {one.site}" for one, count in zip(chosen, log.counts, strict=True) if not count
    ]
    if silent:
        raise InterventionError(f"{model.name}: fired zero times: {', '.join(silent)}")


def _is_edit(given: Any) -> Edit:
    if isinstance(given, Edit):
        return given
    shown = ascii(given) if isinstance(given, (str, int, float, Site)) else type(given).__name__
    example = f"cg.zero({given!r})" if isinstance(given, str) else "cg.zero('L0.z[1]')"
    raise InputError(f"an edit is needed, as {example}, not {shown}")


def same_kind(one: Edit, old: Tensor, new: Any) -> None:
    """Raises InterventionError unless an edit's result is a tensor of the old one's shape and dtype."""
    if not isinstance(new, Tensor):
        raise InterventionError(f"{one.label} at {one.site} returned {type(new).__name__}, not a tensor")
    if new.shape != old.shape or new.dtype != old.dtype:
        raise InterventionError(
            f"{one.label} at {one.site} turned {tuple(old.shape)} {old.dtype} into "
            f"{tuple(new.shape)} {new.dtype}: an edit keeps shape and dtype"
        )


def _overlap(new: Tensor, old: Tensor) -> bool:
    """Whether the replacement is a view of what it replaces, as `x[:, :1].expand_as(x)` is."""
    return new.untyped_storage().data_ptr() == old.untyped_storage().data_ptr()
