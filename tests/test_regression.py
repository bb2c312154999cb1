"""Targets that are numbers, and nets with a criterion of their own: rows are flagged by their loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, make_friedman1, make_multilabel_classification
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split
from skorch import NeuralNet, NeuralNetRegressor
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd._regression import Regression
from sklearn_cdgd._stacking import OutOfFold
from sklearn_cdgd.datasets import corrupt_targets

DETECTORS = [CorruptionDetector, NoisySetDetector, CleanSetDetector]


def shuffled(y, rate, rng):
    chosen = rng.choice(len(y), round(rate * len(y)), replace=False)
    y_noisy = y.copy()
    y_noisy[chosen] = y[np.roll(chosen, 1)]
    return y_noisy, y_noisy != y


def linear_problem(n_noisy=150, n_clean=50, n_outputs=1, seed=0):
    rng = np.random.RandomState(seed)
    X = rng.randn(n_noisy + n_clean, 3)
    y = X @ rng.randn(3, n_outputs) + 0.05 * rng.randn(len(X), n_outputs)
    y = y[:, 0] if n_outputs == 1 else y
    y_noisy = y[:n_noisy].copy()
    is_corrupted = rng.rand(n_noisy) < 0.2
    y_noisy[is_corrupted] += 4
    return X[:n_noisy], y_noisy, X[n_noisy:], y[n_noisy:], is_corrupted


def quick(cls, **options):
    if cls is CorruptionDetector:
        options = {"max_iter": 4, "cv": 2, "clean_cv": 2} | options
    return cls(random_state=0, **options)


def test_where_every_row_is_better_flagged():
    """Nine of ten targets are wrong: flagging all rows has the best expected F1, and a limit is found all the same."""
    rng, folds = np.random.RandomState(0), np.arange(50) % 3
    losses, clean = 2 * rng.exponential(size=(3, 200)), rng.exponential(size=50)
    opinion = OutOfFold(np.zeros((3, 200)), losses, np.zeros(50), clean, np.zeros(50), clean, losses)
    panel = Regression().fit_stacking({("one", ""): opinion}, np.zeros(200), np.zeros(50), folds)
    conclusion = Regression().estimate_label_quality(panel, np.zeros(200), np.zeros(50), np.ones(200), None, folds)
    assert conclusion.limit > 0
    assert np.isfinite(conclusion.flag_frequency).all()


def test_losses_of_a_criterion_can_be_negative():
    """Those of a density, say: alpha raises the loss of a row that hurts, whatever its sign, and scores stay scores."""
    rng, folds = np.random.RandomState(0), np.arange(50) % 3
    losses, clean = np.tile(-2 * rng.random_sample(100), (3, 2)), -1 - rng.random_sample(50)
    alpha = np.repeat([0.0, 1.0], 100)
    opinion = OutOfFold(np.zeros((3, 200)), losses, np.zeros(50), clean, np.zeros(50), clean, losses + 5)
    panel = Regression().fit_stacking({("one", ""): opinion}, np.zeros(200), np.zeros(50), folds)
    conclusion = Regression().estimate_label_quality(panel, np.zeros(200), np.zeros(50), alpha, None, folds)
    assert (conclusion.losses[:100] >= conclusion.losses[100:]).all()
    assert (conclusion.losses[:100] > conclusion.losses[100:]).mean() > 0.9
    scores = Regression().scores(None, None, conclusion.losses, conclusion.limit)
    assert ((scores > 0) & (scores < 1)).all()
    np.testing.assert_array_equal(np.argsort(scores), np.argsort(-conclusion.losses))
    np.testing.assert_array_equal(scores < 0.5, conclusion.losses > conclusion.limit)


@pytest.mark.parametrize("cls", DETECTORS)
class TestSharedInterface:
    def test_flags_scores_and_table(self, cls):
        X, y, X_clean, y_clean, is_corrupted = linear_problem()
        detector = quick(cls).fit(X, y, X_clean, y_clean)
        assert average_precision_score(is_corrupted, detector.loss_) > 0.9
        np.testing.assert_array_equal(detector.predict(X), detector.loss_ > detector.loss_limit_)
        assert detector.predict()[is_corrupted].mean() > 0.9
        assert detector.predict()[~is_corrupted].mean() < 0.15
        scores = detector.decision_function(X, y)
        assert ((scores >= 0) & (scores <= 1)).all()
        assert detector.predictions_.shape == y.shape
        table = detector.to_frame()
        more = ["flag_frequency", "p_value"] if cls is CorruptionDetector else []
        assert table.columns[1:].tolist() == ["is_corrupted", "given_target", "predicted_target", "loss", *more]
        np.testing.assert_allclose(table["given_target"], y, rtol=1e-6)
        assert not hasattr(detector, "classes_")

    def test_loss_limit_is_read_when_predict_is_called(self, cls):
        detector = quick(cls).fit(*linear_problem()[:4])
        for limit in (0.1, 5.0):
            np.testing.assert_array_equal(detector.set_params(loss_limit=limit).predict(), detector.loss_ > limit)

    def test_several_targets(self, cls):
        X, y, X_clean, y_clean, is_corrupted = linear_problem(n_outputs=2)
        detector = quick(cls).fit(X, y, X_clean, y_clean)
        assert average_precision_score(is_corrupted, detector.loss_) > 0.9
        assert detector.predictions_.shape == y.shape
        assert {"given_target_1", "predicted_target_0"} <= set(detector.to_frame().columns)
        np.testing.assert_array_equal(detector.predict(X[:5], y[:5]), detector.predict()[:5])

    def test_units_of_the_target_do_not_matter(self, cls):
        X, y, X_clean, y_clean, _ = linear_problem()
        expected = quick(cls).fit(X, y, X_clean, y_clean)
        other = quick(cls).fit(X, 1000 * y + 5000, X_clean, 1000 * y_clean + 5000)
        np.testing.assert_allclose(other.loss_, expected.loss_, rtol=0.05, atol=0.02)

    @pytest.mark.parametrize("criterion", [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss])
    def test_skorch_regressor_with_any_criterion(self, cls, criterion):
        net = NeuralNetRegressor(
            nn.Linear(3, 1),
            criterion=criterion,
            lr=0.1,
            optimizer__momentum=0.9,
            batch_size=50,
            max_epochs=20,
            verbose=0,
        )
        X, y, X_clean, y_clean, is_corrupted = linear_problem()
        detector = quick(cls, net=net).fit(X, y, X_clean, y_clean)
        assert average_precision_score(is_corrupted, detector.loss_) > 0.9

    def test_plain_module(self, cls):
        X, y, X_clean, y_clean, is_corrupted = linear_problem()
        module = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
        detector = quick(cls, net=module).fit(X, y, X_clean, y_clean)
        assert average_precision_score(is_corrupted, detector.loss_) > 0.9

    def test_integer_targets_by_task(self, cls):
        X, y, X_clean, y_clean, _ = linear_problem()
        whole = (10 * y).round().astype(int), (10 * y_clean).round().astype(int)
        detector = quick(cls, task="regression").fit(X, whole[0], X_clean, whole[1])
        assert detector.loss_limit_ > 0

    def test_generic_net_with_several_labels_a_row(self, cls):
        X, Y = make_multilabel_classification(260, n_features=10, n_classes=4, random_state=0)
        X = (X - X.mean(0)) / X.std(0)
        rng = np.random.RandomState(0)
        noisy, is_corrupted = Y[:200].copy(), rng.rand(200) < 0.2
        noisy[is_corrupted] = 1 - noisy[is_corrupted]
        net = NeuralNet(
            nn.Linear(10, 4),
            nn.BCEWithLogitsLoss,
            lr=0.5,
            optimizer__momentum=0.9,
            batch_size=-1,
            max_epochs=50,
            verbose=0,
        )
        detector = quick(cls, net=net).fit(X[:200], noisy, X[200:], Y[200:])
        assert detector.predictions_.shape == (200, 4)
        assert average_precision_score(is_corrupted, detector.loss_) > 0.5

    def test_wrong_number_of_outputs(self, cls):
        net = NeuralNetRegressor(nn.Linear(3, 2), verbose=0)
        with pytest.raises(ValueError, match=r"output of shape \(2, 2\) for two rows with targets of shape \(2, 1\)"):
            quick(cls, net=net).fit(*linear_problem()[:4])


def average_precisions(X, y, is_corrupted, X_clean, y_clean):
    """Return those of CDGD, S_n and S_c."""
    detectors = (cls(random_state=0).fit(X, y, X_clean, y_clean) for cls in DETECTORS)
    return [average_precision_score(is_corrupted, detector.loss_) for detector in detectors]


def test_diabetes_with_shuffled_targets():
    """A weak signal: single draws are noisy, the mean over five is not below either baseline."""
    X, y = load_diabetes(return_X_y=True)
    found = []
    for seed in range(5):
        X_noisy, X_clean, y_noisy, y_clean = train_test_split(X, y, test_size=100, random_state=seed)
        y_noisy, is_corrupted = corrupt_targets(y_noisy, 0.2, kind="shuffle", random_state=seed)
        found.append(average_precisions(X_noisy, y_noisy, is_corrupted, X_clean, y_clean))
    ours, of_noisy, of_clean = np.mean(found, axis=0)
    print(f"diabetes, AP over five seeds: {ours:.3f}, S_n {of_noisy:.3f}, S_c {of_clean:.3f}")
    assert ours > max(of_noisy, of_clean)


def test_friedman_with_shuffled_targets():
    X, y = make_friedman1(1100, random_state=0)
    y_noisy, is_corrupted = shuffled(y[:1000], 0.2, np.random.RandomState(0))
    ours, *baselines = average_precisions(X[:1000], y_noisy, is_corrupted, X[1000:], y[1000:])
    assert ours > max(baselines)


def test_friedman_with_noise_in_the_features():
    X, y = make_friedman1(1100, n_features=5, random_state=0)
    rng = np.random.RandomState(0)
    is_corrupted = rng.rand(1000) < 0.2
    X_noisy = X[:1000].copy()
    X_noisy[is_corrupted] = rng.rand(is_corrupted.sum(), 5)
    ours, *baselines = average_precisions(X_noisy, y[:1000], is_corrupted, X[1000:], y[1000:])
    assert ours > max(baselines)


@pytest.mark.parametrize("net", [None, nn.Linear(3, 1)], ids=["closed form", "network"])
def test_torch_is_left_in_peace(net):
    before = torch.get_rng_state()
    quick(CorruptionDetector, net=net).fit(*linear_problem()[:4])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("net", [None, nn.Linear(3, 2)], ids=["closed form", "network"])
def test_members_predict_all_targets_of_a_row(net):
    """Forests too, whose losses are those of the network or of the kernel machines."""
    X, y, X_clean, y_clean, is_corrupted = linear_problem(n_outputs=2)
    detector = quick(CorruptionDetector, net=net, witnesses="all").fit(X, y, X_clean, y_clean)
    assert any(name.startswith("trees") for name, _ in detector._panel.names)
    right = ~is_corrupted
    residuals, spread = detector.predictions_[right] - y[right], y[right].std(axis=0)
    assert (residuals.std(axis=0) < 0.5 * spread).all()
    assert average_precision_score(is_corrupted, detector.loss_) > 0.9
