"""One small table per model family: which module holds which kind of site.

A table maps a kind to a `Place`: the path of a module inside a block and which side of it (its input or
its output) carries the value.  Everything else in this room reads tables, so a new family is one new file
in `families/` and no code.  Tables are registered by our own family name (`mamba`) or, for Hugging Face
modules, by `hf:` and the model type (`hf:mamba`): the two namespaces share names but not layouts.

Fixed meanings, the same for every family:
`resid_pre`, `resid_post`  the block's input and output; `L-1.resid_post` is block 0's input (embeddings).
`attn_out`                 what the token mixer (attention; the SSM or recurrent mixer where there is no
                           attention) *adds to the residual*, so after the post-norm in OLMo 2.
`mlp_out`                  what the MLP or the experts add to the residual.
`z`                        input of the attention output projection, split by query head: head width is that
                           input's width / n_heads, never hidden_size / n_heads (MEASURES 3.1).
`pattern`                  softmax row of the last position, read only.
`conv`                     output of Mamba's causal convolution, before its activation.
`ssm_input`                what the scan reads: after the activation.
`state`                    the recurrent state after each position; editing it needs `@position`, and the
                           recurrence goes on from the edited state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from causegrid.errors import InputError, nearest
from causegrid.models.record import Model
from causegrid.registry import Registry
from causegrid.sites.address import KINDS, Site, site

Side = Literal["input", "output", "state"]
Use = Literal["capture", "edit"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a kind lives.

    `path`: module relative to the block ("" = the block).  `side`: its first input, its first output, or
    the state its recurrence carries (see `states`).  `heads`: the last axis is split by query head.
    `columns`: the columns of the last axis the kind is about, from the *block* (None = all).
    `read_only`: why an edit here is impossible ("" = it is possible).
    """

    path: str = ""
    side: Side = "output"
    heads: bool = False
    columns: Callable[[nn.Module], slice] | None = None
    read_only: str = ""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A multiplicative gate, by what it is the squashing of.

    `path`: module relative to the block ("" = the block).  With `part` (i, n), sigmoid of the i-th of the n
    equal parts of that recurrent module's weights and biases.  Without, SiLU of that module's output in the
    `columns` (from the block; None = all); `activation` is the path of the module that applies it, asked
    whether it is a SiLU ("" = it is one by construction).
    """

    path: str = ""
    part: tuple[int, int] | None = None
    columns: Callable[[nn.Module], slice] | None = None
    activation: str = ""


RESIDUAL: Mapping[str, Place] = {"resid_pre": Place(side="input"), "resid_post": Place(side="output")}


@dataclass(frozen=True, kw_only=True)
class FamilyTable:
    """A family's layout.

    `blocks`, `norm`: paths in the module of the block list and of the final norm ("" = no norm).
    `head`: path of the output projection.  `places`: kind -> `Place`.  `reasons`: kind -> why it is not
    there.  `parts`: the kinds that, added to `resid_pre`, give `resid_post`.  `attention`: path in the
    block of the attention module ("" = none).  `rows`: how its attention rows are read, through
    transformers' attention registry (`interface`) or its own `attend` attribute (`attend`).
    `block_output`: what a block's forward returns; the model's loop takes the first of a tuple.
    `router`: path in the block of the expert router, whose output is (logits, combine weights, chosen
    experts) ("" = no experts).  `gates`: name -> `Gate`.  `decay`: path in the block of the parameter whose
    growth empties the recurrent state, where the state itself cannot be reached ("" = no such thing).
    """

    blocks: str
    norm: str
    head: str
    places: Mapping[str, Place]
    reasons: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    attention: str = ""
    rows: Literal["interface", "attend", ""] = ""
    block_output: Literal["tensor", "tuple"] = "tensor"
    router: str = ""
    gates: Mapping[str, Gate] = field(default_factory=dict)
    decay: str = ""


families: Registry[FamilyTable] = Registry("site_table", "causegrid.sites.families")

_NO_ATTENTION = "this family has no attention"
_NOT_HERE = {
    "attn_out": "this family has no mixer whose output is added to the residual",
    "mlp_out": "this family's blocks have no MLP",
    "z": _NO_ATTENTION,
    "pattern": _NO_ATTENTION,
    "conv": "this family has no convolution",
    "ssm_input": "this family has no state-space model",
    "state": "this family has no recurrent state",
}


def table_name(model: Model) -> str:
    """The registered name of the model's table: its family, with `hf:` in front for Hugging Face modules."""
    return f"hf:{model.family}" if model.is_hf else model.family


def table(model: Model) -> FamilyTable:
    """The model's table.  Raises InputError naming the supported families when there is none."""
    name = table_name(model)
    if name in families:
        return families.get(name)
    near = nearest(name, families.names())
    guess = f"; nearest is {near!r}" if near else ""
    raise InputError(
        f"no site table for model family {name!r}: supported are {', '.join(families.names())}{guess} "
        f"(add one with causegrid.sites.families.register({name!r})(FamilyTable(...)))"
    )


def at(root: nn.Module, path: str) -> nn.Module:
    """The submodule at a dotted path ("" = the root)."""
    return root.get_submodule(path) if path else root


def blocks(model: Model) -> list[nn.Module]:
    """The model's blocks in order.  Raises InputError when the table does not fit the module."""
    found = _lookup(model, model.module, table(model).blocks)
    if not isinstance(found, nn.ModuleList):
        raise InputError(f"{model.name}: {table(model).blocks!r} is no list of blocks")
    return list(found)


def place(model: Model, where: Site | str) -> tuple[nn.Module, Place]:
    """The module and the side that carry a site's value.  The site must have passed `require`."""
    spot = site(where)
    if spot.layer == -1:
        return blocks(model)[0], RESIDUAL["resid_pre"]
    entry = table(model).places[spot.kind]
    return _lookup(model, blocks(model)[spot.layer], entry.path), entry


def attention(model: Model, layer: int) -> nn.Module:
    """The attention module of one block.  Raises InputError for families without attention."""
    path = table(model).attention
    if not path:
        raise InputError(
            f"{model.name} ({model.family}) has no attention, so no patterns, screens or heads: "
            "probe profiles, erasure, patching and component ablation run on it instead"
        )
    return _lookup(model, blocks(model)[layer], path)


def supported(model: Model, use: Use = "capture") -> dict[str, str]:
    """Kind -> "" when it can be captured (or edited), else the reason why not.  All kinds, in order."""
    layout = table(model)
    reasons: dict[str, str] = {}
    for kind in KINDS:
        if kind in layout.reasons:
            reasons[kind] = layout.reasons[kind]
        elif kind == "pattern":
            no_edit = "attention rows are read only: edit the head's output z[h] instead"
            reasons[kind] = _NO_ATTENTION if not layout.rows else (no_edit if use == "edit" else "")
        elif kind not in layout.places:
            reasons[kind] = _NOT_HERE.get(kind, "not in this family's table")
        else:
            reasons[kind] = layout.places[kind].read_only if use == "edit" else ""
    return reasons


def require(model: Model, where: Site | str, use: Use = "capture") -> Site:
    """The parsed site, if this model has it.

    Raises InputError naming the model's number of layers or heads when the index is out of range, and the
    reason when the kind is not supported (positions are checked against the tokens when they are known).
    """
    spot = site(where)
    lowest = -1 if spot.kind == "resid_post" else 0
    if not lowest <= spot.layer < model.n_layers:
        raise InputError(
            f"layer {spot.layer} of {spot} is out of range: {model.name} has {model.n_layers} layers "
            f"(0..{model.n_layers - 1}; L-1.resid_post is the embedding output)"
        )
    reason = supported(model, use)[spot.kind]
    if reason:
        can = [kind for kind, why in supported(model, use).items() if not why]
        raise InputError(f"cannot {use} {spot} in {model.name}: {reason}; possible here are {', '.join(can)}")
    if spot.head is not None and not 0 <= spot.head < model.n_heads:
        raise InputError(
            f"head {spot.head} of {spot} is out of range: {model.name} has {model.n_heads} heads "
            f"(0..{model.n_heads - 1}) in each of its {model.n_layers} layers"
        )
    return spot


def readout(model: Model, resid: Tensor) -> Tensor:
    """Final norm and output projection: residual (..., d_model) -> logits (..., n_out), float32, no gradient.

    At the last block's `resid_post` this is the model's own logits (case 16).
    """
    layout = table(model)
    head = _lookup(model, model.module, layout.head)
    with torch.no_grad():
        weight = next(head.parameters())
        resid = resid.to(weight.device)
        normed = _lookup(model, model.module, layout.norm)(resid) if layout.norm else resid
        logits: Tensor = head(normed.to(weight.dtype)).float()
    return logits


def _lookup(model: Model, root: nn.Module, path: str) -> nn.Module:
    try:
        return at(root, path)
    except AttributeError as error:
        raise InputError(
            f"{model.name}: the site table of {table_name(model)!r} does not fit this module, "
            f"there is no {path!r} in {type(root).__name__}"
        ) from error
