"""A noisy set in shards: who is dealt where, what is put together again, and that every shard is a task of its own."""

from __future__ import annotations

import re

import joblib
import numpy as np
import pytest
import torch
from helpers import RESULTS, assert_same_result, closed_form_detector, quick_detector, three_columns
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import average_precision_score, f1_score
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd._outer import OuterState
from sklearn_cdgd._shards import ShardJobs, in_order, shards_of, thinned, whole_state
from sklearn_cdgd.datasets import flip_labels


def net(**options):
    options = dict(criterion=nn.CrossEntropyLoss, lr=0.5, batch_size=-1, max_epochs=20, train_split=None) | options
    return NeuralNetClassifier(three_columns, **options)


def quick(**options):
    """Return a detector that cross-fits networks; forests would take most of the time."""
    defaults = dict(net=net(), max_iter=2, cv=2, clean_cv=2, witnesses="networks", random_state=0)
    return CorruptionDetector(**(defaults | options))


INNER_LEARNERS = pytest.mark.parametrize("make", [quick, closed_form_detector], ids=["network", "closed form"])


class TestDealing:
    @pytest.mark.parametrize(("n_rows", "shard_size", "n_shards"), [(100, 30, 4), (100, 50, 2), (101, 50, 3)])
    def test_shards_are_nearly_equal_and_have_their_part_of_every_class(self, n_rows, shard_size, n_shards):
        y = np.random.RandomState(0).permutation(np.arange(n_rows) % 10 == 0).astype(int)
        shards = shards_of(y, shard_size, np.random.RandomState(0))
        assert len(shards) == n_shards
        assert sorted(np.concatenate(shards).tolist()) == list(range(n_rows))
        sizes, rare = [len(shard) for shard in shards], [y[shard].sum() for shard in shards]
        assert max(sizes) <= shard_size
        assert max(sizes) - min(sizes) <= 1
        assert max(rare) - min(rare) <= 1

    def test_numbers_as_targets(self):
        y = np.arange(100.0)
        for shard in shards_of(y, 25, np.random.RandomState(0)):
            assert abs(y[shard].mean() - y.mean()) < 2

    def test_in_order_undoes_the_deal(self):
        values = np.random.RandomState(0).randn(3, 57)
        shards = shards_of(np.arange(57) % 3, 10, np.random.RandomState(1))
        np.testing.assert_array_equal(in_order([values[:, shard] for shard in shards], shards, axis=1), values)

    def test_the_state_of_every_shard_comes_back_to_its_rows(self):
        shards = shards_of(np.arange(20) % 2, 7, np.random.RandomState(0))
        state = OuterState.start(2, 20)
        numbered = state.map(lambda t: t + torch.arange(20.0))
        jobs = ShardJobs((np.arange(20), np.arange(20)), shards, numbered)
        for (number, X, targets, _), shard in zip(jobs, shards, strict=True):
            np.testing.assert_array_equal(X, shards[number])
            np.testing.assert_array_equal(targets, shard)
        whole = whole_state([job[-1] for job in jobs], shards)
        for name in ("alpha", "mean", "first", "second", "count", "kept"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(numbered, name))

    def test_of_the_snapshots_each_shard_keeps_its_share(self):
        snapshots = [(fold, n) for fold in (1, 0) for n in range(16)]
        assert thinned(snapshots, 8) == [(0, 0), (0, 8), (1, 0), (1, 8)]
        assert thinned(snapshots, 50) == [(0, 0), (1, 0)]
        assert thinned([], 3) == []


@INNER_LEARNERS
@pytest.mark.parametrize("witnesses", ["all", "networks"])
def test_shards_find_what_the_whole_finds(make, witnesses):
    X, y = make_blobs(420, centers=[(-4, 0, 0), (4, 0, 0)], random_state=0)
    y_noisy, is_corrupted = flip_labels(y[:360], 0.2, random_state=0)
    arrays = X[:360], y_noisy, X[360:], y[360:]
    detector = make(max_iter=4, witnesses=witnesses)
    for shard_size in (None, 120):
        detector.set_params(shard_size=shard_size).fit(*arrays)
        assert f1_score(is_corrupted, detector.predict()) > 0.95
        assert detector.alpha_[~is_corrupted].mean() > detector.alpha_[is_corrupted].mean() + 0.1
        assert detector.p_values_[is_corrupted].mean() < 0.1 < 0.4 < detector.p_values_[~is_corrupted].mean()
        assert (detector.flag_frequency_ > 0.5)[is_corrupted].mean() > 0.95
        assert len(detector.clean_loss_curve_) == detector.n_iter_ <= 4
        assert detector.predict(*arrays[2:]).mean() < 0.1  # right rows, new to the detector


@INNER_LEARNERS
@pytest.mark.parametrize("options", [{}, {"cv": None}, {"clean_cv": None}], ids=str)
def test_the_workers_change_nothing(spheres, make, options):
    arrays = spheres()[:4]
    detector = make(shard_size=50, max_iter=2, **options)
    alone = clone(detector).fit(*arrays)
    with joblib.parallel_config(backend="threading"):
        detector.set_params(n_jobs=2).fit(*arrays)
    assert_same_result(detector, alone, RESULTS)
    assert (detector.p_values_ is None) == bool(options)


@INNER_LEARNERS
def test_a_shard_knows_nothing_of_the_others(spheres, make):
    """Other rows elsewhere leave alpha of a shard alone, as long as the deal is the same."""
    X, y, X_clean, y_clean, _ = spheres(n_noisy=100)
    detector = make(shard_size=50, max_iter=2, cv=None)
    alpha = detector.fit(X, y, X_clean, y_clean).alpha_
    first, second = shards_of(np.searchsorted(np.unique(y), y), 50, np.random.RandomState(_seed(0)))
    X_other = X.copy()
    X_other[second] += 0.1
    other = detector.fit(X_other, y, X_clean, y_clean).alpha_
    np.testing.assert_array_equal(alpha[first], other[first])
    assert (alpha[second] != other[second]).any()


def _seed(random_state):
    return int(np.random.RandomState(random_state).randint(np.iinfo(np.int32).max))


def test_every_shard_says_that_it_is_done(spheres, capsys):
    quick_detector(shard_size=50, verbose=1).fit(*spheres()[:4])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for n, line in enumerate(lines):
        assert re.fullmatch(rf"\[CorruptionDetector\] shard {n + 1}/3: clean loss \d+\.\d+, \d+\.\d% kept", line)


@INNER_LEARNERS
def test_one_shard_is_the_whole(spheres, make):
    arrays = spheres()[:4]
    whole, one_shard = (make(shard_size=size, max_iter=2, cv=None).fit(*arrays) for size in (None, 120))
    assert_same_result(one_shard, whole, RESULTS)


def test_numbers_as_targets():
    rng = np.random.RandomState(0)
    X = rng.standard_normal((260, 3)).astype(np.float32)
    y, is_corrupted = X.sum(axis=1), np.arange(200) % 10 == 0
    y_noisy = np.where(is_corrupted, y[:200] + 8, y[:200])
    net = NeuralNetRegressor(nn.Linear, module__in_features=3, module__out_features=1, lr=0.1, max_epochs=30)
    net.set_params(batch_size=-1, train_split=None)
    detector = CorruptionDetector(
        net, max_iter=2, cv=2, clean_cv=2, shard_size=100, witnesses="networks", random_state=0
    )
    detector.fit(X[:200], y_noisy, X[200:], y[200:])
    # Every wrong row ranks before every right one; of 30 clean rows that decide, some right rows are beyond the range.
    assert average_precision_score(is_corrupted, detector.loss_) == 1
    assert detector.predict()[is_corrupted].all()
    assert f1_score(is_corrupted, detector.predict()) > 0.85
    assert np.corrcoef(detector.predictions_, y[:200])[0, 1] > 0.9


def test_two_fits_equal_one(spheres):
    arrays = spheres()[:4]
    once = quick(shard_size=50, max_iter=4).fit(*arrays)
    twice = quick(shard_size=50, warm_start=True).fit(*arrays)
    twice.set_params(max_iter=4).fit(*arrays)
    np.testing.assert_array_equal(once.alpha_, twice.alpha_)
    assert twice.n_iter_ == 4


def test_another_fit_in_closed_form_goes_on_from_what_was_kept(spheres):
    """Which held-out losses that had is not known of every shard, so two fits are not quite one."""
    arrays = spheres()[:4]
    detector = closed_form_detector(shard_size=60, max_iter=3, warm_start=True).fit(*arrays)
    kept, curve = detector.alpha_, detector.clean_loss_curve_
    with pytest.warns(UserWarning, match="All of the max_iter=3 outer steps were taken before"):
        np.testing.assert_array_equal(detector.fit(*arrays).alpha_, kept)
    detector.set_params(max_iter=6).fit(*arrays)
    assert detector.n_iter_ == 6
    np.testing.assert_array_equal(detector.clean_loss_curve_[:3], curve)
    assert (detector.alpha_ != kept).any()


@pytest.fixture(scope="module")
def fitted():
    """Return a detector with six shards in closed form, and pairs that come later."""
    X, y = make_blobs(420, centers=[(-4, 0, 0), (4, 0, 0)], random_state=0)
    y_noisy, _ = flip_labels(y[:360], 0.2, random_state=0)
    detector = closed_form_detector(shard_size=60, max_iter=8).fit(X[:360], y_noisy, X[360:], y[360:])
    return detector, X[360:] + 0.01, y[360:]


class TestClosedForm:
    """What shards in closed form have that networks have not: kernel machines for pairs that come later."""

    def test_all_shards_take_the_same_number_of_steps(self, fitted):
        """Also where held-out clean rows tell of no progress: curves are means over the shards."""
        detector, *_ = fitted
        assert detector.n_iter_ == len(detector.validation_loss_curve_) == 8
        assert np.isfinite(detector.validation_loss_curve_).all()

    def test_pairs_that_come_later(self, fitted):
        detector, X, y = fitted
        assert not detector.predict(X, y).any()
        assert detector.predict(X, 1 - y).all()
        assert (detector.decision_function(X, y) > detector.decision_function(X, 1 - y)).all()

    def test_they_are_judged_by_the_mean_of_a_few_shards(self, fitted):
        """Four of the six."""
        detector, X, y = fitted
        judges, estimate = detector._judges, detector._alpha_estimate
        assert len(judges.ensembles) == len(estimate.estimates) == 4
        by_hand = np.mean([judge.predict(X) for judge in judges.ensembles], axis=0)
        np.testing.assert_allclose(judges.predict(X), by_hand)
        by_hand = np.mean([one.alpha(None, X, y) for one in estimate.estimates], axis=0)
        np.testing.assert_allclose(detector.decision_function(X, y), by_hand)


def test_rows_that_stand_in_for_a_clean_set_are_in_no_shard(spheres):
    X, y, *_ = spheres()
    with pytest.warns(UserWarning, match="assumed to be right"):
        detector = quick(shard_size=50, clean_fraction=0.3).fit(X, y)
    assert detector.alpha_.shape == (120,)
    assert (detector.alpha_ == 1).sum() >= 36
