"""The sweep benchmarks: their yardstick, their clock, their sample, and the rows at tiny sizes."""

from __future__ import annotations

import copy
import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import causegrid as cg
from benchmarks import bench, interplay, parties
from benchmarks import kept as store
from benchmarks.competitors import env
from benchmarks.competitors.client import Competitor
from benchmarks.competitors.plain import Plain, projections
from benchmarks.interplay import Pauses
from benchmarks.rows import sweep_neox, sweep_scaling, sweeps
from benchmarks.workload import Job, cell_jobs, metric_oracle, sample, tiny, unions
from causegrid.interventions.heads import Ablator

TINY = dict(layers=3, heads=4, width=32, vocabulary=97, n_prompts=6, length=5)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_plain_hooks_do_what_zeroed_weights_do(family: str) -> None:
    work = tiny(family, **TINY)
    without = copy.deepcopy(work.model.module)
    for layer, head in ((0, 3), (2, 1), (2, 2)):
        projections(without)[layer].weight.data[:, 8 * head : 8 * head + 8] = 0.0
    with torch.no_grad():
        wanted = without(input_ids=work.tokens).logits[:, -1]
        clean = work.model.module(input_ids=work.tokens).logits[:, -1]
    for last in (False, True):
        found = Plain(work.model.module, work.tokens, last=last).last_logits({0: [3], 2: [1, 2]})
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    assert (wanted - clean).abs().max() > 1e-4
    with torch.no_grad():
        assert torch.equal(work.model.module(input_ids=work.tokens).logits[:, -1], clean)


def test_other_families_have_no_plain_loop() -> None:
    from tests.tiny import hf

    with pytest.raises(ValueError, match="gpt2"):
        projections(hf("gpt2"))


def test_metrics_of_the_plain_loop() -> None:
    work = tiny(**{**TINY, "n_prompts": 2})
    logits = torch.zeros(2, 97)
    logits[0, int(work.prompts.answers[0][0])] = 2.0
    logits[1, int(work.prompts.foils[1][0])] = 1.0
    found = metric_oracle(logits, work.prompts)
    np.testing.assert_allclose(found["logit_diff"], [2.0, -1.0])
    e = float(np.e)
    np.testing.assert_allclose(found["answer_prob"], [e * e / (96 + e * e), 1 / (96 + e)], rtol=1e-9)


def test_the_cell_holds_every_head_set_once() -> None:
    work = tiny(**{**TINY, "heads": 8})
    jobs = cell_jobs(work, draws=7)
    kinds = {kind: [j for j in jobs if j.kind == kind] for kind in ("group", "union", "single", "draw")}
    assert {k: len(v) for k, v in kinds.items()} == {"group": 5, "union": 26, "single": 24, "draw": 35}
    everything = {h for heads in work.groups.values() for h in heads}
    assert set(unions(work.groups)[" + ".join(work.groups)]) == everything
    assert sorted(j for part in sweeps.parts(jobs, list(work.groups)) for j in map(hash, part)) == sorted(
        map(hash, jobs)
    )
    wanted = cg.matched_random(
        work.groups["group 2"], n_heads=8, n=7, seed=0, exclude=[h for g in work.groups.values() for h in g]
    )
    assert [list(j.heads) for j in kinds["draw"][14:21]] == list(wanted)


def test_a_sample_has_each_kind_by_its_share() -> None:
    jobs = [Job("draw", str(i), ("L0H0",)) for i in range(90)] + [Job("group", "a", ("L0H0",))] * 10
    picked = sample(jobs, 20, seed=3)
    assert [j.kind for j in picked].count("draw") == 18 and len(picked) == 20
    assert picked == sample(jobs, 20, seed=3) != sample(jobs, 20, seed=4)


def test_our_clock_stands_still_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(interplay.time, "perf_counter", lambda: now[0])
    lengths = itertools.chain([2.0, 4.0], itertools.repeat(4.0))

    def plain(_job: Job) -> float:
        now[0] += 100.0
        return next(lengths)

    clock = Pauses(plain, {"tool": lambda _: 6.0}, [Job("single", "a", ("L0H0",))], every=5.0, often=2)
    clock.start()
    for tick in range(4):
        now[0] += 3.0
        clock(tick, None)  # pauses after 6 s and after 12 s
    assert clock.ours == [6.0, 6.0] and clock.neighbour == [2.0, 4.0]
    assert clock.seconds == 12.0
    assert clock.cost == pytest.approx(6.0 / 2.0 + 6.0 / 3.0)
    assert clock.versus == {"tool": [3.0]}


def test_a_worker_answers_as_the_loop_in_this_process(tmp_path: Path) -> None:
    work = tiny("llama", **TINY)
    work.model.module.save_pretrained(tmp_path)
    jobs = cell_jobs(work, draws=1)[:3]
    with Competitor(Path(sys.executable), "plain", tmp_path, work.tokens.tolist(), threads=1) as worker:
        assert worker.version == torch.__version__
        assert all(s > 0 for s in worker.seconds([j.layers for j in jobs]))
        found = worker.logits([j.layers for j in jobs])
    here = Plain(work.model.module, work.tokens)
    for job, logits in zip(jobs, found, strict=True):
        np.testing.assert_allclose(logits, here.last_logits(job.layers).numpy(), atol=1e-6)


def test_a_worker_that_dies_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no_such_tool"):
        Competitor(Path(sys.executable), "no_such_tool", tmp_path, [[1]], threads=1)


def test_the_cell_row_takes_kept_values_only_under_their_own_stamp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(env, "FOLDER", tmp_path)
    work = tiny("llama", **{**TINY, "heads": 8})
    jobs = cell_jobs(work, draws=2)
    ablator = Ablator(work.model, work.prompts)
    made = parties.conditions(ablator, jobs)
    values = dict(zip(jobs, (v for _, v in ablator.planner.run(made)), strict=True))
    path = tmp_path / "values.npz"
    assert store.kept(path, "mark") is None
    store.keep(path, store.stamp(work, 2), values)
    assert store.kept(path, store.stamp(work, 3)) is None
    found = store.kept(path, store.stamp(work, 2))
    assert found is not None
    replay = Ablator(work.model, work.prompts, planner=store.Replay(work, found))
    groups = {j.name: list(j.heads) for j in jobs}
    pd.testing.assert_frame_equal(replay.table(groups, "zero"), ablator.table(groups, "zero"))
    with pytest.raises(KeyError):
        replay.table({"other": ["L0H0", "L1H0", "L2H0"]}, "zero")

    said: list[str] = []
    for row, expected in (
        (sweeps.run_cell, "nothing kept"),
        (sweeps.run_smollm2, ""),
        (sweeps.run_cell, "kept by"),
    ):
        figures = [r for r in row(True, said.append) if isinstance(r, bench.Figure)]
        assert all(f.equal for f in figures)
        assert any(expected in line for line in said)
        said.clear()


@pytest.mark.parametrize("run", [sweep_neox.run, sweep_scaling.run, sweeps.run_smollm2])
def test_the_rows_run_at_tiny_sizes(run: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(env, "FOLDER", tmp_path)
    said: list[str] = []
    found = run(True, said.append)  # type: ignore[operator]
    figures = [r for r in found if isinstance(r, bench.Figure)]
    assert said and all(f.equal and f.ratio > 0 for f in figures)
    if run is sweep_scaling.run:
        curves = [r for r in found if isinstance(r, bench.Curve)]
        assert len(curves) == 4 and not figures
        assert all(len(v) == len(c.xs) for c in curves for v in c.series.values())
    else:
        assert figures
        skipped = [r.text for r in found if isinstance(r, bench.Note) and "other tools" in r.title]
        assert skipped == ["Skipped in a quick run."]
