"""The BOS diagnostic on rows and tables made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from causegrid.signatures.attention import Attention
from causegrid.studies.pattern.bos import bos_groups, bos_heads, bos_table, picked_again

HEADS = [f"L{x}H{h}" for x in range(2) for h in range(5)]
BOS = {"L0H1", "L1H4", "L1H0"}


def classes():
    rows = []
    for name in ("first-token", "induction"):
        for head in HEADS:
            layer, index = int(head[1]), int(head[3])
            hit = head in BOS and name == "first-token"
            rows.append(
                {"class": name, "layer": layer, "head": index, "selectivity": 60.0 if hit else 2.0,
                 "target_mass": 0.9 if hit else 0.1, "best_class": "first-token" if head in BOS else "unclassified",
                 "selected": hit}
            )  # fmt: skip
    return pd.DataFrame(rows)


def rows():
    """Attention to `IO` falls with the head's number, to `S1` and `S2` it is small: name-mover ranks by number."""
    attention = np.zeros((2, 3, 5, 6), dtype=np.float32)
    for i in range(10):
        attention[i // 5, :, i % 5, 1] = 0.9 - 0.05 * i
        attention[i // 5, :, i % 5, 2] = attention[i // 5, :, i % 5, 3] = 0.01
    positions = {"IO": np.full(3, 1), "S1": np.full(3, 2), "S2": np.full(3, 3)}
    return Attention(rows=attention, lengths=np.full(3, 6), positions=positions, task="ioi")


def test_a_screen_takes_the_next_best_heads_that_are_free():
    groups = {"name-mover": ["L0H0", "L0H1", "L0H2"], "induction": ["L0H3", "L1H0"], "s-inhibition": ["L1H1"]}
    found = picked_again(rows(), groups, classes(), rules="strict").set_index("group")
    assert bos_heads(classes()) == BOS
    # L0H3 is induction's, L0H4 is free: the next best eligible one
    assert list(found.loc["name-mover", "heads"]) == ["L0H0", "L0H2", "L0H4"]
    assert list(found.loc["name-mover", "left_out"]) == ["L0H1"] and found.loc["name-mover", "note"] == ""
    # a class has no next best
    assert list(found.loc["induction", "heads"]) == ["L0H3"] and "1 fewer" in found.loc["induction", "note"]
    assert list(found.loc["s-inhibition", "heads"]) == []
    assert "none of its heads" in found.loc["s-inhibition", "note"]


def test_a_group_of_bos_heads_alone_is_not_picked_again():
    found = picked_again(rows(), {"induction": ["L0H1", "L1H0"]}, classes(), rules="paper").iloc[0]
    assert list(found["heads"]) == [] and "every head of it is of the BOS class" in found["note"]


def test_the_sum_of_single_effects_stands_beside_the_groups():
    """The published case in small: one by one +98, together +37, without BOS heads -16."""
    groups = {"name-mover": ["L0H0", "L0H1", "L1H4"]}
    alone = {"L0H0": 8.0, "L0H1": 40.0, "L1H4": 50.0}
    singles = pd.DataFrame(
        [{"group": h, "metric": "top1", "effect": v, "low": v - 1, "high": v + 1} for h, v in alone.items()]
    )
    effects = pd.DataFrame(
        [{"group": g, "mode": "zero", "metric": "top1", "effect": v, "low": v - 2, "high": v + 2}
         for g, v in (("name-mover", 37.0), ("name-mover without BOS", -16.0))]
    )  # fmt: skip
    effects = pd.concat([effects, effects.assign(mode="mean", effect=5.0)])  # another mode stands beside
    again = pd.DataFrame([{"group": "name-mover", "heads": ["L0H0", "L0H2"], "note": "1 fewer"}])
    heads = bos_table(groups, classes(), singles, ("logit_diff", "top1"))
    assert list(heads["bos"]) == [False, True, True] and set(heads["metric"]) == {"top1"}
    assert list(heads["bos_mass"]) == [0.1, 0.9, 0.9]
    found = bos_groups(heads, effects, again, mode="zero").iloc[0]
    assert found["effect"] == 37.0 and found["singles_sum"] == pytest.approx(98.0)
    assert found["bos_sum"] == pytest.approx(90.0) and found["n_bos"] == 2
    assert (found["again_effect"], found["again_low"], found["again_high"]) == (-16.0, -18.0, -14.0)
    assert list(found["again"]) == ["L0H0", "L0H2"]


def test_neither_a_bos_head_nor_an_ineligible_one_is_the_next_best():
    """L0H1 looks at `IO` more than any free head and is of the BOS class; of the rest only L0H3 is eligible."""
    groups = {"name-mover": ["L0H0", "L0H2", "L1H4"]}
    found = picked_again(rows(), groups, classes(), rules="strict").iloc[0]
    assert list(found["heads"]) == ["L0H0", "L0H2", "L0H3"]
    few = rows()
    few.rows[0, :, 4, 1] = few.rows[1, :, :, 1] = 0.05  # under the least attention of a task screen
    again = picked_again(few, groups, classes(), rules="strict").iloc[0]
    assert list(again["heads"]) == ["L0H0", "L0H2", "L0H3"]
    groups = {"name-mover": ["L0H0", "L0H2", "L0H3", "L1H4"]}
    none = picked_again(few, groups, classes(), rules="strict").iloc[0]
    assert list(none["heads"]) == groups["name-mover"][:3]
    assert none["note"] == "1 fewer: no other head is eligible"
