"""From answers of networks to the probability that a label is right: against Bayes' rule and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from sklearn_cdgd import _posterior
from sklearn_cdgd._posterior import Opinion

RNG = np.random.RandomState(0)
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


class TestShares:
    def test_the_best_has_the_say(self):
        losses = np.stack([RNG.rand(50), RNG.rand(50) + 1])
        np.testing.assert_allclose(_posterior.shares(losses), [1, 0], atol=1e-4)

    def test_equals_share_equally(self):
        losses = RNG.rand(50)
        np.testing.assert_allclose(_posterior.shares(np.stack([losses] * 4)), 0.25)

    def test_few_clean_rows_tell_less_apart(self):
        better, worse = RNG.rand(400), RNG.rand(400) + 0.1
        few, many = (_posterior.shares(np.stack([better[:n], worse[:n]])) for n in (12, 400))
        assert many[0] > few[0]

    def test_one_clean_row(self):
        np.testing.assert_allclose(_posterior.shares(np.array([[1.0], [2.0]])), [1, 0])

    def test_mixed(self):
        shapes = [(2, 5, 3), (2, 5), (4, 3), (4,), (4, 3), (4,)]
        opinions = [Opinion(*(RNG.rand(*shape) for shape in shapes)) for _ in range(2)]
        mixed = _posterior.mixed(opinions, np.array([0.25, 0.75]))
        for part, (a, b) in zip(mixed, zip(*opinions, strict=True), strict=True):
            np.testing.assert_allclose(part, 0.25 * a + 0.75 * b)


class TestCalibration:
    @pytest.mark.parametrize("power", [0.5, 2.0])
    def test_the_power_is_found(self, noisy, power):
        probabilities, true, _ = noisy
        # The probabilities fit the classes as they are, so what was flattened must be sharpened again.
        bent = _posterior.sharpened(probabilities, 1 / power)
        assert _posterior.calibrating_power(bent, true) == pytest.approx(power, rel=0.1)

    def test_a_few_rows_do_not_decide(self):
        sure = np.tile([0.6, 0.4], (3, 1))
        assert 1 < _posterior.calibrating_power(sure, np.zeros(3, dtype=int)) < 1.5

    def test_sharpened(self):
        probabilities = RNG.dirichlet([1, 1, 1], size=10)
        np.testing.assert_allclose(_posterior.sharpened(probabilities, 1.0), probabilities)
        expected = probabilities**2 / (probabilities**2).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(_posterior.sharpened(probabilities, 2.0), expected)


class TestNoise:
    def test_the_transition_is_found(self, noisy):
        probabilities, _, given = noisy
        np.testing.assert_allclose(_posterior.noise_transition(probabilities, given), TRANSITION, atol=0.04)

    def test_without_rows_there_is_only_the_prior(self):
        transition = _posterior.noise_transition(np.empty((0, 2)), np.empty(0, dtype=int))
        np.testing.assert_allclose(transition.sum(axis=1), 1)
        assert (np.diag(transition) > 0.8).all()

    def test_posterior_is_that_of_bayes(self, noisy):
        probabilities, _, given = noisy
        result = _posterior.posterior(probabilities, given, TRANSITION)
        for n in range(20):
            by_hand = [probabilities[n, c] * TRANSITION[c, given[n]] for c in range(3)]
            np.testing.assert_allclose(result[n], np.array(by_hand) / sum(by_hand), atol=1e-6)

    def test_posterior_is_calibrated(self, noisy):
        probabilities, true, given = noisy
        right = _posterior.posterior(probabilities, given, TRANSITION)[np.arange(len(given)), given]
        for low in (0.1, 0.3, 0.5, 0.7):
            some = (right >= low) & (right < low + 0.2)
            assert (true[some] == given[some]).mean() == pytest.approx(right[some].mean(), abs=0.08)

    def test_log_odds_add_up(self):
        probabilities, given = np.array([[0.5, 0.5]]), np.array([0])
        even = np.array([[0.5, 0.5], [0.5, 0.5]])
        right = _posterior.posterior(probabilities, given, even, log_odds=np.log(3))[0, 0]
        assert right == pytest.approx(0.75)

    def test_alpha_at_its_mean_says_nothing(self):
        np.testing.assert_allclose(_posterior.alpha_log_odds(np.array([0.5, 1.0, 0.0])), [0, 1, -1])
        np.testing.assert_allclose(_posterior.alpha_log_odds(np.ones(4)), 0)


class TestExpectedF1:
    @pytest.mark.parametrize("seed", range(5))
    def test_no_other_limit_is_better(self, seed):
        suspicion = np.random.RandomState(seed).beta(0.5, 2, size=40)

        def expected_f1(limit):
            flagged = suspicion > limit
            return 2 * suspicion[flagged].sum() / (flagged.sum() + suspicion.sum())

        limit = _posterior.best_expected_f1(suspicion)
        assert expected_f1(limit) == pytest.approx(max(expected_f1(other) for other in np.linspace(0, 1, 1001)))
        assert limit == pytest.approx(expected_f1(limit) / 2, abs=0.05)

    def test_clear_cases(self):
        assert 0.01 < _posterior.best_expected_f1(np.array([0.99, 0.98, 0.01, 0.005])) < 0.98

    def test_one_row(self):
        assert 0 <= _posterior.best_expected_f1(np.array([0.2])) < 0.2


class TestShareOfClean:
    def test_falls_with_the_loss(self):
        losses = RNG.exponential(size=100)
        weights = _posterior.share_of_clean(losses, RNG.exponential(size=30) / 2)
        assert ((weights >= 0) & (weights <= 1)).all()
        assert (np.diff(weights[np.argsort(losses)]) <= 0).all()

    def test_estimates_the_share_of_right_rows(self):
        rng = np.random.RandomState(0)
        good, bad, clean = rng.exponential(size=8000), 12 + rng.random_sample(2000), rng.exponential(size=8000)
        weights = _posterior.share_of_clean(np.concatenate([good, bad]), clean)
        # The mass of good rows beyond a loss over that of all: known in closed form up to where the bad rows begin.
        beyond = np.exp(-good)
        np.testing.assert_allclose(weights[:8000], beyond / (0.8 * beyond + 0.2), atol=0.06)
        assert weights[8000:].mean() < 0.1
