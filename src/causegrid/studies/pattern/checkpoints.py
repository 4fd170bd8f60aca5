"""Participation ratio over training: one checkpoint in memory at a time, resumable after each.

A checkpoint is a revision of the cell's own model on the hub, or a local folder.  All see the cell's prompts as
the cell's own model tokenises them, so a folder needs no tokenizer; sizes must agree.
Each checkpoint's table is kept as soon as it is measured: loading is the costly part, and a killed stage goes on
at the checkpoint it had reached.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from causegrid.errors import InputError

if TYPE_CHECKING:
    from causegrid.models.record import Model
    from causegrid.studies.base import CellContext
    from causegrid.studies.pattern.stages import PatternStages


class Checkpoint(BaseModel):
    """`{revision: step1000, tokens: 2.1e9}` of a hub id, or `{folder: DIR, tokens: 2.1e9}`; `tokens` seen so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    revision: str | None = None
    folder: str | None = None
    tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _one_place(self) -> Checkpoint:
        if (self.revision is None) == (self.folder is None):
            raise ValueError("a checkpoint has either a revision (of a Hugging Face id) or a folder")
        return self

    @property
    def name(self) -> str:
        """How tables name it."""
        return str(self.revision if self.folder is None else self.folder)


def check_checkpoints(model: str, checkpoints: Sequence[Checkpoint]) -> None:
    """Raises InputError, before anything runs, for checkpoints out of order, folders that hold no model, and
    revisions of what has none."""
    for before, after in itertools.pairwise(checkpoints):
        if after.tokens <= before.tokens:
            raise InputError(
                f"checkpoints must be in ascending order of tokens seen: {after.name!r} with {after.tokens:g} "
                f"follows {before.name!r} with {before.tokens:g}"
            )
    for one in checkpoints:
        if one.folder is not None and not (Path(one.folder).expanduser() / "config.json").is_file():
            raise InputError(f"checkpoint folder {one.folder!r} holds no model: it has no config.json")
        if one.revision is not None and (model.count("/") != 1 or Path(model).expanduser().is_dir()):
            raise InputError(
                f"model {model!r} is no Hugging Face id, so it has no revision {one.revision!r}: "
                "name checkpoints by folder"
            )


def require_checkpoints(model: Model, name: str, checkpoints: Sequence[Checkpoint]) -> None:
    """Raises InputError for a checkpoint that does not exist, or is no checkpoint of this model, by its config alone:
    before anything is computed, for it is measured last."""
    from causegrid.models.config import config_of

    for one in checkpoints:
        config = config_of(one.folder or name, revision=one.revision)
        found = (config.num_hidden_layers, getattr(config, "num_attention_heads", None))
        if found != (model.n_layers, model.n_heads):
            raise InputError(
                f"checkpoint {one.name!r} has {found[0]} layers of {found[1]} heads, {name!r} has {model.n_layers} "
                f"of {model.n_heads}"
            )


def folder_digests(task: str, checkpoints: Sequence[Checkpoint]) -> dict[str, str]:
    """Digests of the folders among the checkpoints: other weights in one make another cell."""
    from causegrid.studies.names import digests

    return {
        f"checkpoint {one.folder}": digests(task, one.folder)["model"] for one in checkpoints if one.folder
    }


def measured_checkpoints(
    checkpoints: Sequence[Checkpoint],
    measure: Callable[[Checkpoint], pd.DataFrame],
    kept: Path,
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[pd.DataFrame]:
    """`measure` of every checkpoint, in order; tables in the folder `kept` are read instead of measured again."""
    kept.mkdir(parents=True, exist_ok=True)
    tables = []
    for i, one in enumerate(checkpoints):
        file = kept / f"{i:04d}.parquet"
        if not file.is_file():
            aside = file.with_suffix(".part")
            measure(one).to_parquet(aside)
            os.replace(aside, file)  # whole or not there
        tables.append(pd.read_parquet(file))
        if progress is not None:
            progress(i + 1, len(checkpoints), "checkpoints")
    return tables


def save_checkpoints(work: PatternStages, context: CellContext) -> None:
    """The stage `checkpoints`: tables `checkpoints` (a head at a checkpoint) and `pr_integral` (a head)."""
    from causegrid.signatures.spectrum import joined_checkpoints, pr_integrals, pr_over_checkpoints
    from causegrid.studies.placement import placed

    c = work.cell
    prompts = work.parts.chosen
    heads = (work.model.n_layers, work.model.n_heads, work.model.n_tokens)
    work.release()  # the cell's own model makes room

    def measure(one: Checkpoint) -> pd.DataFrame:
        loaded = placed(one.folder or c.model, dtype=c.dtype, revision=one.revision)
        if (loaded.n_layers, loaded.n_heads, loaded.n_tokens) != heads:
            raise InputError(
                f"checkpoint {one.name!r} has {loaded.n_layers} layers of {loaded.n_heads} heads and "
                f"{loaded.n_tokens} tokens, {c.model!r} has {heads[0]} of {heads[1]} and {heads[2]}"
            )
        return pr_over_checkpoints(
            [(one.name, one.tokens, loaded)], prompts, n_subsamples=c.n_subsamples, seed=c.seed
        )

    kept = context.scratch("checkpoints")
    table = joined_checkpoints(measured_checkpoints(c.checkpoints, measure, kept, progress=context.progress))
    context.save_table("checkpoints", table)
    context.save_table("pr_integral", pr_integrals(table))
