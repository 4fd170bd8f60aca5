"""A model in a folder: `model.json` says what it is, `model.safetensors` holds the weights.

Design choices:
- Both files are written aside and moved into place, the description last; it carries the digest of own
  models' weights, so a half-written or mixed pair is found out when loaded, not in the results.
- Own families are rebuilt by their registered factory from `config`; the file holds no code and no pickle.
- Hugging Face models are saved in their own format (`config.json`, safetensors, tokenizer) with the same
  description beside it, so other tools read the folder too; a head put there for a state task, which
  config.json has no words for, is also a file of its own.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

import causegrid
from causegrid.errors import InputError, one_line
from causegrid.models.pretrained import HEAD_FILE, as_device, as_dtype, load_pretrained
from causegrid.models.quiet import quiet
from causegrid.models.readout import StateReadout
from causegrid.models.record import Model, models

FORMAT = 1
SIZES = ("n_layers", "d_model", "n_tokens", "n_out", "n_heads", "head_dim", "n_kv_heads")


def save(model: Model, folder: str | os.PathLike[str]) -> Path:
    """Write the model into `folder` (made if need be; other files in it are left alone); returns the folder.

    Raises InputError when `folder` is a file, or the model's config cannot be written as JSON.
    """
    from safetensors.torch import save_model

    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise InputError(f"{str(target)!r} is a file: a model is saved into a folder")
    target.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {
        "format": FORMAT,
        "causegrid": causegrid.__version__,
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "dtype": str(next(model.module.parameters()).dtype).removeprefix("torch."),
        "hugging_face": model.is_hf,
        **{size: getattr(model, size) for size in SIZES},
    }
    if model.readout is not None:
        about["readout"] = model.readout.to_json()
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as aside:
        beside = Path(aside)
        if model.is_hf:
            with quiet():
                _save_hugging_face(model, beside)
        else:
            save_model(model.module, str(beside / "model.safetensors"))
            about["config"] = dict(model.config)
            about["sha256"] = digest(beside / "model.safetensors")
        try:
            text = json.dumps(about, indent=1)
        except TypeError as error:
            raise InputError(f"the config of {model.name!r} cannot be saved: {one_line(error)}") from None
        for file in sorted(beside.iterdir()):
            os.replace(file, target / file.name)
        (beside / "model.json").write_text(text + "\n", encoding="utf-8")
        os.replace(beside / "model.json", target / "model.json")
    return target


def _save_hugging_face(model: Model, folder: Path) -> None:
    from safetensors.torch import save_file

    module: Any = model.module
    if hasattr(module, "merge_and_unload"):  # adapters, as when training stops half-way
        module = copy.deepcopy(module).merge_and_unload()
    module.save_pretrained(folder, safe_serialization=True)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    if model.readout is not None and model.readout.outputs is None:
        save_file(module.get_output_embeddings().state_dict(), str(folder / HEAD_FILE))


def digest(file: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load(
    folder: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> Model:
    """The model saved in `folder`, in the dtype it was saved in unless asked, in evaluation mode.

    Raises InputError for a folder without `model.json`, a file that is corrupt or made by a newer format, an
    unknown family, and weights that are missing, corrupt or not those the description names.
    """
    where = Path(folder)
    about = _about(where)
    if (where / "cell.json").is_file() and not any(where.glob("*.safetensors")):
        raise InputError(
            f"cell {str(where)!r} holds no weights: they were left out; to rebuild them, delete this folder and "
            "`causegrid run` its study again"
        )
    wanted = as_dtype(dtype if dtype is not None else about["dtype"])
    if about["hugging_face"]:
        made = _load_hugging_face(where, about, wanted, device)
    else:
        made = _load_own(where, about)
        made.module.to(device=as_device(device), dtype=wanted)
    wrong = [s for s in SIZES if getattr(made, s) != about[s]]
    if wrong:
        raise InputError(
            f"{str(where)!r} is not the model its model.json names: {wrong[0]} is {getattr(made, wrong[0])}, "
            f"not {about[wrong[0]]}"
        )
    made.source = str(where)
    return made


def _about(where: Path) -> dict[str, Any]:
    file = where / "model.json"
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{str(where)!r} holds no saved model: it has no model.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{str(file)!r} cannot be read: {one_line(error)}") from None
    needed = {"format", "name", "family", "dtype", "hugging_face", *SIZES}
    if not isinstance(about, dict) or not needed <= set(about):
        lacking = ", ".join(sorted(needed - set(about))) if isinstance(about, dict) else "everything"
        raise InputError(f"{str(file)!r} does not describe a model: it lacks {lacking}")
    if about["format"] != FORMAT:
        raise InputError(f"{str(file)!r} has format {about['format']!r}; this version reads format {FORMAT}")
    if not about["hugging_face"] and not (isinstance(about.get("config"), dict) and "sha256" in about):
        raise InputError(f"{str(file)!r} does not describe a model: it lacks config or sha256")
    return about


def _load_hugging_face(
    where: Path, about: dict[str, Any], dtype: torch.dtype, device: str | torch.device | None
) -> Model:
    given = about.get("readout")
    try:
        readout = None if given is None else StateReadout.from_json(given)
    except ValueError as error:
        raise InputError(f"{str(where / 'model.json')!r} holds {one_line(error)}") from None
    head = about["n_out"] if readout is not None and readout.outputs is None else None
    made = load_pretrained(str(where), name=about["name"], dtype=dtype, device=device, head=head)
    if readout is None:
        return made
    if max(*readout.inputs, *(readout.outputs or ())) >= made.n_tokens:
        raise InputError(
            f"{str(where / 'model.json')!r} names tokens outside the vocabulary of {made.n_tokens}"
        )
    return made.reading(readout)


def _load_own(where: Path, about: dict[str, Any]) -> Model:
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    weights = where / "model.safetensors"
    if not weights.is_file():
        raise InputError(f"{str(where)!r} has no weights: model.safetensors is missing")
    if digest(weights) != about["sha256"]:
        raise InputError(
            f"{str(weights)!r} is corrupt, or of another model than model.json beside it describes"
        )
    made = build(about["name"], about["family"], about["config"])
    try:
        load_model(made.module, str(weights), strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise InputError(f"the weights in {str(where)!r} do not fit: {one_line(error)}") from None
    made.name = about["name"]
    made.module.eval()
    return made


def build(name: str, family: str, config: dict[str, Any], seed: int | None = None) -> Model:
    """An own model from its config, by the factory registered under its name, else under its family.

    Raises InputError when neither is registered or the config does not fit the factory.
    """
    factory = models.get(name if name in models else family)
    given = dict(config)
    if seed is not None:
        given["seed"] = seed
    try:
        made: Model = factory(name if name in models else family, **given)
    except TypeError as error:
        raise InputError(f"a saved {family!r} model does not fit this version: {one_line(error)}") from None
    return made
