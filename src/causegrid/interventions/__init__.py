"""What removing it does: heads, subspaces, components, patching, and the planner that makes them cheap.

`sweep` and `metrics` are modules here; their functions of that name are imported from them.
"""

from __future__ import annotations

from causegrid.interventions.condition import Condition
from causegrid.interventions.convolution import conv_means, remove_conv
from causegrid.interventions.erasure import erased_behaviour
from causegrid.interventions.groups import Group, read_groups
from causegrid.interventions.heads import Ablator, ablate_heads, all_heads_in_layers, keep_only, singles
from causegrid.interventions.metrics import METRICS
from causegrid.interventions.patching import patch_recovery
from causegrid.interventions.subspaces import (
    erase_from,
    inlp,
    leace,
    matched_principal,
    principal,
    probe_directions,
    random_basis,
    removed_variance,
)
from causegrid.interventions.sweep import Planner
from causegrid.interventions.text import TextLoss, ordinary_text_loss

__all__ = [
    "METRICS",
    "Ablator",
    "Condition",
    "Group",
    "Planner",
    "TextLoss",
    "ablate_heads",
    "all_heads_in_layers",
    "conv_means",
    "erase_from",
    "erased_behaviour",
    "inlp",
    "keep_only",
    "leace",
    "matched_principal",
    "ordinary_text_loss",
    "patch_recovery",
    "principal",
    "probe_directions",
    "random_basis",
    "read_groups",
    "remove_conv",
    "removed_variance",
    "singles",
]
