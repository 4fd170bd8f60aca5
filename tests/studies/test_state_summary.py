"""Summary tables of made-up cells: what each counts, and that cells that did not learn stand in `learned` alone."""

from __future__ import annotations

import pandas as pd
from made_cells import made

from causegrid.studies.state.summary import summaries


def patching(recovery):
    rows = [(20, 39, recovery, ""), (20, 20, 1.0, "by construction"), (3, 39, 9.0, "")]
    table = pd.DataFrame(rows, columns=["position", "readout", "recovery", "mark"])
    return table.assign(kind="state", layer=2, changed=20, length=40, null_recovery=0.125)


def cells():
    some = [
        made("lstm", seed=0, rank_one="void", without=["patching"]),
        made("lstm", seed=1, rank_one="needed", without=["patching"]),
        made("mamba", seed=0, learned=0),
        made("mamba", "dyck", seed=0, conv={"identity": -0.3, "zero": -0.5}),
    ]
    for steps, cell in enumerate(some, start=100):
        cell["facts"] |= {"n_params": 1000, "steps": steps}
        tables = {
            name: cell["tables"](name) for name in ("behaviour", "probes", "profile_summary", "components")
        }
        erasure = cell["tables"]("erasure")
        mean = (erasure["refit_low"] + erasure["refit_high"]) / 2
        extra = {"matched_accuracy": 0.9, "variance": 0.1, "control_variance": 0.03, "removed": True}
        tables["erasure"] = erasure.assign(control_mean=0.98, refit=mean, **extra)
        if cell["config"]["model"] == "lstm":
            tables["patching"] = patching(0.25 if steps == 100 else 0.75)
        cell["tables"] = tables.get
    return some


def test_every_cell_stands_in_learned_and_only_learners_elsewhere():
    found = summaries(cells())
    learned = found["learned"].set_index(["task", "model"])
    assert learned.loc[("parity", "lstm"), "learned to"] == "40, 40"
    assert learned.loc[("parity", "lstm"), "steps"] == "100 to 101"
    assert learned.loc[("parity", "mamba"), "learned to"] == "no"
    for name, table in found.items():
        if name not in ("learned", "behaviour") and "model" in table:
            pairs = set(zip(table["task"], table["model"], strict=True))
            assert ("parity", "mamba") not in pairs, name
            assert ("parity", "lstm") in pairs or name == "components", name  # made cells have no such part


def test_behaviour_has_students_interval_over_seeds():
    some = cells()[:2]
    for cell, value in zip(some, (0.8, 0.9), strict=True):
        behaviour = cell["tables"]("behaviour")
        tables = {
            "behaviour": behaviour.assign(
                accuracy=behaviour["accuracy"].where(behaviour["length"] < 120, value)
            )
        }
        cell["tables"] = tables.get
    found = summaries(some)["behaviour"].set_index("accuracy of")
    assert list(found.index) == ["token", "strict"] and found.loc["token", "at 40"] == "1.00 [1.00, 1.00]"
    half = 12.7062 * (0.005 / 2) ** 0.5  # Student's t of 1 degree of freedom; 0.005: the sample variance
    assert 0.85 + half > 1 and found.loc["token", "at 120"] == f"0.85 [{0.85 - half:.2f}, 1.00]"
    assert summaries(cells()[:1])["behaviour"].iloc[0]["at 60"] == "0.90"


def test_untrained_positions_stand_in_no_row_on_longer_lengths():
    def beyond(positions):
        cell = made("transformer", positions=positions, conv={"zero": -0.5})
        tables = {
            n: cell["tables"](n) for n in ("behaviour", "probes", "profile_summary", "components", "erasure")
        }
        erasure = tables["erasure"].assign(length=80, fitted_length=40, mark="", removed=True)
        tables["erasure_beyond"] = erasure
        del tables["erasure"]
        return {**cell, "facts": cell["facts"] | {"n_params": 1, "steps": 1}, "tables": tables.get}

    table = summaries([beyond("rope"), beyond("learned")])
    assert set(table["beyond"]["blocks"]) == {4 * 2, 4 * 1}  # the blocks of one cell: two ranks, or one
    learned, rope = (summaries([beyond(p)]) for p in ("learned", "rope"))
    assert "beyond" not in learned
    assert set(learned["components"]["longest"]) == {"–"}
    assert set(rope["components"]["longest"]) == {120}


def test_cells_of_unequal_lengths_never_meet():
    some = [*cells()[:2], made("lstm", seed=2, learned=26)]
    rows = summaries([{**c, "facts": c["facts"] | {"n_params": 1, "steps": 1}} for c in some[:2]] + [
        {**some[2], "facts": some[2]["facts"] | {"n_params": 1, "steps": 1}, "tables": {
            n: some[2]["tables"](n) for n in ("behaviour", "probes", "profile_summary")}.get}
    ])  # fmt: skip
    assert list(rows["profiles"]["at length"]) == [40, 40, 26, 26]  # two labels each
    assert rows["learned"]["learned to"].tolist() == ["40, 40, 26"]


def test_readings_count_blocks_of_one_kind():
    table = summaries(cells()[:2])["readings"].set_index("erased")
    one = table.loc["probe, 1 direction"]
    assert one["test void"] == one["candidate necessary"] == one["blocks"] / 2 > 0


def test_profiles_are_gains_over_the_lookup_tables():
    row, other = summaries([cells()[0]])["profiles"].to_dict("records")
    assert (row["label"], other["label"]) == ("state", "second") and other["depth centre"] == "0.20"
    assert row["gain at embedding, then each block"] == "0.00 · 0.20 · 0.40 · 0.60 · 0.80"
    assert row["depth centre"] == "0.80" and row["last-block share"] == "0.30"
    assert row["untrained"] == other["untrained"] == "0.00 · 0.00 · 0.00 · 0.00 · 0.00"
    some = [made("gru", seed=s, untrained=(0.5, 0.9 + 0.1 * s, 0.5, 0.4, 0.5)) for s in range(2)]
    for cell in some:
        cell["facts"] |= {"n_params": 1, "steps": 1}
        cell["tables"].__self__.pop("erasure")
        cell["tables"].__self__.pop("patching")
    row = summaries(some)["profiles"].to_dict("records")[0]
    assert row["untrained"] == "0.00 · 0.90 · 0.00 · 0.00 · 0.00"  # under the tables is no gain


def test_a_change_is_cut_at_what_there_was_to_lose():
    """Clean 0.9: no interval under -90, none over +10."""
    some = [made("mamba", seed=s, conv={"zero": -0.8 + 0.7 * s}) for s in range(2)]
    for cell in some:
        cell["facts"] |= {"n_params": 1, "steps": 1}
        cell["tables"].__self__.pop("erasure")
        cell["tables"].__self__.pop("patching")
    conv = summaries(some)["components"].set_index("removed")
    assert conv.loc["conv", "there, pp"] == "-45.0 [-90.0, +10.0]"
    assert conv.loc["conv", "at the longest, pp"] == "-45.0 [-90.0, +10.0]"


def test_erased_directions_are_counted_as_they_were():
    cell = cells()[0]
    erasure = cell["tables"]("erasure")
    inlp = erasure["basis"] == "inlp"
    erasure.loc[inlp, "rank"] = [45 + i for i in range(inlp.sum())]
    found = summaries(
        [{**cell, "tables": {"erasure": erasure, "behaviour": cell["tables"]("behaviour")}.get}]
    )
    titles = [t for t in found["readings"]["erased"] if t.startswith("INLP")]
    assert titles == ["INLP, 47 to 54 directions"]  # the first two rows are the embedding output


def test_components_and_patching_are_taken_where_they_say():
    found = summaries(cells())
    conv = found["components"].set_index(["task", "removed", "how"])
    assert conv.loc[("dyck", "conv", "identity"), "there, pp"] == "-30.0"
    (row,) = found["patching"].to_dict("records")
    assert row["recovery"] == "0.50 [-2.68, 3.68]" and row["from another pair"] == "0.12 [0.12, 0.12]"
    assert row["by construction"] == "" and row["block"] == 2


def test_erasure_is_a_mean_over_blocks_then_seeds():
    table = summaries(cells()[:2])["erasure"].set_index("erased")
    one = table.loc["probe, 1 direction"]
    assert one["task accuracy"] == "0.60 [0.60, 0.60]" and one["fresh probe"] == "0.71 [0.00, 1.00]"
    assert one["seeds"] == 2 and one["by random ones"] == "0.03 [0.03, 0.03]"
    assert (
        one["random subspaces"] == "0.98 [0.98, 0.98]"
        and one["matched components"] == "0.90 [0.90, 0.90] (2 unmatched)"
    )
