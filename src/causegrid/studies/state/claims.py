"""The claims of study S over finished cells (MEASURES 4.3): each names its test, its figure and its cells.

Only cells that learned the task at the length looked at take part; those left out are named.  A claim whose
cells are not there is `not enough evidence`, with what is missing, and never a contradiction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from causegrid.evidence.claims import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Claim,
    decide,
    independent,
    interaction,
    paired,
    paired_family,
)
from causegrid.evidence.effects import wilson
from causegrid.evidence.reference import published

NO_MODEL = ["baseline_majority", "baseline_position", "baseline_token", "baseline_token_pair"]
RECURRENT, SSM = ("lstm", "gru"), ("mamba", "mamba2")
WITHOUT = "mamba:conv=false"
LEARNED_MINIMUM = 8
BEST = 0.01  # layers within 1 pp of the best probe are "the best probe layer" too


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One finished cell: its names, what it learned, and its tables."""

    id: str
    task: str
    model: str
    seed: int
    trained: int
    learned: int
    table: Callable[[str], pd.DataFrame | None]

    @property
    def length(self) -> int:
        """The length at which the cell may be used: the trained one, or the learned one below it."""
        return min(self.trained, self.learned)

    def rows(self, name: str) -> pd.DataFrame:
        """A table's rows at that length."""
        found = self.table(name)
        if found is None or "length" not in found:
            return pd.DataFrame()
        return found[found["length"] == self.length]


def state_claims(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """S1 to S6 and the correction of version 2, over finished cells."""
    every = [_cell(c) for c in cells]
    used = [c for c in every if c.learned >= LEARNED_MINIMUM]
    left_out = [f"{c.task} {c.model} seed {c.seed}" for c in every if c.learned < LEARNED_MINIMUM]
    claims = [
        _reversal(used),
        _grouping(used),
        _best_is_not_damaging(used),
        _refit(used),
        _conv(every),
        _out_of_length(used),
    ]
    said = f" Not learned, left out: {', '.join(left_out)}." if left_out else ""
    return [{**c.record(), "why": c.why + said} for c in claims]


def _cell(given: Mapping[str, Any]) -> Cell:
    config, facts = given["config"], given["facts"]
    return Cell(
        id=given["id"],
        task=config["task"],
        model=config["model"],
        seed=int(config["seed"]),
        trained=int(config["training"]["length"]),
        learned=int(facts.get("learned_length", 0)),
        table=given["tables"],
    )


def _undecided(id: str, statement: str, figure: Any, missing: str) -> Claim:
    return Claim(id=id, statement=statement, published=figure, measured="-", result=UNDECIDED, why=missing)


def _centres(cells: Sequence[Cell], model: str, task: str) -> dict[int, tuple[float, str]]:
    """seed -> (depth centre of the trained label, cell id), where it is defined and the cell learned to the end."""
    found = {}
    for c in cells:
        if (c.model, c.task) == (model, task) and c.learned >= c.trained:
            rows = c.rows("profile_summary")
            if len(rows) and not np.isnan(rows["depth_centre"].iloc[0]):
                found[c.seed] = (float(rows["depth_centre"].iloc[0]), c.id)
    return found


def _reversal(cells: Sequence[Cell]) -> Claim:
    statement = (
        "The layer where the state shows depends on architecture x task (Mamba later on Parity than on Dyck)"
    )
    shares = published("state-encoding")["derived"]["last_block_share_parity"]
    figure = f"last-block share on Parity: Mamba {shares['mamba']}, Transformer {shares['transformer']}"
    four = {(m, t): _centres(cells, m, t) for m in ("transformer", "mamba") for t in ("parity", "dyck")}
    transformer = sorted(set(four["transformer", "parity"]) & set(four["transformer", "dyck"]))
    mamba = sorted(set(four["mamba", "parity"]) & set(four["mamba", "dyck"]))
    if min(len(transformer), len(mamba)) < 2:
        return _undecided(
            "S1",
            statement,
            figure,
            "needs 2 seeds or more of Transformer and Mamba that learned Parity and Dyck.",
        )
    values = {
        key: [four[key][s][0] for s in (transformer if key[0] == "transformer" else mamba)] for key in four
    }
    test = interaction(
        values["transformer", "parity"],
        values["transformer", "dyck"],
        values["mamba", "parity"],
        values["mamba", "dyck"],
    )
    result, why = decide(test, -1)
    seeds = {"transformer": transformer, "mamba": mamba}
    ids = tuple(found[s][1] for (m, _), found in four.items() for s in seeds[m])
    return Claim(
        id="S1", statement=statement, published=figure, measured=test.effect, low=test.low, high=test.high,
        result=result, why=f"{why}.", cells=ids,
    )  # fmt: skip


def _profile(c: Cell) -> np.ndarray[Any, Any] | None:
    rows = c.rows("probes")
    if not len(rows):
        return None
    first = rows[rows["label"] == rows["label"].iloc[0]].sort_values("layer")
    floor = float(first[NO_MODEL].to_numpy().max())
    gain = (first["accuracy"].to_numpy(dtype=float) - floor) / max(1 - floor, 1e-9)
    return np.asarray(np.clip(gain, 0, 1))


def _grouping(cells: Sequence[Cell]) -> Claim:
    statement = "S3's profile is nearer Parity's than Dyck's (Z6 as the abelian control)"
    missing = "needs S3, Z6, Parity and Dyck learned by the same families, 2 seeds or more."
    near, far, ids = [], [], []
    by = {(c.model, c.task, c.seed): c for c in cells}
    for (model, task, seed), c in by.items():
        others = [by.get((model, t, seed)) for t in ("parity", "dyck")]
        if task != "s3" or any(x is None or x.learned < x.trained for x in (c, *others)):
            continue  # profiles of different lengths do not compare
        profiles = [_profile(x) for x in (c, *others) if x is not None]
        if any(p is None for p in profiles):
            continue
        own, parity, dyck = profiles
        near.append(float(np.abs(own - parity).mean()))  # type: ignore[operator]
        far.append(float(np.abs(own - dyck).mean()))  # type: ignore[operator]
        ids += [x.id for x in (c, *others) if x is not None]
    if len(near) < 2:
        return _undecided("S2", statement, "stated, no figure", missing)
    test = paired(far, near)
    result, why = decide(test, 1)
    return Claim(
        id="S2", statement=statement, published="stated, no figure", measured=test.effect, low=test.low,
        high=test.high, result=result, why=f"{why} (distance to Dyck minus distance to Parity).", cells=tuple(ids),
    )  # fmt: skip


def _share(id: str, statement: str, figure: Any, yes: Sequence[bool], ids: Sequence[str], what: str) -> Claim:
    """A claim about most cells: the interval of the share against one half."""
    if not yes:
        return _undecided(
            id, statement, figure, "no finished cell that learned its task can be used for this test."
        )
    k, n = sum(yes), len(yes)
    low, high = wilson(k, n)
    result = SUPPORTED if low > 0.5 else CONTRADICTED if high < 0.5 else UNDECIDED
    return Claim(
        id=id, statement=statement, published=figure, measured=f"{k} of {n} cells", low=low, high=high,
        result=result, why=f"{k} of {n} cells {what}; interval of the share {low:.2f} to {high:.2f} against 0.5.",
        cells=tuple(ids),
    )  # fmt: skip


def _best_is_not_damaging(cells: Sequence[Cell]) -> Claim:
    yes, ids = [], []
    for c in cells:
        erased, probes = c.rows("erasure"), c.rows("probes")
        if not len(erased) or not len(probes):
            continue
        full = erased[erased["full"]]
        if not len(full):
            continue
        own = probes[probes["label"] == full["label"].iloc[0]]
        worst = full.iloc[int(full["drop"].to_numpy().argmax())]
        if worst["drop"] <= 0 or not worst["beyond_control"]:
            continue  # nothing is damaging beyond chance: the claim says nothing
        damaging = int(worst["layer"])
        best = own.loc[own["accuracy"] >= own["accuracy"].max() - BEST, "layer"]
        yes.append(damaging not in set(best))
        ids.append(c.id)
    figure = published("state-encoding")["pythia_160m_dyck"]
    hurt = " and ".join(f"L{layer}" for layer in figure["layers"])
    return _share(
        "S3",
        "The layer whose probe is best is not the layer whose erasure hurts most",
        f"Pythia-160M on Dyck: best probe L{figure['best_probe_layer']}, most damaging {hurt}",
        yes,
        ids,
        "have a most damaging layer outside the best-probe layers (within 1 pp)",
    )


def _refit(cells: Sequence[Cell]) -> Claim:
    yes, ids = [], []
    for c in cells:
        erased = c.rows("erasure")
        one = erased[(erased["rank"] == 1) & (erased["reading"] != "not readable")] if len(erased) else erased
        if len(one):
            yes.append(bool((one["reading"] == "test void").mean() > 0.5))
            ids.append(c.id)
    return _share(
        "S4",
        "Refit the probe: after erasing the single best direction the state is still decodable (version 2)",
        "version 2 withdraws the necessity reading of single-direction ablation",
        yes,
        ids,
        "are void at rank 1 in most layers that read the state",
    )


def _conv(cells: Sequence[Cell]) -> Claim:
    """Train-time removal, paired by seed: token accuracy with minus without, at the trained length and beyond.

    Cells that learned nothing count too: not learning without the convolution is what the claim is about.  A
    task where neither of a pair learned says nothing and is left out.
    """
    change = published("state-encoding")["conv1d_change_pp"]
    dyck = change["dyck"]["value"]
    figure = f"S3 {change['s3']:+.1f} pp, Parity {change['parity']:+.1f} pp, Dyck {dyck:+.1f} pp (n.s.)"
    statement = "Mamba's Conv1D matters for Parity and S3, not for Dyck"
    by = {(c.task, c.model, c.seed): c for c in cells}
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    ids: list[str] = []
    for task in ("s3", "parity", "dyck"):
        for seed in sorted(seed for t, m, seed in by if (t, m) == (task, "mamba")):
            whole, bare = by[task, "mamba", seed], by.get((task, WITHOUT, seed))
            if bare is None or max(whole.learned, bare.learned) < LEARNED_MINIMUM:
                continue
            both = [_accuracy(c) for c in (whole, bare)]
            if None in both:
                continue
            for side, value in zip(pairs.setdefault(task, ([], [])), both, strict=True):
                side.append(float(value or 0.0))
            ids += [whole.id, bare.id]
    usable = {task: sides for task, sides in pairs.items() if len(sides[0]) >= 2}
    if set(usable) != {"s3", "parity", "dyck"}:
        return _undecided(
            "S5",
            statement,
            figure,
            f"needs paired seeds of Mamba with and without Conv1D ({WITHOUT!r}) on Parity, S3 and Dyck, one of each "
            f"pair learned; there are {', '.join(f'{t} {len(v[0])}' for t, v in pairs.items()) or 'none'}.",
        )
    tests = paired_family(usable)
    said = "; ".join(
        f"{task} {-100 * t.effect:+.1f} pp [{-100 * t.high:+.1f}, {-100 * t.low:+.1f}], Holm p {t.p_holm:.2g}, n {t.n}"
        for task, t in tests.items()
    )
    needed = [decide(tests[task], 1)[0] for task in ("s3", "parity")]
    spared = tests["dyck"]
    hurts = (spared.p_holm or spared.p) <= 0.05 and spared.effect > 0
    if CONTRADICTED in needed or hurts:
        result = CONTRADICTED
    elif set(needed) == {SUPPORTED}:
        result = SUPPORTED
    else:
        result = UNDECIDED
    return Claim(
        id="S5", statement=statement, published=figure, measured=said, result=result,
        why="mean token accuracy over the trained length and beyond, trained without against with, paired by seed.",
        cells=tuple(ids),
    )  # fmt: skip


def _accuracy(c: Cell) -> float | None:
    """Mean token accuracy over the trained length and all longer ones."""
    behaviour = c.table("behaviour")
    if behaviour is None:
        return None
    rows = behaviour[(behaviour["length"] >= c.trained) & (behaviour["metric"] == "token")]
    return float(rows["accuracy"].mean()) if len(rows) else None


def _out_of_length(cells: Sequence[Cell]) -> Claim:
    statement = "Beyond the trained length: recurrent > state-space > Transformer"
    kinds: dict[str, list[float]] = {"recurrent": [], "state-space": [], "transformer": []}
    ids = []
    ready = [(c, _kind(c)) for c in cells if c.learned >= c.trained and c.table("behaviour") is not None]
    shared = {t for t in {c.task for c, _ in ready} if {k for c, k in ready if c.task == t} >= set(kinds)}
    for c, kind in ready:
        behaviour = c.table("behaviour")
        if kind not in kinds or c.task not in shared or behaviour is None:
            continue
        beyond = behaviour[(behaviour["length"] > c.trained) & (behaviour["metric"] == "token")]
        if len(beyond):
            kinds[kind].append(float(beyond["accuracy"].mean()))
            ids.append(c.id)
    figure = " > ".join(published("state-encoding")["behaviour"]["s3_order"])
    means = {k: float(np.mean(v)) for k, v in kinds.items() if v}
    said = ", ".join(f"{k} {m:.2f} (n {len(kinds[k])})" for k, m in means.items())
    if any(len(v) < 2 for v in kinds.values()):
        return Claim(
            id="S6", statement=statement, published=figure, measured=said or "-", result=UNDECIDED,
            why="needs 2 cells or more of each kind that learned one task at the trained length.", cells=tuple(ids),
        )  # fmt: skip
    steps = [
        decide(independent(kinds[a], kinds[b]), 1)
        for a, b in (("recurrent", "state-space"), ("state-space", "transformer"))
    ]
    results = [result for result, _ in steps]
    result = (
        CONTRADICTED if CONTRADICTED in results else SUPPORTED if set(results) == {SUPPORTED} else UNDECIDED
    )
    return Claim(
        id="S6", statement=statement, published=figure, measured=said, result=result,
        why="; ".join(why for _, why in steps)
        + f"; tasks {', '.join(sorted(shared))}; learned positions are untrained beyond the trained length.",
        cells=tuple(ids),
    )  # fmt: skip


def _kind(c: Cell) -> str:
    return "recurrent" if c.model in RECURRENT else "state-space" if c.model in SSM else c.model
