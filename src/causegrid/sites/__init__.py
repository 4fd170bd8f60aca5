"""Where to look and where to touch: addresses, family tables, capture, edit, self-checks."""

from causegrid.sites.address import KINDS, Site, site, sites
from causegrid.sites.capture import capture
from causegrid.sites.check import check
from causegrid.sites.edit import Edit, EditLog, edit, erase, mean, replace, zero
from causegrid.sites.experts import (
    ExpertLog,
    Routes,
    ablate_expert,
    expert_layers,
    n_experts,
    recorded_routes,
)
from causegrid.sites.prefix import skip_blocks
from causegrid.sites.rows import full_patterns, query_rows
from causegrid.sites.table import FamilyTable, Place, blocks, families, readout, require, supported, table
from causegrid.sites.weights import substitute

__all__ = [
    "KINDS",
    "Edit",
    "EditLog",
    "ExpertLog",
    "FamilyTable",
    "Place",
    "Routes",
    "Site",
    "ablate_expert",
    "blocks",
    "capture",
    "check",
    "edit",
    "erase",
    "expert_layers",
    "families",
    "full_patterns",
    "mean",
    "n_experts",
    "query_rows",
    "readout",
    "recorded_routes",
    "replace",
    "require",
    "site",
    "sites",
    "skip_blocks",
    "substitute",
    "supported",
    "table",
    "zero",
]
