"""S6: beyond the trained length, recurrent > state-space > Transformer.

Only cells that learned the whole trained length: how far one carries what was not learned says nothing.  A
Transformer with `learned` positions meets untrained positions there, so it can neither support nor contradict the
claim: those with `sinusoidal`, `rope` or `none` positions stand for the Transformer, and the others' figure is said
beside.  (In effect those with sinusoidal ones: without absolute positions or a start token nothing can be counted
from the start, see `models/transformer.py`, and what did not learn is left out.)  Recurrent and state-space cells
are the plain families.

Per task, mean token accuracy over the longer lengths: two permutation tests over seeds (those of LSTM and GRU, and
those of Mamba and Mamba-2, together), Holm across tasks and steps.  Supported when both steps hold on every task that
all three kinds learned, contradicted by any step the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from causegrid.evidence.claims import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Claim,
    Comparison,
    corrected,
    decide,
    independent,
    seed_mean,
)
from causegrid.evidence.reference import published
from causegrid.studies.state.claims.base import claims, undecided
from causegrid.studies.state.finished import Cell, named

KINDS = ("recurrent", "state-space", "transformer")
FAMILIES = {"lstm": "recurrent", "gru": "recurrent", "mamba": "state-space", "mamba2": "state-space"}
TRAINED_EVERYWHERE = ("sinusoidal", "rope", "none")
UNTRAINED = "transformer, learned positions"
STATEMENT = "Beyond the trained length: recurrent > state-space > Transformer"


@claims.register("S6")
def beyond(cells: Sequence[Cell]) -> Claim:
    order = published("state-encoding")["behaviour"]
    figure = f"S3: {' > '.join(order['s3_order'])}; Dyck: {order['dyck_order']}"
    given = [c for c in cells if kind(c)]
    ready = [c for c in given if c.has_learned and c.to_the_end and _lengths(c)]
    short = [c for c in given if not (c.has_learned and c.to_the_end)]
    note = f" Did not learn the trained length, left out: {named(short)}." if short else ""
    tests: dict[str, Comparison] = {}
    used: list[Cell] = []
    said = []
    shown: list[Cell] = []
    for task in dict.fromkeys(c.task for c in ready):
        of_task = [c for c in ready if c.task == task]
        trained = max({c.trained for c in of_task}, key=lambda n: (sum(c.trained == n for c in of_task), n))
        same = [c for c in of_task if c.trained == trained]
        lengths = sorted(set.intersection(*(_lengths(c) for c in same)))
        values: dict[str, list[float]] = {}
        for c in same:
            accuracy = c.accuracy(lengths)
            if accuracy is not None:
                values.setdefault(kind(c), []).append(accuracy)
                shown.append(c)
        said.append(f"{task} at {', '.join(map(str, lengths))}: {_means(values)}")
        if all(len(values.get(k, ())) >= 2 for k in KINDS):
            used += [c for c in same if kind(c) in KINDS]
            for first, second in pairwise(KINDS):
                tests[f"{task}, {first} over {second}"] = independent(values[first], values[second])
    measured = f"mean token accuracy over longer lengths: {'; '.join(said)}" if said else "-"
    if not tests:
        missing = (
            "needs one task that 2 cells or more of each kind learned to the trained length, the Transformer with "
            f"{', '.join(TRAINED_EVERYWHERE)} positions (learned ones are untrained beyond that length)."
        )
        return undecided("S6", STATEMENT, figure, missing + note, measured, shown)
    decided = {name: decide(t, 1) for name, t in corrected(tests).items()}
    results = {result for result, _ in decided.values()}
    contrary = CONTRADICTED in results
    result = CONTRADICTED if contrary else SUPPORTED if results == {SUPPORTED} else UNDECIDED
    transformers = sorted({c.model for c in used if kind(c) == "transformer"})
    return Claim(
        id="S6", statement=STATEMENT, published=figure, measured=measured, result=result,
        why="; ".join(f"{name}: {why}" for name, (_, why) in decided.items())
        + f". Mean token accuracy over the longer lengths; seeds of one kind together, whatever the family. "
        f"Transformers used: {', '.join(transformers)}.{note}",
        cells=tuple(c.id for c in used),
    )  # fmt: skip


def kind(cell: Cell) -> str:
    """`recurrent`, `state-space`, `transformer`, the Transformer of learned positions, or "" for any other model."""
    if cell.family == "transformer" and set(cell.options) <= {"positions"}:
        scheme = str(cell.options.get("positions", cell.positions))
        return "transformer" if scheme in TRAINED_EVERYWHERE else UNTRAINED
    return FAMILIES.get(cell.model, "")


def _lengths(cell: Cell) -> set[int]:
    return {n for n in cell.measured_lengths() if n > cell.trained}


def _means(values: dict[str, list[float]]) -> str:
    said = []
    for name in (*KINDS, UNTRAINED):
        if name in values:
            mean, low, high = seed_mean(values[name], within=(0, 1))
            interval = "" if low is None else f" [{low:.3f}, {high:.3f}]"
            tested = "" if name in KINDS else ", not tested"
            said.append(f"{name} {mean:.3f}{interval} (n {len(values[name])}{tested})")
    return ", ".join(said)
