"""Finished cells of made-up tables with known answers, each with decoys that no claim may read.

Every erasure table also holds rows of other bases that say the opposite, every patching table rows marked `by
construction`, every table rows of a length the cell is not used at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from causegrid.studies.state.anchors import anchor_claims
from causegrid.studies.state.claims import claims
from causegrid.studies.state.finished import cell_of

LENGTHS = (40, 60, 80, 100, 120)
BASES = ("principal", "singular", "inlp", "leace")
OTHER = 77  # a length no cell is used at
LABELS = {"dyck": "depth"}


def made(
    model: str,
    task: str = "parity",
    seed: int = 0,
    *,
    learned: int = 40,
    trained: int = 40,
    beyond: float = 0.9,
    at_trained: float = 1.0,
    strict: float = 0.5,
    profile: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9),
    centre: float = 0.8,
    share: float = 0.3,
    drops: Mapping[int, float] | None = None,
    rank_one: Mapping[int, str] | str = "void",
    conv: Mapping[str, float] | None = None,
    recovery: float = 0.5,
    positions: str = "",
    pretrained: bool = False,
    without: Sequence[str] = (),
    two_classes: bool = False,
    leace_leaves: bool = False,
    untrained: Sequence[float] | None = None,
) -> dict[str, Any]:
    """A cell as `Study.claims` gets it.

    profile: probe accuracies, embedding output first.  drops: layer -> fall at full rank (beyond the control).
    rank_one: layer -> `void` (task falls, state still there), `needed` (falls, gone), `unused` (holds, gone),
    `kept` (holds, still there), or one for all.  conv: mode -> effect of removing all convolutions.
    two_classes: one direction is the whole row space.  leace_leaves: a fresh probe reads the state after LEACE.
    untrained: probe accuracies of the untrained network.
    """
    length = min(learned, trained)
    label = LABELS.get(task.partition(":")[0], "state")
    tables = {
        "behaviour": _behaviour(trained, at_trained, beyond, strict),
        "probes": _probes(label, length, profile, untrained or [0.5] * len(profile)),
        "profile_summary": _summary(label, length, centre, share),
        "erasure": _erasure(label, length, profile, drops or {1: 0.4}, rank_one, two_classes, leace_leaves),
        "components": _components(conv or {}),
        "patching": _patching(length, recovery),
    }
    for name in without:
        del tables[name]
    return {
        "id": f"{task}-{model}-{seed}",
        "config": {
            "task": task,
            "model": model,
            "seed": seed,
            "training": {"length": trained},
            "fine_tuning": {"method": "full"} if pretrained else None,
        },
        "facts": {"learned_length": learned, "positions": positions},
        "tables": tables.get,
    }


def _behaviour(trained: int, at_trained: float, beyond: float, strict: float) -> pd.DataFrame:
    lengths = sorted({trained, *LENGTHS})
    token = [
        {"length": n, "metric": "token", "accuracy": at_trained if n <= trained else beyond} for n in lengths
    ]
    exact = [{"length": n, "metric": "strict", "accuracy": strict} for n in lengths]
    return pd.DataFrame([*token, *exact]).assign(n=200)


def _probes(label: str, length: int, profile: Sequence[float], untrained: Sequence[float]) -> pd.DataFrame:
    rows = []
    for at, name, values in (
        (length, label, profile),
        (length, "second", [1.0 - v for v in profile]),
        (OTHER, label, [0.0] * len(profile)),
    ):
        for layer, value in enumerate(values, start=-1):
            lookups = {f"baseline_{b}": 0.5 for b in ("majority", "position", "token", "token_pair")}
            row = {"layer": layer, "label": name, "length": at, "accuracy": value, **lookups}
            rows.append({**row, "baseline_untrained": untrained[layer + 1]})
    return pd.DataFrame(rows)


def _summary(label: str, length: int, centre: float, share: float) -> pd.DataFrame:
    rows = [(label, length, centre, share), ("second", length, 1 - centre, 0.99), (label, OTHER, 0.0, 0.99)]
    return pd.DataFrame(rows, columns=["label", "length", "depth_centre", "last_block_share"])


RANK_ONE = {  # accuracy, low, refit_low, refit_high, reading
    "void": (0.6, 0.58, 0.9, 0.95, "test void"),
    "needed": (0.6, 0.58, 0.48, 0.51, "candidate necessary"),
    "unused": (1.0, 0.99, 0.48, 0.51, "readable, not used"),
    "kept": (1.0, 0.99, 0.9, 0.95, "test void"),
    "unreadable": (0.6, 0.58, 0.48, 0.51, "not readable"),
}
OPPOSITE = {"void": "unused", "needed": "kept", "unused": "void", "kept": "needed", "unreadable": "void"}


def _erasure(
    label: str,
    length: int,
    profile: Sequence[float],
    drops: Mapping[int, float],
    rank_one: Mapping[int, str] | str,
    two_classes: bool,
    leace_leaves: bool,
) -> pd.DataFrame:
    rows = []
    layers = range(-1, len(profile) - 1)
    for at, basis in [(length, "probe"), *((length, b) for b in BASES), (OTHER, "probe")]:
        decoy = (at, basis) != (length, "probe")
        for layer in layers:
            where = {
                "layer": layer,
                "label": label,
                "length": at,
                "basis": basis,
                "probe": profile[layer + 1],
            }
            how = rank_one if isinstance(rank_one, str) else rank_one.get(layer, "unreadable")
            accuracy, low, refit_low, refit_high, reading = RANK_ONE[OPPOSITE[how] if decoy else how]
            one = {"accuracy": accuracy, "low": low, "refit_low": refit_low, "refit_high": refit_high}
            one |= {"reading": reading, "rank": 1, "full": False, "clean": 1.0, "drop": 1.0 - accuracy}
            drop = drops.get(layer, 0.0)
            drop = 0.9 - drop if decoy else drop
            whole = {"accuracy": 1.0 - drop, "low": 1.0 - drop - 0.02, "refit_low": 0.48, "refit_high": 0.51}
            whole |= {"reading": "inconclusive", "rank": 5, "full": True, "clean": 1.0, "drop": drop}
            if basis == "leace":
                whole |= {"refit_low": 0.9, "refit_high": 0.95} if leace_leaves else {}
            if two_classes and basis == "probe":
                whole = one = {**one, "full": True}
            for row in (one,) if whole is one else (one, whole):
                rows.append(
                    {
                        **where,
                        **row,
                        "baseline": 0.5,
                        "control_low": 0.95,
                        "matched_mark": "variance unmatched" if layer == 0 else "",
                        "beyond_control": row["drop"] > 0.05,
                    }
                )
    return pd.DataFrame(rows)


def _components(conv: Mapping[str, float]) -> pd.DataFrame:
    rows = []
    for mode, effect in conv.items():
        for n in LENGTHS:
            for kind, layers, metric, value in (
                ("conv", "all", "token", effect),
                ("conv", "L1", "token", -effect),
                ("conv", "all", "strict", -effect),
                ("gate", "all", "token", -effect),
            ):
                rows.append(
                    {
                        "kind": kind,
                        "mode": mode,
                        "layers": layers,
                        "length": n,
                        "metric": metric,
                        "clean": 0.9,
                        "effect": value,
                    }
                )
    return pd.DataFrame(rows)


def _patching(length: int, recovery: float) -> pd.DataFrame:
    rows = [  # layer, position, length, mark, recovery: the last block's at the position read is the first
        (3, 10, length, "by construction", recovery),
        (3, 3, length, "by construction", 0.0),
        (3, 3, length, "", 5.0),
        (3, 10, length, "nothing to recover", 8.0),
        (2, 10, length, "by construction", 7.0),
        (3, 10, OTHER, "by construction", 9.0),
    ]
    table = pd.DataFrame(rows, columns=["layer", "position", "length", "mark", "recovery"])
    return table.assign(kind="resid_post", readout=10)


class Claims:
    """The entries of `claims.json` over these cells by id, each tested when asked for."""

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        self.cells = [cell_of(c) for c in cells]

    def __getitem__(self, id: str) -> dict[str, Any]:
        if id in claims:
            return claims.get(id)(self.cells).record()
        return next(c.record() for c in anchor_claims(self.cells) if c.id == id)
