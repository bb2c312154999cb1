"""What nearest neighbours say: against a brute-force vote, and what they must not see."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from sklearn_cdgd import _neighbors
from sklearn_cdgd._neighbors import nearest_rows, opinion_of_neighbors


@pytest.fixture
def sets():
    rng = np.random.RandomState(0)
    return [(rng.randn(n, 3), rng.randint(3, size=n)) for n in (60, 12)]


def by_hand(row, Z, labels, votes):
    """Return the shares of votes of the nearest rows, the row itself left out."""
    order = np.argsort(((Z - Z[row]) ** 2).sum(axis=1), kind="stable")[1 : _neighbors._LOOKED_AT + 1]
    counts = np.full(3, 1 / 3)
    for n, total in zip(order, votes[order].cumsum(), strict=True):
        counts[labels[n]] += votes[n] * (total <= _neighbors._N_NEIGHBORS)
    return counts / counts.sum()


@pytest.mark.parametrize("container", [np.asarray, csr_array])
def test_equals_a_vote_by_hand(sets, container):
    (Z, y), (Z_clean, y_clean) = sets
    rng, folds = np.random.RandomState(1), np.arange(12) % 3
    weights = rng.rand(3, 60)
    opinion = opinion_of_neighbors(nearest_rows(container(Z), container(Z_clean)), y, y_clean, weights, folds, 3)
    everyone, labels = np.concatenate([Z, Z_clean]), np.concatenate([y, y_clean])
    for fold in range(3):
        votes = np.concatenate([weights[fold], folds != fold])
        for row in (0, 7, 59):
            np.testing.assert_allclose(opinion.answers[fold, row], by_hand(row, everyone, labels, votes))
        for row in np.flatnonzero(folds == fold):
            np.testing.assert_allclose(opinion.clean_answers[row], by_hand(60 + row, everyone, labels, votes))


def test_no_row_and_no_clean_row_of_the_fold_has_a_say(sets):
    (Z, y), (Z_clean, y_clean) = sets
    folds = np.arange(12) % 3

    def opinion(y, y_clean):
        return opinion_of_neighbors(nearest_rows(Z, Z_clean), y, y_clean, np.ones((3, 60)), folds, 3)

    before = opinion(y, y_clean)
    other = np.where(np.arange(60) == 5, (y + 1) % 3, y)
    np.testing.assert_array_equal(opinion(other, y_clean).answers[:, 5], before.answers[:, 5])
    other = np.where(folds == 1, (y_clean + 1) % 3, y_clean)
    after = opinion(y, other)
    np.testing.assert_array_equal(after.answers[1], before.answers[1])
    np.testing.assert_array_equal(after.clean_answers[folds == 1], before.clean_answers[folds == 1])
    assert (after.answers[0] != before.answers[0]).any()


def test_losses_are_those_of_the_given_labels(sets):
    (Z, y), (Z_clean, y_clean) = sets
    folds = np.arange(12) % 3
    opinion = opinion_of_neighbors(nearest_rows(Z, Z_clean), y, y_clean, np.random.RandomState(1).rand(3, 60), folds, 3)
    np.testing.assert_allclose(opinion.losses, -np.log(opinion.answers[:, np.arange(60), y]))
    np.testing.assert_allclose(opinion.clean_losses, -np.log(opinion.clean_answers[np.arange(12), y_clean]))
    # A clean row is judged once for its fold, a noisy row once for every fold: by as many neighbours.
    np.testing.assert_array_equal(opinion.calibration_answers, opinion.clean_answers)


def test_rows_without_weight_have_no_vote(sets):
    (Z, y), clean = sets
    weights = np.tile(np.arange(60) % 2.0, (3, 1))
    other = np.where(weights[0] > 0, y, (y + 1) % 3)
    nearest, folds = nearest_rows(Z, clean[0]), np.arange(12) % 3
    before, after = (opinion_of_neighbors(nearest, of, clean[1], weights, folds, 3) for of in (y, other))
    np.testing.assert_array_equal(after.answers, before.answers)
    np.testing.assert_array_equal(after.clean_answers, before.clean_answers)


def test_fewer_rows_than_neighbours():
    Z, y = np.arange(4.0)[:, None], np.array([0, 0, 1, 1])
    nearest = nearest_rows(Z, Z[:2] + 0.1)
    opinion = opinion_of_neighbors(nearest, y, y[:2], np.ones((1, 4)), np.zeros(2, dtype=int), 2)
    np.testing.assert_allclose(opinion.answers.sum(axis=2), 1)
