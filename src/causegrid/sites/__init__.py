"""Where to look and where to touch: addresses, family tables, capture, edit, self-checks."""

from causegrid.sites.address import KINDS, Site, site, sites
from causegrid.sites.capture import capture
from causegrid.sites.edit import Edit, EditLog, edit, erase, mean, replace, zero
from causegrid.sites.rows import full_patterns, query_rows
from causegrid.sites.table import FamilyTable, Place, blocks, families, readout, require, supported, table

__all__ = [
    "KINDS",
    "Edit",
    "EditLog",
    "FamilyTable",
    "Place",
    "Site",
    "blocks",
    "capture",
    "edit",
    "erase",
    "families",
    "full_patterns",
    "mean",
    "query_rows",
    "readout",
    "replace",
    "require",
    "site",
    "sites",
    "supported",
    "table",
    "zero",
]
