"""What a person looks at: one self-contained HTML page and the tidy tables beside it, or tables in a
Markdown page of one's own.  Reads the store alone."""

from causegrid.report.markdown import write_page
from causegrid.report.page import write_report

__all__ = ["write_page", "write_report"]
