"""Made-up but plausible tables of state-encoding cells, by stage, without training anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

FAMILIES = ("transformer", "mamba", "mamba2", "lstm", "gru")
LAYERS = (-1, 0, 1, 2, 3)
LENGTHS = (40, 60, 80, 100, 120)
BEYOND = (80, 100, 120)
CLASSES = {"parity": 2, "s3": 6, "z6": 6, "dyck": 11, "code-depth": 11}
PARTS = {
    "transformer": ["attn_out", "mlp_out"],
    "mamba": ["conv", "gate", "ssm_input"],
    "lstm": ["gate", "state"],
}
STAGES = {
    "train": ["training", "behaviour", "training_summary"],
    "probe": ["probes", "profile_summary"],
    "erase": ["erasure"],
    "beyond": ["erasure_beyond"],
    "components": ["components"],
    "patch": ["patching"],
}
Rows = Iterator[dict[str, Any]]


def state_cell(task: str, model: str, seed: int = 0, **config: Any) -> dict[str, Any]:
    training = {"length": 40, "steps": 900}
    return {
        "study": "state-encoding",
        "task": task,
        "model": model,
        "seed": seed,
        "training": training,
        **config,
    }


def state_grid(
    tasks: Sequence[str] = ("parity", "s3"), seeds: int = 3, models: Sequence[str] = FAMILIES
) -> list[dict[str, Any]]:
    return [state_cell(t, m, s) for t in tasks for m in models for s in range(seeds)]


class Cell:
    """The transformer learns no group to 40, mamba learns no S3, one seed of three of mamba2 no Dyck."""

    def __init__(self, task: str, model: str, seed: int) -> None:
        self.task, self.model, self.seed, self.family = task, model, seed, model.split(":")[0]
        self.rng = np.random.default_rng([*map(ord, task + model), seed])
        self.recurrent = self.family in ("lstm", "gru")
        self.reached = 40
        if self.family == "transformer" and task in ("parity", "s3", "z6"):
            self.reached = 24
        if (self.family in ("mamba", "mamba2") and task == "s3") or (task, model, seed) == (
            "dyck",
            "mamba2",
            2,
        ):
            self.reached = 4
        self.classes = CLASSES.get(task, 2)
        self.chance = 1 / self.classes
        self.shown = self.reached if 8 <= self.reached < 40 else 40
        self.lengths = sorted({self.shown, 40})
        self.labels = {"s3": ["element", "parity"], "dyck": ["depth", "top"]}.get(task, ["state"])
        self.learned = (
            "learned"
            if self.reached >= 40
            else f"learned to {self.reached}"
            if self.reached >= 8
            else "not learned"
        )

    def near(self, value: float, width: float = 0.02) -> tuple[float, float]:
        return (
            max(0.0, value - width * (0.5 + self.rng.random())),
            min(1.0, value + width * (0.5 + self.rng.random())),
        )

    def training(self, steps: int) -> Rows:
        for step in range(1, steps + 1):
            progress = min(1.0, step / (0.8 * steps))
            length = max(4, int(4 + (self.reached - 4) * progress) // 2 * 2)
            bend = 1 - 0.3 * np.exp(-((step % 40) / 12)) - 0.02 * self.rng.random()
            accuracy = self.chance + (1 - self.chance) * bend * (1.0 if self.reached > 4 else 0.4)
            yield {
                "step": step,
                "length": length,
                "loss": 2.5 * (1 - accuracy) + 0.02,
                "token_accuracy": accuracy,
            }

    def behaviour(self) -> Rows:
        for n in LENGTHS:
            fall = np.exp(-max(n - self.reached, 0) / (35 + 5 * self.seed))
            good = 1.0 if self.recurrent else self.chance + (1 - self.chance) * fall
            for metric, value in (("token", good), ("strict", good ** (n / 12)), ("last", good**2)):
                low, high = self.near(value)
                yield {"length": n, "metric": metric, "accuracy": value, "low": low, "high": high, "n": 200}

    def top(self, length: int) -> float:
        return 0.99 if self.reached >= 40 else 0.8 if length == self.reached else 0.45

    def base(self, label: str) -> float:
        return 0.52 if self.classes == 2 or label == "parity" else 0.2

    def read(self, layer: int, label: str, length: int) -> float:
        shape = min(1, layer + 1) if self.recurrent else (layer + 1) / 4
        base = self.base(label)
        return base + max(self.top(length) - base, 0) * shape ** (1.5 if self.family == "transformer" else 1)

    def probes(self) -> Rows:
        for length in self.lengths:
            for label in self.labels:
                base = self.base(label)
                for layer in LAYERS:
                    value = self.read(layer, label, length) - 0.02 * self.rng.random()
                    low, high = self.near(value, 0.015)
                    yield {
                        "layer": layer, "label": label, "length": length, "accuracy": value, "low": low, "high": high,
                        "balanced": value, "n_train": 200, "n_test": 150, "baseline_majority": base - 0.03,
                        "baseline_position": base - 0.02, "baseline_token": base - 0.01, "baseline_token_pair": base,
                        "baseline_untrained": base + 0.03 * self.rng.random(), "baseline_shuffled": base - 0.05,
                        "shuffled_low": base - 0.06, "shuffled_high": base - 0.04, "baseline_control": base + 0.1,
                        "control_low": base + 0.08, "control_high": base + 0.12, "n_draws": 3,
                        "selectivity": value - base - 0.1, "n_positions": 40,
                    }  # fmt: skip

    def profile(self) -> Rows:
        for length in self.lengths:
            for label in self.labels:
                centre = 0.25 if self.recurrent else 0.6 + 0.05 * self.rng.random()
                yield {
                    "label": label, "length": length, "base": self.base(label), "total_gain": 0.9,
                    "last_block_share": 0.1 + 0.1 * self.seed, "depth_centre": centre if self.reached >= 40 else np.nan,
                }  # fmt: skip

    def erased(self, length: int, used_from: int, beyond: bool) -> Rows:
        full, label = self.classes - 1, self.labels[0]
        ranks = sorted({1, full} if beyond else {k for k in (1, 2, 4) if k <= full} | {full})
        wanted = [(b, k) for b in ("probe", "principal", "singular") for k in ranks]
        for layer in LAYERS:
            first = self.read(layer, label, length)
            base, top = self.base(label), self.top(length)
            for basis, rank in [*wanted, ("inlp", min(2 * full, 3 + 2 * layer + 4)), ("leace", full)]:
                whole = basis in ("inlp", "leace") or (basis == "probe" and rank == full)
                gone = whole if basis != "principal" else False
                hit = (layer >= used_from) * (0.9 if gone else 0.3 if basis == "probe" else 0.1)
                accuracy = top - (top - self.chance) * hit - 0.01 * self.rng.random()
                refit = base + 0.004 if gone else max(base, first - 0.1)
                low, high = self.near(accuracy)
                refit_low, refit_high = self.near(refit, 0.012)
                control = top - 0.04 - 0.03 * self.rng.random() - 0.01 * rank
                reading = "not readable" if first - base < 0.03 else "test void" if refit_low > base + 0.02 else (
                    "inconclusive" if refit_high > base + 0.02 else "readable, not used" if low >= top - 0.02
                    else "candidate necessary" if accuracy < control else "inconclusive"
                )  # fmt: skip
                yield {
                    "layer": layer, "label": label, "length": length, "basis": basis, "rank": rank,
                    "full": rank == full, "iterations": 24 if basis == "inlp" else np.nan,
                    "variance": 0.1, "control_variance": rank / 128, "clean": top, "accuracy": accuracy, "low": low,
                    "high": high, "drop": top - accuracy, "control_mean": top - 0.02, "control_low": control,
                    "control_high": top, "n_control": 39, "matched_accuracy": top - 0.03, "matched_variance": 0.1,
                    "matched_mark": "variance unmatched" if layer == 0 else "", "probe": first,
                    "probe_low": first - 0.01, "refit": refit, "refit_low": refit_low, "refit_high": refit_high,
                    "refit_control": first - 0.01, "baseline": base, "beyond_control": accuracy < control,
                    "reading": reading,
                }  # fmt: skip

    def erasure(self) -> Rows:
        for length in self.lengths:
            yield from self.erased(length, 1, False)

    def beyond(self) -> Rows:
        for fitted in self.lengths:
            for length in BEYOND:
                for row in self.erased(fitted, 1 + (length > 100), True):
                    yield {**row, "fitted_length": fitted, "length": length, "mark": ""}

    def components(self) -> Rows:
        kinds = PARTS.get(self.family.rstrip("2"), PARTS["lstm"])
        for kind in kinds:
            for mode in ("zero", "mean", *(["identity"] if kind == "conv" else [])):
                for layer in (0, 1, 2, 3, pd.NA):
                    for length in dict.fromkeys((*self.lengths, *LENGTHS)):
                        for metric in ("token", "strict", "last"):
                            clean = self.top(length)
                            harm = -(clean - self.chance) * (
                                0.9 if layer is pd.NA else 0.2 * self.rng.random()
                            )
                            low, high = harm - 0.02 * self.rng.random(), harm + 0.03 * self.rng.random()
                            yield {
                                "kind": kind, "mode": mode, "layer": layer, "layers": "", "length": length,
                                "metric": metric, "clean": clean, "accuracy": clean + harm,
                                "effect": harm, "low": low, "high": high, "n": 200, "noise": 0.0,
                                "flag": "within noise" if harm > -0.01 else "",
                            }  # fmt: skip

    def patching(self) -> Rows:
        """Block outputs and states at every position, the other kinds at the changed one."""
        part = "state" if self.recurrent else "attn_out"
        for length in self.lengths:
            changed = length // 2
            for kind in ("resid_pre", "resid_post", part):
                for layer in range(4):
                    for position in range(length) if kind in ("resid_post", "state") else [changed]:
                        for read in sorted({length - 1, *([position] if position >= changed else [])}):
                            yield self.patch(kind, layer, position, changed, read, length)

    def patch(
        self, kind: str, layer: int, position: int, changed: int, read: int, length: int
    ) -> dict[str, Any]:
        last = kind == "resid_post" and layer == 3
        given = last or position < changed or (kind == "resid_pre" and layer == 0)
        value = np.exp(-abs(position - changed - 6 * layer) / 6) * (position >= changed)
        value = float(position == read) if last else value + 0.02 * self.rng.normal() * (not given)
        row = {
            "site": f"L{layer}.{kind}@{position}", "kind": kind, "layer": layer, "position": position,
            "changed": changed, "readout": read, "label": self.labels[0], "length": length, "n": 96, "left_out": 4,
            "n_null": 5, "mark": "by construction" if given else "",
        }  # fmt: skip
        numbers = {"recovery": value, "low": value - 0.05, "high": value + 0.04}
        null = (0.4, 0.3, 0.52) if position == changed else (np.nan,) * 3
        numbers |= dict(zip(("null_recovery", "null_low", "null_high"), null, strict=True))
        if self.learned == "not learned":
            row["mark"], numbers = "nothing to recover", dict.fromkeys(numbers, np.nan)
        return {**row, **numbers}

    def facts(self, steps: int) -> dict[str, Any]:
        return {
            "family": self.family, "n_params": 400_000 + 1000 * len(self.model),
            "steps": steps if self.reached < 40 else 250 * (self.seed + 1), "solved": self.reached >= 40,
            "learned_length": self.reached, "learned": self.learned, "schedule": "curriculum", "lr": 1e-3,
            "positions": "learned" if self.family == "transformer" else "",
        }  # fmt: skip


def state_tables(cell: Mapping[str, Any]) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """The tables of one cell and its facts."""
    made = Cell(cell["task"], cell["model"], cell["seed"])
    facts = made.facts(cell["training"].get("steps", 900))
    found = {
        "training": made.training(facts["steps"]), "behaviour": made.behaviour(), "probes": made.probes(),
        "profile_summary": made.profile(), "erasure": made.erasure(), "erasure_beyond": made.beyond(),
        "components": made.components(), "patching": made.patching(),
    }  # fmt: skip
    tables = {k: pd.DataFrame(list(v)) for k, v in found.items()}
    for name in ("erasure", "erasure_beyond"):
        stopped = tables[name]["basis"] == "inlp"
        tables[name]["removed"] = stopped.where(stopped, pd.NA).astype("boolean")
    tables["components"] = tables["components"].astype({"layer": "Int64"})
    return {**tables, "training_summary": pd.DataFrame([facts])}, facts
