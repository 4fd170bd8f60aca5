"""The command line: one thin door.

Every verb parses, calls one function of a room, and prints its table (or `--json`).  Heavy rooms are
imported inside the verbs, so `causegrid --help` answers at once.
Exit codes: 0 done, 1 a cell failed, 2 bad input (one line on stderr, nothing written).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from causegrid import terminal
from causegrid.errors import InputError, unknown

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
    str, typer.Argument(metavar="TASK", help="A prompt task: ioi, variable-binding, or prompts:FILE.jsonl.")
]
ModelArg = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A registered model, a local folder, a run's cell, or a Hugging Face id."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything random here.")]
Prompts = Annotated[int, typer.Option("--n", min=4, help="Prompts in all; half choose heads, half measure.")]
Bos = Annotated[str, typer.Option(help="BOS policy: none (the papers') or model (what the tokenizer does).")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key of the study.")]
StudyFile = Annotated[
    Path, typer.Argument(metavar="STUDY.yaml", help="A study file; `causegrid init` writes one.")
]
Rules = Annotated[str, typer.Option(help="strict (what we would defend) or paper (the published procedure).")]
Mode = Annotated[str, typer.Option(help="Ablation: mean, zero or resample.")]


# --- studies -----------------------------------------------------------------------------------------


@app.command(rich_help_panel=STUDIES)
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path("runs/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Cells at a time, one thread each.")] = 2,
    json: Json = False,
) -> None:
    """Both studies, small, on real input, offline, with one report (minutes on 2 cores)."""
    from causegrid.demo import run_demo

    found = run_demo(out, workers=workers, progress=terminal.Progress())
    if json:
        terminal.emit_json(found)
    else:
        print("\n".join(found["lines"]))
    _leave(1 if found["n_failed"] else 0)


@app.command(rich_help_panel=STUDIES)
def run(
    study: StudyFile,
    out: Annotated[
        Path | None, typer.Option(help="Run folder (default: runs/<name of the study file>).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Cells at a time.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker.")] = 1,
    engine: Annotated[str, typer.Option(help="Where cells run: `causegrid list engines`.")] = "local",
    set_: Set = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="At most so many unfinished cells this time.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="Run each cell up to this stage only (as `train`); a later run without it goes on from there.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Fill the study's grid of cells.  Resumes by itself: finished cells and stages are never run again."""
    from causegrid.report import write_report
    from causegrid.runs import run as run_study

    outcome = run_study(
        study,
        out,
        workers=workers,
        threads=threads,
        engine=engine,
        overrides=set_ or (),
        limit=limit,
        until=until,
        progress=terminal.Progress(),
    )
    for cell, why in outcome.failures:
        terminal.say(f"failed: {cell}: {why}")
    for problem in outcome.problems:
        terminal.say(f"problem: {problem}")
    page = write_report(outcome.folder)
    summary = {
        "folder": str(outcome.folder),
        "done": outcome.n_done,
        "cached": outcome.n_cached,
        "failed": outcome.n_failed,
        "report": str(page),
    }
    if json:
        terminal.emit_json(summary)
    else:
        print("  ".join(f"{k}: {v}" for k, v in summary.items()))
    _leave(outcome.exit_code)


@app.command(rich_help_panel=STUDIES)
def plan(
    study: StudyFile,
    out: Annotated[Path | None, typer.Option(help="Run folder whose finished cells count as cached.")] = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """The cells of a study, cached or to run, and what each will cost.  Runs and writes nothing."""
    from causegrid.runs import plan as plan_study

    _show(plan_study(study, out, overrides=set_ or ()), json)


@app.command(rich_help_panel=STUDIES)
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")], json: Json = False
) -> None:
    """How far a run is, cell by cell, and why a cell failed."""
    from causegrid.runs import status as run_status

    _show(run_status(folder), json)


@app.command(rich_help_panel=STUDIES)
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a folder of run folders.")],
    json: Json = False,
) -> None:
    """Render a finished or half-finished run as one self-contained HTML page with its tables beside it."""
    from causegrid.report import write_report

    page = write_report(folder)
    if json:
        terminal.emit_json({"report": str(page)})
    else:
        print(page)


@app.command(rich_help_panel=STUDIES)
def claims(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")], json: Json = False
) -> None:
    """What the finished cells say about the published claims."""
    from causegrid.runs import claims as run_claims

    _show(run_claims(folder), json)


@app.command(rich_help_panel=STUDIES)
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new study file, without .yaml.")],
    study: Annotated[str, typer.Option(help="Which protocol: `causegrid list studies`.")] = "state-encoding",
    json: Json = False,
) -> None:
    """Write an example study (three cells or more) into the current folder."""
    from causegrid.studies.base import studies

    chosen = studies.get(study)()
    path = Path(f"{name.removesuffix('.yaml')}.yaml")
    if not name.removesuffix(".yaml").strip(". ") or "/" in name:
        raise InputError(f"cannot name a study file {name!r}: give a plain name, as in `causegrid init mine`")
    if path.exists():
        raise InputError(f"{path} exists already: choose another name, or remove it first")
    path.write_text(chosen.example(), encoding="utf-8")
    if json:
        terminal.emit_json({"file": str(path), "study": study})
    else:
        print(f"{path}\nnext: causegrid plan {path}; causegrid run {path}")


@app.command("list", rich_help_panel=STUDIES)
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="tasks, models, screens, studies or engines.")
    ] = "",
    json: Json = False,
) -> None:
    """What is registered: tasks, models, screens, studies, engines."""
    from causegrid.catalogue import KINDS, catalogue

    if kind and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    _show(catalogue([kind] if kind else list(KINDS)), json)


# --- one measure at a time -----------------------------------------------------------------------------


@app.command(rich_help_panel=VERBS)
def check(model: ModelArg, json: Json = False) -> None:
    """Self-checks of sites and edits on your own model: what is supported, and the noise floor."""
    from causegrid.models import model as load
    from causegrid.sites import check as check_model

    table = check_model(load(model))
    _show(table, json)
    _leave(1 if (table["result"] == "fail").any() else 0)


@app.command(rich_help_panel=VERBS)
def train(
    task: StateTaskArg,
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="transformer, mamba, mamba2, lstm or gru.")],
    steps: Annotated[int, typer.Option(min=1, help="At most so many steps; stops when solved.")] = 2000,
    length: Annotated[int, typer.Option(min=4, help="Trained length, in tokens.")] = 40,
    schedule: Annotated[str, typer.Option(help="Lengths seen: curriculum, mixed or fixed.")] = "curriculum",
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Save the trained model into this new folder.")] = None,
    json: Json = False,
) -> None:
    """Train one of the five families on a state task; accuracy by length."""
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

    terminal.emit_table(pd.DataFrame(result["behaviour"]))
    print(
        f"{result['steps']} steps; learned to length {result['learned_length']}"
        + (f"; saved in {out}" if out else "")
    )


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
    terminal.emit_table(table)


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
    _show(table, json)


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

    terminal.emit_table(pd.DataFrame(result["table"]))


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
            help="At least so many draws a group: max(N, 80 x groups - 1), fewer with early stopping.",
        ),
    ] = 99,
    mode: Annotated[
        str, typer.Option(help="Ablation that decides (default: mean; zero under paper rules).")
    ] = "",
    rules: Rules = "strict",
    n: Prompts = 200,
    bos: Bos = "none",
    seed: Seed = 0,
    force: Annotated[bool, typer.Option(help="Use a groups file that names another model.")] = False,
    json: Json = False,
) -> None:
    """Ablate each group, draw its matched-random null, and say what it is: cause, correlate, interferer, null."""
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
    terminal.emit_table(table[verbs.VERDICT_SHOWN])
    for group, rows in table.groupby("group", sort=False):
        for metric, reason, marks in rows[["metric", "reason", "marks"]].itertuples(index=False):
            print(f"{group}, {metric}: {reason}" + (f" [{', '.join(marks)}]" if len(marks) else ""))


# --- the door itself -----------------------------------------------------------------------------------


def _show(table: Any, json: bool) -> None:
    if json:
        terminal.emit_json(terminal.records(table))
    else:
        terminal.emit_table(table)


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)


def _version(asked: bool) -> None:
    if asked:
        from causegrid import __version__

        print(f"causegrid {__version__}")
        raise typer.Exit


@app.callback()
def door(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Readable is not causal, selective is not causal: causegrid measures the difference."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns (and, as a script, exits with) the exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # click's own or typer's copy of it, by typer's version
    usage_error: Any = typer.BadParameter.__bases__[0]
    try:
        code = app(args=arguments, standalone_mode=False)
        result = code if isinstance(code, int) else 0
    except InputError as error:
        terminal.say(f"causegrid: {error}")
        result = 2
    except usage_error as error:
        terminal.say(_usage(error))
        result = 2
    except (typer.Abort, KeyboardInterrupt):
        result = 130
    if result == 130:
        terminal.say("causegrid: interrupted; `causegrid run` goes on from the last finished stage")
    if arguments is None:
        sys.exit(result)
    return result


def _usage(error: Any) -> str:
    """Click's complaint as one line that says where to read on; its help text as it is."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    message = " ".join(error.format_message().split())
    command = error.ctx.command_path if error.ctx is not None else "causegrid"
    return f"causegrid: {message.removesuffix('.')} (see `{command} --help`)"
