"""Published figures beside ours: every published figure is a row, ours are means by hand, settings are named."""

from __future__ import annotations

import numpy as np
import pytest
from made_cells import made
from scipy import stats

from causegrid.evidence.reference import published
from causegrid.studies.state.anchors import anchors
from causegrid.studies.state.claims import state_claims
from causegrid.studies.state.finished import cell_of


def rows(cells):
    return anchors([cell_of(c) for c in cells])


def pick(found, task, model, layers):
    return [r for r in found if (r["task"], r["model"], r["layers"]) == (task, model, layers)]


def test_every_published_figure_is_a_row():
    data = published("state-encoding")["external_anchor_strict_accuracy_percent"]
    wanted = [v / 100 for task in ("parity", "dyck-1") for values in data[task].values() for v in values]
    wanted += [0.9987, 0.9933]
    found = rows([])
    assert [r["published"] for r in found] == wanted
    assert all(r["measured"] is None and "no cell of ours" in r["settings"][-1] for r in found)


def test_ours_are_means_over_seeds_of_strict_accuracy_in_the_bin():
    values = [0.3, 0.4, 0.5]
    found = pick(
        rows([made("mamba", "parity", s, strict=v) for s, v in enumerate(values)]), "parity", "mamba", 2
    )
    assert [r["lengths"] for r in found] == [[40], [60, 80, 100]]
    assert [r["measured"] for r in found] == pytest.approx([0.4, 0.4])
    half = stats.t.ppf(0.975, 2) * stats.sem(values)
    assert (found[0]["low"], found[0]["high"]) == pytest.approx((0.4 - half, 0.4 + half))
    apart = pick(rows([made("mamba", "parity", s, strict=s) for s in (0, 1)]), "parity", "mamba", 2)[0]
    assert (apart["low"], apart["measured"], apart["high"]) == (0, 0.5, 1)  # uncut: -5.9 to 6.9
    one = pick(rows([made("mamba", "parity", strict=0.3)]), "parity", "mamba", 2)[0]
    wilson = stats.binomtest(60, 200).proportion_ci(method="wilson")
    assert (one["low"], one["high"]) == pytest.approx((wilson.low, wilson.high))
    assert np.isclose(one["measured"], 0.3)


def test_settings_that_differ_are_named_row_by_row():
    cells = [
        made("mamba", "parity"),
        made("mamba:n_layers=2", "parity", 1, strict=0.9),
        made("mamba:conv=false", "parity", 2, strict=0.0),
        made("mamba", "dyck"),
        made("mamba", "dyck:k=8", strict=0.7),
        made("transformer", "parity", learned=3, positions="learned"),
        made("transformer", "parity", 1, learned=26, positions="learned"),
    ]
    found = rows(cells)
    two, three = pick(found, "parity", "mamba", 2)[0], pick(found, "parity", "mamba", 3)[0]
    assert two["measured"] == pytest.approx(0.9) and not any("layers here" in s for s in two["settings"])
    assert three["measured"] == pytest.approx(0.5) and "4 layers here, 3 there" in three["settings"]
    assert three["cells"] == ["parity-mamba-0"]
    dyck = pick(found, "dyck-1", "mamba", 1)[0]["settings"]
    assert "2, 8 bracket types here, 1 there" in dyck
    bounded = pick(found, "bounded dyck", "mamba", 2)
    assert bounded[0]["measured"] == pytest.approx(0.7) and bounded[1]["measured"] is None
    assert not any("bracket types" in s for s in bounded[0]["settings"])
    transformer = pick(found, "parity", "transformer", None)[0]
    assert any("did not learn (parity transformer seed 0) and are in" in s for s in transformer["settings"])
    assert "positions learned here" in transformer["settings"]
    short = "learned to a shorter length than the trained one, and in: to 26: parity transformer seed 1"
    assert short in transformer["settings"] and not any("shorter" in s for s in three["settings"])


def test_anchors_are_entries_of_their_own_kind_with_no_result():
    found = {c["id"]: c for c in state_claims([made("mamba", "parity", s) for s in range(2)])}
    entry = found["A4"]
    assert (entry["kind"], entry["result"]) == ("anchor", "compared")
    assert entry["published"] == "1-50: 91.15 %; 51-100: 16.7 %"
    assert entry["measured"].startswith(
        "1-50 (at 40): 50.0 % [50.0, 50.0] n 2; 51-100 (at 60, 80, 100): 50.0 %"
    )
    assert "4 layers here, 3 there" in entry["why"]
