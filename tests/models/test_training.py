"""Training and behaviour on a parity task written here: learning, schedules, repeatability, refusals."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from causegrid.errors import InputError
from causegrid.models import checkpoint as kept
from causegrid.models import model as any_model
from causegrid.models import training
from causegrid.models.behaviour import behaviour, learned_length, wilson
from causegrid.models.record import Model, models
from causegrid.models.training import TrainingDiverged, train
from causegrid.tasks import task


@dataclass
class Batch:
    tokens: np.ndarray
    labels: dict[str, np.ndarray]


class Parity:
    name, label, n_tokens, n_classes = "parity", "state", 2, 2

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    def sample(self, n: int, length: int, *, seed, split: str) -> Batch:
        self.asked.append((length, split))
        entropy = [*np.atleast_1d(seed).tolist(), {"train": 0, "val": 1, "test": 2}[split]]
        tokens = np.random.default_rng(entropy).integers(0, 2, (n, length))
        return Batch(tokens, {"state": tokens.cumsum(axis=1) % 2})


class Oracle(nn.Module):
    """Right on the first `reach` positions, wrong on every later one."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        label = tokens.cumsum(1) % 2
        late = torch.arange(tokens.shape[1]) >= self.reach
        return nn.functional.one_hot(torch.where(late, 1 - label, label), 2).float() + self.weight


def small(family: str, seed: int = 0, **options) -> Model:
    return models.get(family)(family, n_tokens=2, n_out=2, seed=seed, d_model=32, n_layers=2, **options)


def oracle(reach: int) -> Model:
    return Model(name="o", family="lstm", module=Oracle(reach), n_layers=1, d_model=1, n_tokens=2, n_out=2)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_gru_solves_parity_by_curriculum_and_stops_early() -> None:
    task = Parity()
    run = train(small("gru"), task, steps=600, length=12, lr=3e-3, eval_lengths=(12, 16))
    assert run.solved
    assert run.steps < 600
    assert run.learned_length == 12
    token = run.behaviour.set_index(["length", "metric"]).accuracy
    assert token[12, "token"] > 0.999
    assert run.history.length.iloc[0] == 4
    assert run.history.length.is_monotonic_increasing
    assert run.history.length.max() == 12
    longer = run.history.length.diff().fillna(0)
    assert set(longer.unique()) <= {0, 2}
    earned = run.history.loss.shift(1) < 0.1
    assert earned[longer > 0].all()
    assert {length for length, split in task.asked if split == "train"} <= set(range(4, 13))


@pytest.mark.parametrize("family", ["transformer", "mamba", "mamba2", "lstm", "gru"])
def test_the_loss_falls_in_every_family(family: str) -> None:
    options = dict(head_dim=16, n_state=8) if family == "mamba2" else {}
    run = train(small(family, **options), Parity(), steps=60, length=4, lr=3e-3, eval_lengths=(4,), batch=32)
    loss = run.history.loss.to_numpy()
    assert loss[:5].mean() > 0.6
    assert loss[-5:].mean() < 0.55


def test_the_schedules_and_the_history() -> None:
    fixed = train(small("gru"), Parity(), steps=5, length=9, schedule="fixed", eval_lengths=())
    assert list(fixed.history.columns) == ["step", "length", "loss", "token_accuracy"]
    assert fixed.history.step.tolist() == [1, 2, 3, 4, 5]
    assert set(fixed.history.length) == {9}
    mixed = train(small("gru"), Parity(), steps=80, length=9, schedule="mixed", eval_lengths=())
    assert set(mixed.history.length) == set(range(4, 10))
    assert mixed.settings["schedule"] == "mixed"


def test_same_seed_same_run_other_seed_other_run() -> None:
    runs = [train(small("lstm"), Parity(), steps=12, seed=s, length=6, eval_lengths=(6,)) for s in (1, 1, 2)]
    assert runs[0].history.equals(runs[1].history)
    assert runs[0].behaviour.equals(runs[1].behaviour)
    assert not runs[0].history.loss.equals(runs[2].history.loss)


def test_divergence_is_raised_and_the_last_good_weights_come_back() -> None:
    model = small("lstm")
    before = {k: v.clone() for k, v in model.module.state_dict().items()}

    def poison(step: int, steps: int, facts: dict[str, float]) -> None:
        if step == 3:
            with torch.no_grad():
                model.module.head.weight.fill_(float("nan"))

    with pytest.raises(TrainingDiverged, match="step 4") as caught:
        train(model, Parity(), steps=10, length=6, progress=poison)
    assert caught.value.step == 4
    assert all(torch.equal(v, before[k]) for k, v in model.module.state_dict().items())
    assert not model.module.training


class Stopped(Exception):
    pass


def stop_at(step: int):
    def progress(now: int, steps: int, facts: dict[str, float]) -> None:
        if now == step:
            raise Stopped

    return progress


def often(monkeypatch, every: int = 3) -> None:
    """Small rounds: a longer length almost every step, checks every 4 steps, checkpoints every `every`."""
    calls = [0]

    def due(self: kept.Checkpoint) -> bool:
        calls[0] += 1
        return calls[0] % every == 0

    monkeypatch.setattr(kept.Checkpoint, "due", due)
    monkeypatch.setattr(training, "CHECK", 4)
    monkeypatch.setattr(training, "EASY", 0.71)


def weights(model: Model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("schedule", ["fixed", "mixed", "curriculum"])
@pytest.mark.parametrize("family", ["gru", "mamba", "transformer"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(family, schedule, tmp_path, monkeypatch) -> None:
    often(monkeypatch)
    how = dict(
        steps=19, batch=8, length=10, schedule=schedule, seed=3, lr=3e-3, eval_lengths=(10,), n_eval=20
    )
    whole = small(family, seed=1)
    run = train(whole, Parity(), **how)
    file = tmp_path / "state" / "training.safetensors"
    for at in (8, 15):  # two kills, neither where a checkpoint is written
        with pytest.raises(Stopped):
            train(small(family, seed=1), Parity(), progress=stop_at(at), checkpoint=file, **how)
    resumed, task = small(family, seed=1), Parity()
    again = train(resumed, task, checkpoint=file, **how)
    asked = [length for length, split in task.asked if split == "train"]
    assert 1 < len(asked) < 12  # the sample that tells the run, and fewer batches than all
    assert again.history.equals(run.history)
    assert again.history.dtypes.equals(run.history.dtypes)
    assert same(weights(resumed), weights(whole))
    assert again.behaviour.equals(run.behaviour)
    assert (again.steps, again.solved, again.learned_length) == (run.steps, run.solved, run.learned_length)
    if schedule == "curriculum":
        assert run.history.length.nunique() > 1


def test_looks_at_the_validation_set_come_where_they_would_have_come(tmp_path, monkeypatch) -> None:
    often(monkeypatch)
    at, looks = [0], []

    def look(*_: object, **__: object) -> np.ndarray:
        looks.append(at[0])
        return np.zeros(1)

    def follow(stop: int):
        def progress(step: int, steps: int, facts: dict[str, float]) -> None:
            at[0] = step
            if step == stop:
                raise Stopped

        return progress

    monkeypatch.setattr(training, "hits", look)
    how = dict(steps=14, batch=4, length=6, schedule="fixed", solved_at=0.1, eval_lengths=(), n_eval=20)
    with pytest.raises(Stopped):
        train(small("gru"), Parity(), progress=follow(8), checkpoint=tmp_path / "c", **how)
    train(small("gru"), Parity(), progress=follow(0), checkpoint=tmp_path / "c", **how)
    assert looks == [4, 8, 12]


def test_a_finished_run_is_read_back_and_an_early_stop_stays_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(training, "CHECK", 5)
    how = dict(steps=60, length=4, solved_at=0.02, eval_lengths=(4,), checkpoint=tmp_path / "c", n_eval=20)
    first = small("gru")
    run = train(first, Parity(), **how)
    assert run.solved
    assert run.steps == 5
    second = small("gru")
    again = train(second, Parity(), progress=stop_at(6), **how)
    assert again.history.equals(run.history)
    assert (again.steps, again.solved, again.seconds) == (5, True, run.seconds)
    assert same(weights(first), weights(second))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 1e-3}, "lr"),
        ({"seed": 4}, "seed"),
        ({"steps": 8}, "steps"),
        ({"schedule": "mixed"}, "schedule"),
        ({"model": 2}, "weights"),
        ({"task": "other data"}, "data"),
    ],
)
def test_a_checkpoint_of_another_run_is_not_used(change, said, tmp_path, monkeypatch) -> None:
    often(monkeypatch)
    file = tmp_path / "c"
    how = dict(steps=9, batch=4, length=6, seed=3, lr=3e-3, eval_lengths=(), n_eval=20)
    with pytest.raises(Stopped):
        train(small("gru"), Parity(), progress=stop_at(7), checkpoint=file, **how)
    how |= {k: v for k, v in change.items() if k in how or k == "schedule"}
    task = Parity()
    if "task" in change:
        task.sample = lambda n, length, *, seed, split: Parity.sample(  # type: ignore[method-assign]
            task, n, length, seed=(9, *np.atleast_1d(seed)), split=split
        )
    fresh = small("gru", seed=change.get("model", 0))
    want = train(fresh, task, **how)
    other = small("gru", seed=change.get("model", 0))
    with pytest.warns(UserWarning, match=rf"of another run \({said} .*starts anew"):
        got = train(other, task, checkpoint=file, **how)
    assert got.history.equals(want.history)
    assert same(weights(fresh), weights(other))


@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "header", "text"])
def test_a_corrupt_checkpoint_is_noticed(damage, tmp_path, monkeypatch) -> None:
    often(monkeypatch)
    file = tmp_path / "c"
    how = dict(steps=6, batch=4, length=6, eval_lengths=(), n_eval=20, checkpoint=file)
    with pytest.raises(Stopped):
        train(small("gru"), Parity(), progress=stop_at(5), **how)
    good = file.read_bytes()
    at = len(good) - 1000
    bad = {
        "empty": b"",
        "cut": good[:-100],
        "flip": good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :],
        "header": b"\xff" * 8 + good[8:],
        "text": good.replace(b'\\"at_full\\": 3', b'\\"at_full\\": 2').replace(b"good_step", b"goOd_step"),
    }[damage]
    assert bad != good
    file.write_bytes(bad)
    with pytest.warns(UserWarning, match="is corrupt .*starts anew"):
        assert train(small("gru"), Parity(), **how).steps == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(small("gru"), Parity(), **how)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, monkeypatch) -> None:
    often(monkeypatch)
    file = tmp_path / "c"
    how = dict(steps=9, batch=4, length=6, eval_lengths=(), n_eval=20, checkpoint=file)
    with pytest.raises(Stopped):
        train(small("gru"), Parity(), progress=stop_at(5), **how)
    (tmp_path / ".c.tmp").write_bytes(file.read_bytes()[:50])
    seen: list[int] = []
    train(small("gru"), Parity(), progress=lambda step, *_: seen.append(step), **how)
    assert seen == [4, 5, 6, 7, 8, 9]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_the_diverged_run_leaves_its_last_good_model_beside_the_checkpoint(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(training, "CHECK", 5)
    model = small("gru")
    before: dict[int, dict[str, torch.Tensor]] = {}

    def poison(step: int, steps: int, facts: dict[str, float]) -> None:
        before[step] = weights(model)
        if step == 7:
            with torch.no_grad():
                model.module.head.weight.fill_(float("nan"))

    with pytest.raises(
        TrainingDiverged, match=r"nan at step 8; the weights of step 5 are saved in "
    ) as caught:
        train(model, Parity(), steps=20, length=6, progress=poison, checkpoint=tmp_path / "run.safetensors")
    assert (caught.value.step, caught.value.good_step) == (8, 5)
    assert caught.value.folder == tmp_path / "run-last-good"
    assert same(weights(any_model(caught.value.folder)), before[5])
    assert same(weights(model), before[5])


def test_a_resumed_run_still_knows_its_last_good_weights(tmp_path, monkeypatch) -> None:
    often(monkeypatch)
    how = dict(steps=9, batch=4, length=6, eval_lengths=(), n_eval=20)
    after: dict[int, dict[str, torch.Tensor]] = {}
    first = small("gru")

    def remember(step: int, steps: int, facts: dict[str, float]) -> None:
        after[step] = weights(first)
        stop_at(8)(step, steps, facts)

    with pytest.raises(Stopped):
        train(first, Parity(), progress=remember, checkpoint=tmp_path / "c", **how)
    second = small("gru")

    def poison(step: int, steps: int, facts: dict[str, float]) -> None:
        assert step == 7
        with torch.no_grad():
            second.module.head.weight.fill_(float("nan"))

    with pytest.raises(TrainingDiverged, match="at step 8; the weights of step 4 "):
        train(second, Parity(), progress=poison, checkpoint=tmp_path / "c", **how)
    assert same(weights(second), after[4])


def test_a_learning_rate_that_is_far_too_large_diverges_and_good_weights_stay_good() -> None:
    model = small("gru")
    with pytest.raises(TrainingDiverged) as caught:
        train(model, Parity(), steps=40, length=6, lr=1e38)
    assert caught.value.folder is None
    assert all(v.isfinite().all() for v in weights(model).values())


def test_weights_lost_by_the_very_last_step_are_noticed(tmp_path) -> None:
    model = small("gru")

    def poison(step: int, steps: int, facts: dict[str, float]) -> None:
        if step == steps:
            with torch.no_grad():
                model.module.head.weight.fill_(float("inf"))

    with pytest.raises(TrainingDiverged, match="nan at step 5"):
        train(model, Parity(), steps=4, length=6, progress=poison, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()  # what is not a number is not kept


def test_frozen_weights_are_not_kept_and_come_out_the_same(tmp_path, monkeypatch) -> None:
    often(monkeypatch)

    def half() -> Model:
        made = small("transformer")
        for name, parameter in made.module.named_parameters():
            parameter.requires_grad = "head" in name
        return made

    how = dict(steps=9, batch=4, length=6, eval_lengths=(), n_eval=20)
    whole = half()
    run = train(whole, Parity(), **how)
    with pytest.raises(Stopped):
        train(half(), Parity(), progress=stop_at(8), checkpoint=tmp_path / "c", **how)
    assert (tmp_path / "c").stat().st_size < 4 * whole.n_params
    resumed = half()
    assert train(resumed, Parity(), checkpoint=tmp_path / "c", **how).history.equals(run.history)
    assert same(weights(resumed), weights(whole))


def test_shared_weights_come_back_shared(tmp_path, monkeypatch) -> None:
    often(monkeypatch)

    def tied() -> Model:
        made = small("transformer")
        made.module.head.weight = next(p for p in made.module.parameters() if p.shape == (2, 32))
        return made

    how = dict(steps=9, batch=4, length=6, eval_lengths=(), n_eval=20)
    whole = tied()
    run = train(whole, Parity(), **how)
    with pytest.raises(Stopped):
        train(tied(), Parity(), progress=stop_at(8), checkpoint=tmp_path / "c", **how)
    resumed = tied()
    assert train(resumed, Parity(), checkpoint=tmp_path / "c", **how).history.equals(run.history)
    assert same(weights(resumed), weights(whole))


def test_a_disk_that_is_full_does_not_hide_a_divergence(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training, "save", full)
    with pytest.raises(TrainingDiverged, match=r"step 0 could not be saved \(.*No space left") as caught:
        train(poisoned := small("gru"), Parity(), steps=9, length=6, lr=1e38, checkpoint=tmp_path / "c")
    assert caught.value.folder is None
    assert all(v.isfinite().all() for v in weights(poisoned).values())


def test_a_checkpoint_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder: name a file"):
        train(small("gru"), Parity(), steps=1, length=4, checkpoint=tmp_path)


def test_progress_sees_every_step() -> None:
    seen: list[tuple[int, int]] = []
    train(
        small("gru"),
        Parity(),
        steps=4,
        length=5,
        eval_lengths=(),
        progress=lambda s, n, f: seen.append((s, n)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_time_limit_ends_the_run() -> None:
    run = train(small("gru"), Parity(), steps=1000, length=5, eval_lengths=(), max_seconds=0.0)
    assert run.steps == 1
    assert not run.solved


def test_behaviour_of_a_model_right_on_its_first_eight_positions() -> None:
    table = behaviour(oracle(8), Parity(), (8, 16), n=50).set_index(["length", "metric"])
    assert table.index.get_level_values("metric").unique().tolist() == ["token", "strict", "last"]
    assert table.accuracy.tolist() == [1, 1, 1, 0.5, 0, 0]
    assert (table.n == 50).all()
    assert (table.low <= table.accuracy).all()
    assert (table.accuracy <= table.high).all()
    low, high = binomtest(50, 50).proportion_ci(method="wilson")
    assert np.allclose(table.loc[(8, "strict"), ["low", "high"]].tolist(), [low, high], atol=1e-6)


def test_the_token_interval_is_over_sequences() -> None:
    """A model at chance: the interval's width is that of n sequence means."""
    model = oracle(0)
    model.module.forward = lambda tokens: nn.functional.one_hot(tokens, 2).float()
    row = behaviour(model, Parity(), (10,), n=400).iloc[0]
    data = Parity().sample(400, 10, seed=(0, 10), split="test")
    share = (data.tokens == data.labels["state"]).mean(axis=1)
    assert row.accuracy == pytest.approx(share.mean())
    assert row.high - row.low == pytest.approx(2 * 1.96 * share.std() / 20, rel=0.15)


@pytest.mark.parametrize(("reach", "length"), [(40, 40), (20, 20), (8, 8), (3, 0), (0, 0)])
def test_learned_length(reach: int, length: int) -> None:
    assert learned_length(oracle(reach), Parity(), max_length=40) == length


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (199, 200)])
def test_wilson_equals_scipys(k: int, n: int) -> None:
    want = binomtest(k, n).proportion_ci(method="wilson")
    assert np.allclose(wilson(k, n), (want.low, want.high), atol=1e-6)


@pytest.mark.parametrize(("lacks", "length"), [("val", 8), ("test", 12)])
def test_a_task_without_sequences_to_measure_on_is_refused_before_training(lacks: str, length: int) -> None:
    class Short(Parity):
        def sample(self, n: int, length: int, *, seed, split: str) -> Batch:
            drawn = super().sample(n, length, seed=seed, split=split)
            if (split, length) == self.none:
                raise InputError(f"no {split} sequence has {length} tokens")
            return drawn

    task = Short()
    task.none = (lacks, length)
    with pytest.raises(InputError, match=f"no {lacks} sequence has {length}"):
        train(small("gru"), task, steps=3, batch=2, length=8, eval_lengths=(4, 12), n_eval=2)
    assert "train" not in {split for _, split in task.asked}


def test_refusals() -> None:
    with pytest.raises(InputError, match="did you mean 'fixed'"):
        train(small("gru"), Parity(), schedule="fixd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="length 3"):
        train(small("gru"), Parity(), length=3)
    narrow = models.get("gru")("narrow", n_tokens=1, n_out=2, d_model=8, n_layers=1)
    with pytest.raises(InputError, match=r"'narrow' has 1 tokens .* needs 2"):
        train(narrow, Parity())
    assert set(training.RATES) == {"transformer", "mamba", "mamba2", "lstm", "gru"}


@pytest.mark.parametrize("wrong", [2, -1])
def test_a_label_the_task_has_not_declared_is_named(wrong: int) -> None:
    class Wider(Parity):
        def sample(self, n: int, length: int, *, seed, split: str) -> Batch:
            drawn = super().sample(n, length, seed=seed, split=split)
            drawn.labels["state"][0, -1] = wrong
            return drawn

    with pytest.raises(InputError, match=rf"gave the label {wrong} for 'state'.*2 classes: 0 to 1"):
        train(small("gru"), Wider(), steps=1, batch=2, length=8, eval_lengths=(8,), n_eval=2)


def test_signed_eigenvalues_are_the_positive_control() -> None:
    """Parity wants a state that flips sign: Mamba with decays in [-1, 1] carries it far beyond its training."""
    made = any_model("mamba:signed=true,d_model=32,n_layers=2", task=task("parity"), seed=0)
    run = train(made, task("parity"), steps=400, length=20, eval_lengths=(60,), n_eval=100)
    token = run.behaviour.set_index("metric")["accuracy"]["token"]
    assert run.solved and run.learned_length == 20 and token > 0.97
