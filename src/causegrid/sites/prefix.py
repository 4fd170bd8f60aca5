"""Prefix reuse: recompute only what is above the first edited block, and only what is wanted above it.

Blocks below keep their place in the model; their `forward` is replaced, on the instance, by one that passes
its input through, and the last of them returns the stored residual.  The model's own loop, masks and
positions run as usual, so this needs no code per family and the logits are the full run's, bit for bit (at
equal batch shape).

A stored residual already holds what anybody's hooks on those blocks did to it, so the hooks found there are
silent meanwhile; hooks set inside the body act, on the stored residual too.

Who reads the logits of the query alone needs the last block's MLP at one position (`mlp_at_query`).  An MLP
takes each position by itself, so its input is cut to the last one and its output broadcasts over the
residual: the other positions then hold numbers that nothing reads.  `query_mlp` says where that is so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from causegrid.errors import InputError, InterventionError
from causegrid.models.record import Model
from causegrid.sites.address import Site
from causegrid.sites.hooks import tap
from causegrid.sites.table import attention, blocks, table

Forward = Callable[..., Any]
# where a module keeps the hooks around its forward
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
_BEFORE_MLP = ("resid_pre", "z", "attn_out")  # kinds of site an MLP of the same block cannot change


class _Reached(Exception):
    """Ends a forward at the block it was to stop before."""


@contextmanager
def stop_before(model: Model, block: int) -> Iterator[None]:
    """Run the body's forward only as far as the input of `block`; the call does not return, the body ends.

    Edits, taps and skipped blocks below work as usual.  Raises InputError for a block out of range,
    InterventionError when the body ended without reaching it.
    """
    stack = blocks(model)
    if not 0 <= block < len(stack):
        raise InputError(
            f"cannot stop before block {block}: {model.name} has {len(stack)} layers (0..{len(stack) - 1})"
        )

    def stop(_hidden: Tensor) -> None:
        raise _Reached

    handle = tap(stack[block], "input", stop)
    try:
        yield
    except _Reached:
        return
    finally:
        handle.remove()
    raise InterventionError(f"{model.name}: no forward reached block {block}")


def query_mlp(model: Model, edited: Iterable[Site] = ()) -> nn.Module | None:
    """The last block's MLP where the query's logits need it at the last position only, else None.

    None for families without a known MLP and for experts; for an MLP with anything but matrices in it; when
    an edited site is not surely before it; when a block below shares it; and when anybody's hooks or forwards
    could see the other positions: any outside the blocks below and the last block's attention.
    """
    layout, last = table(model), blocks(model)[-1]
    mlp = dict(last.named_children()).get("mlp")
    if "mlp_out" not in layout.places or not layout.attention or layout.router or mlp is None:
        return None
    if any(s.layer >= model.n_layers - 1 and s.kind not in _BEFORE_MLP for s in edited):
        return None
    sizes = [(name.endswith("bias"), w.dim()) for name, w in mlp.named_parameters()]
    if any(dim != (1 if bias else 2) for bias, dim in sizes):
        return None
    blind = [*blocks(model)[:-1], attention(model, model.n_layers - 1)]
    unseen = {id(part) for root in blind for part in root.modules()}
    everywhere = nn.modules.module
    if id(mlp) in unseen or everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return None
    seeing = [part for part in model.module.modules() if id(part) not in unseen]
    if any("forward" in vars(part) or any(vars(part)[name] for name in HOOKS) for part in seeing):
        return None
    return mlp


@contextmanager
def mlp_at_query(mlp: nn.Module | None) -> Iterator[None]:
    """Run a module found by `query_mlp` at the last position only; None changes nothing."""
    if mlp is None:
        yield
        return
    handle = tap(mlp, "input", lambda x: x[:, -1:] if x.dim() == 3 else None)  # (B, 1, d)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def skip_blocks(model: Model, upto: int, stored: Tensor) -> Iterator[None]:
    """Run the body with blocks 0..upto-1 skipped: block `upto` receives `stored` (B, L, d_model).

    `upto` 0 only replaces the input of block 0; `upto` = n_layers leaves the final norm and the head alone.
    `stored` is the output of block `upto` - 1 on the same tokens (`L<upto-1>.resid_post`); the body gets copies
    of it.  Edits at that output act in the body.  Restored at exit, also after an exception.

    Raises InputError for a block out of range or, at the forward, for another (B, L, d); InterventionError
    when no forward ran in the body.
    """
    stack = blocks(model)
    if not 0 <= upto <= len(stack):
        raise InputError(
            f"cannot skip up to block {upto}: {model.name} has {len(stack)} layers (0..{len(stack)})"
        )
    used = [0]

    def give(hidden: Tensor) -> Tensor:
        if hidden.shape != stored.shape:
            raise InputError(
                f"stored residual of shape {tuple(stored.shape)} does not fit an input of shape "
                f"{tuple(hidden.shape)}"
            )
        used[0] += 1
        return stored.to(hidden.device, copy=True)

    if upto == 0:
        handle = tap(stack[0], "input", give)
        try:
            yield
        finally:
            handle.remove()
    else:
        as_tuple = table(model).block_output == "tuple"
        before = [vars(block).copy() for block in stack[:upto]]
        try:
            for block in stack[: upto - 1]:
                _stub(block, _same, as_tuple)
            _stub(stack[upto - 1], give, as_tuple)
            yield
        finally:
            for block, was in zip(stack[:upto], before, strict=True):
                vars(block).update({name: was[name] for name in HOOKS})
                if "forward" in was:
                    vars(block)["forward"] = was["forward"]
                else:
                    vars(block).pop("forward", None)
    if not used[0]:
        raise InterventionError(f"{model.name}: no forward ran while blocks 0..{upto - 1} were skipped")


def _same(hidden: Tensor) -> Tensor:
    return hidden


def _stub(block: nn.Module, fn: Callable[[Tensor], Tensor], as_tuple: bool) -> None:
    def forward(*args: Any, **kwargs: Any) -> Any:
        out = fn(args[0] if args else kwargs["hidden_states"])
        return (out, None) if as_tuple else out

    vars(block).update({name: type(vars(block)[name])() for name in HOOKS})
    vars(block)["forward"] = forward
