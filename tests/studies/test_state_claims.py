"""Claims over whole profiles and behaviour (S1, S2, S6), and what holds for every claim, on made-up cells."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from made_cells import Claims, made
from scipy import stats

from causegrid.studies.state.claims import claims, state_claims
from causegrid.studies.state.finished import cell_of, untrained_centre

TESTED = [
    *("S1", "S2", "S2-z6", "S3", "S4", "S4-v1", "S5", "S5-post-hoc", "S6", "V2"),
    *("mamba-130m-direction", "mamba-130m-patch", "pythia-160m-dyck", "pythia-410m-dyck"),
]
WIDE = {
    ("transformer", "parity"): 0.4,
    ("transformer", "dyck"): 0.2,
    ("mamba", "parity"): 0.9,
    ("mamba", "dyck"): 0.3,
}


def reversal(n_mamba, n_transformer, centres=WIDE, **other):
    seeds = {"mamba": n_mamba, "transformer": n_transformer}
    return [
        made(m, t, s, centre=v + 0.01 * s * (1 + (t == "parity")), **other)
        for (m, t), v in centres.items()
        for s in range(seeds[m])
    ]


def test_every_claim_is_there_and_undecided_without_cells():
    found = state_claims([])
    tests = [c for c in found if c["kind"] == "claim"]
    assert [c["id"] for c in tests] == TESTED == claims.names()
    assert {c["result"] for c in tests} == {"not enough evidence"}
    assert {c["result"] for c in found if c["kind"] == "anchor"} == {"compared"}
    assert all(c["published"] not in (None, "", "-") and c["why"] for c in found)
    assert not any(c["cells"] for c in found)


# --- S1 ------------------------------------------------------------------------------------------------


def test_seven_seeds_of_mamba_and_four_of_transformer_meet_in_an_exact_test():
    claim = Claims(reversal(7, 4))["S1"]
    differences = {  # Parity minus Dyck, per seed
        "transformer": [0.2 + 0.01 * s for s in range(4)],
        "mamba": [0.6 + 0.01 * s for s in range(7)],
    }
    pool = np.array([*differences["transformer"], *differences["mamba"]])
    seen = np.mean(differences["transformer"]) - np.mean(differences["mamba"])
    gaps = [
        pool[list(chosen)].mean() - np.delete(pool, list(chosen)).mean()
        for chosen in combinations(range(11), 4)
    ]
    p = 2 * min(np.mean(np.array(gaps) <= seen + 1e-12), np.mean(np.array(gaps) >= seen - 1e-12))
    assert p == pytest.approx(2 / 330)
    assert claim["result"] == "supported"
    assert claim["measured"].startswith(
        f"interaction of depth centres {seen:+.3f}; last-block share on Parity: "
    )
    assert "mamba 0.30 [0.30, 0.30] n 7 at 40" in claim["measured"] and "gru" not in claim["measured"]
    welch = stats.ttest_ind(differences["transformer"], differences["mamba"], equal_var=False)
    interval = welch.confidence_interval()
    assert (claim["low"], claim["high"]) == pytest.approx((interval.low, interval.high))
    assert f"p {p:.2g}, least attainable {2 / 330:.2g}, n 11" in claim["why"]
    assert "mamba 7 seeds" in claim["why"] and "transformer 4 seeds" in claim["why"]
    assert len(claim["cells"]) == 2 * (7 + 4)


def test_a_turned_reversal_is_contradicted_and_a_main_effect_is_neither():
    swap = {"mamba": "transformer", "transformer": "mamba"}
    turned = {(swap[m], t): v for (m, t), v in WIDE.items()}
    assert Claims(reversal(5, 5, turned))["S1"]["result"] == "contradicted"
    same = {(m, t): 0.2 + 0.3 * (t == "parity") + 0.2 * (m == "mamba") for m, t in WIDE}
    assert Claims(reversal(7, 4, same))["S1"]["result"] == "not enough evidence"


def test_three_seeds_each_cannot_decide_the_reversal_and_the_claim_says_so():
    claim = Claims(reversal(3, 3))["S1"]
    assert claim["result"] == "not enough evidence"
    assert "cannot give a p below 0.1" in claim["why"]


def test_each_familys_own_difference_and_the_untrained_depth_stand_beside_the_reversal():
    cells = reversal(5, 5, untrained=(0.5, 0.75, 0.5, 0.5, 1.0))  # gains .5 at 1/4, 1 at 1: centre .75
    why = Claims(cells)["S1"]["why"]
    half = stats.t.ppf(0.975, 4) * stats.sem([0.01 * s for s in range(5)])
    assert (
        f"Parity minus Dyck: transformer 0.22 [{0.22 - half:.2f}, {0.22 + half:.2f}] n 5, "
        f"mamba 0.62 [{0.62 - half:.2f}, {0.62 + half:.2f}] n 5." in why
    )
    assert "untrained models: transformer on parity 0.75 [0.75, 0.75] n 5" in why
    assert "transformer on parity unknown n" not in why
    unread = Claims(reversal(5, 5))["S1"]["why"]
    assert "mamba on dyck unknown" in unread


def test_cells_without_their_counterparts_are_named():
    cells = [*reversal(5, 5), made("mamba", "parity", 9), made("gru", "parity", 9)]
    why = Claims(cells)["S1"]["why"]
    assert "Without their counterparts at length 40, left out: parity mamba seed 9." in why
    cells = [*grouping(LATE, LATE), made("gru", "parity", 9), made("mamba", "z6", 1)]
    found = Claims(cells)
    assert "left out: parity gru seed 9." in found["S2"]["why"]
    assert "left out: parity gru seed 9; z6 mamba seed 1." in found["S2-z6"]["why"]
    assert found["S2"]["published"] == "stated, no figure" and found["S2-z6"]["published"].startswith("ours")


def test_the_published_share_stands_beside_ours_of_every_family():
    cells = [
        made(m, "parity", s, share=v + 0.1 * s) for m, v in (("mamba", 0.4), ("gru", 0.1)) for s in range(3)
    ]
    claim = Claims(cells)["last-block-share"]
    half = stats.t.ppf(0.975, 2) * 0.1 / np.sqrt(3)
    assert claim["published"] == {"mamba": 0.58, "transformer": 0.04}
    assert claim["measured"] == {
        "gru": f"0.20 [0.00, {0.2 + half:.2f}] n 3",  # no share is under 0
        "mamba": f"0.50 [{0.5 - half:.2f}, {0.5 + half:.2f}] n 3",
    }
    both = Claims(reversal(5, 5, share=0.25))["S1"]
    assert "Mamba 0.58" in both["published"]
    assert "mamba 0.25 [0.25, 0.25] n 5 at 40, transformer 0.25" in both["why"]


def test_published_profiles_stand_beside_ours_block_by_block():
    found = Claims([made("mamba", "parity", s, profile=(0.5, 0.55, 0.6, 0.7, 1.0)) for s in range(2)])
    claim = found["profile-parity-mamba"]
    assert claim["published"] == "55 · 60 · 71 · 100"
    assert claim["measured"]["mamba"] == (
        "55.0 [55.0, 55.0] · 60.0 [60.0, 60.0] · 70.0 [70.0, 70.0] · 100.0 [100.0, 100.0] (n 2)"
    )
    assert found["profile-dyck-transformer"]["measured"] == "-"


# --- S2 ------------------------------------------------------------------------------------------------

LATE, EARLY = (0.5, 0.5, 0.5, 0.6, 1.0), (0.6, 1.0, 1.0, 1.0, 1.0)


def grouping(s3, z6, n=3):
    shapes = {"parity": LATE, "dyck": EARLY, "s3": s3, "z6": z6}
    return [
        made(m, t, s, profile=[min(1.0, v + 0.01 * s * (t == "s3")) for v in shape])
        for t, shape in shapes.items()
        for m in ("lstm", "gru")
        for s in range(n)
    ]


def test_grouping_and_its_control_both_ways():
    near_parity, near_dyck = (0.5, 0.5, 0.55, 0.6, 1.0), (0.55, 0.95, 1.0, 1.0, 1.0)
    found = Claims(grouping(near_parity, LATE))
    assert found["S2"]["result"] == "supported" and found["S2-z6"]["result"] == "contradicted"
    assert all(
        w in found["S2"]["why"]
        for w in ("s3 to parity 0.0", "s3 to dyck 0.", "z6 to s3 0.", "z6 to parity 0.000")
    )
    assert Claims(grouping(near_dyck, LATE))["S2"]["result"] == "contradicted"
    assert (
        Claims(grouping((0.5, 0.7, 0.7, 0.8, 1.0), (0.5, 0.7, 0.7, 0.8, 1.0)))["S2-z6"]["result"]
        == "supported"
    )
    assert Claims(grouping(near_parity, LATE, n=1))["S2"]["result"] == "not enough evidence"


def test_a_distance_is_the_mean_absolute_difference_of_gains():
    found = Claims(grouping((0.5, 0.5, 0.55, 0.6, 1.0), LATE, n=2))["S2"]
    gain = {k: (np.array(v) - 0.5) / 0.5 for k, v in (("late", LATE), ("early", EARLY))}
    differences = []
    for s in range(2):
        s3 = np.clip((np.minimum(1, np.array((0.5, 0.5, 0.55, 0.6, 1.0)) + 0.01 * s) - 0.5) / 0.5, 0, 1)
        differences.append(np.abs(s3 - gain["early"]).mean() - np.abs(s3 - gain["late"]).mean())
    assert found["measured"] == f"difference of distances {np.mean(differences):+.3f}"
    half = stats.t.ppf(0.975, 3) * stats.sem(2 * differences)  # both families have the same two seeds
    assert (found["low"], found["high"]) == pytest.approx(
        (np.mean(differences) - half, np.mean(differences) + half)
    )


def test_profiles_of_other_lengths_do_not_meet():
    cells = [c for c in grouping(LATE, LATE) if c["config"]["task"] != "s3"]
    cells += [made(m, "s3", s, learned=24, profile=LATE) for m in ("lstm", "gru") for s in range(3)]
    claim = Claims(cells)["S2"]
    assert claim["result"] == "not enough evidence"
    assert (
        "Learned a shorter length, left out: to 24: s3 lstm seeds 0, 1, 2; s3 gru seeds 0, 1, 2."
        in claim["why"]
    )


# --- S6 ------------------------------------------------------------------------------------------------


def lengths(values, n=5, transformer="transformer:positions=rope", **other):
    models = ("gru", "mamba", transformer)
    return [
        made(m, seed=s, beyond=b + 0.001 * s, **other)
        for m, b in zip(models, values, strict=True)
        for s in range(n)
    ]


def test_out_of_length_order_both_ways():
    claim = Claims(lengths((0.99, 0.8, 0.6)))["S6"]
    assert claim["result"] == "supported" and len(claim["cells"]) == 15
    assert "transformer:positions=rope" in claim["why"] and "least attainable" in claim["why"]
    assert claim["measured"].startswith(
        "mean token accuracy over longer lengths: parity at 60, 80, 100, 120: "
    )
    assert Claims(lengths((0.6, 0.8, 0.99)))["S6"]["result"] == "contradicted"
    assert Claims(lengths((0.8, 0.8, 0.8)))["S6"]["result"] == "not enough evidence"


@pytest.mark.parametrize(
    ("model", "scheme"), [("transformer", "learned"), ("transformer:positions=learned", "")]
)
@pytest.mark.parametrize("values", [(0.99, 0.8, 0.6), (0.6, 0.8, 0.99)])
def test_learned_positions_neither_support_nor_contradict(model, scheme, values):
    claim = Claims(lengths(values, transformer=model, positions=scheme))["S6"]
    assert claim["result"] == "not enough evidence"
    assert "learned positions" in claim["measured"] and "not tested" in claim["measured"]


def test_out_of_length_wants_the_whole_trained_length_of_plain_families():
    cells = lengths((0.99, 0.8, 0.6))
    decoys = [made("gru", seed=9, learned=30, beyond=0.1), made("mamba:signed=true", seed=9, beyond=1.0)]
    decoys += [made("mamba", seed=8, learned=3, beyond=1.0), made("mamba:conv=false", seed=9, beyond=1.0)]
    claim = Claims([*cells, *decoys])["S6"]
    assert claim["result"] == "supported" and len(claim["cells"]) == 15
    assert "left out: parity gru seed 9; parity mamba seed 8." in claim["why"]


# --- every claim ---------------------------------------------------------------------------------------


def test_no_claim_uses_a_cell_that_did_not_learn():
    cells = [
        made(m, t, s, learned=5, conv={"identity": -0.5})
        for m in ("transformer:positions=rope", "transformer", "mamba", "mamba:conv=false", "gru", "lstm")
        for t in ("parity", "s3", "z6", "dyck")
        for s in range(7)
    ]
    found = [c for c in state_claims(cells) if c["kind"] == "claim"]
    assert {c["result"] for c in found} == {"not enough evidence"}
    assert not any(c["cells"] for c in found)
    assert all(
        "parity mamba seeds 0, 1, 2" in c["why"] for c in found if c["id"] in ("S1", "S3", "S4", "S6", "V2")
    )


def test_cells_learned_to_a_shorter_length_are_used_there_alone_and_it_is_said():
    tasks = ("parity", "s3", "z6", "dyck", "a4", "code-depth")
    cells = [made(m, t, learned=24) for t in tasks for m in ("gru", "lstm")]
    cells.append(made("mamba", "parity", drops={3: 0.4}))
    claim = Claims(cells)["S3"]
    assert claim["result"] == "supported" and "at length 24" in claim["why"]
    assert "Trained at 40, left out: parity mamba seed 0." in claim["why"]
    assert "At other lengths, beside the test: 0 of 1 cells at 40." in claim["why"]
    assert claim["cells"] == [c["id"] for c in cells[:-1]]


@pytest.mark.parametrize(
    "untrained", [(0.5, 0.7, 0.6, 0.9, 0.8), (0.55, 0.5, 0.5, 0.5, 0.52), (0.5, 0.51, 0.5, 0.52, 0.5)]
)
def test_the_untrained_depth_is_the_summary_of_the_untrained_profile(untrained):
    """Claims are read without torch, so the formula stands twice; the two must say the same."""
    from causegrid.signatures.profile import profile_summary

    cell = cell_of(made("gru", untrained=untrained))
    rows = cell.profile().assign(accuracy=lambda t: t["baseline_untrained"])
    expected = float(profile_summary(rows)["depth_centre"].iloc[0])
    found = untrained_centre(cell)
    assert (found is None and np.isnan(expected)) or found == pytest.approx(expected)
