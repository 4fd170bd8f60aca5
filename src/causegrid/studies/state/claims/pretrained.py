"""Published figures on pretrained models: asked only of cells of the very model and task.

The unit is the cell (a seed of one fine-tune).  `pythia-410m`: the source gives a plateau from L4 to L18 without
saying of what; here it is read as the erasure's damage, larger inside on average than outside (*ours*).
`mamba-130m-patch` is true of any model by construction (only norm and head follow the last block), so it is shown
and never supports anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from causegrid.evidence.claims import UNDECIDED, Claim, seed_mean
from causegrid.evidence.reference import published
from causegrid.spec import split
from causegrid.studies.state.claims.base import claims, majority, undecided, votes_at
from causegrid.studies.state.claims.damage import best_and_damaging
from causegrid.studies.state.claims.refit import blocks
from causegrid.studies.state.finished import Cell, at_length, left_out

CONSTRUCTION = "by construction"


@claims.register("pythia-160m-dyck")
def pythia_160m(cells: Sequence[Cell]) -> Claim:
    said = published("state-encoding")["pythia_160m_dyck"]
    best, hurt = said["best_probe_layer"], set(said["layers"])

    def answer(cell: Cell) -> bool | None:
        sets = best_and_damaging(cell)
        return None if sets is None else best in sets[0] and bool(hurt & sets[1])

    at = " or ".join(f"L{layer}" for layer in said["layers"])
    return _of_cells(
        "pythia-160m-dyck",
        f"Pythia-160M on Dyck: the probe is best at L{best}, erasing hurts most at {at}",
        f"best L{best}; about -{said['accuracy_drop_percent_about']} % at {at}",
        [c for c in cells if _is(c, "pythia-160m") and split(c.task)[0] == "dyck"],
        answer,
        "a cell of pythia-160m fine-tuned on dyck",
    )


@claims.register("pythia-410m-dyck")
def pythia_410m(cells: Sequence[Cell]) -> Claim:
    first, last = published("state-encoding")["pythia_410m_dyck"]["plateau_layers"]

    def answer(cell: Cell) -> bool | None:
        rows = cell.erased(None)
        rows = rows[rows["layer"] >= 0] if len(rows) else rows  # blocks, not the embedding output
        inside = rows["layer"].between(first, last) if len(rows) else None
        if inside is None or inside.all() or not inside.any():
            return None
        return bool(rows.loc[inside, "drop"].mean() > rows.loc[~inside, "drop"].mean())

    return _of_cells(
        "pythia-410m-dyck",
        f"Pythia-410M on Dyck: a plateau from L{first} to L{last}, read here as damage larger inside than outside",
        f"plateau L{first} to L{last}, of what is not said",
        [c for c in cells if _is(c, "pythia-410m") and split(c.task)[0] == "dyck"],
        answer,
        "a cell of pythia-410m fine-tuned on dyck",
    )


@claims.register("mamba-130m-direction")
def mamba_130m(cells: Sequence[Cell]) -> Claim:
    below = published("state-encoding")["mamba_130m"]["single_direction_drop_percent_below"]

    def answer(cell: Cell) -> bool | None:
        rows = blocks(cell)
        return bool(rows["drop"].max() < below / 100) if len(rows) else None

    return _of_cells(
        "mamba-130m-direction",
        f"mamba-130m: erasing a single direction costs under {below} % at every layer that reads the state",
        f"under {below} %",
        [c for c in cells if _is(c, "mamba-130m")],
        answer,
        "a cell of mamba-130m fine-tuned on a state task",
    )


@claims.register("mamba-130m-patch")
def last_block_patch(cells: Sequence[Cell]) -> Claim:
    said = published("state-encoding")["mamba_130m"]
    tasks = said["patch_tasks"]
    low, high = said["final_layer_patch_recovery_percent"]
    statement = (
        f"mamba-130m: patching the last block's output recovers {low} to {high} % ({', '.join(tasks)})"
    )
    given = [c for c in cells if _is(c, "mamba-130m") and split(c.task)[0] in tasks]
    why = "by construction only the final norm and head follow, so this supports nothing."
    length, same = at_length(given, lambda group: sum(_recovery(c) is not None for c in group))
    values = {c.id: r for c in same if (r := _recovery(c)) is not None}
    if not values:
        needs = f"needs a cell of mamba-130m fine-tuned on {' or '.join(tasks)}, patched; {why}"
        return undecided("mamba-130m-patch", statement, f"{low} to {high} %", needs + left_out(given, length))
    mean, from_, to = seed_mean(list(values.values()))
    return Claim(
        id="mamba-130m-patch", statement=statement, published=f"{low} to {high} %", measured=mean, low=from_, high=to,
        result=UNDECIDED, why=f"{why} Recovery at the same position, length {length}.{left_out(given, length)}",
        cells=tuple(values),
    )  # fmt: skip


def _recovery(cell: Cell) -> float | None:
    """Recovery of the last block's output at the position read: rows no other claim may use."""
    rows = cell.rows("patching")
    if not len(rows):
        return None
    last = rows[(rows["kind"] == "resid_post") & (rows["layer"] == rows["layer"].max())]
    rows = last[(last["mark"] == CONSTRUCTION) & (last["position"] == last["readout"])]
    return float(rows["recovery"].mean()) if len(rows) else None


def _is(cell: Cell, model: str) -> bool:
    """Whether the cell's model is this one, by the last part of its id (`org/pythia-160m`, `mamba-130m-hf`)."""
    return cell.family.rstrip("/").rpartition("/")[2].lower().removesuffix("-hf") == model


def _of_cells(
    id: str,
    statement: str,
    figure: Any,
    given: Sequence[Cell],
    answer: Callable[[Cell], bool | None],
    needs: str,
) -> Claim:
    """Do most cells of one model say yes?"""
    length, votes, without = votes_at(given, answer)
    if not votes:
        return undecided(id, statement, figure, f"needs {needs} that learned it and was erased.{without}")
    k, n = sum(yes for _, yes in votes), len(votes)
    low, high, result = majority(k, n)
    return Claim(
        id=id, statement=statement, published=figure, measured=f"{k} of {n} cells", low=low, high=high, result=result,
        why=f"{k} of {n} cells say so at length {length}; interval of the share {low:.2f} to {high:.2f} against 0.5."
        f"{without}",
        cells=tuple(c.id for c, _ in votes),
    )  # fmt: skip
