"""Flags with a guarantee: p-values and rule against independent values, and what a user meets."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import closed_form_detector
from scipy.stats import false_discovery_control
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd._classification import Classification
from sklearn_cdgd._decision import conformal_p_values, flag_by_p_value, share_of_right
from sklearn_cdgd._stacking import OutOfFold
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres


class TestPValues:
    def test_equal_a_count_by_hand(self):
        rng = np.random.RandomState(0)
        # Whole numbers, so that there are ties: a clean row that looks as bad counts.
        scores, clean = rng.randint(8, size=(3, 20)), rng.randint(8, size=9)
        folds = np.arange(9) % 3
        for n, p in enumerate(conformal_p_values(scores, clean, folds)):
            assert p == (1 + sum(clean[j] <= scores[folds[j], n] for j in range(9))) / 10

    def test_rows_are_compared_with_their_group(self):
        scores, clean = np.array([[1.0, 1.0, 1.0]]), np.array([0.0, 0.5, 2.0])
        p_values = conformal_p_values(scores, clean, np.zeros(3, dtype=int), np.array([0, 1, 2]), np.array([0, 0, 1]))
        np.testing.assert_allclose(p_values, [1, 1 / 2, 1])  # two of two, none of one, and a group without clean rows

    def test_are_not_too_small_for_right_rows(self):
        rng = np.random.RandomState(0)
        drawn = [conformal_p_values(rng.randn(1, 50), rng.randn(19), np.zeros(19, dtype=int)) for _ in range(400)]
        for level in (0.05, 0.1, 0.3, 0.6):
            assert np.mean(np.array(drawn) <= level) <= level + 0.02


class TestRule:
    @pytest.mark.parametrize("fdr", [0.05, 0.2])
    def test_equals_that_of_scipy(self, fdr):
        rng = np.random.RandomState(0)
        p_values = np.concatenate([rng.rand(60), rng.rand(40) / 50])
        adjusted = false_discovery_control(p_values, method="bh") * share_of_right(p_values)
        np.testing.assert_array_equal(flag_by_p_value(p_values, fdr), adjusted <= fdr)

    def test_what_the_share_of_right_rows_comes_from_is_never_flagged(self):
        flags = flag_by_p_value(np.concatenate([np.full(97, 0.001), [0.6, 1.0, 1.0]]), 0.1)
        np.testing.assert_array_equal(flags, np.arange(100) < 97)

    def test_share_of_right_rows(self):
        rng = np.random.RandomState(0)
        assert share_of_right(np.concatenate([rng.rand(7000), np.zeros(3000)])) == pytest.approx(0.7, abs=0.03)
        assert share_of_right(np.ones(5)) == 1

    def test_nothing_is_flagged_without_small_p_values(self):
        assert not flag_by_p_value(np.full(10, 0.5), 0.2).any()

    @pytest.mark.parametrize("fdr", [0.05, 0.1, 0.2])
    def test_the_rate_holds(self, fdr):
        """Scores of clean and right rows from one distribution, of wrong rows from another: 300 draws."""
        rng, proportions = np.random.RandomState(0), []
        folds = np.arange(150) % 3
        for _ in range(300):
            is_wrong = rng.rand(400) < 0.2
            scores = np.where(is_wrong, -2.5, 0.0) + rng.randn(400)
            # The networks of the three folds agree but for some noise.
            by_fold, clean = scores + 0.3 * rng.randn(3, 400), rng.randn(150) + 0.3 * rng.randn(150)
            flags = flag_by_p_value(conformal_p_values(by_fold, clean, folds), fdr)
            proportions.append((~is_wrong[flags]).mean() if flags.any() else 0.0)
        assert np.mean(proportions) <= fdr + 2 * np.std(proportions) / np.sqrt(300)


@pytest.fixture(scope="module")
def fitted(spheres_fit):
    return spheres_fit()


@pytest.fixture(scope="module")
def spheres_fit():
    X, y = make_concentric_spheres(400, 2, random_state=0)
    y_noisy, is_corrupted = flip_labels(y[:240], 0.25, random_state=0)

    def fit(n_clean=160, **options):
        arrays = X[:240], y_noisy, X[240 : 240 + n_clean], y[240 : 240 + n_clean]
        net = NeuralNetClassifier(
            lambda: nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 2)),
            criterion=nn.CrossEntropyLoss,
            lr=0.3,
            optimizer__momentum=0.9,
            batch_size=-1,
            max_epochs=60,
            verbose=0,
        )
        return CorruptionDetector(net, max_iter=3, random_state=0, **options).fit(*arrays), is_corrupted

    return fit


class TestComparison:
    def test_shares_that_clean_rows_decide_do_not_make_them_look_better(self):
        """Witnesses that know nothing: the best on the clean rows must not make p-values of right rows small."""
        rng, below, folds = np.random.RandomState(0), [], np.arange(21) % 3
        task = Classification(np.arange(2))
        for _ in range(60):
            clean, noisy = rng.randint(2, size=21), rng.randint(2, size=100)

            def witness(clean=clean, noisy=noisy):
                on_noisy, on_clean = rng.dirichlet([2, 2], size=(3, 100)), rng.dirichlet([2, 2], size=21)
                losses = np.zeros((3, 100)), np.zeros(21)
                return OutOfFold(on_noisy, losses[0], on_clean, losses[1], on_clean, losses[1], losses[0])

            panel = task.fit_stacking({(str(n), ""): witness() for n in range(8)}, noisy, clean, folds)
            p_values = task.estimate_label_quality(panel, noisy, clean, np.ones(100), None, folds).p_values
            below.append((p_values <= 0.2).mean())
        assert np.mean(below) <= 0.2 + 2 * np.std(below) / np.sqrt(60)

    def test_a_class_without_clean_rows_is_never_flagged(self):
        rng, task, folds = np.random.RandomState(0), Classification(np.arange(3)), np.arange(60) % 3
        clean, noisy = rng.randint(2, size=60), rng.randint(3, size=90)
        of_noisy, of_clean = np.tile([0.6, 0.39, 0.01], (3, 90, 1)), np.tile([0.6, 0.39, 0.01], (60, 1))
        losses = np.zeros((3, 90)), np.zeros(60)
        opinion = OutOfFold(of_noisy, losses[0], of_clean, losses[1], of_clean, losses[1], losses[0])
        panel = task.fit_stacking({("one", ""): opinion}, noisy, clean, folds)
        p_values = task.estimate_label_quality(panel, noisy, clean, np.ones(90), None, folds).p_values
        assert (p_values[noisy == 2] == 1).all()


def test_p_values_of_right_rows_are_not_too_small_in_closed_form():
    """Fits of other rows, with hard ones among them: the classes overlap."""
    below, levels = [], np.array([0.1, 0.3])
    for seed in range(24):
        rng = np.random.RandomState(seed)
        X, y = rng.randn(150, 2), rng.randint(2, size=150)
        X[:, 0] += 2 * y
        y_noisy, is_corrupted = flip_labels(y[:100], 0.2, random_state=seed)
        detector = closed_form_detector(max_iter=2, random_state=seed)
        p_values = detector.fit(X[:100], y_noisy, X[100:], y[100:]).p_values_
        below.append((p_values[~is_corrupted, None] <= levels).mean(axis=0))
        assert p_values[is_corrupted].mean() < p_values[~is_corrupted].mean()
    assert (np.mean(below, axis=0) <= levels + 3 * np.std(below, axis=0) / np.sqrt(len(below))).all()


class TestDetector:
    def test_more_is_flagged_at_a_larger_rate(self, fitted):
        detector, is_corrupted = fitted
        flags = [detector.set_params(method="conformal", fdr=fdr).predict() for fdr in (0.05, 0.1, 0.3)]
        assert (flags[0] <= flags[1]).all()
        assert (flags[1] <= flags[2]).all()
        assert flags[1].any()
        assert (~is_corrupted[flags[1]]).mean() < 0.3
        np.testing.assert_array_equal(flags[1], flag_by_p_value(detector.p_values_, 0.1))

    def test_flags_and_table(self, fitted):
        detector, _ = fitted
        frame = detector.set_params(method="conformal", fdr=0.1).to_frame()
        np.testing.assert_array_equal(frame["p_value"], detector.p_values_)
        np.testing.assert_array_equal(frame["flag_frequency"], detector.flag_frequency_)
        np.testing.assert_array_equal(frame["is_corrupted"], detector.predict())
        assert ((detector.p_values_ > 0) & (detector.p_values_ <= 1)).all()
        assert detector.p_values_.min() == pytest.approx(1 / 161)

    def test_flag_frequency_is_that_of_networks(self, fitted):
        detector, is_corrupted = fitted
        frequency = detector.flag_frequency_
        assert ((frequency >= 0) & (frequency <= 1 + 1e-12)).all()
        assert frequency[is_corrupted].mean() > 0.8 > 0.2 > frequency[~is_corrupted].mean()

    def test_held_out_curve(self, fitted, spheres_fit):
        detector, _ = fitted
        assert detector.validation_loss_curve_.shape == detector.clean_loss_curve_.shape == (3,)
        assert (detector.validation_loss_curve_ > 0).all()
        alone, _ = spheres_fit(clean_cv=None, cv=None)
        assert np.isnan(alone.validation_loss_curve_).all()

    def test_pairs_that_were_not_in_the_noisy_set_are_refused(self, fitted):
        detector, _ = fitted
        detector.set_params(method="conformal")
        with pytest.raises(ValueError, match=r"can only flag rows of the noisy set; 2 pairs .* set method=\"trained\""):
            detector.predict(np.full((2, 2), 9.0), [0, 1])

    @pytest.mark.parametrize("options", [{"cv": None}, {"clean_cv": None}])
    def test_without_folds_there_are_no_p_values(self, spheres_fit, options):
        detector, _ = spheres_fit(**options, method="conformal")
        assert detector.p_values_ is None
        assert "p_value" not in detector.set_params(method="trained").to_frame()
        with pytest.raises(ValueError, match=r"Fit with cv and clean_cv set, .* got cv=.*, clean_cv="):
            detector.set_params(method="conformal").predict()

    @pytest.mark.filterwarnings("ignore:The clean set has no row")
    def test_one_clean_row_gives_no_p_values(self, spheres_fit):
        detector, _ = spheres_fit(n_clean=1, method="conformal")
        assert detector.p_values_ is None
        with pytest.raises(ValueError, match=r"at least two clean rows; .* and 1 clean rows"):
            detector.predict()

    def test_a_small_clean_set_gets_a_warning(self, spheres_fit):
        detector, _ = spheres_fit(n_clean=8)
        with pytest.warns(
            UserWarning, match=r"clean set of 8 rows is small for fdr=0.05: .* Verify [\d.]+ times as many"
        ):
            flags = detector.set_params(method="conformal", fdr=0.05).predict()
        assert not flags.any()

    @pytest.mark.parametrize("fdr", [0, 1, "low"])
    def test_fdr_is_checked(self, fitted, fdr):
        detector, _ = fitted
        with pytest.raises(ValueError, match="The 'fdr' parameter"):
            detector.set_params(method="conformal", fdr=fdr).predict()
        detector.set_params(fdr=0.1)

    @pytest.mark.parametrize("method", ["trained", "alpha", "conformal"])
    def test_report(self, fitted, method):
        detector, _ = fitted
        text = detector.set_params(method=method, fdr=0.1).report()
        assert text.startswith("240 noisy rows, 160 clean rows.")
        assert f'method="{method}" flags {detector.predict().sum()} rows' in text
        assert "clean rows alone" in text

    def test_report_without_folds_says_what_it_cannot(self, spheres_fit):
        detector, _ = spheres_fit(cv=None)
        assert "With cv=None no rows are kept" in detector.report()
