"""The table of claims in docs/measures.md is the registry: every claim stands in it, and nothing else does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from causegrid.studies.pattern.claims import claims as pattern_claims
from causegrid.studies.state.claims import claims as state_claims

PAGE = Path(__file__).parents[2] / "docs" / "measures.md"


def rows() -> dict[str, tuple[str, str]]:
    """Claim id -> (statement, test), from the table under 4.3; one row may name several ids."""
    section = PAGE.read_text().split("### 4.3 Claims")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    found = {}
    for line in lines:
        ids, statement, test = (cell.strip() for cell in line.strip("|").split(" | "))
        for id in re.findall(r"`([^`]+)`", ids):
            assert id not in found, f"{id} stands in the table twice"
            found[id] = statement.strip(), test.strip()
    return found


@pytest.mark.parametrize("registry", [state_claims, pattern_claims], ids=["state", "pattern"])
def test_every_registered_claim_stands_in_the_table(registry):
    table = rows()
    assert len(registry.names()) >= 7
    for id in registry.names():
        assert id in table, f"claim {id} is registered and not in docs/measures.md, 4.3"
        assert all(len(cell) > 5 for cell in table[id]), id


def test_nothing_else_stands_in_it():
    assert set(rows()) == {*state_claims.names(), *pattern_claims.names()}


def test_every_claim_has_its_unit_on_the_page():
    """Pattern claims count in units of several kinds; each id is named where the units are listed."""
    units = PAGE.read_text().split("The unit of an S claim")[1].split("\n\n")[0]
    assert [id for id in pattern_claims.names() if f"`{id}`" not in units] == []
