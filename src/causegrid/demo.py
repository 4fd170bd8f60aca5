"""`causegrid demo`: both studies, small, on real input, offline, with one report.

The two study files ship with the package (`studies/examples/demo_*.yaml`); the demo runs them like any other
study, side by side on the same workers, so that an interrupted demo goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from causegrid.errors import InputError

STUDIES = ("state-encoding", "pattern-selectivity")
MOST_LINES = 10


def run_demo(
    out: Path | str = "runs/demo",
    *,
    workers: int = 2,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Run both demo studies into `out` and write `out/report.html`.

    Returns {"folder", "report", "seconds", "n_failed", "problems", "lines"}: `lines` (at most ten) say what
    was found, what was not supported, and where the report is.  Raises InputError when the bundled model's
    package is missing or `out` belongs to something else.
    """
    from causegrid.report import write_report
    from causegrid.runs import run
    from causegrid.studies.examples import path

    out = Path(out)
    if out.is_file():
        raise InputError(
            f"cannot write the demo to {str(out)!r}: it is a file; name another folder with --out"
        )
    started = time.monotonic()
    failed = 0
    problems: list[str] = []
    for study in STUDIES:
        with path(f"demo_{study.replace('-', '_')}.yaml") as file:
            outcome = run(file, out / study, workers=workers, progress=progress)
        failed += outcome.n_failed + len(outcome.problems)
        problems += [f"{cell}: {why}" for cell, why in outcome.failures] + list(outcome.problems)
    page = write_report(out)
    seconds = time.monotonic() - started
    return {
        "folder": str(out),
        "report": str(page),
        "seconds": round(seconds, 1),
        "n_failed": failed,
        "problems": problems,
        "lines": findings(out, page, seconds),
    }


def findings(out: Path, page: Path, seconds: float) -> list[str]:
    """At most ten lines on what the demo's runs in `out` found, what was not supported, and where to look."""
    from causegrid.runs.store import open_run

    states, patterns = (open_run(out / study) for study in STUDIES)
    lines = [*_learned(states), *_erased(states), *_judged(patterns), *_claimed(states, patterns)]
    lines = lines[: MOST_LINES - 1]
    return [*lines, f"Report: {page} ({seconds / 60:.1f} minutes of computing)"]


def _done(run: Any) -> list[Any]:
    return [c for c in run.cells() if c.status == "done"]


def _learned(run: Any) -> list[str]:
    cells = _done(run)
    marks = {f"{c.config['model']} on {c.config['task']}": str(c.facts["learned"]) for c in cells}
    learned = [name for name, mark in marks.items() if mark == "learned"]
    rest = [f"{name} ({mark})" for name, mark in marks.items() if mark != "learned"]
    lines = [f"Learned to the trained length: {', '.join(learned) or 'none'}."]
    if rest:
        lines.append(f"Not learned within the demo's steps: {', '.join(rest)}.")
    return lines


def _erased(run: Any) -> list[str]:
    counts: dict[str, int] = {}
    for cell in _done(run):
        table = cell.table("erasure")
        if cell.facts["learned"] != "learned" or table is None:
            continue
        for reading in table.loc[(table["basis"] == "probe") & (table["rank"] == 1), "reading"]:
            counts[reading] = counts.get(reading, 0) + 1
    total = sum(counts.values()) - counts.get("not readable", 0)
    if not total:
        return []
    said = ", ".join(
        f"{k} {v}" for k, v in sorted(counts.items(), key=lambda kv: -kv[1]) if k != "not readable"
    )
    return [f"Single probe direction erased, probe refitted, at {total} layers that read the state: {said}."]


def _judged(run: Any) -> list[str]:
    lines = []
    for cell in _done(run):
        table = cell.table("verdicts")
        singles = cell.table("singles")
        if table is None or singles is None:
            continue
        own = (table["metric"] == "logit_diff") & (table["kind"] == "competing") & table["leads"].astype(bool)
        groups = table[own]
        said = "; ".join(
            f"{r['group']} {r['verdict']} ({r['effect']:+.2f} logits [{r['low']:+.2f}, {r['high']:+.2f}])"
            for r in groups.to_dict("records")
        )
        margin = singles[singles["metric"] == "logit_diff"].sort_values("effect")
        most = margin.iloc[0]
        least = margin.loc[margin["effect"].abs().idxmin()]
        lines.append(
            f"{cell.config['task']} on {cell.config['model']}: {said}. Single heads: most causal "
            f"{most['group']} ({most['effect']:+.2f}), least {least['group']} ({least['effect']:+.2f})."
        )
    return lines


def _claimed(*runs: Any) -> list[str]:
    by_result: dict[str, list[str]] = {"supported": [], "contradicted": [], "not enough evidence": []}
    for run in runs:
        for claim in run.claims():
            if claim.get("kind") != "anchor":
                by_result[claim["result"]].append(str(claim["id"]))
    said = "; ".join(f"{result}: {', '.join(ids) or 'none'}" for result, ids in by_result.items())
    return [f"Published claims: {said}."]
