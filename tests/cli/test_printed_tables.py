"""Tables as a person sees them: no header broken inside a word, nothing cut, whatever the width."""

from __future__ import annotations

import re
import sys

import pandas as pd
import pytest

from causegrid.cli.table import Column, emit_table, fitted
from causegrid.terminal import duration

WIDE = pd.DataFrame(
    {
        "layer": [-1, 0],
        "label": ["state", "state"],
        **{f"baseline_{name}": [0.5, 0.25] for name in ("majority", "position", "token_pair", "untrained")},
        "selectivity": [-0.125, float("nan")],
    }
)


@pytest.fixture
def printed(capsys, monkeypatch):
    """Print a table, on a terminal of `width` characters or elsewhere -> its lines."""

    def run(table: pd.DataFrame, width: int | None = None) -> list[str]:
        if width is not None:
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
            monkeypatch.setenv("COLUMNS", str(width))
        emit_table(table)
        bare = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        return [line.rstrip() for line in bare.splitlines()]

    return run


def test_elsewhere_than_on_a_terminal_a_row_is_one_line_however_long(printed):
    long = pd.DataFrame({"name": ["a", "b"], "why": ["word " * 100, "short"], "n_train": [1, 2]})
    header, first, second = printed(long)
    assert header.split() == ["name", "why", "n_train"]
    assert first.count("word") == 100 and first.endswith("      1")
    assert second.startswith("b     short") and second.endswith("2")
    assert len(printed(WIDE)) == 3


@pytest.mark.parametrize("width", [200, 70, 45, 30])
def test_no_header_is_broken_inside_a_word(printed, width):
    words = {word for line in printed(WIDE, width) for cell in line.split() for word in cell.split("_")}
    wanted = {word for column in WIDE.columns for word in column.split("_")}
    assert words - {"-1", "0", "state", "0.500", "0.250", "-0.125", "-"} == wanted


@pytest.mark.parametrize("width", [70, 45, 30])
def test_a_narrow_terminal_is_never_overrun_and_rows_keep_their_names(printed, width):
    lines = printed(WIDE, width)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "state" in line]
    assert len(rows) > 2 if width < 70 else len(rows) == 2
    assert {line.split()[0] for line in rows} == {"-1", "0"}
    assert sum(line.count("0.250") for line in rows) == 4


def test_text_folds_at_spaces_before_columns_go_below(printed):
    told = pd.DataFrame({"test": ["parts"], "message": ["one two three four five six seven eight nine ten"]})
    lines = printed(told, 30)
    assert lines[0].split() == ["test", "message"]
    assert " ".join(" ".join(lines[1:]).split()) == f"parts {told['message'][0]}"
    assert 2 < len(lines) < 6


def test_brackets_are_text(printed):
    told = pd.DataFrame({"why": ["effect [kept] of [bold]all"]})
    assert printed(told)[1] == told["why"][0]
    assert printed(told, 60)[1] == told["why"][0]


def test_columns_that_fit_stay_side_by_side():
    columns = [Column(name=f"column_{i}", cells=("1",), numeric=True) for i in range(4)]
    (block, widths), *below = fitted(columns, 4 * 8 + 3 * 2)
    assert (block, widths, below) == (columns, [8] * 4, [])
    (block, widths), *below = fitted(columns, 4 * 6 + 3 * 2)
    assert (block, widths, below) == (columns, [6] * 4, [])


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (45.4, "45 s"), (793.48, "13 min"), (5370, "90 min"), (7200, "2.0 h")]
)
def test_seconds_as_a_person_says_them(seconds, said):
    assert duration(seconds) == said
