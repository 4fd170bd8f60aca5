"""The matched-random null of a cell's competing groups, drawn until it is plain or exhausted.

Draws are made once per group, the heads of all competing groups left out where enough others remain, and
ablated in chunks by the planner.  A group stops early once every metric that can decide has 10 draws at
least as extreme in both directions (Besag & Clifford 1991, MEASURES 4.1); p comes from the draws so far.
Chunks double in size: a group inside its null stops after few draws, one outside it needs all of them, and
draws ablated together share what they have in common.  Draws computed past the stop are not used, so the
result does not depend on the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from causegrid.errors import InputError
from causegrid.evidence import SequentialNull, draws_needed, matched_random
from causegrid.interventions.heads import Ablator

DECIDING = ("logit_diff", "top1")
FIRST_CHUNK = 24


def matched_null(
    ablator: Ablator,
    groups: Mapping[str, Sequence[str]],
    effects: pd.DataFrame,
    *,
    competing: Sequence[str] | None = None,
    prompts: Sequence[int],
    mode: str,
    n: int = 99,
    per_group: int = 80,
    early_stop: bool = True,
    own: bool = True,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(draws, notes).  `ablator` holds the prompts numbered `prompts` among those `effects` was measured on.

    Draws: the columns of `ablate_heads` with `null_for`, `draw`, `contaminated`, `prompts`, without the clean
    values.  Notes: one row per group: `group, wanted, n_null, n_possible, exhaustive, contaminated, stopped, why`.
    `own`: whether draws may hold the group's own heads (`matched_random`); not as published.
    `competing`: the groups that compete (default all); only their heads are left out of draws, and only they
    count for the number of draws.  A group no null can be drawn for has no draws and a note that says why.
    """
    family = list(groups) if competing is None else list(competing)
    wanted = draws_needed(max(1, len(family)), per_group=per_group, least=n)
    taken = [h for name in family for h in groups[name]]
    tables: list[pd.DataFrame] = []
    notes: list[dict[str, Any]] = []
    for number, (group, heads) in enumerate(groups.items()):
        note = _note(group, wanted)
        try:
            draws = matched_random(
                heads, n_heads=ablator.model.n_heads, n=wanted, seed=seed, exclude=taken, own=own
            )
        except InputError as refused:
            notes.append(note | {"why": str(refused)})
            continue
        watched = _watched(effects, group, prompts)
        done, size, stopped = 0, FIRST_CHUNK, False

        def tell(share: float, number: int = number, left: int = len(groups)) -> None:
            if progress is not None:
                progress(round(100 * (number + share) / left), 100, "matched null")

        while done < len(draws) and not stopped:
            names = [f"draw-{i:04d}" for i in range(done, min(done + size, len(draws)))]
            table = ablator.table(
                dict(zip(names, draws[done:], strict=False)),
                mode,  # type: ignore[arg-type]
                intervals=False,
                progress=lambda n, _, before=done, full=draws: tell((before + n) / len(full)),  # type: ignore[misc]
            )
            for metric, running in watched.items():
                running.add(table.loc[table["metric"] == metric, "effect"].to_numpy())
            if early_stop and watched and all(w.done for w in watched.values()):
                used = max(w.n for w in watched.values())
                names, stopped = names[: used - done], used < len(draws)
                table = table[table["group"].isin(names)]
            done, size = done + len(names), 2 * size
            table = table.drop(columns=["clean"]).rename(columns={"group": "draw"})
            tables.append(table.assign(null_for=group, contaminated=draws.contaminated))
        tell(1.0)
        notes.append(
            note
            | {
                "n_null": done,
                "n_possible": draws.n_possible,
                "exhaustive": draws.exhaustive,
                "contaminated": draws.contaminated,
                "stopped": stopped,
                "why": "every deciding metric had 10 draws as extreme in both directions" if stopped else "",
            }
        )
    null = pd.concat(tables, ignore_index=True) if tables else _empty()
    null["prompts"] = [list(prompts)] * len(null)
    return null, pd.DataFrame(notes)


def no_draws(groups: Iterable[str], why: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(no draws, notes) for groups no null is drawn for, with the reason."""
    return _empty(), pd.DataFrame([_note(group, 0) | {"why": why} for group in groups])


def _note(group: str, wanted: int) -> dict[str, Any]:
    facts = {"group": group, "wanted": wanted, "n_null": 0, "n_possible": 0}
    return facts | {"exhaustive": False, "contaminated": False, "stopped": False, "why": ""}


def _watched(effects: pd.DataFrame, group: str, prompts: Sequence[int]) -> dict[str, SequentialNull]:
    """A sequential null per deciding metric, for the group's effect on the null's own prompts."""
    found = {}
    for metric in DECIDING:
        rows = effects[(effects["group"] == group) & (effects["metric"] == metric)]
        if len(rows):
            values = pd.Series(list(rows["values"].iloc[0]), dtype=float).iloc[list(prompts)].dropna()
            if len(values):
                found[metric] = SequentialNull(float(values.mean()))
    return found


def _empty() -> pd.DataFrame:
    columns = [
        "null_for",
        "draw",
        "heads",
        "n_heads",
        "mode",
        "metric",
        "n",
        "effect",
        "values",
        "contaminated",
    ]
    return pd.DataFrame({c: pd.Series(dtype=object) for c in columns})
