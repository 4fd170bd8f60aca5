"""S5: Mamba's Conv1D matters for Parity and S3, not for Dyck: two experiments under two names (MEASURES 3.3).

- `S5`, train-time: trained without it (`mamba:conv=false`), paired by seed with Mamba trained with it, and measured
  at the trained length and beyond whatever each learned: to learn less without the convolution, or not at all, is
  what the claim is about.  Of a pair one must have learned something; those that learned less than the trained
  length are named with what they learned.
- `S5-post-hoc`: trained with it, removed after; each seed is paired with itself.  Only cells that learned, at the
  length they learned to.  `identity` decides, as it hands the current token on; `zero` and `mean` stand beside.

The effect is a change of token accuracy (negative: the convolution mattered), the mean over the length used and
all longer ones; that length alone and the longer ones alone stand beside.  Holm across the three tasks.

That Dyck is spared needs evidence too: supported only where its interval leaves out a loss of `SPARED`, for a few
seeds can find nothing significant whatever they lose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from causegrid.evidence.claims import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Claim,
    Comparison,
    corrected,
    decide,
    paired,
)
from causegrid.evidence.reference import published
from causegrid.studies.state.claims.base import claims, undecided
from causegrid.studies.state.finished import Cell, at_length, learned_less, left_out, named

WITH, WITHOUT = "mamba", "mamba:conv=false"
TASKS = ("s3", "parity", "dyck")
NEEDED = ("s3", "parity")
MODES = ("identity", "zero", "mean")
ALL = "all"
SPARED = 0.02  # "holds": within 2 pp (MEASURES 3.2)
Parts = Mapping[str, Mapping[str, Sequence[float]]]  # which lengths -> task -> one change per seed


def _figure() -> str:
    change = published("state-encoding")["conv1d_change_pp"]
    dyck = change["dyck"]["value"]
    values = f"S3 {change['s3']:+.1f} pp, Parity {change['parity']:+.1f} pp, Dyck {dyck:+.1f} pp (n.s.)"
    return f"{values}; which experiment is not said"


@claims.register("S5")
def train_time(cells: Sequence[Cell]) -> Claim:
    statement = "Mamba's Conv1D matters for Parity and S3, not for Dyck: train-time (trained without it)"
    given = [c for c in cells if c.model in (WITH, WITHOUT) and c.task in TASKS]
    by = {(c.task, c.model, c.seed, c.trained): c for c in given}
    pairs: dict[str, list[tuple[Cell, Cell]]] = {t: [] for t in TASKS}
    for (task, model, seed, trained), whole in by.items():
        bare = by.get((task, WITHOUT, seed, trained))
        if model == WITH and bare is not None and (whole.has_learned or bare.has_learned):
            pairs[task].append((whole, bare))
    trained = _most([w.trained for group in pairs.values() for w, _ in group])
    pairs = {t: [p for p in group if p[0].trained == trained] for t, group in pairs.items()}
    both = [c for group in pairs.values() for p in group for c in p]
    lengths = _common(both, trained)

    def change(task: str, at: Sequence[int]) -> list[float]:
        found = [(w.accuracy(at), b.accuracy(at)) for w, b in pairs[task]]
        return [b - w for w, b in found if w is not None and b is not None]

    unlearned = [c for c in both if not c.has_learned]
    note = f" Counted though not learned, as their partner did: {named(unlearned)}." if unlearned else ""
    nothing = [c for c in given if not c.has_learned and c not in both]
    note += f" Not learned, left out: {named(nothing)}." if nothing else ""
    if short := learned_less(both):
        note += f" Learned less than the trained length, and counted at it and beyond all the same: {short}."
    return _claim(
        "S5",
        statement,
        f"paired seeds of {WITH} and {WITHOUT}, one of each pair learned",
        _parts(change, lengths),
        both,
        f"{WITHOUT} against {WITH}, paired by seed{f', trained at {trained}' if trained else ''}.{note}",
    )


@claims.register("S5-post-hoc")
def post_hoc(cells: Sequence[Cell]) -> Claim:
    statement = "Mamba's Conv1D matters for Parity and S3, not for Dyck: post-hoc (removed after training)"
    chosen: dict[str, list[Cell]] = {}
    lengths: dict[str, list[int]] = {}
    note = ""
    learned = [c for c in cells if c.model == WITH and c.task in TASKS and c.has_learned]
    effects = {(c.id, mode): _removed(c, mode) for c in learned for mode in MODES}
    for task in TASKS:
        given = [c for c in cells if c.model == WITH and c.task == task]
        length, same = at_length(given, lambda group: sum(bool(effects[c.id, MODES[0]]) for c in group))
        chosen[task] = [c for c in same if effects[c.id, MODES[0]]]
        beyond = all(c.to_the_end for c in chosen[task])
        measured = [set(effects[c.id, MODES[0]]) for c in chosen[task]]
        common = set.intersection(*measured) if measured else set()
        lengths[task] = sorted(n for n in common if n == length or (beyond and n > length))
        note += f" {task}: {_listed(lengths[task])}." if chosen[task] else ""
        note += left_out(given, length)
    beside = []
    for mode in MODES:

        def change(task: str, at: Sequence[int], mode: str = mode) -> list[float]:
            found = [effects[c.id, mode] for c in chosen[task]]
            return [float(np.mean([f[n] for n in at])) for f in found if at and set(at) <= set(f)]

        parts = _parts(change, lengths)
        if mode == MODES[0]:
            decides = parts
        elif any(parts["all lengths"].values()):
            beside.append(f" Mode {mode}: {_said(_tests(parts['all lengths']))}.")
    return _claim(
        "S5-post-hoc",
        statement,
        f"2 seeds or more of {WITH} that learned each task, with its convolution removed (table components)",
        decides,
        [c for group in chosen.values() for c in group],
        f"all convolutions of a trained {WITH} as {MODES[0]}, each seed against itself; lengths{note}{''.join(beside)}",
    )


def _removed(cell: Cell, mode: str) -> dict[int, float]:
    """Length -> change of token accuracy with every layer's convolution removed."""
    rows = cell.table("components")
    if rows is None or not len(rows):
        return {}
    rows = rows[(rows["kind"] == "conv") & (rows["mode"] == mode) & (rows["metric"] == "token")]
    rows = rows[rows["layers"].astype(str) == ALL]
    return {int(n): float(e) for n, e in zip(rows["length"], rows["effect"], strict=True)}


def _parts(
    change: Callable[[str, Sequence[int]], list[float]], lengths: Sequence[int] | Mapping[str, Sequence[int]]
) -> Parts:
    """One change per seed and task over all lengths, the shortest one, and the longer ones."""
    at = lengths if isinstance(lengths, Mapping) else dict.fromkeys(TASKS, lengths)
    return {
        "all lengths": {t: change(t, at[t]) for t in TASKS},
        "the length used": {t: change(t, at[t][:1]) for t in TASKS},
        "beyond it": {t: change(t, at[t][1:]) for t in TASKS},
    }


def _claim(id: str, statement: str, needs: str, parts: Parts, cells: Sequence[Cell], why: str) -> Claim:
    decides = parts["all lengths"]
    tests = _tests(decides)
    what = "Change of token accuracy, its mean over the length used and longer ones"
    beside = "".join(f" {name.capitalize()}: {_said(_tests(parts[name]))}." for name in list(parts)[1:])
    least = max((t.p_min_holm or t.p_min for t in tests.values()), default=1.0)
    few = f" This many seeds cannot give a Holm p below {least:.2g}." if least > 0.05 else ""
    if any(len(v) < 2 for v in decides.values()):
        counts = ", ".join(f"{t} {len(v)}" for t, v in decides.items())
        measured, used = (_said(tests), [c for c in cells if c.task in tests]) if tests else ("-", [])
        missing = (
            f"needs {needs}; there are {counts}. {what}: {why}{beside if tests else ''}{few if tests else ''}"
        )
        return undecided(id, statement, _figure(), missing, measured, used)
    needed = [decide(tests[task], -1)[0] for task in NEEDED]
    spared = tests["dyck"]
    hurts = (spared.p_holm or spared.p) <= 0.05 and spared.effect < 0
    against = CONTRADICTED in needed or hurts
    supported = set(needed) == {SUPPORTED} and spared.low > -SPARED
    result = CONTRADICTED if against else SUPPORTED if supported else UNDECIDED
    if not against and spared.low <= -SPARED:
        few += f" Dyck may lose {100 * SPARED:.0f} pp or more, by its interval, so that it is spared is not shown."
    return Claim(
        id=id, statement=statement, published=_figure(), measured=_said(tests), result=result,
        why=f"{what}: {why}{beside}{few}",
        cells=tuple(dict.fromkeys(c.id for c in cells)),
    )  # fmt: skip


def _tests(changes: Mapping[str, Sequence[float]]) -> dict[str, Comparison]:
    usable = {task: v for task, v in changes.items() if len(v) >= 2}
    return corrected({task: paired(v, np.zeros(len(v))) for task, v in usable.items()}) if usable else {}


def _said(tests: Mapping[str, Comparison]) -> str:
    return "; ".join(
        f"{task} {100 * t.effect:+.1f} pp [{100 * t.low:+.1f}, {100 * t.high:+.1f}], Holm p {t.p_holm:.2g}, n {t.n}"
        for task, t in tests.items()
    ) or "no seeds"  # fmt: skip


def _listed(lengths: Sequence[int]) -> str:
    """`40, 60, 80 and 100`."""
    *most, last = map(str, lengths) if lengths else ("none",)
    return f"{', '.join(most)} and {last}" if most else last


def _most(values: Sequence[int]) -> int:
    """The most frequent value, the larger of two; 0 for none."""
    return max(values, key=lambda v: (values.count(v), v), default=0)


def _common(cells: Sequence[Cell], trained: int) -> list[int]:
    """Lengths from the trained one up at which all of these were measured."""
    sets = [c.measured_lengths() for c in cells]
    return sorted(n for n in set.intersection(*sets) if n >= trained) if sets else []
