"""S3: the layer whose probe is best is not the layer whose erasure hurts most.

Layers within one percentage point of the best are best too, and likewise the most damaging, on both sides alike;
a cell answers when the two sets are disjoint (yes) or meet (no).  A cell is not asked when nothing is damaging
beyond the random subspaces, or when all its layers are best, or all most damaging: then any answer would be the
profile's flatness.  Layers are blocks that read the state: erasing the embedding output takes the input away, which
harms whatever holds the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from causegrid.evidence.claims import Claim
from causegrid.evidence.reference import published
from causegrid.studies.state.claims.base import claims, share, votes_at
from causegrid.studies.state.finished import Cell, best, named

STATEMENT = "The layer whose probe is best is not the layer whose erasure hurts most"


def best_and_damaging(cell: Cell) -> tuple[set[int], set[int]] | None:
    """(best-probe layers, most damaging layers) at full rank; None when the cell cannot answer."""
    erased, probes = cell.erased(None), cell.profile()
    if not len(erased) or not len(probes):
        return None
    erased = erased[(erased["layer"] >= 0) & (erased["reading"] != "not readable")]
    both = set(erased["layer"]) & set(probes["layer"])
    erased, probes = erased[erased["layer"].isin(both)], probes[probes["layer"].isin(both)]
    harms = erased[erased["beyond_control"].astype(bool) & (erased["drop"] > 0)]
    if not len(harms) or harms["drop"].max() < erased["drop"].max():
        return None  # what falls most falls no further than under a random subspace
    read, damaging = _top(probes, "accuracy"), _top(erased, "drop")
    return None if both in (read, damaging) else (read, damaging)


def _apart(cell: Cell) -> bool | None:
    sets = best_and_damaging(cell)
    return None if sets is None else sets[0].isdisjoint(sets[1])


@claims.register("S3")
def best_is_not_damaging(cells: Sequence[Cell]) -> Claim:
    figure = published("state-encoding")["pythia_160m_dyck"]
    hurt = " and ".join(f"L{layer}" for layer in figure["layers"])
    length, votes, others = votes_at(cells, _apart)
    asked = {c.id for c, _ in votes}
    erased = [c for c in cells if c.has_learned and c.length == length and len(c.erased(None))]
    silent = [c for c in erased if c.id not in asked]
    flat = (
        f" Not asked (nothing damaging beyond chance, or all layers alike): {named(silent)}."
        if silent
        else ""
    )
    return share(
        "S3",
        STATEMENT,
        f"Pythia-160M on Dyck: best probe L{figure['best_probe_layer']}, most damaging {hurt}",
        votes,
        f"have no most damaging layer among the best-probe layers (either within 1 pp), at length {length}",
        "no finished cell that learned its task has a full-rank erasure that hurts more at some layers than others.",
        said=flat + others,
    )


def _top(rows: pd.DataFrame, column: str) -> set[int]:
    return {int(layer) for layer in best(rows, column)["layer"]}
