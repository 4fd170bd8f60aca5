"""Pages of results in docs hold the tables of the committed runs, to the letter."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from causegrid.errors import InputError
from causegrid.report.markdown import filled, progress, tables, write_page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["calibration", "pattern_selectivity", "state_encoding"])
def test_a_page_in_docs_is_of_the_committed_run(name):
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page.count("<!-- table ") == page.count("<!-- end -->") > 3
    assert filled(page, tables(ROOT / "results" / name)) == page


def test_progress_counts_every_seed_once_by_how_far_it_is():
    how = ["done", "failed", "pending", "running", "interrupted", "stopped", "done"]
    rows = pd.DataFrame({"task": "s3", "model": ["gru"] * 6 + ["lstm"], "seed": range(7), "status": how})
    rows = pd.concat([rows, rows.iloc[:1].assign(task="dyck")])
    found = progress(rows).to_dict("records")
    assert found == [
        {"task": "dyck", "model": "gru", "finished": "0", "not yet": "–", "failed": "–"},
        {"task": "s3", "model": "gru", "finished": "0", "not yet": "2, 3, 4, 5", "failed": "1"},
        {"task": "s3", "model": "lstm", "finished": "6", "not yet": "–", "failed": "–"},
    ]


def test_a_page_that_cannot_be_filled_stays_as_it_was(tmp_path):
    run = ROOT / "results" / "state_encoding"
    with pytest.raises(InputError, match=r"nowhere\.md.*no such file"):
        write_page(tmp_path / "nowhere.md", run)
    page = tmp_path / "page.md"
    page.write_text("<!-- table lerned -->\nmine\n<!-- end -->\n")
    with pytest.raises(InputError, match=r"'lerned'.*learned"):
        write_page(page, run)
    assert "mine" in page.read_text()
    page.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no UTF-8"):
        write_page(page, run)
