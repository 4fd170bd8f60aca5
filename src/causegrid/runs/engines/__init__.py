"""Where cells run.  One file an engine; `causegrid list engines` finds them."""

from causegrid.runs.engines.base import Finished, Options, engines

__all__ = ["Finished", "Options", "engines"]
