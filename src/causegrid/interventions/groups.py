"""Named groups of heads, from a JSON file or a dict, checked against the model they are for.

A circuit file belongs to one model: head lists look alike everywhere, and a list run on another model is
silently another experiment (MEASURES 3.1).  So the reserved key `_model` is compared, and every head must
exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causegrid.errors import InputError, unknown
from causegrid.headnames import head, head_name
from causegrid.models.heads import require_attention
from causegrid.models.record import Model


@dataclass(frozen=True, kw_only=True)
class Group:
    """`heads` as `L3H1` names in the order given; `target` is the prompt position its heads should attend."""

    name: str
    heads: tuple[str, ...]
    target: str | None = None


def check_heads(model: Model, heads: str | Iterable[str | tuple[int, int]], where: str = "") -> list[str]:
    """Heads as `L3H1` names, every one of them in the model, duplicates refused.

    Raises InputError: no attention, no heads, a head written wrongly or out of range (naming the model's
    head and layer counts), a head given twice.
    """
    require_attention(model)
    at = f"{where}: " if where else ""
    parts = [p for p in heads.split(",") if p.strip()] if isinstance(heads, str) else list(heads)
    if not parts:
        raise InputError(f"{at}no heads given; write them as L3H1")
    names: list[str] = []
    for part in parts:
        try:
            layer, index = head(part)
        except InputError as problem:
            raise InputError(f"{at}{problem}") from None
        if not 0 <= layer < model.n_layers or not 0 <= index < model.n_heads:
            raise InputError(
                f"{at}no head {head_name(layer, index)} in {model.name!r}: it has {model.n_heads} heads "
                f"(0..{model.n_heads - 1}) in each of its {model.n_layers} layers (0..{model.n_layers - 1})"
            )
        name = head_name(layer, index)
        if name in names:
            raise InputError(f"{at}head {name} is given twice")
        names.append(name)
    return names


def read_groups(given: str | Path | Mapping[str, Any], model: Model, force: bool = False) -> dict[str, Group]:
    """Groups of a JSON file or a dict: name -> list of heads, or -> {"heads": [...], "target": position}.

    The reserved key `_model` names the model the groups belong to; `force` skips that comparison only.
    Raises InputError for a file that cannot be read, bad JSON, another model's groups (naming both), an empty
    group or name, an unknown field, and for heads as `check_heads` does.
    """
    where, raw = _raw(given)
    if not isinstance(raw, Mapping):
        raise InputError(f'{where}: expected an object of groups, {{"mine": ["L3H1", "L5H2"]}}')
    owner = raw.get("_model")
    if owner is not None and not isinstance(owner, str):
        raise InputError(f"{where}: _model must be a model's name, not {owner!r}")
    if owner is not None and owner != model.name and not force:
        raise InputError(
            f"{where}: these groups belong to model {owner!r}, not {model.name!r}; "
            "--force (force=True in Python) uses them all the same"
        )
    groups = {
        str(k): _group(f"{where}: group {k!r}", str(k), v, model) for k, v in raw.items() if k != "_model"
    }
    if not groups:
        raise InputError(f'{where}: no groups in it; write {{"mine": ["L3H1", "L5H2"]}}')
    return groups


def _raw(given: str | Path | Mapping[str, Any]) -> tuple[str, Any]:
    if isinstance(given, Mapping):
        return "groups", given
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"cannot read the groups file {str(path)!r}: {problem}") from None
    try:
        return str(path), json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as problem:
        raise InputError(f"{path}:{problem.lineno}: not JSON ({problem.msg})") from None
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply for a groups file") from None
    except ValueError as problem:  # a number of thousands of digits
        raise InputError(f"{path}: not JSON ({problem})") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"the name {twice!r} appears twice")
    return dict(pairs)


def _group(where: str, name: str, value: Any, model: Model) -> Group:
    if not name.strip():
        raise InputError(f"{where}: a group needs a name")
    if not name.isprintable():
        raise InputError(f"{where}: the name holds characters that cannot be printed")
    if isinstance(value, Group):
        value = {"heads": list(value.heads), "target": value.target}
    target = None
    if isinstance(value, Mapping):
        for key in value:
            if key not in ("heads", "target"):
                raise InputError(f"{where}: {unknown('field', key, ('heads', 'target'))}")
        if "heads" not in value:
            raise InputError(f"{where}: no 'heads' in it")
        target = value.get("target")
        if target is not None and not isinstance(target, str):
            raise InputError(f"{where}: target must be the name of a prompt position, not {target!r}")
        value = value["heads"]
    if not isinstance(value, (str, list, tuple)):
        raise InputError(f'{where}: expected a list of heads like ["L3H1", "L5H2"], not {value!r}')
    return Group(name=name, heads=tuple(check_heads(model, value, where)), target=target)
