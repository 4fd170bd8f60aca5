"""What a person looks at: one self-contained HTML page and the tidy tables beside it.  Reads the store alone."""

from causegrid.report.page import write_report

__all__ = ["write_report"]
