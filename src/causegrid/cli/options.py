"""What the verbs have in common: the application, arguments and options of one meaning, and their last words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from causegrid import terminal
from causegrid.cli.table import emit_table

app = typer.Typer(
    name="causegrid",
    help="Readable is not causal, selective is not causal: causegrid measures the difference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
STUDIES, VERBS = "Studies", "One measure at a time"

Json = Annotated[bool, typer.Option("--json", help="Machine-readable result on stdout; logs go to stderr.")]
StateTaskArg = Annotated[
    str,
    typer.Argument(metavar="TASK", help="A state task: parity, s3, z6, dyck, ... (`causegrid list tasks`)."),
]
PromptTaskArg = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A prompt task: ioi, greater-than, ... (`causegrid list tasks`), or prompts:FILE.jsonl.",
    ),
]
ModelArg = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A registered model, a local folder, a run's cell, or a Hugging Face id."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything random here.")]
Prompts = Annotated[
    int,
    typer.Option(
        "--n",
        min=4,
        max=100_000,
        help="Prompts in all; strict rules score half of them, those that choose heads.",
    ),
]
Bos = Annotated[str, typer.Option(help="BOS policy: none (the papers') or model (what the tokenizer does).")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Override a key of the study, as seeds=[0,1]; may be repeated."
    ),
]
StudyFile = Annotated[
    Path, typer.Argument(metavar="STUDY.yaml", help="A study file; `causegrid init` writes one.")
]
OtherStudy = Annotated[
    Path | None,
    typer.Argument(metavar="[STUDY.yaml]", help="A study file (default: the one that ships)."),
]
Workers = Annotated[int, typer.Option(min=1, help="Cells at a time.")]
Device = Annotated[
    str,
    typer.Option(
        help="Where models run: cpu, cuda, auto (a GPU where there is one) or balanced (spread over several)."
    ),
]
Rules = Annotated[str, typer.Option(help="strict (what we would defend) or paper (the published procedure).")]
Mode = Annotated[str, typer.Option(help="Ablation: mean, zero or resample.")]


def show(table: Any, json: bool) -> None:
    """A table on stdout, or its rows as JSON."""
    if json:
        terminal.emit_json(terminal.records(table))
    else:
        emit_table(table)


def leave(code: int) -> None:
    """End the verb with this exit code."""
    if code:
        raise typer.Exit(code)
