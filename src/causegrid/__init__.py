"""causegrid: readable is not causal, selective is not causal; this measures the difference.

    import causegrid as cg

The public names load their rooms when first used, so importing causegrid is quick and torch stays out
until something needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "task": "causegrid.tasks",
    "model": "causegrid.models",
    "train": "causegrid.models.training",
    "Site": "causegrid.sites",
    "capture": "causegrid.sites",
    "edit": "causegrid.sites",
    "zero": "causegrid.sites",
    "mean": "causegrid.sites",
    "replace": "causegrid.sites",
    "erase": "causegrid.sites",
    "check": "causegrid.sites",
    "probe_profile": "causegrid.signatures",
    "profile_summary": "causegrid.signatures",
    "spectrum": "causegrid.signatures",
    "participation_ratio": "causegrid.signatures",
    "screen": "causegrid.signatures",
    "generic_classes": "causegrid.signatures",
    "logit_lens": "causegrid.signatures",
    "ablate_heads": "causegrid.interventions",
    "remove_conv": "causegrid.interventions",
    "matched_random": "causegrid.evidence",
    "verdict": "causegrid.evidence",
    "erasure_table": "causegrid.studies.state.erasure",
    "run": "causegrid.runs",
    "InputError": "causegrid.errors",
    "InterventionError": "causegrid.errors",
}

__all__ = ["__version__", *sorted(_PUBLIC)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'causegrid' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
