"""The values of a finished sweep, kept in `.bench/` for the row that compares with them.

They are taken only for the same model, prompts, groups, draws and sources of the sweep; the stamp says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload import Job, Work
from causegrid.headnames import head
from causegrid.interventions.condition import Condition
from causegrid.interventions.sweep import Planner

SOURCE = Path(__file__).resolve().parents[1] / "src" / "causegrid"
READ = [f"interventions/{n}.py" for n in ("sweep", "shared_prefix", "condition", "metrics", "heads")]
READ += [f"sites/{n}.py" for n in ("edit", "hooks", "prefix", "table")]
Heads = tuple[tuple[int, int], ...]


class Replay(Planner):
    """A planner that looks its conditions (zeroed heads) up; the clean pass is its own."""

    def __init__(self, work: Work, found: Mapping[Heads, np.ndarray]) -> None:
        super().__init__(work.model, work.prompts)
        self.found = found

    def run(
        self, conditions: Iterable[Condition], **_options: Any
    ) -> Iterator[tuple[str, np.ndarray]]:  # (n_prompts, M) each
        for one in conditions:
            edits = one.on(np.arange(len(self.prompts)))
            heads = [(e.site.layer, h) for e, key in zip(edits, one.keys, strict=True) for h in key[2]]  # type: ignore[index]
            yield one.name, self.found[tuple(sorted(heads))].copy()


def stamp(work: Work, draws: int) -> str:
    """Names what the values depend on."""
    facts = json.dumps([work.model.name, work.groups, draws, work.tokens.tolist()])
    weights = "".join(f"{float(p.detach().double().sum()):.9e}" for p in work.model.module.parameters())
    code = b"".join((SOURCE / name).read_bytes() for name in READ)
    return hashlib.sha256(facts.encode() + weights.encode() + code).hexdigest()


def keep(path: Path, mark: str, values: Mapping[Job, np.ndarray]) -> None:
    """Write every job's values (n_prompts, M) and their stamp."""
    names = [",".join(job.heads) for job in values]
    np.savez(path, mark=np.array(mark), names=np.array(names), values=np.stack(list(values.values())))


def kept(path: Path, mark: str) -> dict[Heads, np.ndarray] | None:
    """Heads -> values (n_prompts, M); None when nothing was kept, or under another stamp."""
    if not path.exists():
        return None
    with np.load(path) as file:
        if str(file["mark"]) != mark:
            return None
        pairs = zip(file["names"], file["values"], strict=True)
        return {tuple(sorted(head(h) for h in str(names).split(","))): values for names, values in pairs}
