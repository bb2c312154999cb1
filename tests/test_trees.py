"""What a forest says: probabilities that leave room for doubt, rows that must not be seen, and what it is good for."""

from __future__ import annotations

from collections import Counter

import joblib
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.metrics import average_precision_score, r2_score
from skorch import NeuralNet, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_cdgd import CorruptionDetector, NoisySetDetector, _trees, _verdict
from sklearn_cdgd._network import Network
from sklearn_cdgd._trees import answers_by_trees
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres

RNG = np.random.RandomState(0)
X = RNG.randn(200, 4).astype(np.float32)
IS_RIGHT = X[:, 0] > 0
ONES = np.ones(200)
# Trees disagree about labels that nothing explains.
GUESSES = np.random.RandomState(1).rand(200) < 0.5


class TestForest:
    @pytest.mark.parametrize("container", [np.asarray, csr_array])
    def test_probabilities(self, container):
        # Class 1 has no rows: it gets its part of the one vote that is spread.
        targets = 2 * IS_RIGHT
        seen, twice = answers_by_trees(
            container(X), targets, ONES, [container(X), container(X[:5])], n_classes=3, seed=0
        )
        assert seen.shape == (200, 3)
        np.testing.assert_allclose(seen.sum(axis=1), 1)
        np.testing.assert_allclose(seen[:, 1], 1 / 3 / (_trees._N_TREES + 1))
        np.testing.assert_array_equal(seen[:5], twice)
        assert (seen.argmax(axis=1) == targets).mean() > 0.95

    def test_sparse_rows_are_judged_as_dense_ones(self):
        sparse = np.where(RNG.rand(200, 4) < 0.5, 0, X)
        said = [
            answers_by_trees(rows, 1 * IS_RIGHT, ONES, [rows], n_classes=2, seed=0)[0]
            for rows in (sparse, csr_array(sparse))
        ]
        np.testing.assert_allclose(*said)

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_a_context_of_many_jobs_changes_nothing(self, n_classes):
        # Threads that add up votes as they come change the last digits.
        def said():
            return answers_by_trees(X, 1 * GUESSES, ONES, [X], n_classes=n_classes, seed=0)[0]

        alone = said()
        with joblib.parallel_config("threading", n_jobs=4):
            for _ in range(5):
                np.testing.assert_array_equal(said(), alone)

    def test_rows_without_weight_have_no_say(self):
        weights = (np.arange(200) < 150).astype(float)
        other = np.where(weights > 0, IS_RIGHT, ~IS_RIGHT)
        said = [answers_by_trees(X, 1 * of, weights, [X], n_classes=2, seed=0)[0] for of in (IS_RIGHT, other)]
        np.testing.assert_array_equal(*said)

    def test_trees_of_many_rows_are_grown_on_rows_with_weight(self, monkeypatch):
        monkeypatch.setattr(_trees, "_ROWS_A_TREE", 50)
        weights = (np.arange(200) % 3 == 0).astype(float)
        kept = weights > 0
        said = [
            answers_by_trees(*of, [X], n_classes=2, seed=0)[0]
            for of in ((X, 1 * IS_RIGHT, weights), (X[kept], 1 * IS_RIGHT[kept], ONES[kept]))
        ]
        np.testing.assert_array_equal(*said)

    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_numbers(self, n_outputs):
        targets = X[:, :2].astype(np.float64) if n_outputs == 2 else X[:, 0].astype(np.float64)
        (said,) = answers_by_trees(X, targets, ONES, [X], n_classes=None, seed=0)
        assert said.shape == targets.shape
        assert r2_score(targets, said) > 0.8

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_of_many_rows_each_tree_sees_some(self, monkeypatch, n_classes):
        whole = answers_by_trees(X, 1 * IS_RIGHT, ONES, [X], n_classes=n_classes, seed=0)[0]
        monkeypatch.setattr(_trees, "_ROWS_A_TREE", 50)
        part = answers_by_trees(X, 1 * IS_RIGHT, ONES, [X], n_classes=n_classes, seed=0)[0]
        assert (part != whole).any()
        of_one = part if n_classes is None else part[:, 1]
        assert ((of_one > 0.5) == IS_RIGHT).mean() > 0.9


def test_no_forest_judges_its_own_rows_or_knows_the_clean_fold(monkeypatch):
    """Every row is told by its first feature: a whole number for noisy rows, halves for clean ones."""
    rows, clean_rows = np.arange(60.0), 5 * np.arange(12.0) + 0.5
    judged = {"noisy": [], "clean": []}

    def answers(X, targets, weights, others, *, n_classes, seed):
        noisy, clean = (of[:, 0] for of in others)
        assert not np.isin(np.concatenate([noisy, clean]), X[:, 0]).any()
        assert (weights[X[:, 0] % 1 > 0] == 1).all()
        judged["noisy"].append(noisy)
        judged["clean"].append(clean)
        return [np.full((len(of), n_classes), 1 / n_classes) for of in others]

    monkeypatch.setattr(_verdict, "answers_by_trees", answers)
    data = [np.c_[of, RNG.randn(len(of), 2)] for of in (rows, clean_rows)]
    net = NeuralNetClassifier(nn.Linear(3, 2), criterion=nn.CrossEntropyLoss, max_epochs=1, train_split=None, verbose=0)
    CorruptionDetector(net, max_iter=1, cv=3, random_state=0).fit(data[0], rows % 2 == 0, data[1], clean_rows % 2 < 1)
    # Two forests for each pair of three noisy and three clean folds: one with alpha, one with the rest's suggestions.
    assert len(judged["noisy"]) == 2 * 3 * 3
    np.testing.assert_array_equal(np.sort(np.concatenate(judged["noisy"])), np.repeat(rows, 2 * 3))
    np.testing.assert_array_equal(np.sort(np.concatenate(judged["clean"])), np.repeat(clean_rows, 2 * 3))


class TestLossesOfPredictions:
    @pytest.mark.parametrize("n_outputs", [1, 3])
    @pytest.mark.parametrize("make", [None, "squared"])
    def test_equal_those_of_the_net(self, make, n_outputs):
        net = None
        if make:
            net = NeuralNetRegressor(nn.Linear(4, n_outputs), max_epochs=1, train_split=None, verbose=0)
        targets = RNG.randn(200, n_outputs).astype(np.float32)
        targets = targets[:, 0] if n_outputs == 1 else targets
        network = Network(net, X, targets, None, seed=0)
        answers = network.answers(network.state, X)
        losses = network.prediction_losses(answers, targets)
        np.testing.assert_allclose(losses, network.row_losses(network.state, X, targets), rtol=1e-4, atol=1e-5)

    def test_a_loss_of_the_users_own_is_not_guessed(self):
        class WithPenalty(NeuralNetRegressor):
            def get_loss(self, y_pred, y_true, X=None, training=False):
                return super().get_loss(y_pred, y_true, X, training) + y_pred**2

        options = {"max_epochs": 1, "train_split": None, "verbose": 0}
        targets = X[:, :1]

        def can_score(net):
            return Network(net, X, targets, None, seed=0).can_score_predictions(targets)

        assert can_score(NeuralNetRegressor(nn.Linear(4, 1), **options))
        assert can_score(NeuralNetRegressor(nn.Linear(4, 1), criterion=nn.HuberLoss, **options))
        assert not can_score(WithPenalty(nn.Linear(4, 1), **options))
        assert not can_score(NeuralNet(nn.Linear(4, 1), criterion=nn.MSELoss, **options))
        assert Network(None, X, 1 * IS_RIGHT, 2, seed=0).can_score_predictions(1 * IS_RIGHT)

    def test_a_criterion_that_wants_something_else_than_the_target(self):
        """Of counts, the logarithm of what is expected."""
        net = NeuralNetRegressor(
            nn.Linear(4, 1), criterion=nn.PoissonNLLLoss, max_epochs=1, train_split=None, verbose=0
        )
        counts = RNG.poisson(3, size=(200, 1)).astype(np.float32)
        assert not Network(net, X, counts, None, seed=0).can_score_predictions(counts)


def test_trees_have_the_say_where_networks_cannot_learn():
    """600 rows are too few for a network in 60 dimensions."""
    X, y = make_concentric_spheres(640, 60, random_state=0)
    y_noisy, is_corrupted = flip_labels(y[40:], 0.2, random_state=0)
    detector = CorruptionDetector(max_iter=2, cv=3, random_state=0).fit(X[40:], y_noisy, X[:40], y[:40])
    say = Counter()
    for (name, _), share in zip(detector._panel.names, detector._panel.shares, strict=True):
        say["trees" if name.startswith("trees") else name] += share
    assert say.most_common(1)[0][0] == "trees"
    without = NoisySetDetector(random_state=0).fit(X[40:], y_noisy, X[:40], y[:40]).decision_function()
    by_trees, by_network = (average_precision_score(is_corrupted, of) for of in (detector.loss_, -without))
    assert by_trees > by_network + 0.1


@pytest.mark.parametrize(("witnesses", "n_others"), [("all", 3), ("networks", 0)])
def test_who_is_heard(witnesses, n_others):
    net = NeuralNetClassifier(nn.Linear(4, 2), criterion=nn.CrossEntropyLoss, max_epochs=1, train_split=None, verbose=0)
    y = 1 * IS_RIGHT
    detector = CorruptionDetector(net, max_iter=1, cv=2, witnesses=witnesses, random_state=0)
    report = detector.fit(X[:100], y[:100], X[100:120], y[100:120]).report()
    assert sum(name.startswith(("trees", "nearest")) for name, _ in detector._panel.names) == n_others
    assert ("trees" in report) == (n_others > 0)
