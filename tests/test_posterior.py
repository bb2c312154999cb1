"""From answers of networks to the probability that a label is right: against Bayes' rule and brute force."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sklearn_cdgd import _posterior
from sklearn_cdgd._posterior import OutOfFold

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

    def test_one_clean_row_tells_nothing_apart(self):
        one = np.array([[1.0], [2.0]])
        np.testing.assert_allclose(_posterior.shares(one), 0.5)
        noisy = np.stack([RNG.rand(400) + 0.5, RNG.rand(400)])
        assert _posterior.shares(one, noisy)[1] > 0.9

    def test_mixed(self):
        shapes = [(2, 5, 3), (2, 5), (4, 3), (4,), (4, 3), (4,), (2, 5)]
        opinions = [OutOfFold(*(RNG.rand(*shape) for shape in shapes)) for _ in range(2)]
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


class TestSuspicionByLoss:
    def test_is_the_probability_of_being_wrong(self):
        """Losses of right and of swapped targets with known densities: the posterior is Bayes' rule in closed form."""
        rng = np.random.RandomState(0)
        clean, swapped = rng.exponential(size=4000), 4 * rng.exponential(size=4000)
        losses = np.concatenate([rng.exponential(size=3000), 4 * rng.exponential(size=1000)])
        suspicion = _posterior.p_wrong_by_loss(losses, clean, swapped)
        right, wrong = 0.75 * np.exp(-losses), 0.25 * np.exp(-losses / 4) / 4
        np.testing.assert_allclose(suspicion, wrong / (right + wrong), atol=0.15)
        assert suspicion.mean() == pytest.approx(0.25, abs=0.05)

    def test_rises_with_the_loss(self):
        losses = RNG.exponential(size=100)
        suspicion = _posterior.p_wrong_by_loss(losses, RNG.exponential(size=30), 3 * RNG.exponential(size=100))
        assert (np.diff(suspicion[np.argsort(losses)]) >= 0).all()
        assert ((suspicion > 0) & (suspicion < 1)).all()

    def test_networks_that_tell_nothing(self):
        """Where swapped targets have the losses of right ones, every row is as suspicious as any other."""
        losses = RNG.exponential(size=500)
        suspicion = _posterior.p_wrong_by_loss(losses, losses, losses)
        assert np.ptp(suspicion) < 1e-6


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
        found = _posterior.evidence_weight(even, np.zeros(n, dtype=int), transition, self.evidence(right, wrong))
        assert found == pytest.approx(weight, abs=0.08)

    def test_what_points_at_hard_rows_only_has_none(self):
        """Evidence that differs between rows and not between their labels; what networks say is calibrated."""
        rng, n = np.random.RandomState(0), 2000
        hardness = rng.rand(n)
        answers, true = np.stack([1 - hardness / 2, hardness / 2], axis=1), (rng.rand(n) < hardness / 2).astype(int)
        transition = np.array([[0.9, 0.1], [0.1, 0.9]])
        evidence = SimpleNamespace(right=0.5 - hardness, wrong=0.5 - hardness, wrong_targets=1 - true)
        assert _posterior.evidence_weight(answers, true, transition, evidence) < 0.2


class TestPanel:
    def test_one_rate_unless_classes_speak_clearly(self, noisy):
        """Half of the rows of one class turn into one other: rates of their own. A few by chance: one rate for all."""
        probabilities, true, given = noisy
        assert np.ptp(np.diag(_posterior.noise_transition(probabilities, given))) > 0.2
        flipped = np.random.RandomState(0).rand(len(true)) < 0.1
        evenly = np.where(flipped, (true + 1 + (np.arange(len(true)) % 2)) % 3, true)
        transition = _posterior.noise_transition(probabilities, evenly)
        np.testing.assert_allclose(np.diag(transition), np.diag(transition)[0])
        assert transition[0, 0] == pytest.approx(0.9, abs=0.02)

    def test_many_classes_and_few_rows_do_not_fit_a_rate_to_every_row(self):
        """Labels turn into any other: with 200 classes rates of their own would explain 1,000 rows by heart."""
        rng = np.random.RandomState(0)
        probabilities = rng.dirichlet(np.full(200, 0.02), size=1000)
        true = drawn(probabilities, rng)
        given = np.where(rng.rand(1000) < 0.1, (true + rng.randint(1, 200, size=1000)) % 200, true)
        transition = _posterior.noise_transition(probabilities, given)
        right = _posterior.posterior(probabilities, given, transition)[np.arange(1000), given]
        assert (1 - right).mean() == pytest.approx(0.1, abs=0.02)


class TestNoisyLabels:
    """Rows whose labels may be wrong tell witnesses apart, once the noise is allowed for."""

    def test_the_witness_that_knows_more_explains_them_better(self, noisy):
        probabilities, _, given = noisy
        knows_nothing = np.tile(probabilities.mean(axis=0), (len(given), 1))
        knows_half = (probabilities + knows_nothing) / 2
        means = [_posterior.marginal_losses(p, given).mean() for p in (probabilities, knows_half, knows_nothing)]
        assert means == sorted(means)

    def test_the_truth_explains_them_as_well_as_their_own_distribution(self, noisy):
        """A network that learnt how labels are mistaken, too, has no advantage over one that was not misled."""
        probabilities, _, given = noisy
        misled = _posterior.marginal_losses(probabilities @ TRANSITION, given).mean()
        assert _posterior.marginal_losses(probabilities, given).mean() == pytest.approx(misled, abs=0.01)

    @pytest.mark.parametrize(("n_classes", "n_chosen"), [(2, 1000), (40, 500), (200, 250)])
    def test_many_rows_cost_no_more_than_some(self, n_classes, n_chosen):
        chosen = _posterior.rows_to_explain(20_000, n_classes)
        assert len(np.unique(chosen)) == n_chosen
        np.testing.assert_array_equal(chosen, _posterior.rows_to_explain(20_000, n_classes))
        # Rows may come sorted, or by turns: what is chosen follows no order.
        assert abs((chosen % 2).mean() - 0.5) < 0.1
        assert abs((chosen < 10_000).mean() - 0.5) < 0.1

    def test_of_few_rows_all_have_to_be_explained(self):
        np.testing.assert_array_equal(_posterior.rows_to_explain(60, 3), np.arange(60))

    def test_of_many_classes_the_one_rate_is_found(self):
        """At the rate that was drawn, the labels are as likely as can be."""
        n_classes = 60
        probabilities = RNG.dirichlet(np.full(n_classes, 0.02), size=3000)
        true = drawn(probabilities, RNG)
        given = np.where(RNG.rand(3000) < 0.3, (true + RNG.randint(1, n_classes, 3000)) % n_classes, true)
        right = probabilities[np.arange(3000), given].clip(1e-8)
        expected = -np.log(0.7 * right + 0.3 * (1 - right) / (n_classes - 1))
        losses = _posterior.marginal_losses(probabilities, given)
        assert losses.mean() == pytest.approx(expected.mean(), abs=0.005)

    @pytest.mark.parametrize("power", [0.5, 2.0])
    def test_they_tell_how_sharp_probabilities_should_be(self, noisy, power):
        probabilities, true, given = noisy
        bent = _posterior.sharpened(probabilities, 1 / power)
        of_clean = bent[:3], true[:3]
        alone = _posterior.calibrating_power(*of_clean)
        found = _posterior.calibrating_power(*of_clean, bent, given)
        assert found == pytest.approx(power, rel=0.25)
        assert abs(np.log(found / power)) < abs(np.log(alone / power))

    def test_they_share_the_say_where_clean_rows_cannot(self):
        clean, noisy = np.zeros((2, 5)), np.stack([RNG.rand(400), RNG.rand(400) + 0.3])
        np.testing.assert_allclose(_posterior.shares(clean), 0.5)
        assert _posterior.shares(clean, noisy)[0] > 0.9
