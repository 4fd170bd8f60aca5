"""From a name to a model: registered family or bundled model, then folder, then Hugging Face id.

The order is fixed, so a name means the same in Python, in a study file and on the command line.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from pathlib import Path
from typing import Any

import torch

from causegrid.errors import InputError, unknown
from causegrid.models.hub import did_you_mean, refuse_mistyped, refuse_revision
from causegrid.models.pretrained import as_device, as_dtype, load_pretrained, wrap
from causegrid.models.quiet import quiet
from causegrid.models.readout import put_head
from causegrid.models.record import Model, models
from causegrid.models.saved import build, load
from causegrid.spec import joined, require_types, split

ELSE = "or a local folder, or a Hugging Face id org/name"


def model(
    name: str | os.PathLike[str],
    *,
    task: Any = None,
    seed: int = 0,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> Model:
    """A model by name: a registered family (fresh weights for `task`, from `seed`), a bundled model, a local
    folder (saved by us, a run's cell, or in Hugging Face's format), or a Hugging Face id.  A registered
    name may carry options (`mamba:conv=false`).

    `dtype` is float32 and `device` the CPU unless given (`"auto"`: a GPU where there is one; `"balanced"`: a
    pretrained model over all of them).  `revision` is a branch, tag or commit of a Hugging Face id.  `options` are
    the family's own; pretrained models take `attn_implementation`.  Raises InputError, one line, naming what
    was given, what is allowed and the nearest match.
    """
    text = os.fspath(name)
    if text.partition(":")[0] in models:
        base, named = split(text)
        for option in set(named) & set(options):
            raise InputError(f"model {base!r}: the option {option!r} is given in the name and beside it")
        options = {**named, **options}
        if revision is not None:
            raise InputError(f"model {text!r} has no revisions: {revision!r} can be asked of an id org/name")
        made = _registered(base, task=task, seed=seed, dtype=dtype, device=device, options=options)
        made.name = joined(base, named)
        return made
    refuse_revision(text)
    folder = Path(text).expanduser()
    if folder.is_file():
        raise InputError(f"model {text!r} is a file: give the folder that holds it")
    if text and folder.is_dir():
        if revision is not None:
            raise InputError(f"folder {text!r} has no revisions: {revision!r} can be asked of an id org/name")
        if _is_cell(folder):
            return _of_cell(folder, dtype=dtype, device=device)
        if (folder / "model.json").is_file():
            _no_options(text, options, ())
            return load(folder, dtype=dtype, device=device)
    elif text.count("/") != 1 or text.startswith((".", "~", "/")) or text.endswith("/"):
        if near := did_you_mean(text) if "/" in text else "":
            raise InputError(f"unknown model {text!r}: there is no such folder{near}")
        raise unknown("model", text, models.names(), ELSE)
    elif revision is None:
        refuse_mistyped(text)
    _no_options(text, options, ("attn_implementation",))
    return load_pretrained(
        str(folder) if folder.is_dir() else text,
        name=text,
        dtype=dtype,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        **options,
    )


def untrained(model: Model, seed: int = 0) -> Model:
    """The same sizes with fresh weights from `seed`, same device and dtype (the probe's baseline).

    The global random state is left as it was: weights are drawn on the CPU, whose generator alone is seeded
    (`torch.manual_seed` would reset a GPU's too, and `devices=[]` would not put it back).
    """
    first = next(model.module.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if model.is_hf:
            config = copy.deepcopy(model.module.config)
            with quiet():
                module = type(model.module)(config)
            if model.readout is not None and model.readout.outputs is None:
                put_head(module, model.n_out, seed=seed)
            made = wrap(module, name=model.name, tokenizer=model.tokenizer, source="untrained")
            made = made if model.readout is None else made.reading(model.readout)
        else:
            made = build(model.name, model.family, dict(model.config), seed=seed)
            made.source = "untrained"
    made.module.to(device=first.device, dtype=first.dtype).eval()
    return made


def _registered(
    name: str,
    *,
    task: Any,
    seed: int,
    dtype: str | torch.dtype | None,
    device: str | torch.device | None,
    options: dict[str, Any],
) -> Model:
    factory = models.get(name)
    taken = inspect.signature(factory).parameters
    given: dict[str, Any] = {"seed": seed} if "seed" in taken else {}
    if "n_tokens" in taken:
        if task is None:
            raise InputError(
                f"model {name!r} is built for a task: give one, as in model({name!r}, task=task('s3'))"
            )
        if getattr(task, "kind", None) != "state":
            got = getattr(task, "name", task)
            raise InputError(f"model {name!r} is built for a state task (as task('s3')), not for {got!r}")
        given |= {"n_tokens": int(task.n_tokens), "n_out": int(task.n_classes)}
    own_move = not {"dtype", "device"} <= set(taken)
    if not own_move:
        given |= {"dtype": dtype, "device": device}
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        named = [k for k, p in taken.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        _no_options(name, options, [k for k in named if k not in given])
    require_types(f"model {name!r}", taken, options)
    if seed and "seed" not in taken and hasattr(factory, "require"):  # kept by seed
        options = {"seed": seed, **options}
    made: Model = factory(name, **given, **options)
    if own_move:
        made.module.to(device=as_device(device), dtype=as_dtype(dtype))
    return made


def _no_options(name: str, options: dict[str, Any], allowed: Any) -> None:
    for option in options:
        if option not in allowed:
            raise unknown(f"option of model {name!r}", option, sorted(allowed))


def _of_cell(folder: Path, **extra: Any) -> Model:
    """The pretrained model a run's cell looked at (cells of trained models hold a `model.json`).

    That model may be another cell; cells that lead back to themselves are refused.
    """
    first, seen = folder, set()
    while True:
        seen.add(folder.resolve())
        name = _named_in(folder)
        following = Path(name).expanduser()
        if name in models or not _is_cell(following):
            return model(name, **extra)
        if following.resolve() in seen:
            raise InputError(f"cell {str(first)!r} names no model: its cell.json leads back to {name!r}")
        folder = following


def _is_cell(folder: Path) -> bool:
    return (folder / "cell.json").is_file() and not (folder / "model.json").is_file()


def _named_in(folder: Path) -> str:
    try:
        config = json.loads((folder / "cell.json").read_text(encoding="utf-8")).get("config", {})
    except (OSError, ValueError, AttributeError, RecursionError):
        raise InputError(f"{str(folder / 'cell.json')!r} cannot be read: not a cell of a run") from None
    name = config.get("model") if isinstance(config, dict) else None
    base = str(name).partition(":")[0]
    to_train = base in models and "n_tokens" in inspect.signature(models.get(base)).parameters
    to_train |= isinstance(config, dict) and (
        config.get("fine_tuning") is not None or config.get("study") == "zoo"
    )
    if not isinstance(name, str) or to_train:
        raise InputError(f"cell {str(folder)!r} holds no trained model (its training stage has not finished)")
    return name
