"""The calibration: its cells, its replicates, what stopping early would have used, and the page it fills."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pydantic import ValidationError

from causegrid import calibrate
from causegrid.errors import InputError
from causegrid.models import planted
from causegrid.report.markdown import filled as filled_page
from causegrid.report.markdown import write_page
from causegrid.studies.calibrating.exchange import null_trials
from causegrid.studies.calibrating.intervals import interval_trials
from causegrid.studies.calibrating.replicate import replicate
from causegrid.studies.calibrating.summary import summaries
from causegrid.studies.calibration import (
    HEAD_DIM,
    Calibration,
    CalibrationConfig,
    PlantedFamily,
    PlantedGroup,
)
from causegrid.zoo import train_zoo

ROOT = Path(__file__).parents[2]
CIRCUIT = PlantedFamily(
    name="circuit, small",
    groups=(
        PlantedGroup(role="primary", share=0.3),
        PlantedGroup(role="correlate"),
        PlantedGroup(role="bos-interferer", share=0.2),
    ),
    layers=2,
    heads=14,
    noise=0.02,
)
BACKED = PlantedFamily(
    name="circuit, backed up",
    groups=(
        PlantedGroup(role="primary", share=0.4, placement="early"),
        PlantedGroup(role="backup", share=0.2, placement="late"),
    ),
    layers=4,
    heads=12,
    noise=0.02,
)
NOTHING = PlantedFamily(
    name="nothing, small",
    groups=(PlantedGroup(role="null"), PlantedGroup(role="null")),
    layers=2,
    heads=12,
    noise=0.05,
    stop=False,
)


def cells(**changes):
    config = {"study": "calibration", "families": [CIRCUIT.model_dump()], "per_cell": 2, **changes}
    return Calibration().cells(CalibrationConfig.model_validate(config))


def test_cells_cover_every_replicate_once():
    family = CIRCUIT.model_copy(update={"prompts": (16, 32), "replicates": 5})
    found = cells(families=[family.model_dump()])
    assert [(c.n_prompts, c.first, c.replicates) for c in found] == [
        (16, 0, 2),
        (32, 0, 2),
        (16, 2, 2),
        (32, 2, 2),
        (16, 4, 1),
        (32, 4, 1),
    ]


def test_more_replicates_leave_the_cells_there_are_as_they_were():
    few = cells(families=[CIRCUIT.model_copy(update={"replicates": 4}).model_dump()])
    more = cells(families=[CIRCUIT.model_copy(update={"replicates": 6}).model_dump()])
    assert more[: len(few)] == few


def test_bad_families_are_refused():
    with pytest.raises(InputError, match="two families are named 'circuit, small'"):
        cells(families=[CIRCUIT.model_dump()] * 2)
    with pytest.raises(InputError, match="plants 9 heads in 2 layers of 4"):
        cells(families=[CIRCUIT.model_copy(update={"heads": 4}).model_dump()])
    with pytest.raises(InputError, match="cannot share 5"):
        cells(families=[CIRCUIT.model_copy(update={"kv_heads": 5}).model_dump()])


def test_a_backup_needs_a_primary_before_it_and_layers_after_it():
    primary, backup = BACKED.groups
    for groups, why in (
        ((backup,), "no primary listed before it"),
        ((backup, primary), "no primary listed before it"),
        ((primary.model_copy(update={"placement": "spread"}), backup), "placement: early"),
        ((primary, backup.model_copy(update={"placement": "one"})), "placement: late"),
    ):
        with pytest.raises(InputError, match=f"'circuit, backed up'.*{why}"):
            cells(families=[BACKED.model_copy(update={"groups": groups}).model_dump()])
    with pytest.raises(InputError, match="at least 2 layers"):
        cells(families=[BACKED.model_copy(update={"layers": 1}).model_dump()])
    assert len(cells(families=[BACKED.model_dump()])) == 50


def test_a_width_that_was_always_there_is_in_no_cells_id():
    """Cells from before heads had a width keep their ids; another width is another cell, and is read back."""
    assert HEAD_DIM == planted.HEAD_DIM
    assert "head_dim" not in CIRCUIT.model_dump(mode="json")
    wide = CIRCUIT.model_copy(update={"head_dim": 16})
    assert wide.model_dump(mode="json") == CIRCUIT.model_dump(mode="json") | {"head_dim": 16}
    (cell, *_) = cells(families=[wide.model_dump()])
    assert cell.family.head_dim == 16 and "width 16" in Calibration().cost(cell)
    found = replicate(wide, 16, [0, 1]), replicate(CIRCUIT, 16, [0, 1])
    assert not found[0]["effect"].equals(found[1]["effect"])
    with pytest.raises(ValidationError, match="greater than or equal to 8"):
        PlantedFamily(name="narrow", groups=CIRCUIT.groups, head_dim=4)


@pytest.fixture(scope="module")
def circuit() -> pd.DataFrame:
    return replicate(CIRCUIT, 16, [0, 1])


def test_a_plain_circuit_is_read_as_planted(circuit):
    one = circuit[(circuit["metric"] == "logit_diff")].set_index(["rules", "group"])
    assert one.loc[("strict", "primary"), "combined"] == "primary"
    assert one.loc[("strict", "correlate"), "combined"] == "correlate"
    assert "constant writer" in one.loc[("strict", "bos-interferer"), "marks"]
    assert one.loc[("paper", "primary"), "verdict"] == "primary"
    # 0.3 of a margin of 4 logits, all of it under zero ablation
    assert one.loc[("paper", "primary"), "effect"] == pytest.approx(-1.2, rel=0.3)
    assert one.loc[("paper", "primary"), "n_null"] == 10


@pytest.fixture(scope="module")
def backed() -> pd.DataFrame:
    return replicate(BACKED, 32, [0, 4])


def test_a_backup_hides_behind_its_primary(backed):
    """Alone it is `null`, its primary costs what is not made up for, and only the two together show the share."""
    one = backed[backed["metric"] == "logit_diff"].set_index(["rules", "role"])
    assert set(backed["role"]) == {"backed primary", "backup", "primary and backup"}
    assert one.loc[("strict", "backup"), "combined"] == one.loc[("paper", "backup"), "combined"] == "null"
    assert one.loc[("strict", "backed primary"), "combined"] == "primary"
    share = -one["effect"] / one["baseline"]
    assert share["paper", "backed primary"] == pytest.approx(0.2, rel=0.3)
    assert share["paper", "primary and backup"] == pytest.approx(0.4, rel=0.3)
    assert share["strict", "backed primary"] < 0.5 * share["strict", "primary and backup"]
    assert abs(share["paper", "backup"]) < 0.03
    assert "redundant" in one.loc[("paper", "primary and backup"), "marks"]
    assert "redundant" in one.loc[("paper", "backed primary"), "marks"]
    assert "redundant" not in one.loc[("paper", "backup"), "marks"] + one.loc[("strict", "backup"), "marks"]
    # the union is neither ranked nor corrected for: 2 groups compete
    assert one.loc[("strict", "primary and backup"), "combined"] not in ("primary", "co-primary", "secondary")
    assert set(one.loc["strict", "n_null"].fillna(0)) <= {0, *range(10, 160)}
    assert one.loc[("strict", "backed primary"), "p_holm"] == pytest.approx(2 / 160 * 2, rel=1e-3)


def test_the_union_has_marks_and_no_row_of_confusion(circuit, backed):
    def cell(family, table):
        return {
            "id": family.name,
            "config": {"family": {"name": family.name}, "n_prompts": 32},
            "facts": {},
            "tables": {"verdicts": table.assign(replicate=0)}.get,
        }

    before = summaries([cell(CIRCUIT, circuit)])
    assert list(before["marks"].columns) == [
        "families",
        "role",
        "groups",
        "`constant writer`",
        "and its zero interval excludes 0",
    ]
    found = summaries([cell(CIRCUIT, circuit), cell(BACKED, backed)])
    for rules in ("strict", "paper"):
        rows = found[f"confusion {rules}"].set_index("planted")
        assert set(rows.index) == {"primary", "correlate", "bos-interferer", "backed primary", "backup"}
        assert rows.loc["backup", "null"] == "100"
    marks = found["marks"].set_index("role")
    for mode, rules in (("mean", "strict"), ("zero", "paper")):
        of = marks[f"`redundant`, {mode} ablation"].str.split(" %").str[0].astype(float)
        said = backed[(backed["rules"] == rules) & (backed["metric"] == "logit_diff")].set_index("role")[
            "marks"
        ]
        assert (of[list(said.index)] == 100 * said.str.contains("redundant")).all()
        assert of["primary"] == of["correlate"] == of["bos-interferer"] == of["backup"] == 0
    assert (of[["primary and backup", "backed primary"]] == 100).all()
    assert before["marks"].equals(found["marks"][list(before["marks"].columns)].iloc[:3])


def test_a_replicate_is_a_function_of_its_seed(circuit):
    pd.testing.assert_frame_equal(replicate(CIRCUIT, 16, [0, 1]), circuit)


def test_stopping_afterwards_is_stopping_early():
    """The draws kept of a full null are those an early stop draws: same p, same verdict."""
    full = replicate(NOTHING, 16, [0, 3])
    early = replicate(NOTHING.model_copy(update={"stop": True}), 16, [0, 3])
    after = full[full["rules"] == "strict, stopped early"].drop(columns="rules").reset_index(drop=True)
    before = early[early["rules"] == "strict"].drop(columns="rules").reset_index(drop=True)
    pd.testing.assert_frame_equal(after, before)
    assert (after["n_null"] < 159).any()
    assert set(full.loc[full["rules"] == "strict", "n_null"]) == {159}


def test_intervals_are_about_the_population():
    table = interval_trials(CIRCUIT, 16, [0, 0])
    zero = table[table["mode"] == "zero"]
    assert (zero["truth"] == zero["given"]).all()  # zero ablation has no reference
    mean = table[(table["mode"] == "mean") & (table["metric"] == "logit_diff") & (table["role"] == "primary")]
    assert (mean["truth"] != mean["given"]).all()
    assert mean["truth"].iloc[0] == pytest.approx(-1.2 * 0.75, rel=0.35)
    assert ((table["high_t"] - table["low_t"]) >= (table["high"] - table["low"]) - 1e-12).all()


def test_draws_that_may_hold_own_heads_keep_the_level_and_others_do_not():
    """Nothing is there: 5 % of exact p-values are at most .05.  Groups of 4 of 16 heads a layer, drawn from the
    other 12, are called significant far more often: their own sampling error is not in the null."""
    family = NOTHING.model_copy(update={"groups": (PlantedGroup(role="null", size=8),), "heads": 16})
    trials = pd.concat([null_trials(family, 16, [3, i]) for i in range(120)])
    small = (trials["p"] <= 0.05).groupby(trials["draws"]).mean()
    assert small["the group's own too"] < 0.11 < small["other heads"]


def test_summaries_count_models_not_groups():
    rows = [
        {"family": "nothing, x", "asks": "nothing", "prompts": 16, "replicate": i, "group": g, "role": "null"}
        | {
            "share": 0.0,
            "rules": "strict",
            "metric": "logit_diff",
            "combined": v,
            "marks": "",
            "n_null": 99.0,
        }
        | {"p_holm": 0.01 if v == "primary" else 0.5, "low": -1.0, "high": 1.0}
        for i, verdicts in enumerate([("primary", "secondary"), ("null", "null"), ("null", "inconclusive")])
        for g, v in zip(("a", "b"), verdicts, strict=True)
    ]
    paper = [row | {"rules": "paper", "combined": "null", "p_holm": float("nan")} for row in rows]
    table = pd.DataFrame([*rows, *paper]).drop(columns=["family", "prompts", "asks"])
    cell = {
        "id": "a",
        "config": {"family": {"name": rows[0]["family"]}, "n_prompts": rows[0]["prompts"]},
        "facts": {},
        "tables": {"verdicts": table}.get,
    }
    found = summaries([cell])["false positives"]
    assert set(found["models"]) == {3}
    by_rules = found.groupby("rules")["rate"].apply(list)
    assert all(rate.startswith("33.3 %") for rate in by_rules["strict"])
    assert all(rate.startswith("0.0 %") for rate in by_rules["published"])


def test_a_group_borne_by_one_head_is_told_apart_by_family_and_changes_no_other_cells_id():
    group = {"role": "primary", "share": 0.4}
    assert PlantedGroup(**group).model_dump() == PlantedGroup(**group, bearers=None).model_dump()
    assert "bearers" not in PlantedGroup(**group).model_dump()
    assert PlantedGroup(**group, bearers=1).model_dump()["bearers"] == 1
    rows = [
        {"role": "primary", "rules": rules, "metric": "logit_diff", "combined": verdict, "p_holm": p, "replicate": i,
         "group": "primary", "marks": "", "low": -1.0, "high": -0.5, "n_null": 159, "share": 0.4}
        for rules in ("strict", "paper")
        for i, (verdict, p) in enumerate([("primary", 0.02), ("inconclusive", 0.3), ("inconclusive", 0.4)])
    ]  # fmt: skip
    family = {"name": "concentrated, 1 of 3 heads", "question": "verdicts"}
    cell = {"config": {"family": family, "n_prompts": 64}, "tables": {"verdicts": pd.DataFrame(rows)}.get}
    found = summaries([cell])["concentrated"]
    assert (
        list(found["rules"]) == ["strict", "published"]
        and list(found["corrected p, median"]) == ["0.300"] * 2
    )
    assert all(rate.startswith("33.3 %") for rate in found["called `primary`"])


@pytest.mark.parametrize("verb", [calibrate.calibrate, train_zoo])
def test_a_study_file_of_another_study_is_refused_and_nothing_written(tmp_path, verb):
    study = tmp_path / "other.yaml"
    study.write_text("study: pattern-selectivity\ngrid: [{tasks: [ioi], models: [smollm2-135m]}]\n")
    with pytest.raises(
        InputError, match=r"is a study file of 'pattern-selectivity', this takes one of '(zoo|cal)"
    ):
        verb(study, tmp_path / "run", engine="inline")
    assert not (tmp_path / "run").exists()


def test_the_page_is_filled_from_a_run(tmp_path):
    study = tmp_path / "tiny.yaml"
    study.write_text(
        "study: calibration\nper_cell: 1\nfamilies:\n"
        '  - {name: "intervals, tiny", question: intervals, groups: [{role: primary, share: 0.2}], layers: 1,'
        " heads: 4, prompts: [8], replicates: 2}\n"
    )
    outcome, found = calibrate.calibrate(study, tmp_path / "run", engine="inline")
    assert outcome.exit_code == 0 and outcome.n_done == 2
    again, _ = calibrate.calibrate(study, tmp_path / "run", engine="inline")
    assert again.n_cached == 2
    page = "before\n<!-- table coverage -->\nold\n<!-- end -->\nafter\n"
    filled = filled_page(page, found)
    assert filled.startswith("before\n<!-- table coverage -->\n| metric | mode | prompts |")
    assert filled.endswith("<!-- end -->\nafter\n") and "old" not in filled
    assert filled_page(filled, found) == filled
    (tmp_path / "page.md").write_text(page)
    write_page(tmp_path / "page.md", tmp_path / "run")
    assert (tmp_path / "page.md").read_text() == filled
    with pytest.raises(InputError, match=r"'coverge'.*coverage"):
        filled_page(page.replace("coverage", "coverge"), found)


def test_shipped_study_files_are_valid():
    from causegrid.runs.config import load

    for file in ("studies/calibration.yaml", "src/causegrid/studies/examples/calibration.yaml"):
        study, config = load(ROOT / file)
        assert len(study.cells(config)) >= 3
