"""Run one row in a process of its own: `python -m benchmarks.runner NAME FILE [--quick]`.

A row may set thread counts, register attention functions or leave memory behind; none of that may reach the
next row, and a row that dies must not take the run with it.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import bench


def run_row(name: str, path: Path, *, quick: bool, run: str) -> str | None:
    """Run the registered row `name`, write its JSON to `path`; returns the error's text, None when it ran.

    A row that raises is written too: with no results and its error.
    """
    row = bench.rows[name]
    start = time.perf_counter()
    results: list[bench.Result] = []
    error: str | None = None
    try:
        results = list(row.run(quick, lambda text: print(f"  {text}", file=sys.stderr, flush=True)))
    except Exception:  # recorded in the file and on the page, and the run fails
        error = traceback.format_exc()
        print(error, file=sys.stderr, flush=True)
    bench.write(path, results, **facts(row.name, row.title, quick, run, time.perf_counter() - start, error))
    return error


def facts(name: str, title: str, quick: bool, run: str, seconds: float, error: str | None) -> dict[str, Any]:
    """What is kept beside the results of a row."""
    from benchmarks import machine

    return {
        "row": name,
        "title": title,
        "run": run,
        "quick": quick,
        "seconds": round(seconds, 1),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "error": None if error is None else error.strip().splitlines()[-1],
        "machine": machine.describe(),
    }


def main() -> int:
    """Exit code 0 when the row ran, 1 when it raised."""
    parser = argparse.ArgumentParser(prog="benchmarks.runner")
    parser.add_argument("name")
    parser.add_argument("path", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--run", default="")
    given = parser.parse_args()
    bench.discover()
    return 0 if run_row(given.name, given.path, quick=given.quick, run=given.run) is None else 1


if __name__ == "__main__":
    sys.exit(main())
