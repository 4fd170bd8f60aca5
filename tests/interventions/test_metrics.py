"""Metrics at the query position against a plain numpy oracle, and their invariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from causegrid.errors import InputError
from causegrid.interventions.metrics import METRICS, metrics
from causegrid.tasks import PromptSet


def prompt_set(answers, foils) -> PromptSet:
    n = len(answers)
    return PromptSet(
        task="test",
        texts=[f"prompt {i}" for i in range(n)],
        tokens=[np.array([1, 2, 3 + i]) for i in range(n)],
        answers=[np.array(a, dtype=np.int64) for a in answers],
        foils=[np.array(f, dtype=np.int64) for f in foils],
        positions={},
        variant=["a"] * n,
        corrupted=[None] * n,
    )


def oracle(row: np.ndarray, answers: list[int], foils: list[int]) -> dict[str, float]:
    p = np.exp(row - row.max())
    p /= p.sum()
    best = max(row[a] for a in answers)
    return {
        "top1": float(int(row.argmax()) in answers),
        "logit_diff": np.mean(row[answers]) - np.mean(row[foils]) if foils else np.nan,
        "answer_prob": p[answers].sum(),
        "answer_rank": 1 + sum(v > best for v in row),
        "restricted": float(best > max(row[f] for f in foils)) if foils else np.nan,
    }


@st.composite
def cases(draw):
    n, v = draw(st.integers(1, 4)), draw(st.integers(4, 12))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    # multiples of 1/64: shifts by whole numbers are exact in float32
    logits = rng.integers(-400, 400, (n, v)).astype(np.float32) / 64
    answers, foils = [], []
    for _ in range(n):
        order = rng.permutation(v)
        a = rng.integers(1, 3)
        answers.append(order[:a].tolist())
        foils.append(order[a : a + rng.integers(0, 3)].tolist())
    return logits, answers, foils


@given(cases())
@settings(max_examples=60, deadline=None)
def test_every_metric_equals_the_oracle(case):
    logits, answers, foils = case
    found = metrics(torch.from_numpy(logits), prompt_set(answers, foils))
    for i in range(len(answers)):
        want = oracle(logits[i].astype(np.float64), answers[i], foils[i])
        for name in METRICS:
            np.testing.assert_allclose(found[name][i], want[name], rtol=1e-5, atol=1e-6, err_msg=name)


@given(cases(), st.integers(-300, 300))
@settings(max_examples=60, deadline=None)
def test_a_shift_of_all_logits_changes_nothing(case, shift):
    logits, answers, foils = case
    prompts = prompt_set(answers, foils)
    before = metrics(torch.from_numpy(logits), prompts)
    after = metrics(torch.from_numpy(logits + np.float32(shift)), prompts)
    for name in METRICS:
        np.testing.assert_allclose(after[name], before[name], rtol=2e-4, atol=1e-9, err_msg=name)


def reference(row: torch.Tensor, answers: list[int], foils: list[int]) -> list[float]:
    """The definitions, one prompt at a time, by torch's own argmax and logsumexp."""
    if row.isnan().any():
        return [float("nan")] * 5
    best = float(row[answers].max())
    rest = [float("nan")] * 2
    if foils:
        rest = [
            float(row[answers].double().mean() - row[foils].double().mean()),
            best > float(row[foils].max()),
        ]
    prob = (row[answers] - row.logsumexp(0)).exp().double().sum()
    return [int(row.argmax()) in answers, rest[0], float(prob), 1 + int((row > best).sum()), rest[1]]


@pytest.mark.parametrize("cached", [1, 40, 2**19])
def test_ties_infinities_and_missing_numbers_in_any_row(cached, monkeypatch):
    monkeypatch.setattr("causegrid.interventions.metrics._CACHED", cached)
    rng = np.random.default_rng(4)
    # few levels: most rows have ties at the top, many between answers and others; -0.0 and 0.0 are level
    levels = np.array([-1.0, -0.0, 0.0, 1.0, 1.0000001, 2.0], dtype=np.float32)
    logits = torch.from_numpy(rng.choice(levels, (400, 9)))
    logits[rng.choice(400, 40), rng.integers(0, 9, 40)] = torch.nan
    logits[rng.choice(400, 40), rng.integers(0, 9, 40)] = torch.inf
    logits[rng.choice(400, 40), rng.integers(0, 9, 40)] = -torch.inf
    logits[:3] = -torch.inf
    logits[3:6] = 0.0
    order = [rng.permutation(9) for _ in range(400)]
    answers = [o[: 1 + i % 3].tolist() for i, o in enumerate(order)]
    foils = [o[3 : 3 + i % 4].tolist() for i, o in enumerate(order)]
    found = metrics(logits, prompt_set(answers, foils))
    want = np.array([reference(*case) for case in zip(logits, answers, foils, strict=True)], dtype=float)
    assert 0.1 < np.nanmean(want[:, 0]) < 0.9
    for i, name in enumerate(METRICS):
        np.testing.assert_allclose(found[name], want[:, i], rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_tie_with_the_foil_is_not_a_win():
    found = metrics(torch.tensor([[0.0, 1.0, 1.0]]), prompt_set([[1]], [[2]]))
    assert found["restricted"][0] == 0 and found["answer_rank"][0] == 1


def test_logits_that_are_no_numbers_give_no_numbers():
    found = metrics(torch.tensor([[0.0, torch.nan, 1.0]]), prompt_set([[2]], [[0]]))
    assert all(np.isnan(found[name][0]) for name in METRICS)


@pytest.mark.parametrize(
    ("answers", "foils", "word"), [([[]], [[1]], "no answer"), ([[1]], [[1]], "as foil")]
)
def test_impossible_targets_are_refused(answers, foils, word):
    with pytest.raises(InputError, match=word):
        metrics(torch.zeros(1, 4), prompt_set(answers, foils))


def test_a_wrong_number_of_rows_is_refused():
    with pytest.raises(InputError, match=r"\(2, 4\)"):
        metrics(torch.zeros(2, 4), prompt_set([[1]], [[2]]))
