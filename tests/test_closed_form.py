"""The closed form in float64: against refits, finite differences, and gradient descent differentiated through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge
from torch import nn

from sklearn_cdgd._closed_form import Ridge, huber_loss, influence, log_loss, outer_gradient
from sklearn_cdgd._hypergradient import hypergradient
from sklearn_cdgd._optimizers import SGD
from sklearn_cdgd._unroll import BatchPlan, CleanPlan, Problem

N_ROWS, N_CLEAN, N_FEATURES = 30, 12, 6
PENALTIES = (0.1, 1.0, 10.0)


@pytest.fixture
def rows():
    """Return features, one-hot targets and weights of noisy rows, features and labels of clean rows."""
    rng = np.random.RandomState(0)
    features, clean_features = rng.randn(N_ROWS, N_FEATURES), rng.randn(N_CLEAN, N_FEATURES)
    targets = np.eye(3)[rng.randint(3, size=N_ROWS)] - 1 / 3
    weights = rng.rand(N_ROWS)
    return features, targets, weights, clean_features, rng.randint(3, size=N_CLEAN)


def refit(features, targets, weights, penalty):
    return SklearnRidge(alpha=penalty, fit_intercept=False).fit(features, targets, sample_weight=weights).coef_.T


class TestRidge:
    @pytest.mark.parametrize("penalty", PENALTIES)
    def test_coefficients_are_those_of_another_solver(self, rows, penalty):
        features, targets, weights, *_ = rows
        found = Ridge(features, weights).coefficients(targets, penalty)
        np.testing.assert_allclose(found, refit(features, targets, weights, penalty), atol=1e-10)

    @pytest.mark.parametrize("penalty", PENALTIES)
    def test_leave_one_out_equals_refits_without_the_row(self, rows, penalty):
        """Also of rows of weight 0, which no regression has seen."""
        features, targets, weights, *_ = rows
        weights[:3] = 0
        found = Ridge(features, weights).leave_one_out(targets, penalty)
        for n in range(N_ROWS):
            others = np.arange(N_ROWS) != n
            theta = refit(features[others], targets[others], weights[others], penalty)
            np.testing.assert_allclose(found[n], features[n] @ theta, atol=1e-8)

    def test_leverage_is_the_derivative_by_the_own_target(self, rows):
        features, targets, weights, *_ = rows
        ridge, step = Ridge(features, weights), 1e-6
        leverages = ridge.leverages(1.0)
        for n in range(5):
            shifted = targets.copy()
            shifted[n] += step
            change = features[n] @ (ridge.coefficients(shifted, 1.0) - ridge.coefficients(targets, 1.0))
            np.testing.assert_allclose(change / step, leverages[n], atol=1e-6)

    def test_more_features_than_rows(self):
        rng = np.random.RandomState(0)
        features, targets = rng.randn(5, 9), rng.randn(5, 1)
        found = Ridge(features, np.ones(5)).leave_one_out(targets, 0.5)
        theta = refit(features[1:], targets[1:], np.ones(4), 0.5)
        np.testing.assert_allclose(found[0], features[0] @ theta.reshape(9, 1), atol=1e-8)

    def test_no_weight_at_all_predicts_nothing(self, rows):
        features, targets, *_ = rows
        np.testing.assert_allclose(Ridge(features, np.zeros(N_ROWS)).leave_one_out(targets, 1.0), 0, atol=1e-12)

    def test_float32_stays_so_and_is_near(self, rows):
        features, targets, weights, *_ = rows
        exact = Ridge(features, weights).leave_one_out(targets, 0.3)
        single = Ridge(*(a.astype(np.float32) for a in (features, weights))).leave_one_out(
            targets.astype(np.float32), 0.3
        )
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, exact, atol=1e-4)


def outer_loss(kind, labels):
    return log_loss(labels, 4.0) if kind == "log-loss" else huber_loss(np.eye(3)[labels])


def clean_loss_after_training(rows, weights, loss, penalty, learnt_from):
    """Return the mean clean loss, written with another solver."""
    features, targets, _, clean_features, _ = rows
    return loss(clean_features @ refit(features, targets, weights, penalty))[0][learnt_from].mean()


@pytest.mark.parametrize("kind", ["log-loss", "Huber loss"])
class TestHypergradient:
    @pytest.mark.parametrize("penalty", PENALTIES)
    def test_equals_central_differences(self, rows, kind, penalty):
        features, targets, weights, clean_features, labels = rows
        loss, learnt_from, step = outer_loss(kind, labels), np.arange(N_CLEAN) % 3 > 0, 1e-5
        found = outer_gradient(features, targets, weights, penalty, clean_features, loss, learnt_from)
        for n in range(N_ROWS):
            shift = step * (np.arange(N_ROWS) == n)
            above, below = (
                clean_loss_after_training(rows, weights + sign * shift, loss, penalty, learnt_from) for sign in (1, -1)
            )
            assert found.gradient[n] == pytest.approx((above - below) / (2 * step), abs=1e-6)

    def test_clean_rows_that_are_left_out_have_no_part(self, rows, kind):
        features, targets, weights, clean_features, labels = rows
        learnt_from = np.arange(N_CLEAN) % 3 > 0
        other_labels = np.where(learnt_from, labels, (labels + 1) % 3)
        gradients = [
            outer_gradient(features, targets, weights, 1.0, clean_features, outer_loss(kind, of), learnt_from).gradient
            for of in (labels, other_labels)
        ]
        np.testing.assert_array_equal(*gradients)

    def test_influence_of_a_new_pair_is_the_derivative_by_its_weight_at_zero(self, rows, kind):
        features, targets, weights, clean_features, labels = rows
        loss, everyone = outer_loss(kind, labels), np.ones(N_CLEAN, dtype=bool)
        found = outer_gradient(features, targets, weights, 1.0, clean_features, loss, everyone)
        rng, step = np.random.RandomState(5), 1e-6
        pair, target = rng.randn(1, N_FEATURES), np.eye(3)[[1]] - 1 / 3
        joined = np.r_[features, pair], np.r_[targets, target], None, clean_features, labels
        above, at_zero = (
            clean_loss_after_training(joined, np.r_[weights, w], loss, 1.0, everyone) for w in (step, 0.0)
        )
        expected = (above - at_zero) / step
        of_pair = influence(pair, target, found.coefficients, found.adjoint)
        assert of_pair[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("n_steps", "tolerance"), [(100, 0.3), (1500, 1e-6)])
def test_unrolled_gradient_descent_tends_to_the_closed_form(rows, n_steps, tolerance):
    """A linear module on the same weighted ridge loss, the clean loss at the last step only."""
    features, targets, weights, clean_features, labels = rows
    penalty, tensors = 2.0, [torch.as_tensor(a) for a in (features, targets, clean_features, labels)]
    X, Y, X_clean, y_clean = tensors

    def initialize(seed):
        return (torch.zeros(N_FEATURES, 3, dtype=torch.float64),), ()

    def train_losses(params, buffers, X, y):
        # The weights of the rows multiply whole losses, so the penalty goes to a row of its own, of weight 1.
        (theta,) = params
        losses = N_ALL / 2 * ((X @ theta - y) ** 2).sum(dim=1)
        penalties = N_ALL / 2 * penalty * (theta**2).sum()
        return torch.where(torch.arange(N_ALL) < N_ROWS, losses, penalties), buffers

    N_ALL = N_ROWS + 1
    noisy = torch.cat([X, torch.zeros(1, N_FEATURES, dtype=torch.float64)]), torch.cat([Y, torch.zeros_like(Y[:1])])

    def eval_losses(params, buffers, X, y):
        return nn.functional.cross_entropy(4.0 * (X @ params[0]), y, reduction="none")

    def choose(X, y):
        return lambda chosen: (X, y) if chosen is None else (X[chosen], y[chosen])

    problem = Problem(initialize, train_losses, eval_losses, SGD(0.01), choose(*noisy), choose(X_clean, y_clean))
    plan = BatchPlan(N_ALL, -1, n_steps, seed=0)
    alpha = torch.as_tensor(np.r_[weights, 1.0])
    unrolled = hypergradient(problem, alpha, plan, clean_plan=CleanPlan(n_steps, n_steps)).grad[:N_ROWS].numpy()
    closed = outer_gradient(
        features, targets, weights, penalty, clean_features, log_loss(labels, 4.0), np.ones(N_CLEAN, dtype=bool)
    ).gradient
    error = np.linalg.norm(unrolled - closed) / np.linalg.norm(closed)
    assert error < tolerance
    if n_steps == 100:
        assert error > 1e-4, "a short training is not at its end: the test would not see a difference"
