"""From losses to the probability that a target is wrong: against Bayes' rule where the densities are known."""

from __future__ import annotations

import numpy as np
import pytest

from sklearn_cdgd._target_noise import alpha_log_loss, p_wrong_by_loss


@pytest.fixture
def rng():
    return np.random.RandomState(0)


class TestPWrong:
    def test_is_the_probability_of_being_wrong(self, rng):
        """Losses of right and of permuted targets with known densities: the posterior is Bayes' rule in closed form."""
        clean, permuted = rng.exponential(size=4000), 4 * rng.exponential(size=4000)
        losses = np.concatenate([rng.exponential(size=3000), 4 * rng.exponential(size=1000)])
        p_wrong = p_wrong_by_loss(losses, clean, permuted)
        right, wrong = 0.75 * np.exp(-losses), 0.25 * np.exp(-losses / 4) / 4
        np.testing.assert_allclose(p_wrong, wrong / (right + wrong), atol=0.15)
        assert p_wrong.mean() == pytest.approx(0.25, abs=0.05)

    def test_rises_with_the_loss(self, rng):
        losses = rng.exponential(size=100)
        p_wrong = p_wrong_by_loss(losses, rng.exponential(size=30), 3 * rng.exponential(size=100))
        assert (np.diff(p_wrong[np.argsort(losses)]) >= 0).all()
        assert ((p_wrong > 0) & (p_wrong < 1)).all()

    def test_members_that_tell_nothing(self, rng):
        """Where permuted targets have the losses of right ones, every row is as suspicious as any other."""
        losses = rng.exponential(size=500)
        assert np.ptp(p_wrong_by_loss(losses, losses, losses)) < 1e-6

    @pytest.mark.parametrize("change", [lambda x: 1000 * x, lambda x: x - 5, np.log], ids=["unit", "shift", "log"])
    def test_only_the_order_of_losses_matters(self, rng, change):
        losses, clean, permuted = rng.rand(80) + 0.5, rng.rand(30) + 0.1, rng.rand(80) + 1
        # Where losses are among the known ones: between them a line is drawn, which follows the scale.
        losses = np.concatenate([clean[:20], permuted[:60]])
        expected = p_wrong_by_loss(losses, clean, permuted)
        np.testing.assert_allclose(p_wrong_by_loss(*map(change, (losses, clean, permuted))), expected)

    def test_a_few_clean_rows_do_not_make_sure(self):
        """No row is surer than the clean rows can tell, however far its loss is out."""
        p_wrong = p_wrong_by_loss(np.array([0.5, 100.0]), np.ones(3), np.full(50, 10.0))
        assert 0 < p_wrong[0] < p_wrong[1] < 0.9


class TestAlpha:
    def test_raises_the_losses_of_rows_that_hurt(self):
        alpha = np.array([0.0, 0.25, 1.0])
        added = alpha_log_loss(alpha)
        assert (np.diff(added) < 0).all()
        assert added.sum() == pytest.approx(0), "the mean of log-losses stays"
        np.testing.assert_allclose(np.diff(added) / np.diff(alpha), -0.3)

    def test_is_nothing_where_all_rows_are_alike(self):
        np.testing.assert_allclose(alpha_log_loss(np.full(5, 0.7)), 0, atol=1e-12)
