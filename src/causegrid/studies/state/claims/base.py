"""What claims share: the registry, a claim without enough cells, and the test of a share against one half.

The unit of a share is the (task, family): its seeds and variants vote together and count once, since ten seeds
of one family say little about families.  A tie has no vote.  The interval is exact: with so few pairs an
approximate one would call four of four enough, which a fair coin gives one time in eight, counting both sides.
It takes the pairs as independent, though pairs of one task, and of one family, may well go together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scipy import stats

from causegrid.evidence.claims import CONTRADICTED, SUPPORTED, UNDECIDED, Claim
from causegrid.registry import Registry
from causegrid.studies.state.finished import Cell, by_length, left_out

claims: Registry[Callable[[Sequence[Cell]], Claim]] = Registry("claim", "causegrid.studies.state.claims")

Vote = tuple[Cell, bool]


def votes_at(cells: Sequence[Cell], answer: Callable[[Cell], bool | None]) -> tuple[int, list[Vote], str]:
    """(length, the votes there, a sentence on all others): the length with most votes, the longer of two.

    Cells of other lengths are named and their votes counted beside the test, never in it.
    """
    votes = {
        n: [(c, yes) for c in group if (yes := answer(c)) is not None]
        for n, group in by_length(cells).items()
    }
    length = max(votes, key=lambda n: (len(votes[n]), n), default=0)
    said = left_out(cells, length)
    beside = [
        f"{sum(yes for _, yes in votes[n])} of {len(votes[n])} cells at {n}"
        for n in sorted(set(votes) - {length})
        if votes[n]
    ]
    said += f" At other lengths, beside the test: {', '.join(beside)}." if beside else ""
    return length, votes.get(length, []), said


def majority(k: int, n: int) -> tuple[float, float, str]:
    """(low, high, result): the exact interval of k of n (Clopper and Pearson), and on which side of 1/2 it lies."""
    interval = stats.binomtest(k, n).proportion_ci(method="exact")
    low, high = float(interval.low), float(interval.high)
    return low, high, SUPPORTED if low > 0.5 else CONTRADICTED if high < 0.5 else UNDECIDED


def undecided(
    id: str, statement: str, figure: Any, missing: str, measured: Any = "-", cells: Sequence[Cell] = ()
) -> Claim:
    """A claim that cannot be tested, with what is missing; `cells`: those behind what is `measured` all the same."""
    return Claim(
        id=id, statement=statement, published=figure, measured=measured, result=UNDECIDED, why=missing,
        cells=tuple(dict.fromkeys(c.id for c in cells)),
    )  # fmt: skip


def by_pair(votes: Sequence[Vote]) -> tuple[int, int, int]:
    """(yes, decided, tied) over (task, family) pairs."""
    pairs: dict[tuple[str, str], list[bool]] = {}
    for c, yes in votes:
        pairs.setdefault((c.task, c.family), []).append(yes)
    shares = [sum(v) / len(v) for v in pairs.values()]
    decided = [s > 0.5 for s in shares if s != 0.5]
    return sum(decided), len(decided), len(shares) - len(decided)


def counted(votes: Sequence[Vote]) -> str:
    """`3 of 4 pairs [0.19, 0.99]`, for what stands beside a test."""
    k, n, _ = by_pair(votes)
    if not n:
        return "no pair that answers"
    low, high, _ = majority(k, n)
    return f"{k} of {n} pairs [{low:.2f}, {high:.2f}]"


def share(
    id: str, statement: str, figure: Any, votes: Sequence[Vote], what: str, missing: str, *, said: str = ""
) -> Claim:
    """Do most (task, family) pairs vote yes?  Exact interval of the share against one half.

    `what` ends the sentence "k of n ..."; `missing` is said when there is no vote; `said` follows either.
    """
    k, n, tied = by_pair(votes)
    if not n:
        return undecided(id, statement, figure, missing + said)
    low, high, result = majority(k, n)
    ties = f", {tied} tied" if tied else ""
    few = "" if majority(n, n)[2] == SUPPORTED else f"; {n} pairs cannot decide, whatever they say"
    return Claim(
        id=id, statement=statement, published=figure, measured=f"{k} of {n} (task, family) pairs", low=low, high=high,
        result=result, cells=tuple(c.id for c, _ in votes),
        why=f"{k} of {n} (task, family) pairs{ties} ({sum(yes for _, yes in votes)} of {len(votes)} cells) {what}; "
        f"interval of the share {low:.2f} to {high:.2f} against 0.5{few}.{said}",
    )  # fmt: skip
