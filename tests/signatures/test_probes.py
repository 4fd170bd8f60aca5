"""The probe against an optimiser and a metric that share no code with it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from causegrid.errors import InputError
from causegrid.signatures import Probe


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
