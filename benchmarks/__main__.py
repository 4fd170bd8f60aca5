"""`python -m benchmarks [NAME ...]`: run the rows one after another, keep each as JSON, write the page.

Exit code 1 when two results that must be equal differ, or a row could not be run; a missed target does not
fail, it is printed on the page.  A run has an id; `--resume` goes on with the last one and repeats no row
it has finished.  `--quick` writes to a folder of its own and leaves the page alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import bench, page
from benchmarks.page import order
from benchmarks.runner import facts

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
QUICK = ROOT / ".bench" / "quick"
SETTINGS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run, write, judge; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to run; all when none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, a few seconds a row; no page")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument("--page", action="store_true", help="only write the page from the results there are")
    parser.add_argument("--resume", action="store_true", help="go on with the last run")
    given = parser.parse_args(argv)
    broken = bench.discover()
    for name, trace in broken.items():
        print(f"rows/{name}.py cannot be imported:\n{trace}", file=sys.stderr)
    if given.list:
        for name, row in sorted(bench.rows.items()):
            print(f"{name:20} {row.title}")
        return 1 if broken else 0
    unknown = [name for name in given.names if name not in bench.rows]
    if unknown:
        print(
            f"no row is called {unknown[0]!r}: choose from {', '.join(sorted(bench.rows))}", file=sys.stderr
        )
        return 2
    folder = QUICK if given.quick else RESULTS
    if not given.page:
        if not given.names and not given.resume:
            for old in folder.glob("*.json"):
                old.unlink()
        run = _run_id(folder, given.resume)
        for name, trace in broken.items():
            why = trace.strip().splitlines()[-1]
            bench.write(folder / f"{name}.json", [], **facts(name, name, given.quick, run, 0.0, why))
        _run(given.names or order(bench.rows), folder, run, quick=given.quick, resume=given.resume)
    if not given.quick:
        page.write(ROOT, folder)
    problems = judge(folder)
    for problem in problems:
        print(f"FAILED  {problem}", file=sys.stderr)
    return 1 if problems else 0


def judge(folder: Path) -> list[str]:
    """What fails the bench in these results, one line each: unequal results and rows that raised."""
    problems = []
    for path in sorted(folder.glob("*.json")):
        results, facts = bench.read(path)
        if facts["error"] is not None:
            problems.append(f"{facts['row']}: {facts['error']}")
        for found in results:
            if isinstance(found, bench.Figure | bench.Equality) and found.equal is False:
                problems.append(
                    f"{found.name}: differs from {found.against} by {found.difference:.2g}, "
                    f"{found.tolerance:.0e} is allowed"
                )
    return problems


def _run(names: Sequence[str], folder: Path, run: str, *, quick: bool, resume: bool) -> None:
    start = time.perf_counter()
    for i, name in enumerate(names, 1):
        path = folder / f"{name}.json"
        if resume and _finished(path, run):
            print(f"[{i}/{len(names)}] {name}: finished before", file=sys.stderr)
            continue
        print(f"[{i}/{len(names)}] {name} ({time.perf_counter() - start:.0f} s so far)", file=sys.stderr)
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.runner", name, str(path), "--run", run]
        code = subprocess.run(
            [*command, *(["--quick"] if quick else [])], cwd=ROOT, env={**os.environ, **SETTINGS}
        ).returncode
        if not path.exists():
            died = f"the process ended with code {code} and left no results"
            bench.write(path, [], **facts(name, bench.rows[name].title, quick, run, 0.0, died))


def _run_id(folder: Path, resume: bool) -> str:
    last = ROOT / ".bench" / f"{folder.name}.run"
    if resume and last.exists():
        return last.read_text(encoding="utf-8").strip()
    last.parent.mkdir(exist_ok=True)
    run = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    last.write_text(run + "\n", encoding="utf-8")
    return run


def _finished(path: Path, run: str) -> bool:
    if not path.exists():
        return False
    found = json.loads(path.read_text(encoding="utf-8"))
    return bool(found["run"] == run and found["error"] is None)


if __name__ == "__main__":
    sys.exit(main())
