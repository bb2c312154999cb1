"""The rules that make flags of scores; those with a guarantee are in test_conformal."""

from __future__ import annotations

import numpy as np
import pytest

from sklearn_cdgd._decision import (
    best_alpha_threshold,
    best_expected_f1,
    flag_by_loss,
    flag_by_prediction,
    flag_by_threshold,
    last_of_lost_classes,
    least_share_flagged,
    loss_limit,
)


class TestExpectedF1:
    @pytest.mark.parametrize("seed", range(5))
    def test_no_other_limit_is_better(self, seed):
        p_wrong = np.random.RandomState(seed).beta(0.5, 2, size=40)

        def expected_f1(limit):
            flagged = p_wrong > limit
            return 2 * p_wrong[flagged].sum() / (flagged.sum() + p_wrong.sum())

        limit = best_expected_f1(p_wrong)
        assert expected_f1(limit) == pytest.approx(max(expected_f1(other) for other in np.linspace(0, 1, 1001)))
        assert limit == pytest.approx(expected_f1(limit) / 2, abs=0.05)

    def test_clear_cases(self):
        assert 0.01 < best_expected_f1(np.array([0.99, 0.98, 0.01, 0.005])) < 0.98

    def test_one_row(self):
        assert 0 <= best_expected_f1(np.array([0.2])) < 0.2

    def test_the_order_of_rows_does_not_matter(self):
        p_wrong = np.random.RandomState(0).rand(30)
        assert best_expected_f1(p_wrong[::-1]) == best_expected_f1(p_wrong)


class TestAlphaThreshold:
    @pytest.mark.parametrize("n_values", [3, 40, 1000])
    def test_no_other_threshold_is_better(self, n_values):
        """Alphas with ties, and without."""
        rng = np.random.RandomState(0)
        alpha, p_wrong = rng.randint(n_values, size=40) / n_values, rng.beta(0.5, 2, size=40)

        def expected_f1(threshold):
            flagged = flag_by_threshold(alpha, threshold)
            return 2 * p_wrong[flagged].sum() / (flagged.sum() + p_wrong.sum())

        threshold = best_alpha_threshold(alpha, p_wrong)
        best = max(expected_f1(other) for other in np.linspace(0, 1.001, 2003))
        assert expected_f1(threshold) == pytest.approx(best)

    def test_it_parts_what_is_clear(self):
        alpha = np.array([0.9, 0.2, 0.8, 0.1])
        assert 0.2 < best_alpha_threshold(alpha, np.array([0.01, 0.99, 0.02, 0.98])) <= 0.8


def test_a_row_at_the_limit_is_kept():
    np.testing.assert_array_equal(flag_by_threshold(np.array([0.4, 0.5, 0.6]), 0.5), [True, False, False])
    np.testing.assert_array_equal(flag_by_loss(np.array([0.4, 0.5, 0.6]), 0.5), [False, False, True])


def test_flag_by_prediction():
    probabilities = np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]])
    np.testing.assert_array_equal(flag_by_prediction(probabilities, np.array([0, 1, 1])), [False, True, False])


def test_loss_limit_is_what_most_clean_rows_stay_below():
    losses = np.random.RandomState(0).exponential(size=1000)
    assert (losses > loss_limit(losses)).mean() == pytest.approx(0.05)
    assert (losses > loss_limit(losses, 0.8)).mean() == pytest.approx(0.2)


@pytest.mark.parametrize("fdr", [0.05, 0.2])
def test_least_share_flagged(fdr):
    """So many rows with the smallest possible p-value pass the rule of Benjamini, Hochberg and Storey; fewer do not."""
    n_rows, n_clean = 400, 49
    p_values = np.ones(n_rows)
    n_flagged = np.arange(1, n_rows + 1)
    passes = []
    for n in n_flagged:
        p_values[:n] = 1 / (n_clean + 1)
        passes.append(n / n_rows >= least_share_flagged(p_values, n_clean, fdr))
    by_hand = [
        min(1, 2 * (1 + n_rows - n) / n_rows) / (n_clean + 1) <= fdr * n / n_rows * (1 + 1e-12) for n in n_flagged
    ]
    np.testing.assert_array_equal(passes, by_hand)
    assert passes[-1]


class TestLostClasses:
    SCORES = np.array([0.1, 0.3, 0.2, 0.9, 0.8, 0.5])
    CODES = np.array([0, 0, 0, 1, 1, 2])

    def test_the_least_suspicious_row_of_each(self):
        flags = np.array([True, True, True, False, True, True])
        np.testing.assert_array_equal(last_of_lost_classes(flags, self.SCORES, self.CODES), [1, 5])

    def test_where_none_is_lost(self):
        flags = np.array([True, False, True, True, False, False])
        assert len(last_of_lost_classes(flags, self.SCORES, self.CODES)) == 0
