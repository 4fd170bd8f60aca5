"""Training and behaviour on a parity task written here: learning, schedules, repeatability, refusals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from causegrid.errors import InputError
from causegrid.models import training
from causegrid.models.behaviour import behaviour, learned_length, wilson
from causegrid.models.record import Model, models
from causegrid.models.training import TrainingDiverged, train


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


def test_refusals() -> None:
    with pytest.raises(InputError, match="did you mean 'fixed'"):
        train(small("gru"), Parity(), schedule="fixd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="length 3"):
        train(small("gru"), Parity(), length=3)
    narrow = models.get("gru")("narrow", n_tokens=1, n_out=2, d_model=8, n_layers=1)
    with pytest.raises(InputError, match=r"'narrow' has 1 tokens .* needs 2"):
        train(narrow, Parity())
    assert set(training.RATES) == {"transformer", "mamba", "mamba2", "lstm", "gru"}
