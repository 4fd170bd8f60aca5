"""The patching table against plain torch runs, networks whose answer is known, and cells known beforehand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from known_states import known

import causegrid as cg
from causegrid.errors import InputError
from causegrid.studies.state.patching import patching_table
from causegrid.studies.state.stages import StateStages
from causegrid.studies.state_encoding import Patching
from causegrid.tasks import task
from causegrid.tasks.base import StateTask
from causegrid.tasks.pairs import pairs

LENGTH, CHANGED, N = 12, 6, 24


def sharp(family, name="s3", **options):
    """An untrained model whose head is loud enough that its pairs move the readout."""
    model = cg.model(family, task=task(name), seed=3, d_model=16, n_layers=3, **options)
    with torch.no_grad():
        for where, weight in model.module.named_parameters():
            if where.startswith("head"):
                weight *= 4000
            elif "weight_hh" in where or "weight_ih" in where:
                weight *= 4
    return model


def made(model, name="s3", **options):
    return patching_table(model, task(name), **{"length": LENGTH, "n_pairs": N, "n_null": 3, **options})


def row(table, site, readout):
    found = table[(table.site == site) & (table.readout == readout)]
    assert len(found) == 1
    return found.iloc[0]


def ratio(clean, corrupt, patched, found, read):
    """Recovery from three runs' logits (B, L, C), written out."""
    at = np.arange(N)
    one, two = (v["state"][:, read] for v in (found.labels_clean, found.labels_corrupt))
    down, up, mid = (
        (v[at, read, one] - v[at, read, two]).double().numpy() for v in (corrupt, clean, patched)
    )
    ok = up - down >= 0.5
    return (mid - down)[ok].mean() / (up - down)[ok].mean(), int(ok.sum())


@pytest.mark.parametrize(("layer", "position"), [(0, CHANGED), (1, CHANGED), (1, CHANGED + 3)])
def test_an_lstm_state_equals_a_run_in_two_pieces(layer, position):
    model = sharp("lstm")
    found = pairs(task("s3"), N, LENGTH, seed=[0, 34], least=8)

    def run(tokens, given=None):
        x = model.module.embed(torch.from_numpy(tokens))
        for i, block in enumerate(model.module.blocks):
            plain = torch.nn.LSTM(16, 16, batch_first=True)
            plain.load_state_dict(block.state_dict())
            head, (h, c) = plain(x[:, : position + 1])
            kept = (h, c) if i == layer else None
            if i == layer and given is not None:
                h, c = given
                head = torch.cat([head[:, :-1], h.transpose(0, 1)], dim=1)
            if i == layer:
                out_state = kept
            x = torch.cat([head, plain(x[:, position + 1 :], (h, c))[0]], dim=1)
        return model.module.head(x), out_state

    with torch.no_grad():
        clean, state = run(found.clean)
        corrupt, _ = run(found.corrupt)
        patched, _ = run(found.corrupt, state)
    table = made(model)
    for read in (position, LENGTH - 1):
        want, n = ratio(clean, corrupt, patched, found, read)
        got = row(table, f"L{layer}.state@{position}", read)
        assert got.recovery == pytest.approx(want, abs=1e-3) and got.n == n and got.left_out == N - n


@pytest.mark.parametrize("family", ["transformer", "mamba"])
def test_a_part_of_a_block_equals_plain_hooks(family):
    model = sharp(family)
    found = pairs(task("s3"), N, LENGTH, seed=[0, 34], least=8)
    part = model.module.blocks[1].attn if family == "transformer" else model.module.blocks[1].mixer
    kept = []

    def swap(_module, _args, out):
        if not kept:
            kept.append(out.clone())
            return None
        out = out.clone()
        out[:, CHANGED] = kept[0][:, CHANGED]
        return out

    with torch.no_grad():
        corrupt = model.module(torch.from_numpy(found.corrupt))
        handle = part.register_forward_hook(swap)
        clean = model.module(torch.from_numpy(found.clean))
        patched = model.module(torch.from_numpy(found.corrupt))
        handle.remove()
    table = made(model, grid=False)
    assert "state" not in set(table.kind) or family == "mamba"
    for read in (CHANGED, LENGTH - 1):
        want, n = ratio(clean, corrupt, patched, found, read)
        got = row(table, f"L1.attn_out@{CHANGED}", read)
        assert got.recovery == pytest.approx(want, abs=1e-4) and got.n == n


@pytest.mark.parametrize("family", ["lstm", "gru", "transformer", "mamba", "mamba2"])
def test_what_is_marked_by_construction_is_0_or_1_as_it_must_be(family):
    model = sharp(family)
    table = made(model)
    sure = table[table.mark == "by construction"]
    near = np.minimum(abs(sure.recovery), abs(sure.recovery - 1))
    assert near.max() < 2e-3
    for layer in range(3):
        for read, want in ((CHANGED, 1), (LENGTH - 1, 0)):
            if layer == 2:
                got = row(table, f"L{layer}.resid_post@{CHANGED}", read)
                assert got.recovery == pytest.approx(want, abs=2e-3) and got.mark == "by construction"
        assert row(table, f"L{layer}.resid_post@{CHANGED}", CHANGED).mark == "by construction"
        assert row(table, f"L{layer}.resid_post@{CHANGED - 1}", LENGTH - 1).mark == "by construction"
    assert row(table, f"L0.resid_pre@{CHANGED}", LENGTH - 1).mark == "by construction"
    assert row(table, f"L1.resid_post@{CHANGED + 2}", LENGTH - 1).mark == ""
    open_rows = table[(table.mark == "") & (table.readout > table.position)]
    assert len(open_rows) > 10 and (abs(open_rows.recovery) > 1e-4).any()


def test_the_grid_has_every_layer_and_position_and_the_changed_one_a_null():
    table = made(sharp("gru"))
    grid = table[(table.kind == "resid_post") & (table.readout == LENGTH - 1)]
    assert sorted(zip(grid.layer, grid.position, strict=True)) == [
        (i, p) for i in range(3) for p in range(LENGTH)
    ]
    states = table[(table.kind == "state") & (table.readout == LENGTH - 1) & (table.layer == 1)]
    assert sorted(states.position) == [0, *range(CHANGED - 1, LENGTH)]
    behind = table.kind.isin(["resid_post", "state"]) & table.position.isin([CHANGED + 1, LENGTH - 1])
    here = (table.position == CHANGED) | behind
    assert (table.n_null[here] == 3).all() and (table.n_null[~here] == 0).all()
    assert table.null_recovery[~here].isna().all() and table.null_recovery[here].notna().all()
    assert (table.null_low[here] <= table.null_recovery[here]).all()
    assert not table.duplicated(["site", "readout"]).any() and set(table.changed) == {CHANGED}


def test_a_network_that_reads_the_token_in_block_1_carries_it_back_there_and_not_above():
    """Block 1 sums the bits of its whole input; nothing moves between positions afterwards."""
    table = made(known({0: 0.0}, {0: 4.0}), "parity", kinds=("resid_pre", "resid_post"), n_null=10)
    last = LENGTH - 1
    for site, want in (("L0.resid_post", 1), ("L1.resid_pre", 1), ("L1.resid_post", 0), ("L2.resid_pre", 0)):
        got = row(table, f"{site}@{CHANGED}", last)
        assert got.recovery == pytest.approx(want, abs=1e-5) and got.mark == ""
    assert row(table, f"L1.resid_post@{last}", last).recovery == pytest.approx(1, abs=1e-5)
    null = row(table, f"L0.resid_post@{CHANGED}", last)  # half of all other bits are the clean one
    assert 0.25 < null.null_recovery < 0.75 and null.null_high < 1
    assert row(table, f"L1.resid_post@{CHANGED}", last).null_recovery == pytest.approx(0, abs=1e-5)


def test_a_model_that_did_not_learn_has_rows_without_numbers():
    calls = []
    table = made(
        known({0: 0.0}, {0: 1e-3}),
        "parity",
        kinds=("resid_post",),
        progress=lambda *given: calls.append(given),
    )
    assert (
        set(table.mark) == {"nothing to recover"} and table.recovery.isna().all() and table.low.isna().all()
    )
    assert (table.n == 0).all() and (table.left_out == N).all() and table.null_recovery.isna().all()
    assert len(table) == 3 * (2 * LENGTH - CHANGED - 1) and not calls


class Bare(StateTask):
    """A task of one's own: it samples, and makes no twins."""

    name, n_tokens, labels = "bare", 2, {"state": 2}

    def sample(self, n, length, *, seed, split):
        return task("parity").sample(n, length, seed=seed, split=split)


def test_a_task_without_pairs_keeps_the_cell_and_says_why():
    cell = SimpleNamespace(seed=0, training=SimpleNamespace(length=LENGTH), patching=Patching(n_pairs=8))
    work, tables = StateStages(cell), {}
    work.task, work._model = Bare(), sharp("lstm", "parity")
    work.patch(
        SimpleNamespace(
            table=lambda name: pd.DataFrame({"learned_length": [LENGTH]}),
            save_table=tables.__setitem__,
            progress=lambda *given: None,
        )
    )
    found = tables["patching"]
    whole = made(sharp("lstm", "parity"), "parity", grid=False)
    assert list(found) == list(whole) and set(found.site) == set(whole.site)
    assert found.recovery.isna().all() and found.null_low.isna().all() and (found.n == 0).all()
    assert set(found.mark) == {
        "task 'bare' has no corrupted twins, so nothing can be patched: see tasks.pairs"
    }
    with pytest.raises(InputError, match="no corrupted twins"):
        patching_table(work._model, work.task, length=LENGTH)


def test_progress_ends_at_its_total():
    calls = []
    made(sharp("gru"), grid=False, progress=lambda done, total, what: calls.append((done, total, what)))
    assert calls[-1][0] == calls[-1][1] == len(calls) and "12" in calls[0][2]


def test_bad_input_is_refused():
    model = sharp("transformer", max_length=16)
    with pytest.raises(InputError, match="did you mean 'resid_post'"):
        made(model, kinds=("resid_pots",))
    with pytest.raises(InputError, match="no recurrent state"):
        made(model, kinds=("state",))
    with pytest.raises(InputError, match="length 20 is beyond this Transformer's 16"):
        made(model, length=20)
    with pytest.raises(InputError, match="has 6 outputs"):
        made(sharp("gru"), "s4")
    with pytest.raises(InputError, match="2 tokens"):
        made(model, length=1)
