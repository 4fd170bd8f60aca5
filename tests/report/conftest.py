"""One folder of two full-size runs with its page, made once for both test files; tests only read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import both_studies

from causegrid.report import write_report


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    both_studies(folder, seeds=3)
    write_report(folder)
    return folder
