"""From probabilities of members to the probability that a label is right: against Bayes' rule and drawn labels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sklearn_cdgd._label_noise import evidence_weight, noise_transition, posterior

TRANSITION = np.array([[0.9, 0.1, 0.0], [0.05, 0.6, 0.35], [0.2, 0.0, 0.8]])


def drawn(probabilities, rng):
    """Draw a class for every row of probabilities."""
    return (probabilities.cumsum(axis=1) > rng.random_sample((len(probabilities), 1))).argmax(axis=1)


@pytest.fixture
def noisy():
    """Return calibrated probabilities of 5,000 rows, their true classes, and labels that were turned by TRANSITION."""
    rng = np.random.RandomState(1)
    probabilities = rng.dirichlet([0.3, 0.3, 0.3], size=5000)
    true = drawn(probabilities, rng)
    return probabilities, true, drawn(TRANSITION[true], rng)


class TestTransition:
    def test_is_found(self, noisy):
        probabilities, _, given = noisy
        np.testing.assert_allclose(noise_transition(probabilities, given), TRANSITION, atol=0.04)

    def test_without_rows_there_is_only_the_prior(self):
        transition = noise_transition(np.empty((0, 2)), np.empty(0, dtype=int))
        np.testing.assert_allclose(transition.sum(axis=1), 1)
        assert (np.diag(transition) > 0.8).all()

    def test_names_of_classes_do_not_matter(self, noisy):
        probabilities, _, given = noisy
        order = np.array([2, 0, 1])  # class c is called order[c]
        renamed = noise_transition(probabilities[:, np.argsort(order)], order[given])
        np.testing.assert_allclose(renamed[np.ix_(order, order)], noise_transition(probabilities, given), atol=1e-10)

    def test_one_rate_unless_classes_speak_clearly(self, noisy):
        """A third of the rows of one class turn into one other: rates of their own. A few by chance: one for all."""
        probabilities, true, given = noisy
        assert np.ptp(np.diag(noise_transition(probabilities, given))) > 0.2
        flipped = np.random.RandomState(0).rand(len(true)) < 0.1
        evenly = np.where(flipped, (true + 1 + (np.arange(len(true)) % 2)) % 3, true)
        transition = noise_transition(probabilities, evenly)
        np.testing.assert_allclose(np.diag(transition), np.diag(transition)[0])
        np.testing.assert_allclose(transition.sum(axis=1), 1)
        assert transition[0, 0] == pytest.approx(0.9, abs=0.02)

    def test_many_classes_and_few_rows_do_not_fit_a_rate_to_every_row(self):
        """Labels turn into any other: with 200 classes rates of their own would explain 1,000 rows by heart."""
        rng = np.random.RandomState(0)
        probabilities = rng.dirichlet(np.full(200, 0.02), size=1000)
        true = drawn(probabilities, rng)
        given = np.where(rng.rand(1000) < 0.1, (true + rng.randint(1, 200, size=1000)) % 200, true)
        transition = noise_transition(probabilities, given)
        right = posterior(probabilities, given, transition)[np.arange(1000), given]
        assert (1 - right).mean() == pytest.approx(0.1, abs=0.02)

    def test_further_evidence_lowers_the_rate_of_rows_that_it_speaks_for(self, noisy):
        probabilities, _, given = noisy
        rates = [1 - np.diag(noise_transition(probabilities, given, odds)).mean() for odds in (-1.0, 0.0, 1.0)]
        assert rates == sorted(rates, reverse=True)


class TestPosterior:
    def test_is_that_of_bayes(self, noisy):
        probabilities, _, given = noisy
        result = posterior(probabilities, given, TRANSITION)
        for n in range(20):
            by_hand = [probabilities[n, c] * TRANSITION[c, given[n]] for c in range(3)]
            np.testing.assert_allclose(result[n], np.array(by_hand) / sum(by_hand), atol=1e-6)

    def test_is_calibrated(self, noisy):
        probabilities, true, given = noisy
        right = posterior(probabilities, given, TRANSITION)[np.arange(len(given)), given]
        for low in (0.1, 0.3, 0.5, 0.7):
            some = (right >= low) & (right < low + 0.2)
            assert (true[some] == given[some]).mean() == pytest.approx(right[some].mean(), abs=0.08)

    def test_log_odds_add_up(self):
        probabilities, given = np.array([[0.5, 0.5]]), np.array([0])
        even = np.array([[0.5, 0.5], [0.5, 0.5]])
        right = posterior(probabilities, given, even, log_odds=np.log(3))[0, 0]
        assert right == pytest.approx(0.75)

    def test_of_several_members_at_once(self, noisy):
        probabilities, _, given = noisy
        members = np.stack([probabilities, probabilities[::-1]]).reshape(2, 5, 1000, 3)
        for index in np.ndindex(2, 5):
            alone = posterior(members[index], given[:1000], TRANSITION)
            np.testing.assert_array_equal(posterior(members, given[:1000], TRANSITION)[index], alone)

    def test_probabilities_are_not_changed_in_place(self, noisy):
        probabilities, _, given = noisy
        before = probabilities.copy()
        posterior(probabilities, given, TRANSITION, log_odds=2.0)
        np.testing.assert_array_equal(probabilities, before)


class TestEvidenceWeight:
    @staticmethod
    def evidence(right, wrong):
        return SimpleNamespace(right=right, wrong=wrong, wrong_targets=np.ones(len(right), dtype=int))

    @pytest.mark.parametrize("weight", [0.0, 1.0])
    def test_the_weight_is_found(self, weight):
        """Evidence that is drawn with a known likelihood ratio, beside networks that know nothing."""
        rng, n = np.random.RandomState(0), 3000
        right, wrong = rng.randn(n) + weight / 2, rng.randn(n) - weight / 2
        even = np.full((n, 2), 0.5)
        transition = np.full((2, 2), 0.5)
        found = evidence_weight(even, np.zeros(n, dtype=int), transition, self.evidence(right, wrong))
        assert found == pytest.approx(weight, abs=0.08)

    def test_what_points_at_hard_rows_only_has_none(self):
        """Evidence that differs between rows and not between their labels; what networks say is calibrated."""
        rng, n = np.random.RandomState(0), 2000
        hardness = rng.rand(n)
        answers, true = np.stack([1 - hardness / 2, hardness / 2], axis=1), (rng.rand(n) < hardness / 2).astype(int)
        transition = np.array([[0.9, 0.1], [0.1, 0.9]])
        evidence = SimpleNamespace(right=0.5 - hardness, wrong=0.5 - hardness, wrong_targets=1 - true)
        assert evidence_weight(answers, true, transition, evidence) < 0.2
