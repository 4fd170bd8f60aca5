"""What a person sees in the terminal: progress on stderr, results on stdout, one line for an error.

On a terminal progress is a live bar with an ETA; elsewhere (a log file, CI) it is plain lines, at most one
every few seconds.  `--json` puts machine-readable results on stdout and nothing else there.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

PLAIN_EVERY_S = 5.0


def plain(value: Any) -> Any:
    """JSON-able form: numpy scalars and arrays become numbers and lists, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return str(value)


def emit_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(plain(value), ensure_ascii=False, indent=1, allow_nan=False))


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as plain dictionaries."""
    return [plain(row) for row in table.to_dict("records")]


def cell(value: Any, digits: int = 3) -> str:
    """A value as a table shows it: floats rounded, `-` for what is not a number, lists joined."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if hasattr(value, "tolist"):
        return cell(value.tolist(), digits)
    if isinstance(value, float):
        return f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(v, digits) for v in value)
    return str(value)


def say(message: str) -> None:
    """One line for the person, on stderr."""
    print(message, file=sys.stderr, flush=True)


class Progress:
    """`progress(done, total, what)`: a live line with an ETA on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._started: dict[str, float] = {}
        self._shown = 0.0
        self._width = 0

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """Show that `done` of `total` steps of `what` are finished."""
        now = time.monotonic()
        start = self._started.setdefault(what, now)
        last = done >= total
        if not last and now - self._shown < (0.1 if self._live else PLAIN_EVERY_S):
            return
        self._shown = now
        eta = (now - start) / done * (total - done) if done >= 0.05 * total and done else float("nan")
        left = "" if last or math.isnan(eta) else f", about {duration(eta)} left"
        line = f"{what}: {done}/{total}{left}"
        if self._live:
            print(f"\r{line.ljust(self._width)}", end="\n" if last else "", file=sys.stderr, flush=True)
            self._width = 0 if last else len(line)
        else:
            say(line)


def duration(seconds: float) -> str:
    """Seconds as a person says them: `45 s`, `13 min`, `1.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
