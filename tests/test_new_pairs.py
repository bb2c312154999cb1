"""Pairs of row and label that were not in the fit."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers import closed_form_detector, quick_detector, skorch_net
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.metrics import average_precision_score, f1_score
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd._new_pairs import N_SNAPSHOTS, Watch
from sklearn_cdgd._unroll import BatchPlan

DETECTORS = [CorruptionDetector, NoisySetDetector, CleanSetDetector]


class Frozen(nn.Module):
    """Its first layer is random and never trained; batch norm carries buffers, dropout draws."""

    def __init__(self):
        super().__init__()
        self.random = nn.Linear(3, 16).requires_grad_(False)
        self.norm, self.drop, self.output = nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2)

    def forward(self, X):
        return self.output(self.drop(torch.relu(self.norm(self.random(X)))))


class Overflowing(nn.Module):
    """Makes NaN of large numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, X):
        return self.layer(X + (X * X - X * X))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.output = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, X):
        return self.output(self.lstm(X[..., None])[0][:, -1])


def mlp(n_outputs=2):
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, n_outputs))


@pytest.fixture
def split(spheres):
    """Return the arguments of a fit, and pairs that were not in it."""
    X, y, X_clean, y_clean, _ = spheres(n_noisy=160)
    return (X[:100], y[:100], X_clean, y_clean), (X[100:], y[100:])


@pytest.mark.parametrize("cls", DETECTORS)
class TestNewPairs:
    def test_new_and_seen_pairs_may_be_mixed(self, cls, split):
        arrays, (X_new, y_new) = split
        detector = quick_detector(cls).fit(*arrays)
        new, flags = detector.decision_function(X_new, y_new), detector.predict(X_new, y_new)
        assert new.shape == flags.shape == y_new.shape
        assert flags.dtype == bool
        assert ((new >= 0) & (new <= 1)).all()
        assert new.std() > 0
        X, y = np.r_[X_new[:9], arrays[0][:5], X_new[9:]], np.r_[y_new[:9], arrays[1][:5], y_new[9:]]
        expected = np.r_[new[:9], detector.decision_function()[:5], new[9:]]
        np.testing.assert_allclose(detector.decision_function(X, y), expected, rtol=1e-6)
        np.testing.assert_array_equal(detector.predict(X, y), np.r_[flags[:9], detector.predict()[:5], flags[9:]])

    @pytest.mark.parametrize("module", [mlp, Frozen])
    def test_flags_follow_the_network(self, cls, module, split):
        """Frozen layers are random and statistics of batch norm grow in training: both must be those of the fit."""
        arrays, (X_new, y_new) = split
        detector = quick_detector(cls, net=skorch_net(module)).fit(*arrays)
        predicted = detector.net_.predict(X_new.astype(np.float32))
        np.testing.assert_array_equal(detector.predict(X_new, y_new), predicted != y_new)
        np.testing.assert_array_equal(detector.predict(X_new, 1 - y_new), predicted == y_new)

    def test_a_known_row_with_another_label_is_new(self, cls, split):
        arrays, _ = split
        detector = quick_detector(cls).fit(*arrays)
        X, y = arrays[0], arrays[1].copy()
        y[:3] = 1 - y[:3]
        scores = detector.decision_function(X, y)
        np.testing.assert_array_equal(scores[3:], detector.decision_function()[3:])
        assert (scores[:3] != detector.decision_function()[:3]).all()

    def test_labels_may_be_words(self, cls, split):
        (X, y, X_clean, y_clean), (X_new, y_new) = split
        names = np.array(["no", "yes"])
        expected = quick_detector(cls).fit(X, y, X_clean, y_clean).decision_function(X_new, y_new)
        detector = quick_detector(cls).fit(X, names[y], X_clean, names[y_clean])
        np.testing.assert_array_equal(detector.decision_function(X_new, names[y_new]), expected)
        with pytest.raises(ValueError, match=r"y: labels that were not seen in fit: \['maybe'\]"):
            detector.predict(X_new[:1], ["maybe"])
        with pytest.raises(ValueError, match="X has 2 rows, but y has 1"):
            detector.predict(X_new[:2], ["yes"])

    def test_what_the_network_cannot_take_is_an_error(self, cls, split):
        arrays, (X_new, y_new) = split
        detector, far = quick_detector(cls, net=skorch_net(Overflowing)).fit(*arrays), np.full((1, 3), 3e38)
        with pytest.raises(ValueError, match=r"1 of 2 new pairs cannot be judged: .* NaN .* check the units of X"):
            detector.predict(np.r_[X_new[:1], far], y_new[:2])
        with pytest.raises(ValueError, match="1 of 1 new pairs cannot be judged"):
            detector.decision_function(far, y_new[:1])

    @pytest.mark.usefixtures("global_generators_untouched")
    def test_asking_changes_nothing(self, cls, split):
        arrays, (X_new, y_new) = split
        detector = quick_detector(cls, net=skorch_net(Frozen)).fit(*arrays)
        before = pickle.dumps(detector)
        expected = detector.decision_function(X_new, y_new), detector.predict(X_new, y_new)
        assert pickle.dumps(detector) == before
        for twin in (
            pickle.loads(before),
            copy.deepcopy(detector),
            quick_detector(cls, net=skorch_net(Frozen)).fit(*arrays),
        ):
            np.testing.assert_array_equal(twin.decision_function(X_new, y_new), expected[0])
            np.testing.assert_array_equal(twin.predict(X_new, y_new), expected[1])
        for off in (torch.no_grad, torch.inference_mode):
            with off():
                np.testing.assert_array_equal(detector.decision_function(X_new, y_new), expected[0])

    def test_the_net_of_the_constructor_may_have_been_replaced(self, cls, split):
        arrays, (X_new, y_new) = split
        detector = quick_detector(cls).fit(*arrays)
        expected = detector.decision_function(X_new, y_new)
        np.testing.assert_array_equal(
            detector.set_params(net=None, random_state=9).decision_function(X_new, y_new), expected
        )

    @pytest.mark.parametrize("module", [mlp(), Frozen, Recurrent, None], ids=["instance", "frozen", "lstm", "default"])
    def test_any_network(self, cls, module, split):
        arrays, (X_new, y_new) = split
        detector = quick_detector(cls, net=None if module is None else skorch_net(module, max_epochs=5))
        scores = detector.fit(*arrays).decision_function(X_new, y_new)
        assert np.isfinite(scores).all()

    def test_images(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres(n_features=16)
        X, X_clean = X.reshape(-1, 1, 4, 4), X_clean.reshape(-1, 1, 4, 4)
        module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        detector = quick_detector(cls, net=skorch_net(module)).fit(X[:90], y[:90], X_clean, y_clean)
        assert np.isfinite(detector.decision_function(X[90:], y[90:])).all()
        assert detector.predict(X[90:], y[90:]).shape == (30,)

    def test_regression(self, cls):
        X = np.random.RandomState(0).uniform(-1, 1, (150, 2))
        y = X[:, 0] + X[:, 1] ** 2
        y_noisy = y[:80] + 3 * (np.arange(80) % 8 == 0)  # where there is no wrong row, alpha has nothing to learn from
        iterations = {"max_iter": 4} if cls is CorruptionDetector else {}
        detector = quick_detector(cls, net=None, **iterations).fit(X[:80], y_noisy, X[80:120], y[80:120])
        right, wrong = detector.predict(X[120:], y[120:]), detector.predict(X[120:], y[120:] + 3)
        assert wrong.mean() > 0.9 > 0.5 > right.mean()
        scores = detector.decision_function(X[120:], y[120:])
        assert scores.mean() > detector.decision_function(X[120:], y[120:] + 3).mean()


@pytest.fixture(params=[{}, {"cv": None}, {"clean_cv": None}, {"shard_size": 50}], ids=str)
def detector(request):
    """Return a detector with the default learner, which judges new pairs in closed form."""
    return closed_form_detector(**request.param)


class TestClosedForm:
    def test_new_and_seen_pairs_may_be_mixed(self, detector, split):
        arrays, (X_new, y_new) = split
        detector.fit(*arrays)
        new, flags = detector.decision_function(X_new, y_new), detector.predict(X_new, y_new)
        assert ((new >= 0) & (new <= 1)).all()
        assert new.std() > 0.05
        X, y = np.r_[X_new[:9], arrays[0][:5], X_new[9:]], np.r_[y_new[:9], arrays[1][:5], y_new[9:]]
        expected = np.r_[new[:9], detector.decision_function()[:5], new[9:]]
        np.testing.assert_allclose(detector.decision_function(X, y), expected, rtol=1e-5)
        np.testing.assert_array_equal(detector.predict(X, y), np.r_[flags[:9], detector.predict()[:5], flags[9:]])

    @pytest.mark.usefixtures("global_generators_untouched")
    def test_asking_changes_nothing(self, detector, split):
        arrays, (X_new, y_new) = split
        detector.fit(*arrays)
        before = pickle.dumps(detector)
        scores, flags = detector.decision_function(X_new, y_new), detector.predict(X_new, y_new)
        assert pickle.dumps(detector) == before
        for twin in (pickle.loads(before), copy.deepcopy(detector), clone(detector).fit(*arrays)):
            np.testing.assert_array_equal(twin.decision_function(X_new, y_new), scores)
            np.testing.assert_array_equal(twin.predict(X_new, y_new), flags)

    def test_errors_among_new_pairs_are_found(self, detector, spheres):
        X, y, X_clean, y_clean, is_corrupted = spheres(n_noisy=300, n_clean=60, n_features=2, rate=0.3)
        detector.fit(X[:150], y[:150], X_clean, y_clean)
        X_new, y_new, is_corrupted = X[150:], y[150:], is_corrupted[150:]
        assert average_precision_score(is_corrupted, -detector.decision_function(X_new, y_new)) > 0.8
        assert f1_score(is_corrupted, detector.predict(X_new, y_new)) > 0.8
        gain = detector.decision_function(X_new, 1 - y_new) - detector.decision_function(X_new, y_new)
        assert (gain[is_corrupted] > 0).mean() > 0.8
        assert (gain[~is_corrupted] < 0).mean() > 0.8

    @pytest.mark.parametrize("clean_cv", [3, None])
    @pytest.mark.parametrize("average", [True, False])
    def test_a_pair_moves_as_it_would_have_in_the_fit(self, clean_cv, average, split):
        """Given the prior of a training row, its alpha is estimated to rounding."""
        options = dict(clean_cv=clean_cv, average=average)
        still = closed_form_detector(max_iter=1, outer_lr=1e-9, **options).fit(*split[0])
        prior = still._outer_state.alpha.astype(float)
        detector = closed_form_detector(**options).fit(*split[0])
        estimate = detector._alpha_estimate

        class Known:
            ensemble = estimate.prior.ensemble

            def __call__(self, X, targets):
                return prior

        alpha = estimate._replace(prior=Known()).alpha(None, detector._X, detector._targets)
        np.testing.assert_allclose(alpha, detector.alpha_, atol=1e-4)
        assert np.abs(alpha - prior.mean(axis=0)).max() > 0.01

    def test_a_pair_starts_where_it_would_have_in_the_fit(self, spheres):
        correlations, options = [], dict(max_iter=1, outer_lr=1e-9)
        for seed in range(3):
            X, y, X_clean, y_clean, _ = spheres(n_noisy=250, n_clean=60, seed=seed)
            detector = closed_form_detector(**options).fit(X[:200], y[:200], X_clean, y_clean)
            scores = detector.decision_function(X[200:], y[200:])
            prior = closed_form_detector(**options).fit(X, y, X_clean, y_clean).alpha_[200:]
            correlations.append(spearmanr(scores, prior)[0])
            assert scores.mean() == pytest.approx(prior.mean(), abs=0.05)
        assert np.mean(correlations) > 0.8

    def test_a_known_row_with_another_label_is_new(self, detector, split):
        arrays, _ = split
        detector.fit(*arrays)
        X, y = arrays[0], arrays[1].copy()
        y[:3] = 1 - y[:3]
        scores = detector.decision_function(X, y)
        np.testing.assert_array_equal(scores[3:], detector.decision_function()[3:])
        assert (scores[:3] != detector.decision_function()[:3]).all()
        # Of two labels of one row no more than one is right.
        flags = detector.predict(X[:3], y[:3]) | detector.predict(X[:3], 1 - y[:3])
        assert flags.all()

    def test_labels_may_be_words(self, detector, split):
        (X, y, X_clean, y_clean), (X_new, y_new) = split
        names = np.array(["no", "yes"])
        expected = clone(detector).fit(X, y, X_clean, y_clean)
        detector.fit(X, names[y], X_clean, names[y_clean])
        for method in ("decision_function", "predict"):
            found = getattr(detector, method)(X_new, names[y_new])
            np.testing.assert_array_equal(found, getattr(expected, method)(X_new, y_new))
        with pytest.raises(ValueError, match=r"y: labels that were not seen in fit: \['maybe'\]"):
            detector.predict(X_new[:1], ["maybe"])

    def test_the_network_is_not_asked(self, split, monkeypatch):
        arrays, new_pairs = split
        detector = closed_form_detector().fit(*arrays)
        monkeypatch.setattr("sklearn_cdgd._base.Network.of_fitted", lambda *args: pytest.fail("the network was asked"))
        assert detector.predict(*new_pairs).shape == detector.decision_function(*new_pairs).shape == (60,)

    def test_method_and_threshold_are_read_when_predict_is_called(self, detector, split):
        arrays, new_pairs = split
        scores = detector.fit(*arrays).decision_function(*new_pairs)
        for threshold in (0.5, float(np.median(scores))):
            detector.set_params(method="alpha", threshold=threshold)
            np.testing.assert_array_equal(detector.predict(*new_pairs), scores < threshold)

    @pytest.mark.parametrize("n_targets", [1, 2])
    def test_numbers(self, detector, n_targets):
        X = np.random.RandomState(0).uniform(-1, 1, (200, 2))
        y = np.c_[X[:, 0] + X[:, 1] ** 2, 100 * X[:, 1]][:, :n_targets]
        y = y[:, 0] if n_targets == 1 else y
        is_corrupted = np.arange(100) % 8 == 0
        y_noisy = y[:100].copy()
        y_noisy[is_corrupted] += 3 * y.std(axis=0)
        detector.fit(X[:100], y_noisy, X[100:150], y[100:150])
        X_new, right, wrong = X[150:], y[150:], y[150:] + 3 * y.std(axis=0)
        assert detector.predict(X_new, wrong).mean() > 0.9 > 0.5 > detector.predict(X_new, right).mean()
        of_right, of_wrong = detector.decision_function(X_new, right), detector.decision_function(X_new, wrong)
        assert of_right.mean() > of_wrong.mean()
        assert ((of_right >= 0) & (of_right <= 1)).all()

    def test_rows_far_away_are_judged(self, detector, split):
        arrays, _ = split
        detector.fit(*arrays)
        scores = detector.decision_function(np.full((2, 3), 3e38), [0, 1])
        assert ((scores >= 0) & (scores <= 1)).all()
        assert detector.predict(np.full((2, 3), 3e38), [0, 1]).shape == (2,)

    def test_images(self, detector, spheres):
        X, y, X_clean, y_clean, _ = spheres(n_features=16)
        images, X_clean = X.reshape(-1, 1, 4, 4), X_clean.reshape(-1, 1, 4, 4)
        scores = detector.fit(images[:90], y[:90], X_clean, y_clean).decision_function(images[90:], y[90:])
        assert ((scores >= 0) & (scores <= 1)).all()
        assert detector.predict(images[90:], y[90:]).shape == (30,)


class TestAlphaOfNewPairs:
    def test_method_and_threshold_are_read_when_predict_is_called(self, split):
        arrays, (X_new, y_new) = split
        detector = quick_detector(method="alpha").fit(*arrays)
        scores = detector.decision_function(X_new, y_new)
        for threshold in (0.5, float(np.median(scores))):
            detector.set_params(threshold=threshold)
            np.testing.assert_array_equal(detector.predict(X_new, y_new), scores < threshold)

    @pytest.mark.parametrize("n_inits", [1, 3])
    @pytest.mark.parametrize("batch_size", [-1, 25])
    def test_of_training_pairs_is_near_what_they_have(self, spheres, n_inits, batch_size):
        """Also where the three networks of an outer step are trained at once. From set to set it differs."""
        correlations = []
        for seed in range(4):
            arrays = spheres(n_noisy=100, seed=seed)[:4]
            detector = quick_detector(n_inits=n_inits, max_iter=8, net=skorch_net(batch_size=batch_size)).fit(*arrays)
            as_if_new = detector._new_scores(detector._X, detector._targets)
            correlations.append(spearmanr(as_if_new, detector.alpha_)[0])
            assert as_if_new.mean() == pytest.approx(detector.alpha_.mean(), abs=0.05)
        assert np.mean(correlations) > 0.55

    def test_some_training_rows_are_enough_to_calibrate(self, split, monkeypatch):
        arrays, _ = split
        by_all = quick_detector(max_iter=8).fit(*arrays)._new_scores(*arrays[:2])
        monkeypatch.setattr("sklearn_cdgd._new_pairs._CALIBRATION_ROWS", 30)
        detector = quick_detector(max_iter=8).fit(*arrays)
        assert len(detector._alpha_estimate.alphas) <= 30
        as_if_new = detector._new_scores(detector._X, detector._targets)
        assert spearmanr(as_if_new, by_all)[0] > 0.9
        assert as_if_new.mean() == pytest.approx(detector.alpha_.mean(), abs=0.1)

    def test_the_other_label_of_a_flipped_row_is_the_better_one(self, spheres):
        X, y, X_clean, y_clean, is_corrupted = spheres(n_noisy=200, n_features=2, rate=0.3)
        detector = CorruptionDetector(max_iter=6, cv=None, random_state=0).fit(X[:120], y[:120], X_clean, y_clean)
        X_new, y_new, is_corrupted = X[120:], y[120:], is_corrupted[120:]
        gain = detector.decision_function(X_new, 1 - y_new) - detector.decision_function(X_new, y_new)
        assert (gain[is_corrupted] > 0).mean() > 0.8
        assert (gain[~is_corrupted] < 0).mean() > 0.8

    def test_rows_assumed_clean_do_not_count(self, spheres):
        """They keep alpha 1 whatever their influence."""
        X, y, *_ = spheres()
        with pytest.warns(UserWarning, match="assumed to be right"):
            detector = quick_detector(clean_fraction=0.9, max_iter=6).fit(X, y)
        assert (detector.alpha_ == 1).mean() > 0.85
        assert detector.decision_function(X, 1 - y).min() < 0.95


class TestWatch:
    def params(self, n_params):
        return (torch.zeros(n_params),)

    @pytest.mark.parametrize(("n_trainings", "n_stacked"), [(1, 1), (6, 1), (48, 1), (250, 1), (24, 3)])
    def test_number_and_place_of_the_snapshots(self, n_trainings, n_stacked):
        watch = Watch(BatchPlan(10, -1, 900, seed=0), n_trainings, self.params(5), n_stacked)
        steps = [step for training in range(n_trainings) for step in watch.steps(training)]
        assert len(steps) == N_SNAPSHOTS // n_stacked
        assert 0 <= min(steps) < 50
        assert 250 < max(steps) < 300

    def test_large_networks_get_fewer(self):
        watch = Watch(BatchPlan(10, -1, 900, seed=0), 10, self.params(2_500_000), 1)
        assert sum(len(watch.steps(n)) for n in range(10)) == 5  # of 20 MB each
        watch = Watch(BatchPlan(10, -1, 900, seed=0), 10, self.params(25_000_000), 1)
        assert sum(len(watch.steps(n)) for n in range(10)) == 4

    def test_short_trainings(self):
        watch = Watch(BatchPlan(10, -1, 1, seed=0), 3, self.params(5), 1)
        assert [watch.steps(n) for n in range(3)] == [{0}] * 3
