"""Subspaces against plain numpy, and the properties erasure must have."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from causegrid.errors import InputError
from causegrid.interventions.subspaces import (
    Spectrum,
    erase_from,
    inlp,
    leace,
    matched_components,
    matched_principal,
    principal,
    probe_directions,
    random_basis,
    removed_variance,
)


def projector(q):
    q = np.asarray(q, dtype=np.float64)
    return q @ q.T


def correlated(n=400, d=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + rng.standard_normal(d) * 5


@given(st.integers(2, 6), st.integers(6, 12), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_at_full_rank_the_probe_directions_span_the_row_space(c, d, seed):
    w = np.random.default_rng(seed).standard_normal((c, d))
    q = probe_directions(w, c - 1).numpy()
    assert q.shape == (d, c - 1)
    np.testing.assert_allclose(q.T @ q, np.eye(c - 1), atol=1e-5)
    centred = w - w.mean(0)
    np.testing.assert_allclose(centred @ projector(q), centred, atol=1e-5)
    x = np.random.default_rng(seed + 1).standard_normal((20, d))
    scores = erase_from(x, q, x.mean(0)) @ w.T
    gaps = scores - scores.mean(1, keepdims=True)
    np.testing.assert_allclose(gaps, gaps[:1].repeat(20, 0), atol=1e-4)  # the probe can no longer tell


def test_leading_directions_are_those_of_the_singular_value_decomposition():
    w = np.random.default_rng(0).standard_normal((5, 8))
    _, _, vh = np.linalg.svd(w - w.mean(0))
    for r in (1, 2, 4):
        np.testing.assert_allclose(projector(probe_directions(w, r)), projector(vh[:r].T), atol=1e-5)
    shifted = w + np.random.default_rng(1).standard_normal(8)  # changes no prediction
    np.testing.assert_allclose(projector(probe_directions(shifted, 2)), projector(vh[:2].T), atol=1e-5)


def test_a_two_class_probe_of_one_row_has_one_direction():
    w = np.array([[3.0, 4.0, 0.0]])
    np.testing.assert_allclose(projector(probe_directions(w, 1)), projector([[0.6], [0.8], [0.0]]), atol=1e-6)


@pytest.mark.parametrize("rank", [0, 5, -1])
def test_ranks_out_of_range_are_refused(rank):
    with pytest.raises(InputError, match="1 to 4"):
        probe_directions(np.eye(5, 8), rank)


def test_a_rank_the_weight_does_not_have_is_refused():
    with pytest.raises(InputError, match="has rank 1"):
        probe_directions(np.array([[1.0, 0, 0], [0, 0, 0], [-1.0, 0, 0]]), 2)


def test_principal_components_and_removed_variance_equal_the_covariance():
    x = correlated()
    values, vectors = np.linalg.eigh(np.cov(x.T))
    for r in (1, 3):
        q = principal(x, r)
        np.testing.assert_allclose(projector(q), projector(vectors[:, -r:]), atol=1e-4)
        assert removed_variance(x, q) == pytest.approx(values[-r:].sum() / values.sum(), rel=1e-5)
    grouped = x.reshape(20, 20, 12)
    np.testing.assert_allclose(projector(principal(grouped, 3)), projector(principal(x, 3)), atol=1e-5)


@given(st.integers(1, 10), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_random_bases_are_orthonormal_and_a_function_of_the_seed(rank, seed):
    q = random_basis(10, rank, seed)
    np.testing.assert_allclose((q.T @ q).numpy(), np.eye(rank), atol=1e-5)
    assert torch.equal(q, random_basis(10, rank, seed))
    if rank < 10:
        assert not np.allclose(projector(q), projector(random_basis(10, rank, seed + 1)), atol=1e-3)


@given(st.integers(0, 300), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_matched_components_are_the_nearest_of_all_sets(seed, rank):
    x = correlated(d=9, seed=seed)
    basis = random_basis(9, rank, seed)
    found = matched_principal(x, basis)
    share = np.sort(np.linalg.eigvalsh(np.cov(x.T)))[::-1]
    share /= share.sum()
    target = removed_variance(x, basis)
    best = min(abs(share[list(s)].sum() - target) for s in itertools.combinations(range(9), rank))
    assert abs(found.removed - target) == pytest.approx(best, abs=1e-9)
    assert removed_variance(x, found.basis) == pytest.approx(found.removed, rel=1e-4)
    assert found.mark == ("" if 0.5 <= found.removed / target <= 2 else "variance unmatched")


def test_matching_at_a_width_too_large_to_try_all_sets():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 64)) * np.geomspace(4, 0.05, 64)
    for seed, rank in itertools.product(range(4), (4, 10, 40, 60)):
        found = matched_principal(x, random_basis(64, rank, seed))
        assert found.mark == "" and abs(found.removed / found.target - 1) < 1e-3
        assert len(set(found.components)) == rank


@pytest.mark.timeout(20)
def test_a_variance_met_to_the_last_bit_ends_the_search():
    even = Spectrum(values=torch.ones(64, dtype=torch.float64), vectors=torch.eye(64, dtype=torch.float64))
    for rank in (5, 30, 50):
        found = matched_components(even, rank, rank / 64)
        assert found.removed == rank / 64 and len(found.components) == rank


def test_an_unmatched_variance_is_marked():
    x = np.random.default_rng(0).standard_normal((300, 4)) * np.array([100.0, 10.0, 10.0, 10.0])
    half = np.array([[np.sqrt(0.1)], [np.sqrt(0.9)], [0], [0]])  # between the components' variances
    assert matched_principal(x, half).mark == "variance unmatched"


@given(st.integers(1, 6), st.integers(0, 500), st.sampled_from(["mean", "origin"]))
@settings(max_examples=30, deadline=None)
def test_erasure_equals_the_projection_and_is_idempotent(rank, seed, mode):
    x = correlated(n=30, d=7, seed=seed)
    q, m = random_basis(7, rank, seed).double().numpy(), x.mean(0)
    centre = m if mode == "mean" else 0
    want = centre + (x - centre) @ (np.eye(7) - projector(q))
    found = erase_from(x, q, m, mode)
    np.testing.assert_allclose(found, want, atol=1e-5)
    np.testing.assert_allclose(erase_from(found, q, m, mode), found, atol=1e-4)
    tensor = erase_from(torch.from_numpy(x).float(), torch.from_numpy(q), m, mode)
    np.testing.assert_allclose(tensor.numpy(), want, atol=1e-3)
    assert tensor.dtype == torch.float32
    if mode == "mean":
        np.testing.assert_allclose(found.mean(0), m, atol=1e-5)


@given(st.integers(1, 6), st.integers(0, 500), st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_nothing_is_left_in_an_erased_subspace(rank, seed, size):
    """To float64's rounding: what a float32 basis leaves, a probe of standardised features would read."""
    x = correlated(n=40, d=7, seed=seed) * size
    q = random_basis(7, rank, seed)
    left = (erase_from(x, q, x.mean(0)) - x.mean(0)) @ q.numpy()
    assert np.abs(left).max() <= 1e-13 * np.abs(x).max()
    other = np.linalg.qr(np.c_[q.numpy(), np.eye(7)])[0][:, rank:]  # the complement is untouched
    np.testing.assert_allclose(erase_from(x, q, x.mean(0)) @ other, x @ other, atol=1e-12 * np.abs(x).max())


@given(st.integers(2, 5), st.integers(0, 500))
@settings(max_examples=20, deadline=None)
def test_leace_leaves_no_covariance_with_any_class(classes, seed):
    rng = np.random.default_rng(seed)
    y = np.r_[np.arange(classes), rng.integers(0, classes, 200)]
    x = correlated(n=len(y), d=7, seed=seed) + 3 * rng.standard_normal((classes, 7))[y]
    hot = np.eye(classes)[y]
    erased = leace(x, y)(torch.from_numpy(x)).numpy()
    assert erased.dtype == np.float64
    covariance = (erased - erased.mean(0)).T @ (hot - hot.mean(0)) / len(y)
    before = (x - x.mean(0)).T @ (hot - hot.mean(0)) / len(y)
    assert np.abs(covariance).max() <= 1e-9 * np.abs(before).max()
    np.testing.assert_allclose(erased.mean(0), x.mean(0), atol=1e-9 * np.abs(x).max())


def test_bad_erasures_are_refused():
    with pytest.raises(InputError, match="needs the mean"):
        erase_from(np.zeros((2, 3)), np.eye(3, 1), None)
    with pytest.raises(InputError, match="'origin'"):
        erase_from(np.zeros((2, 3)), np.eye(3, 1), None, "middle")


@dataclass
class Fit:
    weight: np.ndarray
    accuracy: float
    at_baseline: bool


def until(rate):
    def fit(x, y):
        half = len(x) // 2
        model = LogisticRegression(max_iter=500).fit(x[:half], y[:half])
        score = model.score(x[half:], y[half:])
        return Fit(model.coef_, score, score <= rate)

    return fit


def separable(seed=0, n=1200, d=8):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    centres = np.zeros((3, d))
    centres[:, :2] = [[3, 0], [-3, 1], [0, -3]]
    return (rng.standard_normal((n, d)) + centres[y]).astype(np.float32), y


def test_inlp_stops_when_a_fresh_probe_is_at_its_baseline():
    x, y = separable()
    found = inlp(x, y, until(0.4), max_iter=6)
    assert found.removed and found.accuracies[0] > 0.9 and found.accuracies[-1] <= 0.4
    assert found.basis.shape[1] >= 2
    q = found.basis.numpy()
    np.testing.assert_allclose(q.T @ q, np.eye(q.shape[1]), atol=1e-5)
    assert until(0)(erase_from(x, q, x.mean(0)), y).accuracy == pytest.approx(found.accuracies[-1], abs=0.02)


def test_inlp_says_when_it_did_not_get_there():
    x, y = separable()
    found = inlp(x, y, until(0.0), max_iter=2)
    assert not found.removed and len(found.accuracies) == 3
    assert inlp(x, y, until(0.0), max_iter=50).basis.shape == (8, 8)


def test_leace_leaves_a_linear_probe_nothing():
    x, y = separable()
    erase = leace(x, y)
    erased = erase(torch.from_numpy(x))
    means = np.stack([erased.numpy()[y == c].mean(0) for c in range(3)])
    np.testing.assert_allclose(means, means[:1].repeat(3, 0), atol=1e-3)  # equal class means: no linear cue
    probe = LogisticRegression(max_iter=500).fit(erased.numpy(), y)
    assert probe.score(erased.numpy(), y) <= np.bincount(y).max() / len(y) + 0.01
    assert (x - erased.numpy()).std() < x.std()
    batch = erase(torch.from_numpy(x).view(30, 40, 8))
    np.testing.assert_allclose(batch.view(-1, 8).numpy(), erased.numpy(), atol=1e-5)


def test_leace_guards_when_features_are_strongly_correlated():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 2000)
    noise = rng.standard_normal((2000, 6)) @ np.diag([20, 5, 1, 1, 0.1, 0.1]) @ rng.standard_normal((6, 6))
    x = noise + y[:, None] * rng.standard_normal(6)
    erased = leace(x, y)(torch.from_numpy(x).float()).numpy()
    gap = erased[y == 1].mean(0) - erased[y == 0].mean(0)
    assert np.abs(gap).max() < 2e-3


def test_inlp_asks_for_directions_only_where_it_erases():
    x, y = separable(n=300)

    class Never:
        accuracy, at_baseline = 0.3, True

        @property
        def weight(self):
            raise AssertionError("no direction is needed")

    assert inlp(x, y, lambda x, y: Never()).basis.shape == (8, 0)
    with pytest.raises(InputError, match="max_iter 0"):
        inlp(x, y, until(0.4), max_iter=0)


def test_leace_needs_two_classes_and_matching_labels():
    with pytest.raises(InputError, match="one class"):
        leace(np.zeros((4, 2)), np.zeros(4))
    with pytest.raises(InputError, match="4 activations but 3"):
        leace(np.zeros((4, 2)), np.zeros(3))
