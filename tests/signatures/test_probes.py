"""The probe against an optimiser and a metric that share no code with it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from causegrid.errors import InputError
from causegrid.signatures import Probe
from causegrid.signatures.standard import standard


def blobs(n=600, d=8, c=4, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(c, size=n)
    x = rng.normal(size=(c, d))[y] * 1.5 + rng.normal(size=(n, d)) * spread
    return (x * np.exp(rng.normal(size=d) * 2) + rng.normal(size=d) * 5).astype(np.float32), y


def oracle(x, y, c):
    """Softmax regression with L2 on weights (C = 1), float64, standardised, by scipy."""
    x = x.astype(np.float64)
    mean, std = x.mean(0), x.std(0)
    z = (x - mean) / std
    hot = np.eye(c)[y]

    def loss(flat):
        w, b = flat[: c * z.shape[1]].reshape(c, -1), flat[c * z.shape[1] :]
        s = z @ w.T + b
        top = s.max(1, keepdims=True)
        logz = top[:, 0] + np.log(np.exp(s - top).sum(1))
        p = np.exp(s - logz[:, None])
        grad = p - hot
        return (
            (logz - (s * hot).sum(1)).sum() + 0.5 * (w**2).sum(),
            np.concatenate([(grad.T @ z + w).ravel(), grad.sum(0)]),
        )

    found = scipy.optimize.minimize(loss, np.zeros(c * (z.shape[1] + 1)), jac=True, method="L-BFGS-B",
                                    options=dict(maxiter=5000, ftol=1e-14, gtol=1e-9))  # fmt: skip
    w = found.x[: c * z.shape[1]].reshape(c, -1) / std
    return w, found.x[c * z.shape[1] :] - w @ mean


def test_the_plane_is_the_oracles_in_raw_space():
    x, y = blobs()
    probe = Probe(tol=1e-7, max_iter=2000).fit(x, y)
    w, b = oracle(x, y, 4)
    ours = x @ probe.weight.T + probe.bias
    theirs = x @ w.T + b
    ours, theirs = (s - s.mean(1, keepdims=True) for s in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, atol=5e-3)
    assert probe.weight.shape == (4, 8) and probe.bias.shape == (4,)
    assert probe.converged


def stretched(n=3000, d=24, c=5, seed=0):
    """States as trained models have them: strongly correlated features, classes of unequal size."""
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(0.4, size=n) - 1, c - 1)
    x = rng.normal(size=(c, d))[y] + rng.normal(size=(n, d)) * 2
    return (x @ (rng.normal(size=(d, d)) * np.exp(rng.normal(size=d) * 2))).astype(np.float32), y


@pytest.mark.parametrize("c", [2, 5])
def test_the_optimum_is_scikit_learns(c):
    """The same strictly convex problem: another solver, in float64 and run to the end, finds the same plane."""
    x, y = stretched(c=c)
    wide = x.astype(np.float64)
    z = (wide - wide.mean(0)) / wide.std(0)
    theirs = LogisticRegression(tol=1e-10, max_iter=20000).fit(z, y).decision_function(z)
    ours = Probe(tol=1e-7, max_iter=2000).fit(x, y)
    scores = ours.scores(wide).astype(np.float64)
    if c == 2:
        scores, theirs = (scores[:, 1] - scores[:, 0])[:, None], theirs[:, None]
    else:
        scores, theirs = (s - s.mean(1, keepdims=True) for s in (scores, theirs))
    assert ours.converged
    np.testing.assert_allclose(scores, theirs, atol=2e-3)
    assert np.abs(theirs).max() > 1
    default = Probe().fit(x, y)
    assert default.converged and (default.predict(x) == ours.predict(x)).mean() > 0.999


def test_labels_with_nothing_to_find_take_a_handful_of_steps():
    x, y = stretched()
    shuffled = np.random.default_rng(0).permutation(y)
    assert Probe().fit(x, shuffled).n_iter <= 10
    wide = x.astype(np.float64)
    plain = LogisticRegression(tol=1e-4, max_iter=1000).fit((wide - wide.mean(0)) / wide.std(0), shuffled)
    assert plain.n_iter_[0] > 40


def test_labels_that_share_the_features_are_fitted_as_alone():
    x, y = stretched()
    ready = standard(x)
    for labels in (y, y % 2, y * 3):
        shared, alone = Probe().fit(ready, labels), Probe().fit(x, labels)
        np.testing.assert_array_equal(shared.weight, alone.weight)
        np.testing.assert_array_equal(shared.bias, alone.bias)


@pytest.mark.parametrize("c", [2, 5])
def test_where_the_solver_starts_does_not_move_the_optimum(c):
    x, y = stretched(c=c)
    x[:, 3] = 7.0  # constant: no weight, wherever the walk began
    cold = Probe(tol=1e-7, max_iter=2000).fit(x, y)
    shifted = x + np.random.default_rng(1).normal(size=x.shape).astype(np.float32) * x.std(0) / 4
    far = Probe().fit(x, np.random.default_rng(2).permutation(y))
    for start in (cold, Probe().fit(shifted, y), far):
        warm = Probe(tol=1e-7, max_iter=2000).fit(x, y, start=start.scores(x))
        assert warm.converged
        np.testing.assert_allclose(warm.scores(x), cold.scores(x), atol=2e-3)
    assert Probe().fit(x, y, start=cold.scores(x)).n_iter < Probe().fit(x, y).n_iter


def test_a_start_of_other_classes_or_rows_is_refused():
    x, y = blobs()
    for start in (Probe().fit(x, y % 2).scores(x), Probe().fit(x, y).scores(x)[:9]):
        with pytest.raises(InputError, match="cannot start"):
            Probe().fit(x, y, start=start)


def test_a_fit_cut_short_says_so():
    x, y = stretched()
    assert not Probe(max_iter=1).fit(x, y).converged
    assert Probe(max_iter=3).fit(x, y).n_iter == 3


def test_default_settings_keep_the_accuracy_of_the_oracle():
    x, y = blobs(n=3000, spread=2.0, seed=1)
    w, b = oracle(x[:2000], y[:2000], 4)
    reference = ((x[2000:] @ w.T + b).argmax(1) == y[2000:]).mean()
    assert abs(Probe().fit(x[:2000], y[:2000]).accuracy(x[2000:], y[2000:]) - reference) <= 0.005


def test_two_classes_give_two_opposite_rows():
    x, y = blobs(c=2)
    probe = Probe().fit(x, y * 3)  # labels 0 and 3
    assert list(probe.classes) == [0, 3]
    np.testing.assert_array_equal(probe.weight[0], -probe.weight[1])
    score = x @ probe.weight.T + probe.bias
    np.testing.assert_array_equal(probe.predict(x), np.where(score[:, 1] > score[:, 0], 3, 0))
    assert probe.accuracy(x, y * 3) > 0.9


def test_a_direction_of_the_weight_is_what_separates_in_raw_space():
    """Moving a state along the difference of two rows moves it to the other class, whatever the scales."""
    x, y = blobs(c=2, spread=0.5)
    probe = Probe().fit(x, y)
    direction = probe.weight[1] - probe.weight[0]
    gap = (probe.scores(x)[:, 1] - probe.scores(x)[:, 0])[:, None]
    flipped = x - 2 * gap * direction / (direction @ direction)
    assert (probe.predict(flipped) != probe.predict(x)).mean() > 0.99


def test_constant_features_stay_finite_and_get_no_weight():
    x, y = blobs()
    x[:, 2] = 7.5
    x[:, 5] = 0.0
    probe = Probe().fit(x, y)
    assert np.isfinite(probe.weight).all() and np.isfinite(probe.bias).all()
    assert not probe.weight[:, [2, 5]].any()
    assert probe.accuracy(x, y) > 0.5


@pytest.mark.parametrize("size", [1e19, 1e25, 1e35])
def test_features_whose_squares_overflow_float32_are_fitted_as_others(size):
    x, y = blobs()
    x /= np.abs(x).max(axis=0)
    large = x * np.float32(size)
    want = Probe().fit(x, y).predict(x)
    assert (Probe().fit(large, y).predict(large) == want).mean() > 0.99


def test_features_too_far_apart_for_float32_are_refused():
    x = np.array([[-3e38], [-3e38], [-3e38], [3e38]], dtype=np.float32)
    with pytest.raises(InputError, match="not finite"):
        Probe().fit(x, np.array([0, 1, 0, 1]))


def test_accuracies_against_sklearn_metrics():
    x, y = blobs(spread=3.0)
    y[y == 3] = np.where(np.arange((y == 3).sum()) % 5, 0, 3)  # unbalanced
    probe = Probe().fit(x, y)
    predicted = probe.predict(x)
    assert probe.accuracy(x, y) == pytest.approx((predicted == y).mean())
    assert probe.balanced_accuracy(x, y) == pytest.approx(balanced_accuracy_score(y, predicted))


def test_torch_half_precision_states_are_taken():
    x, y = blobs()
    tensor = torch.from_numpy(x).to(torch.bfloat16)
    assert Probe().fit(tensor, torch.from_numpy(y)).accuracy(tensor, y) > 0.7


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.ones((4, 2)), np.zeros(4, dtype=int), "single class (0)"),
        (np.ones((4, 2)), np.zeros(3, dtype=int), "4 rows and 3 labels"),
        (np.ones(4), np.zeros(4, dtype=int), "(N, d)"),
        (np.full((4, 2), np.nan), np.arange(4), "not finite"),
        (np.ones((4, 2)), np.arange(4.0), "integer"),
    ],
)
def test_bad_input_is_named(x, y, words):
    with pytest.raises(InputError) as caught:
        Probe().fit(x, y)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_unfitted_probe_says_so():
    with pytest.raises(InputError, match="not been fitted"):
        Probe().predict(np.ones((2, 2)))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-2, 1e2), st.floats(-50, 50))
def test_rescaling_and_shifting_features_changes_no_prediction(seed, scale, shift):
    x, y = blobs(n=200, d=4, c=3, seed=seed)
    one = Probe().fit(x, y).predict(x)
    other = (
        Probe()
        .fit(x * np.float32(scale) + np.float32(shift), y)
        .predict(x * np.float32(scale) + np.float32(shift))
    )
    assert (one == other).mean() >= 0.97
