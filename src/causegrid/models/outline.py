"""A pretrained model's shapes without its weights: what a plan and a fine-tune count before anything is read.

Of a Hugging Face id whose config is not in the cache, the config alone is fetched, and only where the hub answers.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from causegrid.errors import InputError
from causegrid.models import hub
from causegrid.models.bundled import Bundled
from causegrid.models.quiet import quiet
from causegrid.models.record import models
from causegrid.models.zoo import Kept
from causegrid.spec import split


@functools.cache
def outlined(name: str) -> Any | None:
    """The module of a model's name on the meta device; None where its config is neither here nor on a hub that
    answers, its package is not installed, or it is made by code and has no file."""
    try:
        base, options = (name, {}) if Path(name).expanduser().is_dir() else split(name)
        factory = models.get(base) if base in models else None
        where = str(factory.folder(**options)) if isinstance(factory, Kept) else name
        shapes = outline(where)
    except (InputError, AttributeError):
        return None
    is_id = where.count("/") == 1 and not where.startswith((".", "~", "/")) and not Path(where).is_dir()
    return outline(where, fetch=True) if shapes is None and is_id and hub.reachable() else shapes


def outline(where: str, *, fetch: bool = False) -> Any | None:
    """The module of a bundled name, a folder or an id on the meta device; None when no config is at hand.  Nothing
    is downloaded, or with `fetch` the config alone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("meta"):
            if where in models:
                bundled: Bundled = models.get(where)
                config = bundled.config()
            else:
                config = AutoConfig.from_pretrained(Path(where).expanduser(), local_files_only=not fetch)
            return auto.from_config(config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # loading says what is wrong
        return None
