"""Claims over erasures (S3, S4, V2) and over pretrained models, on made-up cells full of decoys."""

from __future__ import annotations

import pytest
from made_cells import Claims, made
from scipy import stats

from causegrid.studies.state.claims import state_claims

TASKS = ("parity", "s3", "z6", "dyck", "a4", "code-depth")
PEAK = (0.5, 0.6, 0.7, 0.8, 0.9)  # the probe is best at layer 3


def every_task(model="gru", **how):
    return [made(model, t, **how) for t in TASKS]


def exact(k, n):
    """Clopper and Pearson from the beta quantiles."""
    low = stats.beta.ppf(0.025, k, n - k + 1) if k else 0.0
    high = stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
    return pytest.approx((low, high))


# --- S3 ------------------------------------------------------------------------------------------------


def test_best_probe_and_most_damaging_layer():
    claim = Claims(every_task(drops={1: 0.4}))["S3"]
    assert claim["result"] == "supported"
    assert (claim["low"], claim["high"]) == exact(6, 6)
    assert claim["measured"] == "6 of 6 (task, family) pairs" and len(claim["cells"]) == 6
    assert Claims(every_task(drops={3: 0.4}))["S3"]["result"] == "contradicted"
    five = Claims(every_task()[:5])["S3"]  # two-sided p .06
    assert five["result"] == "not enough evidence" and (five["low"], five["high"]) == exact(5, 5)


def test_layers_within_one_point_are_the_best_layer_too_and_the_most_damaging():
    near = (0.5, 0.6, 0.895, 0.8, 0.9)
    assert Claims(every_task(profile=near, drops={1: 0.4}))["S3"]["result"] == "contradicted"
    apart = (0.5, 0.6, 0.885, 0.8, 0.9)
    assert Claims(every_task(profile=apart, drops={1: 0.4}))["S3"]["result"] == "supported"
    assert Claims(every_task(drops={1: 0.4, 3: 0.395}))["S3"]["result"] == "contradicted"
    assert Claims(every_task(drops={1: 0.4, 3: 0.385}))["S3"]["result"] == "supported"


def test_the_embedding_output_is_no_layer_that_can_be_most_damaging():
    """Erasing it takes the input away, whatever reads the state."""
    both = Claims(every_task(drops={-1: 0.45, 3: 0.4}))["S3"]
    assert both["result"] == "contradicted" and both["measured"].startswith("0 of 6")
    unread = every_task(drops={1: 0.45, 3: 0.4})
    for c in unread:  # nor is a block that does not read the state
        tables = c["tables"].__self__
        erasure = tables["erasure"]
        tables["erasure"] = erasure.assign(
            reading=erasure["reading"].where(erasure["layer"] != 1, "not readable")
        )
    assert Claims(unread)["S3"]["result"] == "contradicted"


@pytest.mark.parametrize(
    "how",
    [
        {"drops": {1: 0.04}},
        {"drops": {1: -0.4}},
        {"profile": (1.0,) * 5},
        {"drops": dict.fromkeys(range(-1, 4), 0.4)},
    ],
    ids=["within the control", "erasing helps", "all layers best", "all layers damaging"],
)
def test_flat_cells_are_not_asked_and_named(how):
    claim = Claims(every_task(**how))["S3"]
    assert claim["result"] == "not enough evidence" and claim["cells"] == []
    assert "Not asked" in claim["why"] and "parity gru seed 0" in claim["why"]


def test_seeds_and_variants_of_a_family_vote_together():
    cells = [made(m, seed=s) for m in ("mamba", "mamba:conv=false") for s in range(7)]
    claim = Claims(cells)["S3"]
    assert claim["measured"] == "1 of 1 (task, family) pairs" and "14 of 14 cells" in claim["why"]
    assert claim["result"] == "not enough evidence"
    tied = Claims([made("gru", seed=0), made("gru", seed=1, drops={3: 0.4}), *every_task("lstm")])["S3"]
    assert tied["measured"] == "6 of 6 (task, family) pairs" and "1 tied" in tied["why"]


def test_an_erasure_without_the_full_rank_says_nothing():
    cells = every_task()
    for c in cells:
        tables = c["tables"].__self__
        tables["erasure"] = tables["erasure"].assign(full=False)
    assert Claims(cells)["S3"]["result"] == "not enough evidence"


# --- S4 and version 2 ----------------------------------------------------------------------------------

EVERYWHERE = {
    "void": ("supported", "supported", "supported"),
    "needed": ("contradicted", "supported", "contradicted"),
    "kept": ("supported", "contradicted", "not enough evidence"),
    "unused": ("contradicted", "contradicted", "not enough evidence"),
    "unreadable": ("not enough evidence",) * 3,
}


@pytest.mark.parametrize(("how", "expected"), EVERYWHERE.items())
def test_single_directions_and_the_refit(how, expected):
    found = Claims(every_task(rank_one=how))
    assert tuple(found[i]["result"] for i in ("S4", "S4-v1", "V2")) == expected


def test_version_one_is_asked_where_the_probe_is_best_and_version_two_wherever_the_task_falls():
    layers = {0: "void", 1: "void", 2: "void", 3: "needed"}
    found = Claims(every_task(rank_one=layers))
    assert [found[i]["result"] for i in ("S4", "S4-v1", "V2")] == ["contradicted", "supported", "supported"]
    half = Claims(every_task(rank_one={2: "void", 3: "needed"}))["V2"]
    assert half["result"] == "not enough evidence"  # half of the layers are no majority
    elsewhere = Claims(every_task(rank_one={0: "needed", 1: "kept", 2: "kept", 3: "kept"}))
    assert elsewhere["V2"]["result"] == "contradicted"  # where the task holds, version 1 read nothing
    assert elsewhere["S4-v1"]["result"] == "contradicted"


def test_layers_that_read_equally_well_must_agree():
    """Which of equals comes first is no finding: a cell whose best layers disagree has no vote, and is named."""
    flat = (0.5, 0.9, 0.895, 0.6, 0.7)  # layers 0 and 1 within 1 pp
    agree = Claims(every_task(profile=flat, rank_one={0: "void", 1: "void", 2: "needed", 3: "needed"}))
    assert agree["S4"]["result"] == agree["S4-v1"]["result"] == "supported"
    split = Claims(every_task(profile=flat, rank_one={0: "void", 1: "unused", 2: "kept", 3: "kept"}))
    for id in ("S4", "S4-v1"):
        assert split[id]["result"] == "not enough evidence" and split[id]["cells"] == []
    one = Claims([*every_task("lstm"), made("gru", profile=flat, rank_one={0: "void", 1: "unused"})])["S4"]
    assert one["measured"].startswith("6 of 6") and "parity-gru-0" not in one["cells"]
    assert "No vote (layers that disagree, or no clear answer): parity gru seed 0." in one["why"]


def test_the_embedding_output_is_not_asked():
    best_at_embedding = (0.99, 0.6, 0.7, 0.8, 0.9)
    layers = {-1: "needed", 0: "void", 1: "void", 2: "void", 3: "void"}
    found = Claims(every_task(profile=best_at_embedding, rank_one=layers))
    assert found["S4"]["result"] == "supported" and found["V2"]["result"] == "supported"


def test_two_classes_the_whole_row_space_and_leace_stand_beside():
    two = [made(m, "parity", two_classes=True, rank_one="needed") for m in ("gru", "lstm")]
    two += [made("mamba", "parity", two_classes=True, rank_one="void", leace_leaves=True)]
    more = every_task("mamba2")  # void at one direction; gone at all of them
    for id, alone, whole, gone in (
        ("S4", "1 of 3 pairs [0.01, 0.91]", "1 of 9 pairs", "8 of these 9"),
        ("V2", "1 of 3 pairs [0.01, 0.91]", "1 of 9 pairs", "32 of these 36"),
    ):
        claim = Claims([*two, *more])[id]
        assert f"Tasks of two classes alone, whose state can lie in one direction: {alone}." in claim["why"]
        assert f"All C - 1 directions of the probe: {whole}" in claim["why"], claim["why"]
        assert f"LEACE leaves nothing to read at {gone} layers." in claim["why"]


def test_few_pairs_say_that_they_cannot_decide():
    assert "5 pairs cannot decide, whatever they say" in Claims(every_task()[:5])["V2"]["why"]
    assert "cannot decide" not in Claims(every_task())["V2"]["why"]


# --- pretrained ----------------------------------------------------------------------------------------


def pythia(hurt, best=11, n=6):
    profile = [0.6] * 13
    profile[best + 1] = 0.95
    return [
        made("EleutherAI/pythia-160m", "dyck", s, profile=profile, drops={hurt: 0.8}, pretrained=True)
        for s in range(n)
    ]


def test_pythia_160m_on_dyck():
    assert Claims(pythia(6))["pythia-160m-dyck"]["result"] == "supported"
    assert Claims(pythia(3))["pythia-160m-dyck"]["result"] == "contradicted"
    assert Claims(pythia(6, best=9))["pythia-160m-dyck"]["result"] == "contradicted"
    few = Claims(pythia(6, n=1))["pythia-160m-dyck"]
    assert (few["result"], few["measured"]) == ("not enough evidence", "1 of 1 cells")
    formal = Claims([made("transformer", "dyck", s) for s in range(6)])["pythia-160m-dyck"]
    assert formal["cells"] == [] and "needs a cell of pythia-160m" in formal["why"]


def test_pythia_410m_plateau():
    def cells(inside, outside):
        drops = {layer: inside if 4 <= layer <= 18 else outside for layer in range(-1, 24)}
        model = "EleutherAI/pythia-410m"
        return [made(model, "dyck", s, profile=[0.9] * 25, drops=drops, pretrained=True) for s in range(6)]

    assert Claims(cells(0.5, 0.1))["pythia-410m-dyck"]["result"] == "supported"
    assert Claims(cells(0.1, 0.5))["pythia-410m-dyck"]["result"] == "contradicted"
    assert Claims([])["pythia-410m-dyck"]["result"] == "not enough evidence"


@pytest.mark.parametrize("recovery", [0.975, 0.2])
def test_patching_the_last_block_never_supports_anything(recovery):
    model = "state-spaces/mamba-130m-hf"
    cells = [
        made(model, "parity", s, recovery=recovery, pretrained=True, rank_one="unused") for s in range(6)
    ]
    found = Claims(cells)
    claim = found["mamba-130m-patch"]
    assert claim["measured"] == pytest.approx(recovery)  # rows of the position read, not of earlier ones
    assert claim["result"] == "not enough evidence" and "by construction" in claim["why"]
    assert found["mamba-130m-direction"]["result"] == "supported"
    costly = [made(model, "parity", s, pretrained=True, rank_one="void") for s in range(6)]
    assert Claims(costly)["mamba-130m-direction"]["result"] == "contradicted"


@pytest.mark.parametrize(
    "table", ["erasure", "patching", "probes", "profile_summary", "components", "behaviour"]
)
def test_a_cell_without_a_table_is_no_error(table):
    cells = [
        made(m, t, without=[table]) for m in ("mamba", "gru", "transformer") for t in ("parity", "s3", "dyck")
    ]
    assert len(state_claims(cells)) > 14


def test_no_claim_moves_with_the_patching_rows():
    cells, other = every_task(recovery=0.0), every_task(recovery=1.0)
    assert state_claims(cells) == state_claims(other)
