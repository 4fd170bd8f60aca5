"""Verbs that take one measure of one model, now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from causegrid import terminal
from causegrid.cli.options import (
    VERBS,
    Bos,
    Json,
    Mode,
    ModelArg,
    Prompts,
    PromptTaskArg,
    Rules,
    Seed,
    StateTaskArg,
    app,
    leave,
    show,
)
from causegrid.cli.table import emit_table

BASELINES = (
    "baselines: no model (majority, position, token, token_pair), untrained model, shuffled labels, control task; "
    "their ranges and counts with --json"
)


@app.command(rich_help_panel=VERBS)
def check(model: ModelArg, json: Json = False) -> None:
    """Self-checks of sites and edits on your own model: what is supported, and the noise floor."""
    from causegrid.models import model as load
    from causegrid.sites import check as check_model

    table = check_model(load(model))
    show(table, json)
    leave(1 if (table["result"] == "fail").any() else 0)


@app.command(rich_help_panel=VERBS)
def train(
    task: StateTaskArg,
    family: Annotated[
        str,
        typer.Argument(
            metavar="FAMILY",
            help="transformer, mamba, mamba2, lstm or gru; options follow a colon, as mamba:conv=false,n_layers=2 "
            "(`causegrid list models` names them).",
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="At most so many steps; stops when solved.")] = 2000,
    length: Annotated[int, typer.Option(min=4, help="Trained length, in tokens.")] = 40,
    schedule: Annotated[str, typer.Option(help="Lengths seen: curriculum, mixed or fixed.")] = "curriculum",
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Save the trained model into this new folder.")] = None,
    json: Json = False,
) -> None:
    """Train a fresh model of a family on a state task; accuracy by length."""
    from causegrid import verbs

    result = verbs.train(
        task,
        family,
        steps=steps,
        length=length,
        schedule=schedule,
        seed=seed,
        out=out,
        progress=terminal.Progress(),
    )
    if json:
        terminal.emit_json(result)
        return
    import pandas as pd

    emit_table(pd.DataFrame(result["behaviour"]))
    print(f"{result['steps']} steps; {result['learned']}" + (f"; saved in {out}" if out else ""))


@app.command(rich_help_panel=VERBS)
def probe(
    task: StateTaskArg,
    model: ModelArg,
    length: Annotated[int, typer.Option(min=1, help="Length of the probed sequences, in tokens.")] = 40,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Linear probe of every layer and label, with its no-model and untrained-model baselines."""
    from causegrid import verbs

    table = verbs.probe(task, model, length=length, seed=seed)
    if json:
        baselines = [c for c in table.columns if c.startswith("baseline_")]
        rows = terminal.records(table.drop(columns=baselines))
        for row, values in zip(rows, terminal.records(table[baselines]), strict=True):
            row["baselines"] = {k.removeprefix("baseline_"): v for k, v in values.items()}
        terminal.emit_json(rows)
        return
    aside = [c for c in table.columns if c.startswith("n_") or c.endswith(("_low", "_high"))]
    emit_table(table.drop(columns=aside).rename(columns=lambda c: c.removeprefix("baseline_")))
    print(BASELINES)


@app.command(rich_help_panel=VERBS)
def screen(
    task: PromptTaskArg,
    model: ModelArg,
    screen: Annotated[str, typer.Option("--screen", metavar="NAME", help="`causegrid list screens`.")],
    rules: Rules = "strict",
    n: Prompts = 200,
    bos: Bos = "none",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Score every head by where its query row attends."""
    from causegrid import verbs

    table = verbs.screen(task, model, screen, rules=rules, n=n, bos=bos, seed=seed, tell=terminal.say)
    if not json:
        table = table.sort_values("score", ascending=False).head(20)
    show(table, json)


@app.command(rich_help_panel=VERBS)
def ablate(
    task: PromptTaskArg,
    model: ModelArg,
    heads: Annotated[str, typer.Option(metavar="L3H1,L5H2", help="Heads to remove, all at once.")],
    mode: Mode = "mean",
    n: Annotated[
        int,
        typer.Option(
            "--n", min=4, help="Prompts in all; half are the reference of mean ablation, half measured."
        ),
    ] = 200,
    bos: Bos = "none",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Remove a group of heads and measure the task, on prompts the reference did not see."""
    from causegrid import verbs

    result = verbs.ablate(task, model, heads, mode=mode, n=n, bos=bos, seed=seed, tell=terminal.say)
    if json:
        terminal.emit_json(result)
        return
    import pandas as pd

    emit_table(pd.DataFrame(result["table"]))


@app.command(rich_help_panel=VERBS)
def verdict(
    task: PromptTaskArg,
    model: ModelArg,
    groups: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Groups to judge (default: those the task's screens pick)."),
    ] = None,
    n_null: Annotated[
        int,
        typer.Option(
            "--n-null",
            min=1,
            max=100_000,
            help="At least so many draws a group: max(N, 80 x groups - 1), fewer with early stopping.",
        ),
    ] = 99,
    mode: Annotated[
        str, typer.Option(help="Ablation that decides (default: mean; zero under paper rules).")
    ] = "",
    rules: Rules = "strict",
    n: Annotated[
        int,
        typer.Option(
            "--n",
            min=4,
            help="Prompts: under strict rules half choose heads, half measure; under paper all do both, and up "
            "to 100 others are the reference.",
        ),
    ] = 200,
    bos: Bos = "none",
    seed: Seed = 0,
    force: Annotated[bool, typer.Option(help="Use a groups file that names another model.")] = False,
    json: Json = False,
) -> None:
    """Ablate each group, draw its matched-random null, and judge it: primary, correlate, interferer, null, ..."""
    from causegrid import verbs

    table = verbs.verdict(
        task,
        model,
        groups=groups,
        n_null=n_null,
        mode=mode or None,
        rules=rules,
        n=n,
        bos=bos,
        seed=seed,
        force=force,
        progress=terminal.Progress(),
        tell=terminal.say,
    )
    if json:
        terminal.emit_json(terminal.records(table))
        return
    emit_table(table[verbs.VERDICT_SHOWN])
    for group, rows in table.groupby("group", sort=False):
        for metric, reason, marks in rows[["metric", "reason", "marks"]].itertuples(index=False):
            print(f"{group}, {metric}: {reason}" + (f" [{', '.join(marks)}]" if len(marks) else ""))
