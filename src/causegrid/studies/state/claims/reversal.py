"""S1: the layer where the state shows depends on architecture x task.

Per seed of a family the depth centre on Parity minus that on Dyck; the differences of Transformer and Mamba are
exchanged in a permutation test, so the families need not have as many seeds.  Both families are the plain ones:
options make another architecture.  The published figure is a last-block share, so ours is said beside the test,
for every family.
"""

from __future__ import annotations

from collections.abc import Sequence

from causegrid.evidence.claims import Claim, decide, interaction, seed_mean
from causegrid.evidence.reference import published
from causegrid.studies.state.claims.base import claims, undecided
from causegrid.studies.state.finished import Cell, at_length, left_out, summary

MODELS, TASKS = ("transformer", "mamba"), ("parity", "dyck")
STATEMENT = (
    "The layer where the state shows depends on architecture x task (Mamba later on Parity than on Dyck)"
)


@claims.register("S1")
def reversal(cells: Sequence[Cell]) -> Claim:
    shares = published("state-encoding")["derived"]["last_block_share_parity"]
    figure = f"last-block share on Parity: Mamba {shares['mamba']}, Transformer {shares['transformer']}"
    given = [c for c in cells if c.model in MODELS and c.task in TASKS]
    length, same = at_length(given, lambda group: min(len(s) for s in _paired(group).values()))
    seeds = _paired(same)
    without = left_out(given, length)
    if min(len(s) for s in seeds.values()) < 2:
        counts = ", ".join(f"{m} {len(s)}" for m, s in seeds.items())
        need = "needs 2 seeds or more of Transformer and Mamba that learned Parity and Dyck to one length"
        return undecided("S1", STATEMENT, figure, f"{need}; there are {counts}.{without}")
    centres = _centres(same)
    test = interaction(
        *([centres[m, t, s][0] for s in seeds[m]] for m in MODELS for t in TASKS),
    )
    result, why = decide(test, -1)
    used = [centres[m, t, s][1] for m in MODELS for t in TASKS for s in seeds[m]]
    n = ", ".join(f"{m} {len(seeds[m])} seeds" for m in MODELS)
    return Claim(
        id="S1", statement=STATEMENT, published=figure, low=test.low, high=test.high, result=result, cells=tuple(used),
        measured=test.effect,
        why=f"(Transformer's depth centre on Parity minus Dyck) minus (Mamba's): {why}; {n}, length {length}. "
        f"Last-block share on Parity here: {last_block_shares(cells, 'parity')}.{without}",
    )  # fmt: skip


def last_block_shares(cells: Sequence[Cell], task: str) -> str:
    """`mamba 0.55 [0.4, 0.7] n 7 at 40, ...`: mean over seeds and its interval, every family and length apart."""
    found: dict[tuple[str, int], list[float]] = {}
    for c in cells:
        value = summary(c, "last_block_share") if c.has_learned and c.task == task else None
        if value is not None:
            found.setdefault((c.model, c.length), []).append(value)
    said = []
    for (model, length), values in sorted(found.items()):
        mean, low, high = seed_mean(values, within=(0, 1))
        interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
        said.append(f"{model} {mean:.2f}{interval} n {len(values)} at {length}")
    return ", ".join(said) or "none"


def _centres(cells: Sequence[Cell]) -> dict[tuple[str, str, int], tuple[float, str]]:
    found = {}
    for c in cells:
        centre = summary(c, "depth_centre")
        if centre is not None:
            found[c.model, c.task, c.seed] = (centre, c.id)
    return found


def _paired(cells: Sequence[Cell]) -> dict[str, list[int]]:
    """Model -> seeds with a depth centre on both tasks."""
    have = set(_centres(cells))
    seeds = sorted({s for _, _, s in have})
    return {m: [s for s in seeds if all((m, t, s) in have for t in TASKS)] for m in MODELS}
