"""Grids of cells that survive: config, store, resume, engines.  Knows nothing of what is in a cell."""

from causegrid.runs.resume import Outcome, claims, plan, run, status, summaries

__all__ = ["Outcome", "claims", "plan", "run", "status", "summaries"]
