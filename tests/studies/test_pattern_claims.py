"""Claims of study P on cells made by hand; the permutation test against brute force; published cells by name."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pandas as pd
import pytest

from causegrid.evidence import published
from causegrid.studies.pattern.anchors import anchors
from causegrid.studies.pattern.claims import pattern_claims
from causegrid.studies.pattern.claims.layer_zero import heavy
from causegrid.studies.pattern.claims.previous_token import GROUP, permutation
from causegrid.studies.pattern.published import most_harmful, published_groups, skipped, valid

HEADS = {"previous-token": ["L0H1", "L0H2"], "induction": ["L4H1"], "task": ["L7H0", "L7H1"]}


def cell(task, model, family, primary, *, seed=0, sd=(0.9, 0.1, 0.1), top1=None, leads=True):
    """A cell whose `primary` group is primary on the margin (`top1`: on top-1), the others correlates."""
    rows = []
    for (group, heads), width in zip(HEADS.items(), sd, strict=True):
        for metric in ("logit_diff", "top1"):
            first = primary if metric == "logit_diff" else (top1 or primary)
            verdict = "co-primary" if group == first else "correlate"
            rows.append(
                {"group": group, "heads": heads, "kind": "competing", "metric": metric, "baseline": 2.0,
                 "effect": -1.0 if group == first else 0.0, "null_sd": width, "verdict": verdict, "differs": False,
                 "combined": "co-primary" if group == primary else "correlate", "leads": leads}
            )  # fmt: skip
    union = {
        **rows[0],
        "group": "all groups",
        "kind": "descriptive",
        "verdict": "primary",
        "combined": "primary",
    }
    beside = [{**r, "leads": False, "verdict": "null", "combined": "null"} for r in rows]
    verdicts = pd.DataFrame([*rows, union, *beside])
    effects = pd.DataFrame(
        [{"group": g, "mode": m, "metric": "top1", "effect": e} for g in HEADS
         for m, e in (("zero", -0.25), ("mean", 9.0))]
    )  # fmt: skip
    tables = {"verdicts": verdicts, "effects": effects}
    return {
        "id": f"{task}-{model}-{seed}", "config": {"task": task, "model": model, "seed": seed},
        "facts": {"family": family}, "tables": tables.get,
    }  # fmt: skip


def results(cells):
    return {c["id"]: c for c in pattern_claims(cells) if c["kind"] == "claim"}


def test_nothing_is_claimed_from_nothing():
    found = results([])
    assert set(found) == {"P1", "P2", "P2-top1", "P2-dense", "P3", "P4", "P5"}
    assert {c["result"] for c in found.values()} == {"not enough evidence"}


def brute(units):
    """Every relabelling of every unit, one by one."""
    totals = [sum(choice) for choice in itertools.product(*[list(u.values()) for u in units])]
    seen = sum(u[GROUP] for u in units)
    more, less = (
        Fraction(sum(ok(t) for t in totals), len(totals)) for ok in (lambda t: t >= seen, lambda t: t <= seen)
    )
    return seen, Fraction(sum(totals), len(totals)), min(Fraction(1), 2 * min(more, less))


@pytest.mark.parametrize("sizes", [(3,), (4, 3, 3, 3), (2, 5, 3)])
def test_the_null_of_primacy_is_every_relabelling(sizes):
    for wins in itertools.product((Fraction(0), Fraction(1, 2), Fraction(1)), repeat=len(sizes)):
        units = []
        for n, win in zip(sizes, wins, strict=True):
            unit = {GROUP: win, **{f"g{i}": Fraction(0) for i in range(n - 1)}}
            unit["g0"] += 1 - win  # the seeds it does not win go to another group
            units.append(unit)
        assert permutation(units)[:3] == brute(units)


def test_primacy_needs_units_not_seeds():
    """Ten seeds of one cell are one unit: 1 of 1 with three groups cannot be beyond chance."""
    one = [cell("ioi", "moe", "olmoe", "previous-token", seed=s) for s in range(10)]
    found = results(one)["P2"]
    assert found["result"] == "not enough evidence" and found["measured"] == "1 of 1"
    assert "this many cannot reach 0.05" in found["why"]
    many = [cell(f"t{i}", "moe", "olmoe", "previous-token") for i in range(4)]
    found = results(many)
    assert found["P2"]["result"] == "supported" and "p 0.025" in found["P2"]["why"]  # 2 / 3^4
    assert len(found["P2"]["cells"]) == 4
    never = [cell(f"t{i}", "moe", "olmoe", "task") for i in range(12)]
    assert results(never)["P2"]["result"] == "contradicted"  # 2 (2/3)^12 = 0.015


def test_primacy_by_top1_and_by_the_margin_are_two_claims():
    cells = [cell(f"t{i}", "moe", "olmoe", "task", top1="previous-token") for i in range(4)]
    found = results(cells)
    assert found["P2-top1"]["result"] == "supported" and found["P2"]["result"] == "not enough evidence"
    assert found["P2"]["measured"] == "0 of 4"


def test_dense_and_mixtures_are_compared_by_count():
    cells = [cell(f"t{i}", "moe", "olmoe", "previous-token") for i in range(6)]
    cells += [cell(f"t{i}", "dense", "llama", "task") for i in range(6)]
    found = results(cells)
    assert found["P2-dense"]["result"] == "supported" and found["P2-dense"]["measured"] == pytest.approx(1.0)
    assert "Dense models: 0 of 6" in found["P2"]["why"]


def test_only_the_leading_rules_and_competing_groups_count():
    found = results([cell("ioi", "m", "llama", "task")])
    assert found["P3"]["measured"] == "primary 1, secondary 0, interferer 0, correlate 2, null 0"


def test_a_task_differs_when_no_group_is_primary_everywhere():
    same = [cell(t, m, "llama", "task") for t in "abcdef" for m in ("x", "y")]
    assert (
        results(same)["P1"]["result"] == "contradicted" and results(same)["P1"]["measured"] == "0 of 6 tasks"
    )
    other = [cell(t, m, "llama", g) for t in "abcdef" for m, g in (("x", "task"), ("y", "induction"))]
    assert results(other)["P1"]["result"] == "supported"
    # one seed of three that says otherwise does not make a model's primary
    seeds = [cell("a", "x", "llama", g, seed=s) for s, g in enumerate(("task", "task", "induction"))]
    found = results([*seeds, cell("a", "y", "llama", "task")])["P1"]
    assert found["measured"] == "0 of 1 tasks" and found["result"] == "not enough evidence"
    found = results([*seeds, cell("a", "y", "llama", "induction")])["P1"]
    assert found["measured"] == "1 of 1 tasks"
    tied = results([*seeds[1:], cell("a", "y", "llama", "induction")])["P1"]
    assert tied["measured"] == "0 of 1 tasks" and "x induction/task" in tied["why"]


def test_layer_zero_groups_are_compared_by_the_width_of_their_null():
    cells = [cell(t, m, "llama", "task") for t in "abc" for m in "xyz"]
    found = results(cells)["P5"]
    assert found["result"] == "supported" and found["measured"] == pytest.approx((0.9 - 0.1) / 2.0)
    few = [cell("a", "x", "llama", "task", seed=s) for s in range(9)]
    assert results(few)["P5"]["result"] == "not enough evidence"


def test_disagreement_is_counted_where_both_metrics_are_definite():
    found = results([cell("a", "x", "llama", "task", top1="induction")])["P4"]
    assert found["measured"] == "2 of 3 groups" and found["result"] == "supported"


@pytest.mark.parametrize("unsure", ["no headroom", "inconclusive", "not testable (draws)"])
def test_a_group_that_is_definite_on_one_metric_alone_is_not_counted(unsure):
    one = cell("a", "x", "llama", "task", top1="induction")
    table = one["tables"]("verdicts")
    table.loc[(table["group"] == "previous-token") & (table["metric"] == "top1"), "verdict"] = unsure
    assert results([one])["P4"]["measured"] == "2 of 2 groups"


def test_half_of_the_heads_in_layer_zero_are_enough():
    assert heavy(["L0H1", "L5H2"]) and heavy(["L0H1"])
    assert not heavy(["L0H1", "L5H2", "L6H0"]) and not heavy(["L10H0", "L1H0"])


def test_invalid_published_cells_are_left_out_by_name():
    bad = {
        (b["task"].replace("_", "-"), b["model"]) for b in published("pattern-selectivity")["known_invalid"]
    }
    assert len(bad) == 4
    invalid = [g for g in published_groups() if g.invalid]
    assert {(g.task, g.model) for g in invalid} == bad and len(invalid) == 8
    assert {g.group for g in invalid} == {"previous-token", "induction"}
    assert all(f"{task} {model}" in skipped() for task, model in bad)
    assert not bad & set(most_harmful("top1")) and not {id(g) for g in invalid} & {id(g) for g in valid()}
    cells = published("pattern-selectivity")["cells"]
    names = {
        "prev_token_circuit": "previous-token",
        "name_mover_top5": "name-mover",
        "s_inhibition_top5": "s-inhibition",
    }
    for (task, model), (group, _) in most_harmful("top1").items():
        derived = cells[task.replace("-", "_")][model]["derived_most_harmful_valid_screen_by_top1"]
        assert names.get(derived, group) == group


def test_published_cells_stand_beside_ours_under_zero_ablation():
    ours = cell("ioi", "EleutherAI/pythia-1b", "gpt_neox", "task")
    rows = [r for r in anchors([ours]) if r["task"] == "ioi" and r["model"].endswith("pythia-1b")]
    found = {(r["group"], r["metric"]): r for r in rows}
    assert found["previous-token", "top1"]["published"] == pytest.approx(-0.82)
    assert found["previous-token", "top1"]["measured"] == pytest.approx(-0.25)  # zero, never mean
    assert found["name-mover", "top1"]["measured"] is None and found["name-mover", "top1"]["n"] == 0
    skipped_rows = [r for r in anchors([]) if r["skipped"]]
    assert skipped_rows and all(r["published"] is None for r in skipped_rows)
    entry = next(c for c in pattern_claims([ours]) if c["id"] == "ioi-pythia-1b")
    assert entry["kind"] == "anchor" and entry["result"] == "compared"
    assert "previous-token -82.0 pp, -3.43 logits" in entry["published"]
    assert "previous-token -25.0 pp" in entry["measured"]
    other = next(c for c in pattern_claims([ours]) if c["id"] == "greater-than-pythia-1b")
    assert "skipped: induction, previous-token (OLMoE circuit JSON" in other["why"]


def test_heads_left_to_an_earlier_screen_are_named_beside_the_published_group():
    ours = cell("ioi", "EleutherAI/pythia-1b", "gpt_neox", "task")
    groups = pd.DataFrame(
        {"group": ["induction", "local", "previous-token"],
         "note": ["L4H2 counts in name-mover; L5H0 counts in local", "L9H9 counts in induction", ""]}
    )  # fmt: skip
    tables = ours["tables"]
    ours["tables"] = lambda name: groups if name == "groups" else tables(name)
    entry = next(c for c in pattern_claims([ours]) if c["id"] == "ioi-pythia-1b")
    assert "induction without L4H2 (counts in name-mover), L5H0 (counts in local)" in entry["why"]
    assert "L9H9" not in entry["why"]  # no published group of that name
    assert "count once here" not in next(
        c["why"] for c in pattern_claims([cell("ioi", "EleutherAI/pythia-1b", "gpt_neox", "task")])
        if c["id"] == "ioi-pythia-1b"
    )  # fmt: skip


@pytest.mark.parametrize("id", ["P1", "P2", "P2-top1", "P2-dense"])
def test_claims_beside_published_cells_name_those_left_out(id):
    cells = [cell("ioi", m, "gpt_neox", "task") for m in ("a", "b")] + [cell("ioi", "c", "olmoe", "task")]
    for given in (cells, []):
        found = next(c for c in pattern_claims(given) if c["id"] == id)
        assert skipped() in f"{found['published']} {found['why']}"


def test_a_model_trained_from_another_seed_is_no_other_model():
    names = ("zoo-olmo", "zoo-olmo:seed=1")
    alone = [cell("a", m, "olmo", g) for m, g in zip(names, ("task", "induction"), strict=True)]
    assert results(alone)["P1"]["result"] == "not enough evidence"
    assert "two models or more" in results(alone)["P1"]["why"]
    found = results([*alone, cell("a", "zoo-olmoe", "olmoe", "previous-token")])["P1"]
    assert found["measured"] == "1 of 1 tasks" and "zoo-olmo induction/task" in found["why"]
    widths = list(zip(names, ((0.9, 0.1, 0.1), (0.7, 0.1, 0.1)), strict=True))
    both = [cell(t, m, "olmo", "task", sd=sd) for m, sd in widths for t in "ab"]
    assert "n 6" in results(both)["P5"]["why"]  # two tasks of three groups, not four
    assert results(both)["P5"]["measured"] == pytest.approx((0.8 - 0.1) / 2.0)
    other = [cell(t, m, "olmo", "task") for t in "ab" for m in ("zoo-olmo:depth=2,seed=1", "zoo-olmo")]
    assert "n 12" in results(other)["P5"]["why"]


def test_disagreement_names_the_cells_it_counted():
    sure = cell("a", "x", "llama", "task", top1="induction")
    unsure = cell("b", "x", "llama", "task")
    table = unsure["tables"]("verdicts")
    table.loc[table["metric"] == "top1", "verdict"] = "no headroom"
    assert results([sure, unsure])["P4"]["cells"] == [sure["id"]]


def test_groups_that_sit_elsewhere_in_another_seeds_model_stand_apart():
    """name-mover in layer 0 of one model and above in the other: a heavy unit and a light one, not their mean."""
    cells = [cell(t, m, "olmo", "task") for t in "ab" for m in ("zoo-olmo", "zoo-olmo:seed=1")]
    for one in cells[1::2]:
        table = one["tables"]("verdicts")
        table["heads"] = [
            ["L5H1"] if g == "previous-token" else h
            for g, h in zip(table["group"], table["heads"], strict=True)
        ]
    assert "n 8" in results(cells)["P5"]["why"]  # 2 tasks x (3 groups + previous-token once more)


def test_primacy_permutes_labels_within_one_list_of_groups():
    """A group that only one seed's model has cannot change places with the others'."""
    cells = [
        cell("ioi", m, "olmoe", "previous-token")
        for m in ("zoo-olmoe", "zoo-olmoe:seed=1", "zoo-olmoe:seed=2")
    ]
    table = cells[2]["tables"]("verdicts")
    extra = table[table["group"] == "task"].assign(group="extra")
    cells[2]["tables"] = {"verdicts": pd.concat([table, extra]), "effects": cells[2]["tables"]("effects")}.get
    found = results(cells)["P2"]
    assert found["measured"] == "1 of 1" and "0.333 expected by chance" in found["why"]
