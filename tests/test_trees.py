"""Forests: rows that must not be seen, probabilities that leave room for doubt, and what forests are good for."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from helpers import closed_form_detector, skorch_net
from scipy.sparse import csr_array
from sklearn.metrics import average_precision_score, r2_score
from skorch import NeuralNet, NeuralNetRegressor
from torch import nn

from sklearn_cdgd import CorruptionDetector, NoisySetDetector, _forests, _trees
from sklearn_cdgd._forests import grow_forests
from sklearn_cdgd._network import Network
from sklearn_cdgd._stacking import log_losses
from sklearn_cdgd._trainer import Trainer
from sklearn_cdgd._trees import FORESTS, N_TREES, out_of_bag
from sklearn_cdgd._workers import Workers
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres

RNG = np.random.RandomState(0)
X = RNG.randn(200, 4).astype(np.float32)
IS_RIGHT = X[:, 0] > 0
ONES = np.ones(200)
OTHERS = RNG.randn(100, 4).astype(np.float32)


@pytest.mark.parametrize("kind", FORESTS, ids=lambda kind: kind.name)
class TestOutOfBag:
    @pytest.mark.parametrize("container", [np.asarray, csr_array])
    def test_probabilities(self, kind, container):
        # Class 1 has no rows: it gets its part of the one vote that is spread.
        targets = 2 * IS_RIGHT
        found = out_of_bag(kind, container(X), targets, ONES, container(OTHERS), n_classes=3, seed=0)
        n_few = round(0.37 * N_TREES)
        for probabilities, n_rows, n_trees in zip(found, (200, 100, 100), (n_few, N_TREES, n_few), strict=True):
            assert probabilities.shape == (n_rows, 3)
            np.testing.assert_allclose(probabilities.sum(axis=1), 1)
            np.testing.assert_allclose(probabilities[:, 1], 1 / 3 / (n_trees + 1))
        for probabilities, rows in zip(found, (X, OTHERS, OTHERS), strict=True):
            assert (probabilities.argmax(axis=1) == 2 * (rows[:, 0] > 0)).mean() > 0.85

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_the_own_target_has_no_influence(self, kind, n_classes):
        """Trees that do not hold the row are the same whatever its target is; those that hold it are not asked."""
        before = out_of_bag(kind, X, 1 * IS_RIGHT, ONES, OTHERS, n_classes=n_classes, seed=0)[0]
        for row in (0, 50, 199):
            targets = np.where(np.arange(200) == row, ~IS_RIGHT, IS_RIGHT)
            after = out_of_bag(kind, X, 1 * targets, ONES, OTHERS, n_classes=n_classes, seed=0)[0]
            np.testing.assert_array_equal(after[row], before[row])
            assert (after != before).any(), "other rows have seen it"

    def test_labels_that_nothing_explains_are_guessed(self, kind):
        """Whoever had seen its own label would do better than by chance."""
        guesses = np.random.RandomState(1).rand(200) < 0.5
        found = out_of_bag(kind, X, 1 * guesses, ONES, OTHERS, n_classes=2, seed=0)[0]
        assert abs((found.argmax(axis=1) == guesses).mean() - 0.5) < 3 * 0.5 / np.sqrt(200)

    def test_equals_an_average_over_trees_by_hand(self, kind):
        forest = kind.regressor(
            N_TREES, min_samples_leaf=kind.leaf, max_features=1.0, bootstrap=True, oob_score=True, random_state=0
        ).fit(X, X[:, 0], ONES)
        found = out_of_bag(kind, X, X[:, 0], ONES, OTHERS, n_classes=None, seed=0)
        np.testing.assert_allclose(found[0], forest.oob_prediction_)
        np.testing.assert_allclose(found[1], forest.predict(OTHERS))
        by_tree = [tree.predict(OTHERS) for tree in forest.estimators_]
        np.testing.assert_allclose(found[2], np.mean(by_tree[: round(0.37 * N_TREES)], axis=0))

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_sparse_rows_are_judged_as_dense_ones(self, kind, n_classes):
        sparse = np.where(RNG.rand(200, 4) < 0.5, 0, X)
        found = [
            out_of_bag(kind, rows, 1 * IS_RIGHT, ONES, rows[:20], n_classes=n_classes, seed=0)
            for rows in (sparse, csr_array(sparse))
        ]
        for dense, of_sparse in zip(*found, strict=True):
            np.testing.assert_allclose(dense, of_sparse)

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_a_context_of_many_jobs_changes_nothing(self, kind, n_classes):
        # Threads that add up votes as they come change the last digits.
        guesses = np.random.RandomState(1).rand(200) < 0.5

        def found():
            return np.concatenate(out_of_bag(kind, X, 1 * guesses, ONES, X, n_classes=n_classes, seed=0))

        alone = found()
        with joblib.parallel_config("threading", n_jobs=4):
            for _ in range(3):
                np.testing.assert_array_equal(found(), alone)

    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_numbers(self, kind, n_outputs):
        def of(rows):
            return rows[:, :2].astype(np.float64) if n_outputs == 2 else rows[:, 0].astype(np.float64)

        found = out_of_bag(kind, X, of(X), ONES, OTHERS, n_classes=None, seed=0)
        for predictions, rows in zip(found, (X, OTHERS, OTHERS), strict=True):
            assert predictions.shape == of(rows).shape
            assert r2_score(of(rows), predictions) > 0.7

    def test_rows_without_weight_teach_nothing(self, kind):
        """Half of the labels are turned round, so all together tell nothing: unless they weigh nothing."""
        weights = (np.arange(200) % 2 == 0).astype(float)
        targets = np.where(weights > 0, IS_RIGHT, ~IS_RIGHT)
        n_errors = {}
        for name, of_rows in (("weighted", weights), ("not", ONES)):
            found, of_others, _ = out_of_bag(kind, X, 1 * targets, of_rows, OTHERS, n_classes=2, seed=0)
            right = np.concatenate([found.argmax(axis=1) == IS_RIGHT, of_others.argmax(axis=1) == (OTHERS[:, 0] > 0)])
            n_errors[name] = (right.mean() - 0.5) / (0.5 / np.sqrt(300))  # better than by chance by so many
        assert n_errors["weighted"] > 5
        assert abs(n_errors["not"]) < 5 < n_errors["weighted"] - n_errors["not"]

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_where_no_row_has_any_weight_all_weigh_the_same(self, kind, n_classes):
        found = [
            out_of_bag(kind, X, 1 * IS_RIGHT, weights, OTHERS, n_classes=n_classes, seed=0)
            for weights in (0 * ONES, ONES)
        ]
        for of_zeros, of_ones in zip(*found, strict=True):
            np.testing.assert_allclose(of_zeros, of_ones)

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_of_a_row_that_every_tree_holds_nothing_is_known(self, kind, n_classes):
        """Ten rows with all of the weight are drawn twenty times each."""
        weights = (np.arange(200) < 10).astype(float)
        found = out_of_bag(kind, X, 1 * IS_RIGHT, weights, OTHERS, n_classes=n_classes, seed=0)[0]
        if n_classes is None:
            np.testing.assert_allclose(found[:10], IS_RIGHT[:10].mean(), atol=1e-3)
        else:
            np.testing.assert_allclose(found[:10], 0.5)
            np.testing.assert_allclose(found.sum(axis=1), 1)

    @pytest.mark.parametrize("n_classes", [2, None])
    def test_of_many_rows_each_tree_sees_some(self, monkeypatch, kind, n_classes):
        monkeypatch.setattr(_trees, "_ROWS_A_TREE", 50)
        found = out_of_bag(kind, X, 1 * IS_RIGHT, ONES, OTHERS, n_classes=n_classes, seed=0)[0]
        of_one = found if n_classes is None else found[:, 1]
        assert ((of_one > 0.5) == IS_RIGHT).mean() > 0.85
        # Most trees do not hold a row here; those that do are not asked about it.
        targets = np.where(np.arange(200) == 7, ~IS_RIGHT, IS_RIGHT)
        other = out_of_bag(kind, X, 1 * targets, ONES, OTHERS, n_classes=n_classes, seed=0)[0]
        np.testing.assert_array_equal(other[7], found[7])

    def test_one_class(self, kind):
        found = out_of_bag(kind, X, np.ones(200, dtype=int), ONES, OTHERS, n_classes=2, seed=0)
        for probabilities in found:
            np.testing.assert_allclose(probabilities.sum(axis=1), 1)
            assert (probabilities[:, 1] > 0.9).all()


FOLDS = np.arange(12) % 3


class TestGrowing:
    """Rows of both sets for three clean folds."""

    @pytest.fixture
    def sets(self):
        rng = np.random.RandomState(0)
        return [(rng.randn(n, 3).astype(np.float32), rng.randint(2, size=n)) for n in (60, 12)]

    @staticmethod
    def grow(noisy, clean, weights=None, folds=FOLDS, network=None, permuted=None, seed=0):
        trainer = Trainer(network or SimpleNamespace(n_classes=2), noisy, clean)
        weights = np.ones((folds.max() + 1, len(noisy[1]))) if weights is None else weights
        return grow_forests(Workers(None, trainer), "some weights", weights, folds, permuted, seed)

    def test_members(self, sets):
        (_, targets), (_, clean_targets) = sets
        members = self.grow(*sets)
        assert list(members) == [("trees, some weights", "extra trees"), ("trees, some weights", "random forest")]
        for member in members.values():
            assert member.answers.shape == (3, 60, 2)
            assert member.clean_answers.shape == member.calibration_answers.shape == (12, 2)
            np.testing.assert_array_equal(member.losses, log_losses(member.answers, targets))
            np.testing.assert_array_equal(member.clean_losses, log_losses(member.clean_answers, clean_targets))
            np.testing.assert_array_equal(
                member.calibration_losses, log_losses(member.calibration_answers, clean_targets)
            )
            assert (member.permuted_losses == 0).all()

    def test_one_kind_is_as_it_is_beside_others(self, sets):
        trainer = Trainer(SimpleNamespace(n_classes=2), *sets)
        alone = grow_forests(Workers(None, trainer), "some weights", np.ones((3, 60)), FOLDS, None, 0, FORESTS[:1])
        assert [name for _, name in alone] == [FORESTS[0].name]
        for name, member in alone.items():
            np.testing.assert_array_equal(member.answers, self.grow(*sets)[name].answers)

    def test_labels_of_the_own_fold_have_no_part(self, sets):
        noisy, (X_clean, clean_targets) = sets
        before = self.grow(*sets)
        after = self.grow(noisy, (X_clean, np.where(FOLDS == 1, 1 - clean_targets, clean_targets)))
        for name, member in before.items():
            np.testing.assert_array_equal(after[name].answers[1], member.answers[1])
            for part in ("clean_answers", "calibration_answers"):
                np.testing.assert_array_equal(getattr(after[name], part)[FOLDS == 1], getattr(member, part)[FOLDS == 1])
            assert (after[name].answers[0] != member.answers[0]).any()

    def test_the_own_label_of_a_noisy_row_has_no_part(self, sets):
        (X_noisy, targets), clean = sets
        before = self.grow(*sets)
        after = self.grow((X_noisy, np.where(np.arange(60) == 5, 1 - targets, targets)), clean)
        for name, member in before.items():
            np.testing.assert_array_equal(after[name].answers[:, 5], member.answers[:, 5])
            assert (after[name].answers != member.answers).any()

    def test_every_clean_row_comes_back_to_its_place(self, sets, monkeypatch):
        """Rows are told by their first feature, which is what the stand-in for a forest predicts."""
        noisy, (X_clean, clean_targets) = sets
        X_clean[:, 0] = np.arange(12) / 12
        seen = []

        def by_first_feature(kind, X, targets, weights, others, *, n_classes, seed):
            assert not np.isin(others[:, 0], X[:, 0]).any(), "a held-out clean row is known"
            assert (weights[60:] == 1).all()
            seen.append((kind.name, np.sort(others[:, 0]), weights[:60]))
            of = np.c_[X[:, 0], 1 - X[:, 0]], np.c_[others[:, 0], 1 - others[:, 0]]
            return of[0], of[1], 2 * of[1]

        monkeypatch.setattr(_forests, "out_of_bag", by_first_feature)
        weights, folds = np.random.RandomState(0).rand(3, 60), np.random.RandomState(1).permutation(FOLDS)
        for member in self.grow(noisy, (X_clean, clean_targets), weights, folds).values():
            np.testing.assert_array_equal(member.clean_answers[:, 0], X_clean[:, 0])
            np.testing.assert_array_equal(member.calibration_answers[:, 0], 2 * X_clean[:, 0])
            np.testing.assert_array_equal(member.answers[..., 0], np.tile(noisy[0][:, 0], (3, 1)))
        assert [name for name, *_ in seen] == ["extra trees"] * 3 + ["random forest"] * 3
        for n, (_, held_out, of_noisy) in enumerate(seen):
            np.testing.assert_array_equal(held_out, X_clean[folds == n % 3, 0])
            np.testing.assert_array_equal(of_noisy, weights[n % 3])

    def test_one_clean_row_is_known(self, sets):
        """It cannot be left out of itself: of its class there would be nothing."""
        noisy, (X_clean, clean_targets) = sets
        for member in self.grow(noisy, (X_clean[:1], clean_targets[:1]), folds=np.zeros(1, dtype=int)).values():
            assert np.isfinite(member.clean_losses).all()
            assert member.answers.shape == (1, 60, 2)

    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_numbers(self, n_outputs):
        """The network scores the predictions, with the targets of other rows too."""

        def targets_of(rows):
            return rows[:, 0] if n_outputs == 1 else rows[:, :2]

        def squared(answers, targets):
            return ((answers - targets) ** 2).reshape(len(targets), -1).sum(axis=1)

        noisy, clean = (X, targets_of(X)), (OTHERS[:12], targets_of(OTHERS[:12]))
        network = SimpleNamespace(n_classes=None, prediction_losses=squared)
        for member in self.grow(noisy, clean, network=network, permuted=noisy[1][::-1]).values():
            assert member.answers.shape == (3, *noisy[1].shape)
            assert member.clean_answers.shape == clean[1].shape
            for fold in range(3):
                np.testing.assert_allclose(member.losses[fold], squared(member.answers[fold], noisy[1]))
                np.testing.assert_allclose(member.permuted_losses[fold], squared(member.answers[fold], noisy[1][::-1]))
            assert member.permuted_losses.mean() > 3 * member.losses.mean()

    def test_workers_change_nothing(self, sets):
        trainer = Trainer(Network(skorch_net(), *sets[0], 2, seed=0), *sets)
        with joblib.parallel_config(backend="threading"), Workers(2, trainer) as workers:
            together = grow_forests(workers, "some weights", np.ones((3, 60)), FOLDS, None, 0)
        for name, member in self.grow(*sets).items():
            for part, of_alone in zip(together[name], member, strict=True):
                np.testing.assert_array_equal(part, of_alone)

    def test_images_are_taken_as_rows_of_numbers(self, sets):
        (X_noisy, targets), (X_clean, clean_targets) = sets
        flat = self.grow(*sets)
        images = self.grow((X_noisy.reshape(-1, 3, 1), targets), (X_clean.reshape(-1, 3, 1), clean_targets))
        for name, member in flat.items():
            np.testing.assert_array_equal(images[name].answers, member.answers)


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


def test_trees_have_the_weight_where_networks_cannot_learn():
    """600 rows are too few for a network in 60 dimensions."""
    X, y = make_concentric_spheres(640, 60, random_state=0)
    y_noisy, is_corrupted = flip_labels(y[40:], 0.2, random_state=0)
    arrays = X[40:], y_noisy, X[:40], y[:40]
    net = skorch_net(lambda: nn.Sequential(nn.Linear(60, 32), nn.ReLU(), nn.Linear(32, 2)), max_epochs=20)
    detector = CorruptionDetector(net, max_iter=1, cv=3, random_state=0).fit(*arrays)
    weights = Counter()
    for (name, _), weight in zip(detector._panel.names, detector._panel.weights, strict=True):
        weights["trees" if name.startswith("trees") else name] += weight
    assert weights.most_common(1)[0][0] == "trees"
    without = NoisySetDetector(net, random_state=0).fit(*arrays).decision_function()
    by_trees, by_network = (average_precision_score(is_corrupted, of) for of in (detector.loss_, -without))
    assert by_trees > by_network + 0.1


@pytest.mark.parametrize(
    ("has_net", "witnesses", "n_trees", "n_neighbors"),
    [(True, "all", 4, 1), (False, "all", 4, 2), (True, "networks", 0, 0), (False, "networks", 0, 0)],
)
def test_who_is_asked(has_net, witnesses, n_trees, n_neighbors):
    """Two kinds of forests for two weightings; neighbours for both in closed form, for one beside networks."""
    y = 1 * IS_RIGHT
    detector = closed_form_detector(max_iter=1, cv=2, witnesses=witnesses)
    if has_net:
        detector.set_params(net=skorch_net(nn.Linear(4, 2), max_epochs=1))
    report = detector.fit(X[:100], y[:100], X[100:120], y[100:120]).report()
    names = [name for name, _ in detector._panel.names]
    assert sum(name.startswith("trees") for name in names) == n_trees
    assert sum(name.startswith("nearest") for name in names) == n_neighbors
    assert ("trees" in report) == (n_trees > 0)
