"""The sequential matched null: what it uses does not depend on how many draws were ablated together."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from causegrid.evidence import SequentialNull, matched_random
from causegrid.studies.pattern import matched_null as room

GROUPS = {"inside": ["L0H0", "L3H1"], "far": ["L1H2", "L2H3"]}
METRICS = ("logit_diff", "top1")


class Effects:
    """Stands for an Ablator: a draw's effect is a fixed function of its heads."""

    model = SimpleNamespace(n_heads=8)

    def __init__(self):
        self.asked = 0

    def table(self, groups, mode, *, intervals, progress):
        self.asked += len(groups)
        rows = []
        for done, (name, heads) in enumerate(groups.items()):
            for metric in METRICS:
                effect = value(heads, metric)
                rows.append(
                    {"group": name, "heads": heads, "metric": metric, "effect": effect, "clean": [1.0]}
                )
            progress(done + 1, len(groups))
        return pd.DataFrame(rows)


def value(heads, metric):
    return np.random.default_rng([ord(c) for c in "".join(sorted(heads)) + metric]).normal()


def measured():
    rows = [
        {"group": group, "metric": metric, "values": [0.1 if group == "inside" else -50.0]}
        for group in GROUPS
        for metric in METRICS
    ]
    return pd.DataFrame(rows)


def run(monkeypatch, first, **options):
    monkeypatch.setattr(room, "FIRST_CHUNK", first)
    ablator = Effects()
    found = room.matched_null(ablator, GROUPS, measured(), prompts=[0], mode="zero", n=99, **options)
    return ablator.asked, *found


@pytest.mark.parametrize("first", [1, 7, 24, 1000])
def test_the_draws_used_do_not_depend_on_the_chunks(first, monkeypatch):
    asked, draws, notes = run(monkeypatch, first)
    # by hand: draws in order until both metrics have ten on either side of the group's effect
    drawn = matched_random(GROUPS["inside"], n_heads=8, n=159, exclude=GROUPS["far"])
    used = 0
    for metric in METRICS:
        effects = np.array([value(heads, metric) for heads in drawn])
        sides = np.minimum(np.cumsum(effects <= 0.1), np.cumsum(effects >= 0.1))
        used = max(used, int(np.argmax(sides >= 10)) + 1)
    assert 20 <= used < len(drawn)
    inside = draws[(draws["null_for"] == "inside") & (draws["metric"] == "top1")]
    assert list(inside["draw"]) == [f"draw-{i:04d}" for i in range(used)]
    assert [list(h) for h in inside["heads"]] == [list(h) for h in drawn[:used]]
    by_group = notes.set_index("group")
    assert by_group.loc["inside", "n_null"] == used and by_group.loc["inside", "stopped"]
    far = by_group.loc["far", "n_possible"]
    assert by_group.loc["far", "n_null"] == min(159, far) and not by_group.loc["far", "stopped"]
    if first == 1000:
        assert asked == by_group["n_possible"].clip(upper=159).sum()


def test_without_early_stopping_every_draw_is_used(monkeypatch):
    asked, draws, notes = run(monkeypatch, 24, early_stop=False)
    assert not notes["stopped"].any() and asked == notes["n_null"].sum() == len(draws) / 2


def test_the_p_of_a_stopped_null_is_the_sequential_one(monkeypatch):
    _, draws, _ = run(monkeypatch, 24)
    for metric in METRICS:
        rows = draws[(draws["null_for"] == "inside") & (draws["metric"] == metric)]
        running = SequentialNull(0.1)
        running.add(rows["effect"].to_numpy())
        assert running.done
