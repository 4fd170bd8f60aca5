"""Pages of results in docs hold the tables of the committed runs, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from causegrid.report.markdown import filled, tables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["calibration", "state_encoding"])
def test_a_page_in_docs_is_of_the_committed_run(name):
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page.count("<!-- table ") == page.count("<!-- end -->") > 3
    assert filled(page, tables(ROOT / "results" / name)) == page
