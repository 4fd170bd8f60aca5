"""Claims as a person reads them: each its id and result, then what was published and measured, and why."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from causegrid.report.claims import claim_rows

LABEL = 11  # characters of the longest label and a gap


def lines(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every claim in a few lines, folded to a terminal's width at spaces (elsewhere never), and the count of results.

    How many cells a claim stands on is said; which ones they are is in `--json`.
    """
    if not claims:
        yield "no claims yet: no finished cell bears on one"
        return
    for claim, row in zip(claims, claim_rows(claims), strict=True):
        kind = str(claim.get("kind") or "claim")
        cells = len(claim.get("cells") or ())
        yield f"{row['id']}: {row['result']}" + ("" if kind == "claim" else f" ({kind})")
        yield from _folded("", row["statement"])
        yield from _folded("measured", f"{row['measured']} {row['interval']}".strip())
        yield from _folded("published", row["published"])
        yield from _folded("why", row["why"])
        yield from _folded("on", f"{cells} cell" + ("" if cells == 1 else "s"))
        yield ""
    results = Counter(str(claim.get("result")) for claim in claims)
    yield ", ".join(f"{n} {result}" for result, n in results.most_common())


def _folded(label: str, text: str) -> list[str]:
    """`label` and its text, indented; nothing for no text."""
    if not text:
        return []
    first = "  " + (label.ljust(LABEL) if label else "")
    if not sys.stdout.isatty():
        return [first + text]
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
