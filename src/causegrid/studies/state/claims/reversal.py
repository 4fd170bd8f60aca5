"""S1: the layer where the state shows depends on architecture x task.

Per seed of a family the depth centre on Parity minus that on Dyck; the differences of Transformer and Mamba are
exchanged in a permutation test, so the families need not have as many seeds.  The claim has a direction, that of
the published profiles: Mamba's difference is the larger.  Both families are the plain ones: options make another
architecture.  Beside the test stand each family's own difference, the depth centre of untrained models (a state that
any random network shows early is no finding of training), and the last-block share of every family, which is what
the paper gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from causegrid.evidence.claims import Claim, decide, interaction, seed_mean
from causegrid.evidence.reference import published
from causegrid.studies.state.claims.base import claims, undecided
from causegrid.studies.state.finished import Cell, alone, at_length, left_out, summary, untrained_centre

MODELS, TASKS = ("transformer", "mamba"), ("parity", "dyck")
STATEMENT = (
    "The layer where the state shows depends on architecture x task: from Dyck to Parity it moves later in Mamba by "
    "more than in the Transformer"
)


@claims.register("S1")
def reversal(cells: Sequence[Cell]) -> Claim:
    shares = published("state-encoding")["derived"]["last_block_share_parity"]
    figure = f"last-block share on Parity: Mamba {shares['mamba']}, Transformer {shares['transformer']}"
    given = [c for c in cells if c.model in MODELS and c.task in TASKS]
    length, same = at_length(given, lambda group: min(len(s) for s in _paired(group).values()))
    seeds = _paired(same)
    without = alone(given, length, [c.id for c in same if c.seed in seeds[c.model]]) + left_out(given, length)
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
    own = ", ".join(
        _over_seeds(m, [centres[m, TASKS[0], s][0] - centres[m, TASKS[1], s][0] for s in seeds[m]], (-1, 1))
        for m in MODELS
    )
    blank = ", ".join(
        _over_seeds(f"{m} on {t}", [v for c in same if (c.model, c.task) == (m, t) and c.seed in seeds[m]
                                    and (v := untrained_centre(c)) is not None], (0, 1))
        for m in MODELS for t in TASKS
    )  # fmt: skip
    return Claim(
        id="S1", statement=STATEMENT, published=figure, low=test.low, high=test.high, result=result, cells=tuple(used),
        measured=f"interaction of depth centres {test.effect:+.3f}; last-block share on Parity: "
        f"{last_block_shares([c for c in same if c.model in MODELS], 'parity')}",
        why=f"(Transformer's depth centre on Parity minus Dyck) minus (Mamba's): {why}; {n}, length {length}. "
        f"Parity minus Dyck: {own}. Depth centre of the untrained models: {blank}. "
        f"Last-block share on Parity of every model: {last_block_shares(cells, 'parity')}.{without}",
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
        said.append(f"{_over_seeds(model, values, (0, 1))} at {length}")
    return ", ".join(said) or "none"


def _over_seeds(name: str, values: Sequence[float], within: tuple[float, float]) -> str:
    if not values:
        return f"{name} unknown"
    mean, low, high = seed_mean(values, within=within)
    interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{name} {mean:.2f}{interval} n {len(values)}"


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
