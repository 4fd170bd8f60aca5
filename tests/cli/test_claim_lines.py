"""`causegrid claims`: what a person reads of a claim, and the whole of it in JSON."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from causegrid.cli import main
from causegrid.cli.claims import lines

CLAIM = {
    "id": "S1",
    "statement": "The layer where the state shows depends on the task",
    "published": {"mamba": 0.58, "transformer": 0.04},
    "measured": 0.134,
    "low": -1.22,
    "high": 1.49,
    "result": "not enough evidence",
    "why": "effect +0.134, p 0.4 " + "and so on " * 30,
    "cells": ["e31e8814c732bbae", "40e9f01788d9219e"],
    "kind": "claim",
}
ANCHOR = {
    **CLAIM,
    "id": "A1",
    "measured": None,
    "low": None,
    "high": None,
    "why": "",
    "kind": "anchor",
    "cells": ["a"],
}


def test_a_claim_is_a_line_for_each_thing_and_names_no_cell():
    said = list(lines([CLAIM, ANCHOR]))
    assert said[:6] == [
        "S1: not enough evidence",
        "  The layer where the state shows depends on the task",
        "  measured   0.134 [−1.22, 1.49]",
        "  published  mamba 0.58, transformer 0.04",
        f"  why        {CLAIM['why']}",
        "  on         2 cells",
    ]
    assert said[7:] == [
        "A1: not enough evidence (anchor)",
        "  The layer where the state shows depends on the task",
        "  measured   –",
        "  published  mamba 0.58, transformer 0.04",
        "  on         1 cell",
        "",
        "2 not enough evidence",
    ]
    assert list(lines([])) == ["no claims yet: no finished cell bears on one"]


def test_on_a_terminal_the_reason_folds_under_itself(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    said = list(lines([CLAIM]))
    at = next(i for i, line in enumerate(said) if line.startswith("  why"))
    reason = said[at : said.index("  on         2 cells")]
    assert len(reason) > 3 and max(map(len, said)) <= 60
    assert all(line.startswith(" " * 13) for line in reason[1:])
    assert " ".join(" ".join(reason).split()) == f"why {CLAIM['why']}".strip()


@pytest.mark.parametrize("asked", ["", "--json"])
def test_the_verb_keeps_every_field_in_json_only(asked, monkeypatch, capsys):
    import causegrid.runs

    monkeypatch.setattr(causegrid.runs, "claims", lambda folder: pd.DataFrame([CLAIM]))
    assert main(["claims", "there", *asked.split()]) == 0
    out = capsys.readouterr().out
    if asked:
        assert json.loads(out) == [CLAIM]
    else:
        assert out.startswith("S1: not enough evidence\n") and CLAIM["cells"][0] not in out
