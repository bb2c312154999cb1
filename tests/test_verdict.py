"""Cross-fitting of networks: none predicts a row that it was trained on, and every row is predicted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sklearn_cdgd._classification import Classification
from sklearn_cdgd._learning import Folds, Learnt, NetworkLearner, Settings
from sklearn_cdgd._network import Network
from sklearn_cdgd._outer import OuterState
from sklearn_cdgd._trainer import Manner, Trainer
from sklearn_cdgd._verdict import deal, held_out_losses, splits_of
from sklearn_cdgd._workers import Workers

N_NOISY, N_CLEAN = 23, 10


@pytest.fixture
def court(monkeypatch):
    """Put a record of what it was trained on in place of every network, and check it where it judges."""
    trained = []

    def train(self, weights, clean_weight, rows, clean_rows, seed, parts=(1.0,)):
        trained.append((weights, clean_weight, rows, clean_rows))
        return [trained[-1]] * len(parts)

    def hear(self, state, pair, rows):
        _, clean_weight, on_noisy, on_clean = state
        own = on_noisy if pair is self.noisy else on_clean & (clean_weight > 0)
        assert not (own & rows).any(), "a network judges rows that it was trained on"
        return np.full((rows.sum(), 2), 0.5), np.full(rows.sum(), 1.0)

    monkeypatch.setattr(Trainer, "trained", train)
    monkeypatch.setattr(Trainer, "heard", hear)
    return trained


@pytest.fixture
def sets():
    rng = np.random.RandomState(0)
    return [(rng.randn(n, 3), rng.randint(2, size=n)) for n in (N_NOISY, N_CLEAN)]


@pytest.mark.parametrize("clean_weight", [0.3, 0.0])
@pytest.mark.parametrize("n_judges", [1, 2])
def test_no_network_judges_its_own_rows(court, sets, clean_weight, n_judges):
    noisy, clean = sets
    rng = np.random.RandomState(0)
    outer = {"max_iter": 1, "outer_lr": 0.1, "outer_eps": 1.0, "outer_patience": 9, "average": True}
    settings = Settings(Manner(), **outer, cv=5, clean_cv=None, n_judges=n_judges, clean_weight=clean_weight)
    learner = NetworkLearner(
        Workers(None, Trainer(SimpleNamespace(compares_rows=False), noisy, clean)),
        Classification(np.arange(2)),
        settings,
        Folds(deal(noisy[1], 5, rng), deal(clean[1], 3, rng)),
        seed=0,
    )
    verdict = learner.judge(Learnt(OuterState.start(1, N_NOISY).map(np.asarray), []))
    conclusion = verdict.conclusion
    assert np.isfinite(conclusion.answers).all()
    assert np.isfinite(conclusion.clean_losses).all()
    # Kinds over 15 pairs of folds, one over the three clean folds alone, and the network that is kept.
    n_trainings = (4 * 15 + 3) * n_judges + 1 if clean_weight else 3 * 15 * n_judges + 1
    assert len(court) == n_trainings
    assert verdict.state[2].all()
    assert verdict.state[3].all()


@pytest.mark.parametrize("clean_weight", [0.3, 3.0])
def test_few_clean_rows_beside_many_noisy_ones(clean_weight):
    """All of the clean set weighs as much as the noisy set; one row of it that did would end the training."""
    rng = np.random.RandomState(0)
    noisy, clean = ((X, (X[:, :3].sum(axis=1) > 0).astype(int)) for X in (rng.randn(8000, 50), rng.randn(8, 50)))
    noisy, clean = ((X.astype(np.float32), y) for X, y in (noisy, clean))
    network = Network(None, *noisy, 2, seed=1)
    rows = np.ones(8000, dtype=bool), np.ones(8, dtype=bool)
    (state,) = Trainer(network, noisy, clean).trained(np.ones(8000), clean_weight, *rows, 5)
    assert (network.answers(state, noisy[0]).argmax(axis=1) == noisy[1]).mean() > 0.98


def test_folds_get_their_part_of_every_class():
    y = np.repeat([0, 1, 2], [50, 30, 20])
    folds = deal(y, 5, np.random.RandomState(0))
    counts = np.array([[(y[folds == f] == c).sum() for c in range(3)] for f in range(5)])
    np.testing.assert_array_equal(counts, [[10, 6, 4]] * 5)


def test_no_more_folds_than_rows():
    assert sorted(deal(np.zeros(3), 5, np.random.RandomState(0))) == [0, 1, 2]


def test_held_out_losses_come_from_the_other_folds(court, sets, monkeypatch):
    class Network:
        def row_losses(self, state, X, targets):
            n_seen = state[2].sum()
            assert n_seen + len(X) == N_CLEAN
            return np.full(len(X), n_seen)

    _, clean = sets
    losses = held_out_losses(Network(), clean, 5, seed=0, rng=np.random.RandomState(0))
    np.testing.assert_array_equal(losses, N_CLEAN - 2)


@pytest.mark.parametrize(("n_folds", "n_clean_folds"), [(5, 3), (2, 3), (1, 3), (5, 1)])
def test_clean_rows_are_compared_by_as_many_networks_as_judge_a_noisy_row(n_folds, n_clean_folds):
    """By fewer only where their own fold has no more, and never by networks of another fold."""
    clean_folds, noisy_folds = np.arange(N_CLEAN) % n_clean_folds, np.arange(N_NOISY) % n_folds
    crossed, clean_only = splits_of(clean_folds, noisy_folds, np.random.RandomState(0))
    for splits, n_most in ((crossed, min(n_folds, n_clean_folds)), (clean_only, 1)):
        assert (sum(split.judged.astype(int) for split in splits) == n_clean_folds).all()
        assert (sum(split.stand_ins.astype(int) for split in splits) == n_most).all()
        assert all((clean_folds[split.stand_ins] == split.fold).all() for split in splits)
    # Not the same networks for all rows: each is heard of some.
    assert all(split.stand_ins.any() for split in crossed)
