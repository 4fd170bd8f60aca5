"""The published figures beside which ours are shown, as data: each with its source and how it is known.

`pattern-selectivity`: arXiv 2606.05378 (companions 2605.24059, 2606.02378), raw values of the authors' result
files, derived fields recomputed from them.  `state-encoding`: arXiv 2606.00926, versions 1 and 2; a tag says
whether a figure was seen in the paper (`paper`) or in a written summary of it (`summary`).
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from causegrid.errors import unknown

STUDIES = {"pattern-selectivity": "pattern_selectivity.json", "state-encoding": "state_encoding.json"}


@cache
def _text(study: str) -> str:
    return (resources.files("causegrid.evidence") / "data" / STUDIES[study]).read_text(encoding="utf-8")


def published(study: str) -> dict[str, Any]:
    """The published figures of a study, a fresh copy.  Raises InputError for a study without any."""
    if study not in STUDIES:
        raise unknown("study with published figures", study, STUDIES)
    figures: dict[str, Any] = json.loads(_text(study))
    return figures
