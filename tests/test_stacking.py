"""Weights, temperatures and averages of members: against formulas by hand, SciPy's optimiser and drawn labels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from sklearn_cdgd import _stacking
from sklearn_cdgd._classification import Classification
from sklearn_cdgd._regression import Regression
from sklearn_cdgd._stacking import (
    NEIGHBORS,
    TREES,
    OutOfFold,
    StackedEnsemble,
    fit_inverse_temperatures,
    log_losses,
    log_probabilities,
    marginal_losses,
    one_rate,
    rows_to_explain,
    stacking_weights,
    target_probabilities,
    temperature_scale,
)

TRANSITION = np.array([[0.9, 0.1, 0.0], [0.05, 0.6, 0.35], [0.2, 0.0, 0.8]])
LOW, HIGH = _stacking._TEMPERATURE_BOUNDS
# The search ends with the middle of an interval that holds the minimum.
HALF_INTERVAL = (HIGH - LOW) * _stacking._GOLDEN_RATIO**_stacking._SEARCH_STEPS / 2


@pytest.fixture
def rng():
    return np.random.RandomState(0)


def drawn(probabilities, rng):
    """Draw a class for every row of probabilities."""
    return (probabilities.cumsum(axis=1) > rng.random_sample((len(probabilities), 1))).argmax(axis=1)


def given_probabilities(probabilities, given):
    return probabilities[np.arange(len(given)), given]


@pytest.fixture
def noisy(rng):
    """Return calibrated probabilities of 5,000 rows, their true classes, and labels that were turned by TRANSITION."""
    probabilities = rng.dirichlet([0.3, 0.3, 0.3], size=5000)
    true = drawn(probabilities, rng)
    return probabilities, true, drawn(TRANSITION[true], rng)


class TestWeights:
    def test_the_best_has_all_of_the_weight(self, rng):
        losses = np.stack([rng.rand(50), rng.rand(50) + 1])
        np.testing.assert_allclose(stacking_weights(losses), [1, 0], atol=1e-4)

    def test_equals_have_equal_weights(self, rng):
        np.testing.assert_allclose(stacking_weights(np.stack([rng.rand(50)] * 4)), 0.25)

    def test_few_clean_rows_tell_less_apart(self, rng):
        better, worse = rng.rand(400), rng.rand(400) + 0.1
        few, many = (stacking_weights(np.stack([better[:n], worse[:n]])) for n in (12, 400))
        assert many[0] > few[0]

    def test_one_clean_row_tells_nothing_apart(self, rng):
        one = np.array([[1.0], [2.0]])
        np.testing.assert_allclose(stacking_weights(one), 0.5)
        noisy_losses = np.stack([rng.rand(400) + 0.5, rng.rand(400)])
        assert stacking_weights(one, noisy_losses)[1] > 0.9

    def test_noisy_rows_decide_where_clean_rows_cannot(self, rng):
        clean, noisy_losses = np.zeros((2, 5)), np.stack([rng.rand(400), rng.rand(400) + 0.3])
        np.testing.assert_allclose(stacking_weights(clean), 0.5)
        assert stacking_weights(clean, noisy_losses)[0] > 0.9

    @pytest.mark.parametrize("n_errors", [0.5, 1.0, 2.0])
    def test_logarithm_falls_with_the_standard_errors_behind(self, rng, n_errors):
        """Half a standard error of the paired difference for every unit."""
        n_rows = 10_000
        difference = rng.randn(n_rows)
        difference = (difference - difference.mean()) / difference.std() + n_errors / np.sqrt(n_rows)
        hard = 5 * rng.rand(n_rows)
        weights = stacking_weights(np.stack([hard, hard + difference]))
        assert np.log(weights[0] / weights[1]) == pytest.approx(2 * n_errors, rel=1e-2)

    def test_what_all_members_find_hard_does_not_count(self, rng):
        losses, hard = rng.rand(3, 40), 10 * rng.rand(40)
        np.testing.assert_allclose(stacking_weights(losses + hard), stacking_weights(losses))

    def test_the_order_of_members_and_rows_does_not_matter(self, rng):
        losses, noisy_losses = rng.rand(4, 30), rng.rand(4, 60)
        weights, order = stacking_weights(losses, noisy_losses), rng.permutation(4)
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(stacking_weights(losses[order], noisy_losses[order]), weights[order])
        np.testing.assert_allclose(stacking_weights(losses[:, ::-1], noisy_losses[:, ::-1]), weights)


class TestGoldenSection:
    MINIMA = np.array([LOW, -1.3, 0.0, 0.4, HIGH])

    @pytest.mark.parametrize(
        "function",
        [lambda x: x**2, np.abs, lambda x: np.exp(x) - x, lambda x: -np.exp(-(x**2))],
        ids=["parabola", "corner", "skewed", "flat far away"],
    )
    def test_finds_every_minimum(self, function):
        """Those at the bounds too."""
        found = _stacking._golden_section(lambda x: function(x - self.MINIMA), LOW, HIGH, len(self.MINIMA))
        np.testing.assert_allclose(found, self.MINIMA, atol=HALF_INTERVAL + 1e-9)

    def test_functions_do_not_mix(self):
        together = _stacking._golden_section(lambda x: (x - self.MINIMA) ** 2, LOW, HIGH, len(self.MINIMA))
        alone = [_stacking._golden_section(lambda x, m=m: (x - m) ** 2, LOW, HIGH, 1)[0] for m in self.MINIMA]
        np.testing.assert_array_equal(together, alone)


class TestTemperatures:
    def test_temperature_scale_is_a_power(self, rng):
        probabilities = rng.dirichlet([1, 1, 1], size=10)
        for power in (0.3, 1.0, 2.0):
            expected = probabilities**power / (probabilities**power).sum(axis=1, keepdims=True)
            found = temperature_scale(log_probabilities(probabilities), power)
            np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_members_have_temperatures_of_their_own(self, rng):
        probabilities, powers = rng.dirichlet([1, 1, 1], size=(4, 2, 10)), np.array([0.2, 1.0, 1.5, 3.0])
        together = temperature_scale(log_probabilities(probabilities), powers)
        for member, power, found in zip(probabilities, powers, together, strict=True):
            np.testing.assert_array_equal(found, temperature_scale(log_probabilities(member), power))

    def test_nothing_is_changed_in_place(self, rng):
        log_probs = log_probabilities(rng.dirichlet([1, 1, 1], size=(2, 10)))
        before = log_probs.copy()
        temperature_scale(log_probs, np.array([2.0, 0.5]))
        target_probabilities(log_probs, np.zeros(10, dtype=int), np.array([2.0, 0.5]))
        np.testing.assert_array_equal(log_probs, before)

    def test_probabilities_of_targets(self, rng):
        log_probs, targets = log_probabilities(rng.dirichlet([1, 1, 1], size=(2, 10))), rng.randint(3, size=10)
        powers = np.array([2.0, 0.5])
        expected = temperature_scale(log_probs, powers)[:, np.arange(10), targets]
        np.testing.assert_allclose(target_probabilities(log_probs, targets, powers), expected, rtol=1e-6)

    def test_classes_that_are_ruled_out_stay_finite(self):
        log_probs = log_probabilities(np.array([[[1.0, 0.0], [0.0, 1.0]]]))
        for power in (np.exp(LOW), np.exp(HIGH)):
            scaled = temperature_scale(log_probs, power)
            assert np.isfinite(scaled).all()
            np.testing.assert_allclose(scaled.sum(axis=-1), 1, rtol=1e-6)

    @pytest.mark.parametrize("power", [0.5, 2.0])
    def test_the_temperature_is_found(self, noisy, power):
        probabilities, true, _ = noisy
        # The probabilities fit the classes as they are, so what was flattened must be sharpened again.
        bent = np.log(probabilities.clip(1e-12))[None] / power
        found = fit_inverse_temperatures(bent, true, np.empty((1, 0, 3)), np.empty(0, dtype=int))
        assert found == pytest.approx(power, rel=0.1)

    def test_a_few_rows_do_not_decide(self):
        sure = np.log(np.tile([0.6, 0.4], (1, 3, 1)))
        found = fit_inverse_temperatures(sure, np.zeros(3, dtype=int), np.empty((1, 0, 2)), np.empty(0, dtype=int))
        assert 1 < found[0] < 1.5

    @pytest.mark.parametrize("power", [0.5, 2.0])
    def test_noisy_rows_tell_how_sharp_probabilities_should_be(self, noisy, power):
        probabilities, true, given = noisy
        bent = np.log(probabilities.clip(1e-12))[None] / power
        few = bent[:, :3], true[:3]
        (alone,) = fit_inverse_temperatures(*few, bent[:, :0], given[:0])
        (found,) = fit_inverse_temperatures(*few, bent, given)
        assert found == pytest.approx(power, rel=0.25)
        assert abs(np.log(found / power)) < abs(np.log(alone / power))

    @pytest.fixture
    def members(self, rng):
        """Return log-probabilities of six members for 25 clean and 300 noisy rows, and the labels of both."""
        logits = 2 * rng.randn(325, 3)
        labels = drawn(softmax(logits, axis=1), rng)
        labels[25:] = drawn(TRANSITION[labels[25:]], rng)
        scales = np.array([0.1, 0.3, 1.0, 2.0, 4.0, 8.0])
        log_probs = log_softmax(scales[:, None, None] * logits + 0.1 * rng.randn(6, 325, 3), axis=-1)
        return log_probs[:, :25], labels[:25], log_probs[:, 25:], labels[25:]

    def test_several_members_at_once_are_as_one_at_a_time(self, members):
        clean, clean_targets, noisy_rows, targets = members
        together = fit_inverse_temperatures(*members)
        for n, found in enumerate(together):
            alone = fit_inverse_temperatures(clean[[n]], clean_targets, noisy_rows[[n]], targets)
            assert alone[0] == pytest.approx(found, rel=1e-12)
        assert (np.diff(together) < 0).all(), "members that are sharper need less"

    def test_agrees_with_another_optimiser(self, members):
        clean, clean_targets, noisy_rows, targets = members
        for n, found in enumerate(fit_inverse_temperatures(*members)):

            def objective(log_power, n=n):
                right = given_probabilities(softmax(np.exp(log_power) * clean[n], axis=1), clean_targets)
                noisy_right = given_probabilities(softmax(np.exp(log_power) * noisy_rows[n], axis=1), targets)
                noisy_loss = _stacking._NOISY_TEMPERATURE_WEIGHT * marginal_losses(noisy_right, 3).sum()
                return -np.log(right.clip(1e-4)).sum() + noisy_loss + log_power**2

            best = minimize_scalar(objective, bounds=(LOW, HIGH), method="bounded", options={"xatol": 1e-6})
            assert np.log(found) == pytest.approx(best.x, abs=HALF_INTERVAL + 1e-5)


class TestLosses:
    def test_log_losses(self, rng):
        probabilities, targets = rng.dirichlet([1, 1, 1], size=(2, 10)), rng.randint(3, size=10)
        for member, losses in zip(probabilities, log_losses(probabilities, targets), strict=True):
            np.testing.assert_allclose(losses, [-np.log(p[t]) for p, t in zip(member, targets, strict=True)])

    def test_one_row_that_is_surely_wrong_does_not_decide_all(self):
        assert log_losses(np.array([[1.0, 0.0]]), np.array([1]))[0] == pytest.approx(-np.log(1e-4))


class TestNoisyLabels:
    """Rows whose labels may be wrong tell members apart, once the noise is allowed for."""

    @staticmethod
    def mean_loss(probabilities, given):
        return marginal_losses(given_probabilities(probabilities, given), probabilities.shape[1]).mean()

    def test_the_member_that_knows_more_explains_them_better(self, noisy):
        probabilities, _, given = noisy
        knows_nothing = np.tile(probabilities.mean(axis=0), (len(given), 1))
        knows_half = (probabilities + knows_nothing) / 2
        means = [self.mean_loss(p, given) for p in (probabilities, knows_half, knows_nothing)]
        assert means == sorted(means)

    def test_the_truth_explains_them_as_well_as_their_own_distribution(self, noisy, rng):
        """Labels turn into any other: a member that learnt it has no advantage over one that was not misled."""
        probabilities, true, _ = noisy
        evenly = np.full((3, 3), 0.1) + 0.7 * np.eye(3)
        given = drawn(evenly[true], rng)
        misled = self.mean_loss(probabilities @ evenly, given)
        assert self.mean_loss(probabilities, given) == pytest.approx(misled, abs=0.01)

    def test_of_many_classes_the_one_rate_is_found(self, rng):
        """At the rate that was drawn, the labels are as likely as can be."""
        n_classes = 60
        probabilities = rng.dirichlet(np.full(n_classes, 0.02), size=3000)
        true = drawn(probabilities, rng)
        given = np.where(rng.rand(3000) < 0.3, (true + rng.randint(1, n_classes, 3000)) % n_classes, true)
        right = given_probabilities(probabilities, given).clip(1e-8)
        assert one_rate(right, n_classes)[0] == pytest.approx(0.3, abs=0.03)
        expected = -np.log(0.7 * right + 0.3 * (1 - right) / (n_classes - 1))
        assert marginal_losses(right, n_classes).mean() == pytest.approx(expected.mean(), abs=0.005)

    @pytest.mark.parametrize("n_classes", [2, 5])
    @pytest.mark.parametrize("has_evidence", [False, True])
    def test_the_rate_is_the_most_probable_one(self, rng, n_classes, has_evidence):
        """Against another optimiser, with rows that are believed to have been seen before as a beta distribution."""
        right, odds = rng.beta(2, 1, size=80), np.exp(rng.randn(80)) if has_evidence else np.ones(80)
        rate, log_likelihood = one_rate(right, n_classes, odds, n_iter=500)
        wrong = (1 - right) / (n_classes - 1)
        n_right = n_classes * _stacking.PRIOR_RIGHT + _stacking.PRIOR_WRONG
        n_wrong = (n_classes - 1) * _stacking.PRIOR_WRONG

        def objective(r):
            log_likelihood = np.log(r * wrong + (1 - r) * odds * right).sum()
            return -log_likelihood - n_wrong * np.log(r) - n_right * np.log1p(-r)

        best = minimize_scalar(objective, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-9})
        assert rate == pytest.approx(best.x, abs=1e-4)
        np.testing.assert_allclose(log_likelihood, np.log(rate * wrong + (1 - rate) * right))

    def test_members_have_rates_of_their_own(self, rng):
        right = rng.rand(3, 4, 50)
        rates, log_likelihoods = one_rate(right, 3)
        assert rates.shape == (3, 4)
        for index in np.ndindex(3, 4):
            rate, log_likelihood = one_rate(right[index], 3)
            assert rates[index] == pytest.approx(rate)
            np.testing.assert_allclose(log_likelihoods[index], log_likelihood)

    @pytest.mark.parametrize("n_classes", [2, 6, 40, 200])
    def test_many_rows_cost_no_more_than_some(self, n_classes):
        chosen = rows_to_explain(20_000, n_classes)
        assert len(np.unique(chosen)) == len(chosen)
        least, most = _stacking._FIT_ROWS
        assert least <= len(chosen) <= most
        assert len(chosen) == least or n_classes * len(chosen) <= _stacking._FIT_NUMBERS
        np.testing.assert_array_equal(chosen, rows_to_explain(20_000, n_classes))
        # Rows may come sorted, or by turns: what is chosen follows no order.
        assert abs((chosen % 2).mean() - 0.5) < 0.1
        assert abs((chosen < 10_000).mean() - 0.5) < 0.1

    def test_of_few_rows_all_have_to_be_explained(self):
        np.testing.assert_array_equal(rows_to_explain(60, 3), np.arange(60))


N_NOISY, N_CLEAN, N_FOLDS = 60, 18, 3


def members_of(rng, task, n_members=4):
    """Return members that know something of the targets, and both targets and the clean folds."""
    n_rows, folds = N_NOISY + N_CLEAN, np.arange(N_CLEAN) % N_FOLDS
    targets = rng.randint(task.n_classes, size=n_rows) if task.n_classes else rng.randn(n_rows)

    def predictions(*shape, of):
        if task.n_classes is None:
            return of + rng.randn(*shape)
        return softmax(np.eye(task.n_classes)[of] + rng.randn(*shape, task.n_classes), axis=-1)

    def losses(answers, of):
        return log_losses(answers, of) if task.n_classes else (answers - of) ** 2

    members, (noisy_targets, clean_targets) = {}, np.split(targets, [N_NOISY])
    for n in range(n_members):
        answers = predictions(N_FOLDS, N_NOISY, of=noisy_targets)
        clean_answers, few = (predictions(N_CLEAN, of=clean_targets) for _ in range(2))
        members["member", str(n)] = OutOfFold(
            answers=answers,
            losses=losses(answers, noisy_targets),
            clean_answers=clean_answers,
            clean_losses=losses(clean_answers, clean_targets),
            calibration_answers=few,
            calibration_losses=losses(few, clean_targets),
            permuted_losses=losses(answers, noisy_targets[::-1]),
        )
    return members, noisy_targets, clean_targets, folds


LABELS, NUMBERS = Classification(np.arange(3)), Regression()


class TestEnsemble:
    def test_is_the_tempered_geometric_mean(self, rng):
        """Classification, all by hand: each member at its temperature, averaged in logarithms, at that of the mean."""
        members, targets, clean_targets, folds = members_of(rng, LABELS)
        stacked = LABELS.fit_stacking(members, targets, clean_targets, folds)
        assert stacked.weights.sum() == pytest.approx(1)
        assert len(set(stacked.inverse_temperatures)) == 4
        for name in ("answers", "clean_answers", "calibration_answers"):
            scores = sum(
                weight * power * np.log(getattr(member, name))
                for weight, power, member in zip(
                    stacked.weights, stacked.inverse_temperatures, members.values(), strict=True
                )
            )
            expected = softmax(stacked.inverse_temperature * scores, axis=-1)
            np.testing.assert_allclose(getattr(stacked.ensemble, name), expected, atol=1e-5)
        for losses, answers in (("clean_losses", "clean_answers"), ("calibration_losses", "calibration_answers")):
            expected = -np.log(getattr(stacked.ensemble, answers)[np.arange(N_CLEAN), clean_targets])
            np.testing.assert_allclose(getattr(stacked.ensemble, losses), expected)

    def test_weights_and_temperatures_are_those_of_calibrated_members(self, rng):
        members, targets, clean_targets, folds = members_of(rng, LABELS)
        stacked = LABELS.fit_stacking(members, targets, clean_targets, folds)
        right, clean_losses = [], []
        for member, power in zip(members.values(), stacked.inverse_temperatures, strict=True):
            scores = np.log(member.clean_answers)[None]
            noisy_scores = np.log(member.answers).mean(axis=0)[None]  # of the clean folds
            (found,) = fit_inverse_temperatures(scores, clean_targets, noisy_scores, targets)
            assert found == pytest.approx(power, rel=1e-3)
            clean_losses.append(-log_softmax(power * scores[0], axis=1)[np.arange(N_CLEAN), clean_targets])
            right.append(softmax(power * noisy_scores[0], axis=1)[np.arange(N_NOISY), targets])
        np.testing.assert_allclose(stacked.clean_losses, clean_losses, rtol=1e-4)
        expected = stacking_weights(np.stack(clean_losses), marginal_losses(np.stack(right), 3))
        np.testing.assert_allclose(stacked.weights, expected, rtol=1e-3)

    def test_members_are_told_at_their_temperatures(self, rng):
        members, targets, clean_targets, folds = members_of(rng, LABELS)
        stacked = LABELS.fit_stacking(members, targets, clean_targets, folds)
        for n, member in enumerate(members.values()):
            expected = softmax(stacked.inverse_temperatures[n] * np.log(member.answers), axis=-1)
            np.testing.assert_allclose(stacked.members.answers[n], expected, atol=1e-5)

    def test_of_numbers_is_the_weighted_mean(self, rng):
        members, targets, clean_targets, folds = members_of(rng, NUMBERS)
        stacked = NUMBERS.fit_stacking(members, targets, clean_targets, folds)
        np.testing.assert_allclose(
            stacked.weights, stacking_weights(np.stack([member.clean_losses for member in members.values()]))
        )
        for name in OutOfFold._fields:
            expected = sum(
                weight * getattr(member, name) for weight, member in zip(stacked.weights, members.values(), strict=True)
            )
            np.testing.assert_allclose(getattr(stacked.ensemble, name), expected)

    @pytest.mark.parametrize("task", [LABELS, NUMBERS], ids=["labels", "numbers"])
    def test_the_order_of_members_does_not_matter(self, rng, task):
        members, *rest = members_of(rng, task)
        stacked, turned = (task.fit_stacking(of, *rest) for of in (members, dict(reversed(members.items()))))
        assert turned.names == stacked.names[::-1]
        np.testing.assert_allclose(turned.weights, stacked.weights[::-1], rtol=1e-4)
        np.testing.assert_allclose(turned.ensemble.answers, stacked.ensemble.answers, atol=1e-5)

    def test_the_same_member_twice_is_that_member(self, rng):
        members, *rest = members_of(rng, LABELS, n_members=1)
        (member,) = members.values()
        one, two = (LABELS.fit_stacking(of, *rest) for of in (members, {("a", ""): member, ("b", ""): member}))
        np.testing.assert_allclose(two.weights, 0.5)
        np.testing.assert_allclose(two.ensemble.answers, one.ensemble.answers, atol=1e-5)

    @pytest.mark.parametrize("kind", ["rows weighted by alpha", "some kernel, rows weighted by alpha"])
    def test_which_members_learn_with_alpha(self, kind):
        names = (kind, "all"), (f"{TREES}, all rows", "extra trees"), (NEIGHBORS, "all")
        ensemble = StackedEnsemble(names, np.zeros((3, 2)), np.full(3, 1 / 3), np.ones(3), 1.0, None)
        np.testing.assert_array_equal(ensemble.are_learners, [True, False, False])
        assert ensemble.is_closed_form == ("kernel" in kind)


class TestCrossFitting:
    def test_labels_of_the_own_fold_have_no_part(self, rng):
        members, targets, clean_targets, folds = members_of(rng, LABELS)
        before = LABELS.fit_stacking(members, targets, clean_targets, folds)
        own = folds == 1
        other_targets = np.where(own, (clean_targets + 1) % 3, clean_targets)
        after = LABELS.fit_stacking(members, targets, other_targets, folds)
        np.testing.assert_array_equal(after.cross_fitted.answers[1], before.cross_fitted.answers[1])
        np.testing.assert_array_equal(
            after.cross_fitted.calibration_answers[own], before.cross_fitted.calibration_answers[own]
        )
        # Elsewhere they have.
        assert (after.cross_fitted.answers[0] != before.cross_fitted.answers[0]).any()
        assert (after.ensemble.answers[1] != before.ensemble.answers[1]).any()

    def test_losses_of_the_own_fold_have_no_part(self, rng):
        members, targets, clean_targets, folds = members_of(rng, NUMBERS)
        before = NUMBERS.fit_stacking(members, targets, clean_targets, folds)
        own = folds == 1
        # The first member does badly on the fold, on all other clean rows as before.
        name, first = next(iter(members.items()))
        worse = members | {name: first._replace(clean_losses=first.clean_losses + 100 * own)}
        after = NUMBERS.fit_stacking(worse, targets, clean_targets, folds)
        for part in ("losses", "answers"):
            np.testing.assert_array_equal(
                getattr(after.cross_fitted, part)[1], getattr(before.cross_fitted, part)[1], err_msg=part
            )
        for part in ("calibration_losses", "calibration_answers"):
            np.testing.assert_array_equal(
                getattr(after.cross_fitted, part)[own], getattr(before.cross_fitted, part)[own], err_msg=part
            )
        assert after.weights[0] < before.weights[0]
        assert (after.cross_fitted.losses[0] != before.cross_fitted.losses[0]).any()

    @pytest.mark.parametrize("task", [LABELS, NUMBERS], ids=["labels", "numbers"])
    def test_a_fold_is_as_if_its_clean_rows_were_not_there(self, rng, task):
        """Noisy rows: by an ensemble that is fitted on the other clean rows, and on this fold's predictions alone."""
        members, targets, clean_targets, folds = members_of(rng, task)
        found = task.fit_stacking(members, targets, clean_targets, folds).cross_fitted
        for fold in range(N_FOLDS):
            others = folds != fold
            parts = {
                name: member._replace(
                    **{n: getattr(member, n)[[fold]] for n in ("answers", "losses", "permuted_losses")},
                    **{n: getattr(member, n)[others] for n in OutOfFold._fields if n.startswith(("clean", "calib"))},
                )
                for name, member in members.items()
            }
            alone = task.fit_stacking(parts, targets, clean_targets[others], np.zeros(others.sum(), dtype=int))
            np.testing.assert_allclose(found.answers[fold], alone.ensemble.answers[0], atol=1e-5)
            np.testing.assert_allclose(found.losses[fold], alone.ensemble.losses[0])

    def test_of_one_fold_all_rows_decide(self, rng):
        members, targets, clean_targets, _ = members_of(rng, NUMBERS)
        one = {
            name: member._replace(**{n: getattr(member, n)[:1] for n in ("answers", "losses", "permuted_losses")})
            for name, member in members.items()
        }
        stacked = NUMBERS.fit_stacking(one, targets, clean_targets, np.zeros(N_CLEAN, dtype=int))
        np.testing.assert_array_equal(stacked.cross_fitted.losses, stacked.ensemble.losses)
