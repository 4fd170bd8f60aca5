"""One self-contained page for one run, or for a folder of runs.

The page holds everything: styles, script, vendored d3 and Observable Plot, and one block of JSON that the
script draws.  It makes no request, so it can be mailed and opened from disk.  It shows finished cells, and what
is there of cells that were stopped after a stage as asked; it says how many are not finished, so a half-finished
run renders too, on a machine without torch.

Text from tables reaches the page as escaped HTML or as text nodes; in the JSON block `<` is written `\\u003c`.
The page is put in place whole, after the tables, so a full disk leaves the old page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment

import causegrid
from causegrid.errors import InputError
from causegrid.report import pattern_selectivity, state_encoding
from causegrid.report.across import write_across
from causegrid.report.claims import folded_rows
from causegrid.report.markdown import ANCHOR
from causegrid.report.rows import plain
from causegrid.runs import files, store
from causegrid.runs.combined import combine
from causegrid.runs.lock import Lock
from causegrid.runs.resume import FINISH_LOCK

REPORT = "report.html"
SECTIONS = {"state-encoding": state_encoding.section, "pattern-selectivity": pattern_selectivity.section}
SCRIPTS = (
    "figures.js",
    "state_encoding.js",
    "state_erasure.js",
    "state_parts.js",
    "pattern_selectivity.js",
    "pattern_verdicts.js",
    "pattern_beside.js",
    "pattern_experts.js",
    "pattern_checkpoints.js",
    "page.js",
)
SHOWN_VERSIONS = ("causegrid", "torch", "transformers", "python")


def write_report(folder: Path | str) -> Path:
    """Write `report.html` into `folder` (a run, or a folder whose sub-folders are runs) and return its path.

    The combined tables of every run are written first, unless the run itself is writing them; a run of a folder
    that cannot be read is named on the page.  Raises InputError when there is no run in `folder`, or when it
    cannot be written to (the old page then stays).
    """
    folder = Path(folder)
    runs, unreadable = _open(folder)
    page = folder / REPORT
    try:
        data = [_run(run, folder, _combine(run)) for run in runs]
        html = render(folder.resolve().name, data, unreadable)
        files.write_aside(page, lambda aside: _write(aside, html))
    except OSError as error:
        reason = (
            "the disk is full"
            if files.is_full(error)
            else (error.strerror or files.first_line(error)).lower()
        )
        raise InputError(
            f"cannot write {str(page)!r}: {reason}; mend that, or copy the run elsewhere"
        ) from error
    return page


def render(name: str, runs: Sequence[dict[str, Any]], unreadable: Sequence[str] = ()) -> str:
    """The page as text, from the data of each run.  `unreadable`: one line per run that is not shown."""
    template = Environment(autoescape=True).from_string(_read("page.html"))
    drawn = [{k: r[k] for k in ("study", "section", "missing")} for r in runs]
    embedded = json.dumps(plain(drawn), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return template.render(
        name=name,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=causegrid.__version__,
        runs=runs,
        unreadable=unreadable,
        n_done=sum(r["status"].get("done", 0) for r in runs),
        n_cells=sum(sum(r["status"].values()) for r in runs),
        style=_read("style.css"),
        libraries=[_read(name, "vendor") for name in ("d3.min.js", "plot.umd.min.js")],
        script="\n".join(_read(name) for name in SCRIPTS),
        data=embedded.replace("<", "\\u003c"),
    )


def _open(folder: Path) -> tuple[list[store.Run], list[str]]:
    """The runs to show, and a line for each that cannot be read.  Raises InputError when there is none."""
    if (folder / store.RUN).is_file():
        return [store.open_run(folder)], []
    found, unreadable = [], []
    for path in sorted(p.parent for p in folder.glob(f"*/{store.RUN}")):
        try:
            found.append(store.open_run(path))
        except InputError as error:
            unreadable.append(str(error))
    if not found:
        what = "no run in it" if folder.is_dir() else "it is a file" if folder.exists() else "no such folder"
        what = unreadable[0] if unreadable else what
        raise InputError(f"cannot report on {str(folder)!r}: {what}; `causegrid run` makes one")
    order = list(SECTIONS)
    return sorted(found, key=lambda r: order.index(r.study) if r.study in order else len(order)), unreadable


def _combine(run: store.Run) -> str:
    """Write the run's combined tables over its finished cells; why not, or "".

    Under the lock a run takes when it ends, so neither undoes the other's tables.  Raises OSError when they
    cannot be written.
    """
    lock = Lock(run.folder / FINISH_LOCK)
    if not lock.acquire():
        return "The combined tables are being written by the run itself."
    try:
        combine(run, csv=True)
        write_across(run)
    except OSError as error:
        if error.errno is not None:
            raise
        return (
            f"The combined tables are not up to date: {files.first_line(error)}"  # pyarrow, on damaged data
        )
    except ValueError as error:  # InputError, and pyarrow's own
        return f"The combined tables are not all up to date: {error}"
    finally:
        lock.release()
    return ""


def _run(run: store.Run, base: Path, problem: str) -> dict[str, Any]:
    """Everything the page says about one run."""
    cells = run.cells()
    status: dict[str, int] = {}
    for cell in cells:
        status[cell.status] = status.get(cell.status, 0) + 1
    done = [c for c in cells if c.status == "done"]
    stopped = [c for c in cells if c.status == "stopped" and c.stages]
    section = SECTIONS.get(run.study)
    shown = [c for c in cells if c in done or c in stopped]
    versions = [c.manifest.get("versions", {}) for c in shown]
    claims = run.claims() or (_so_far(run) if done else [])
    name = run.folder.name if run.folder != base else ""
    return {
        "study": run.study,
        "folder": name,
        "tables_at": f"{quote(name)}/{store.TABLES}/" if name else f"{store.TABLES}/",
        "config": json.dumps(run.config, indent=1, ensure_ascii=False),
        "status": status,
        "failed": [{"cell": c.label, "why": c.error} for c in cells if c.status == "failed"],
        "unfinished": [_progress(c) for c in cells if c.status != "failed" and c not in shown],
        "stopped": [_progress(c) for c in stopped],
        "problem": problem,
        "seconds": _duration(sum(c.seconds for c in cells)),
        "versions": {k: _joined(v.get(k) for v in versions) for k in SHOWN_VERSIONS if versions},
        "claims": folded_rows([c for c in claims if c.get("kind") != ANCHOR]),
        "anchors": folded_rows([c for c in claims if c.get("kind") == ANCHOR]),
        "tables": sorted(p.stem for p in (run.folder / store.TABLES).glob("*.csv")),
        "missing": [
            {"task": c.config.get("task"), "model": c.config.get("model"), "status": c.status}
            for c in cells
            if c not in shown
        ],
        "section": section(shown) if section else None,
    }


def _so_far(run: store.Run) -> list[dict[str, Any]]:
    """Claims over the cells finished by now, of a grid that never ended; none where its study cannot be asked."""
    from causegrid.runs import claims

    try:
        found = claims(run.folder)
    except InputError:
        return []
    return [{str(k): v for k, v in row.items()} for row in found.to_dict("records")]


def _progress(cell: store.CellRecord) -> str:
    """`parity mamba seed 0 (interrupted, 1 of 3 stages)`."""
    stages = f", {len(cell.stages)} of {len(cell.stage_names)} stages" if cell.stage_names else ""
    return f"{cell.label} ({cell.status}{stages})"


def _joined(values: Any) -> str:
    return " and ".join(dict.fromkeys(str(v) for v in values if v))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _read(name: str, folder: str = "templates") -> str:
    return resources.files("causegrid.report").joinpath(folder, name).read_text(encoding="utf-8")
