"""Verbs that fill, watch and read grids of cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from causegrid import terminal
from causegrid.cli.options import STUDIES, Device, Json, OtherStudy, Set, StudyFile, Workers, app, leave, show
from causegrid.cli.table import emit_table
from causegrid.errors import InputError, unknown


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
    leave(1 if found["n_failed"] else 0)


@app.command(rich_help_panel=STUDIES)
def run(
    study: StudyFile,
    out: Annotated[
        Path | None, typer.Option(help="Run folder (default: runs/<name of the study file>).")
    ] = None,
    workers: Workers = 1,
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
    device: Device = "cpu",
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
        device=device,
        engine=engine,
        overrides=set_ or (),
        limit=limit,
        until=until,
        progress=terminal.Progress(),
    )
    summary = {**_ended(outcome), "report": str(write_report(outcome.folder))}
    if json:
        terminal.emit_json(summary)
    else:
        print("  ".join(f"{k}: {v}" for k, v in summary.items()))
    leave(outcome.exit_code)


@app.command(rich_help_panel=STUDIES)
def plan(
    study: StudyFile,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder whose finished cells count as cached (default: runs/<name of the study file>)."
        ),
    ] = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """The cells of a study, cached or to run, and what each will cost.  Runs and writes nothing."""
    from causegrid.runs import plan as plan_study

    show(plan_study(study, out, overrides=set_ or ()), json)


@app.command(rich_help_panel=STUDIES)
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")], json: Json = False
) -> None:
    """How far a run is, cell by cell, and why a cell failed."""
    from causegrid.runs import status as run_status

    table = run_status(folder)
    if not json:
        table["seconds"] = table["seconds"].map(terminal.duration)
        table = table.rename(columns={"seconds": "time"})
    show(table, json)


@app.command(rich_help_panel=STUDIES)
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or a folder of run folders.")],
    page: Annotated[
        Path | None,
        typer.Option(help="Write only the tables of this Markdown page anew, between its marks."),
    ] = None,
    json: Json = False,
) -> None:
    """Render a finished or half-finished run as one self-contained HTML page with its tables beside it.

    With --page, fill a Markdown page of your own instead: what stands between `<!-- table NAME -->` and
    `<!-- end -->` is replaced by that table of the run (claims, and the study's summaries).
    """
    if page is not None:
        from causegrid.report import write_page

        write_page(page, folder)
        made = page
    else:
        from causegrid.report import write_report

        made = write_report(folder)
    if json:
        terminal.emit_json({"report": str(made)})
    else:
        print(made)


@app.command(rich_help_panel=STUDIES)
def claims(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")], json: Json = False
) -> None:
    """What the finished cells say about the published claims (their cells by name: --json)."""
    from causegrid.cli.claims import lines
    from causegrid.runs import claims as run_claims

    found = terminal.records(run_claims(folder))
    if json:
        terminal.emit_json(found)
    else:
        print("\n".join(lines(found)))


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
    """What is registered: tasks, models, screens, studies, engines, and the options that may follow a name.

    Options follow a colon, as in mamba:conv=false,n_layers=2 or dyck:k=8; shown with their defaults.
    """
    from causegrid.catalogue import KINDS, catalogue

    if kind and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    table = catalogue([kind] if kind else list(KINDS))
    if not json:
        table["options"] = table["options"].map(_spelled)
        if not table["options"].any():
            table = table.drop(columns="options")
    show(table, json)


@app.command(rich_help_panel=STUDIES)
def zoo(
    study: OtherStudy = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/zoo"),
    workers: Workers = 1,
    json: Json = False,
) -> None:
    """Train the tiny zoo: GPT-NeoX, OLMo and OLMoE that do the four prompt tasks, minutes a model."""
    from causegrid.zoo import train_zoo

    outcome, table = train_zoo(study, out, workers=workers, progress=terminal.Progress())
    _told(outcome, {"capabilities": table}, json)


@app.command(rich_help_panel=STUDIES)
def calibrate(
    study: OtherStudy = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/calibration"),
    workers: Workers = 1,
    json: Json = False,
) -> None:
    """Run the whole verdict procedure on planted models whose answer is known: error rates, power, coverage."""
    from causegrid.calibrate import calibrate as run_calibration

    outcome, tables = run_calibration(study, out, workers=workers, progress=terminal.Progress())
    _told(outcome, tables, json)


def _spelled(options: Mapping[str, Any]) -> str:
    """Options as a name carries them; one whose default is worked out, by its name alone."""
    from causegrid.spec import joined

    each = (k if v is None else joined("", {k: v}).removeprefix(":") for k, v in options.items())
    return ", ".join(each)


def _ended(outcome: Any) -> dict[str, Any]:
    """How a run went, its failures and problems said on stderr."""
    for cell, why in outcome.failures:
        terminal.say(f"failed: {cell}: {why}")
    for problem in outcome.problems:
        terminal.say(f"problem: {problem}")
    return {
        "folder": str(outcome.folder),
        "done": outcome.n_done,
        "cached": outcome.n_cached,
        "failed": outcome.n_failed,
    }


def _told(outcome: Any, tables: Mapping[str, Any], json: bool) -> None:
    """A run and its summary tables, and the run's exit code."""
    summary = _ended(outcome)
    if json:
        terminal.emit_json({**summary, **{name: terminal.records(t) for name, t in tables.items()}})
    else:
        for name, table in tables.items():
            print(f"{name}:")
            emit_table(table)
        print("  ".join(f"{k}: {v}" for k, v in summary.items()))
    leave(outcome.exit_code)
