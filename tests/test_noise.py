"""How labels were turned into others: against laws that the labels were drawn by, and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import drawn

from sklearn_cdgd import _noise
from sklearn_cdgd._classification import Classification
from sklearn_cdgd._noise import Noise, Plausible
from sklearn_cdgd._posterior import posterior

TRANSITION = np.array([[0.9, 0.1, 0.0], [0.05, 0.6, 0.35], [0.2, 0.0, 0.8]])
LAW = Plausible(log_odds=-0.8, slope=1.5, power=0.4)


def rows(n_rows, n_classes, seed=1):
    """Return calibrated probabilities and true classes."""
    rng = np.random.RandomState(seed)
    probabilities = rng.dirichlet(np.full(n_classes, 0.3), size=n_rows)
    return probabilities, drawn(probabilities, rng), rng


def flipped(true, n_classes, rate, rng):
    """Turn labels into any other."""
    others = (true + rng.randint(1, n_classes, size=len(true))) % n_classes
    return np.where(rng.rand(len(true)) < rate, others, true)


def mistaken(probabilities, true, law, rng):
    """Turn labels as people would, written out row by row."""
    given = true.copy()
    for n, (p, c) in enumerate(zip(probabilities.clip(1e-8), true, strict=True)):
        hardness = -(p * np.log(p)).sum() / np.log(len(p))
        if rng.rand() < 1 / (1 + np.exp(-law.log_odds - law.slope * (hardness - 0.5))):
            attraction = np.where(np.arange(len(p)) == c, 0, p**law.power)
            given[n] = rng.choice(len(p), p=attraction / attraction.sum())
    return given


class TestRates:
    def test_rates_of_the_classes_are_found(self):
        probabilities, true, rng = rows(5000, 3)
        given = drawn(TRANSITION[true], rng)
        np.testing.assert_allclose(_noise.noise_transition(probabilities, given), TRANSITION, atol=0.04)
        noise = _noise.noise_of(probabilities, given)
        assert noise.plausible is None
        np.testing.assert_allclose(noise.transition, TRANSITION, atol=0.04)

    def test_one_rate_unless_classes_speak_clearly(self):
        """A few wrong labels by chance: one rate for all."""
        probabilities, true, rng = rows(5000, 3)
        transition = _noise.noise_transition(probabilities, flipped(true, 3, 0.1, rng))
        np.testing.assert_allclose(np.diag(transition), np.diag(transition)[0])
        assert transition[0, 0] == pytest.approx(0.9, abs=0.02)

    @pytest.mark.parametrize("estimate", [_noise.noise_transition, lambda *args: _noise.noise_of(*args).transition])
    @pytest.mark.parametrize("n_classes", [2, 5])
    def test_without_rows_there_is_only_the_prior(self, estimate, n_classes):
        transition = estimate(np.empty((0, n_classes)), np.empty(0, dtype=int))
        np.testing.assert_allclose(transition.sum(axis=1), 1)
        assert (np.diag(transition) > 0.8).all()


class TestPlausibleErrors:
    def test_the_law_is_found(self):
        probabilities, true, rng = rows(5000, 8)
        given = mistaken(probabilities, true, LAW, rng)
        noise = _noise.noise_of(probabilities, given)
        assert noise.plausible.power == pytest.approx(LAW.power, abs=0.1)
        assert noise.plausible.log_odds == pytest.approx(LAW.log_odds, abs=0.3)
        assert noise.plausible.slope == pytest.approx(LAW.slope, abs=0.6)

    def test_wrong_rows_are_counted_rightly_and_one_rate_misses_many(self):
        probabilities, true, rng = rows(5000, 8)
        given = mistaken(probabilities, true, LAW, rng)
        of_law = _noise.noise_of(probabilities, given)
        of_one_rate = Noise(_noise.noise_transition(probabilities, given))
        expected = [
            1 - posterior(probabilities, given, noise)[np.arange(5000), given].mean() for noise in (of_law, of_one_rate)
        ]
        share = (given != true).mean()
        assert expected[0] == pytest.approx(share, abs=0.03)
        assert expected[1] < share - 0.06

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
    def test_labels_that_turned_into_any_other_are_not_taken_for_it(self, rate, seed):
        probabilities, true, rng = rows(1000, 10, seed)
        assert _noise.noise_of(probabilities, flipped(true, 10, rate, rng)).plausible is None

    def test_of_two_classes_a_wrong_label_is_always_the_other(self):
        probabilities, true, rng = rows(3000, 2)
        assert _noise.noise_of(probabilities, mistaken(probabilities, true, LAW, rng)).plausible is None

    def test_many_rows_are_sampled(self, monkeypatch):
        probabilities, true, rng = rows(5000, 8)
        given = mistaken(probabilities, true, LAW, rng)
        monkeypatch.setattr(_noise, "_PLAUSIBLE_NUMBERS", 8 * 3000)
        noise = _noise.noise_of(probabilities, given)
        assert noise.plausible.power == pytest.approx(LAW.power, abs=0.15)
        again = _noise.noise_of(probabilities, given)
        np.testing.assert_array_equal(noise.transition, again.transition)


class TestLikelihood:
    def test_of_every_true_class_it_sums_to_one(self):
        probabilities = rows(20, 4)[0]
        noise = Noise(np.eye(4), LAW)
        total = sum(noise.likelihood(probabilities, np.full(20, g)) for g in range(4))
        np.testing.assert_allclose(total, 1)

    def test_with_neither_slope_nor_power_it_is_one_rate(self):
        probabilities, true, _ = rows(20, 4)
        law = Plausible(np.log(0.3 / 0.7), 0.0, 0.0)
        one_rate = Noise(np.where(np.eye(4, dtype=bool), 0.7, 0.1))
        np.testing.assert_allclose(
            Noise(np.eye(4), law).likelihood(probabilities, true), one_rate.likelihood(probabilities, true)
        )

    def test_certain_rows_keep_it_finite(self):
        likelihood = Noise(np.eye(3), Plausible(-1.0, 1.0, 1.0)).likelihood(np.eye(3), np.array([0, 0, 2]))
        assert np.isfinite(likelihood).all()
        assert (likelihood >= 0).all()

    def test_the_transition_is_its_mean(self):
        probabilities = rows(50, 4)[0].clip(1e-8)
        found = _noise._mean_transition(probabilities, LAW)
        noise = Noise(np.eye(4), LAW)
        for g in range(4):
            likelihood = noise.likelihood(probabilities, np.full(50, g))
            for c in range(4):
                mean = np.average(likelihood[:, c], weights=probabilities[:, c])
                assert found[c, g] == pytest.approx(mean, rel=1e-6)

    def test_new_pairs_are_judged_by_the_same_law(self):
        probabilities, true, _ = rows(30, 4)
        noise = Noise(np.eye(4), LAW)
        answers, losses = Classification(np.arange(4)).confront(true, probabilities, None, noise)
        np.testing.assert_allclose(answers, posterior(probabilities, true, noise))
        np.testing.assert_allclose(losses, -np.log(answers[np.arange(30), true]))
