"""Where the information shows: probes and their baselines, participation ratio, attention screens, lens."""

from causegrid.signatures.activations import Activations, collect, fit_probes
from causegrid.signatures.attention import Attention, attention
from causegrid.signatures.generic import generic_classes
from causegrid.signatures.lens import logit_lens
from causegrid.signatures.patterns import group_pattern_score, pattern_null, screen, selected_heads
from causegrid.signatures.probes import Probe
from causegrid.signatures.profile import probe_profile, profile_of, profile_summary
from causegrid.signatures.routing import prompt_routes
from causegrid.signatures.spectrum import (
    participation_ratio,
    pr_integral,
    pr_integrals,
    pr_over_checkpoints,
    spectrum,
)

__all__ = [
    "Activations",
    "Attention",
    "Probe",
    "attention",
    "collect",
    "fit_probes",
    "generic_classes",
    "group_pattern_score",
    "logit_lens",
    "participation_ratio",
    "pattern_null",
    "pr_integral",
    "pr_integrals",
    "pr_over_checkpoints",
    "probe_profile",
    "profile_of",
    "profile_summary",
    "prompt_routes",
    "screen",
    "selected_heads",
    "spectrum",
]
