"""A fit that is interrupted, given up, or taken up again."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import closed_form_detector, quick_detector, skorch_net
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from torch import nn

from sklearn_cdgd import (
    CleanSetDetector,
    CorruptionDetector,
    NoisySetDetector,
    _closed_form_learning,
    _learning,
    _trainer,
)

LEARNT = ("alpha_", "clean_loss_curve_", "loss_", "probabilities_")


def mlp(n_inputs=3, n_outputs=2):
    return nn.Sequential(nn.Linear(n_inputs, 8), nn.ReLU(), nn.Linear(8, n_outputs))


def detector_of(**options):
    """Return a detector of six outer steps."""
    return quick_detector(max_iter=6, net=skorch_net(mlp)).set_params(**options)


def assert_equal(a, b):
    assert a.n_iter_ == b.n_iter_
    for name in LEARNT:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


class Interrupting:
    """Stands in for a function and raises a KeyboardInterrupt at the calls named."""

    def __init__(self, monkeypatch, name, *calls, module=None):
        module = module or (_learning if hasattr(_learning, name) else _trainer)
        self.function, self.calls, self.n_calls = getattr(module, name), calls, 0
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args, **kwargs):
        self.n_calls += 1
        if self.n_calls in self.calls:
            raise KeyboardInterrupt
        return self.function(*args, **kwargs)


@pytest.fixture
def arrays(spheres):
    return spheres(n_noisy=40, n_clean=20)[:4]


class TestWarmStart:
    @pytest.mark.parametrize("average", [True, False])
    def test_two_fits_equal_one(self, arrays, average):
        whole = detector_of(average=average, outer_patience=2).fit(*arrays)
        parts = detector_of(average=average, outer_patience=2, max_iter=2, warm_start=True).fit(*arrays)
        assert parts.n_iter_ == 2
        assert (parts.alpha_ != whole.alpha_).any()
        assert_equal(parts.set_params(max_iter=6).fit(*arrays), whole)

    def test_two_fits_equal_one_without_a_clean_set(self, arrays):
        with pytest.warns(UserWarning, match="No clean set was given"):
            whole = detector_of().fit(*arrays[:2])
        with pytest.warns(UserWarning, match="No clean set was given"):
            parts = detector_of(max_iter=2, warm_start=True).fit(*arrays[:2]).set_params(max_iter=6).fit(*arrays[:2])
        assert_equal(parts, whole)

    def test_without_it_a_fit_starts_afresh(self, arrays):
        assert_equal(
            detector_of(max_iter=2).fit(*arrays).set_params(max_iter=6).fit(*arrays), detector_of().fit(*arrays)
        )

    def test_verified_rows_move_to_the_clean_set(self, arrays):
        """The review loop: the most suspicious rows leave, everything known of the others stays."""
        X, y, X_clean, y_clean = arrays
        detector = detector_of(warm_start=True, average=False).fit(X, y, X_clean, y_clean)
        alpha = detector.alpha_
        checked = detector.ranked_indices()[:10]
        left = np.setdiff1d(np.arange(len(X)), checked)
        detector.set_params(max_iter=7, outer_lr=1e-9)
        detector.fit(X[left], y[left], (np.r_[X_clean, X[checked]],), (np.r_[y_clean, y[checked]],))
        np.testing.assert_allclose(detector.alpha_, alpha[left], atol=1e-6)
        assert detector.n_iter_ == len(detector.clean_loss_curve_) == 7

    def test_new_pairs_start_at_one(self, arrays):
        X, y, X_clean, y_clean = arrays
        detector = detector_of(warm_start=True, average=False).fit(X[:30], y[:30], X_clean, y_clean)
        alpha, y_now = detector.alpha_, y.copy()
        corrected = int(np.argmin(alpha))
        y_now[corrected] = 1 - y_now[corrected]
        order = np.random.RandomState(0).permutation(len(X))
        detector.set_params(max_iter=7, outer_lr=1e-9).fit(X[order], y_now[order], X_clean, y_clean)
        expected = np.r_[alpha, np.ones(10)]
        expected[corrected] = 1
        np.testing.assert_allclose(detector.alpha_, expected[order], atol=1e-6)

    def test_clean_rows_keep_their_fold(self, arrays):
        """The alpha of a fold has learnt from the clean rows of all others: no row may come to be judged by it."""
        X, y, X_clean, y_clean = arrays
        detector = detector_of(warm_start=True, max_iter=1, clean_cv=3, cv=2).fit(*arrays)
        before = detector._clean_rows.folds
        left, order = np.arange(30), np.random.RandomState(0).permutation(30)
        joined, labels = np.r_[X_clean, X[30:]], np.r_[y_clean, y[30:]]
        detector.set_params(max_iter=2, random_state=5).fit(X[left], y[left], (joined[order],), (labels[order],))
        after = np.empty(30, dtype=int)
        after[order] = detector._clean_rows.folds
        np.testing.assert_array_equal(after[:20], before)
        np.testing.assert_array_equal(np.bincount(after[20:]), [4, 3, 3])

    def test_folds_that_cannot_be_kept(self, arrays):
        X, y, X_clean, y_clean = arrays
        detector = detector_of(warm_start=True, max_iter=1, clean_cv=3).fit(*arrays)
        with pytest.warns(UserWarning, match=r"learnt for 3 folds .* 2 of this fit cannot be made: alpha is"):
            detector.set_params(clean_cv=2).fit(*arrays)
        assert_equal(detector, detector_of(max_iter=1, clean_cv=2).fit(*arrays))
        of_one_fold = detector._clean_rows.folds == 0
        with pytest.warns(UserWarning, match="learnt for 2 folds"):
            detector.fit(X, y, X_clean[of_one_fold], y_clean[of_one_fold])

    def test_labels_that_are_new_are_no_obstacle(self, arrays):
        X, y, X_clean, y_clean = arrays
        detector = detector_of(net__module=lambda: mlp(3, 3), max_iter=1, warm_start=True, average=False).fit(*arrays)
        alpha, y_now, more = detector.alpha_, y.copy(), np.r_[y_clean[:-1], 2]
        y_now[:5] = 2
        detector.set_params(max_iter=2, outer_lr=1e-9).fit(X, y_now, X_clean, more)
        np.testing.assert_allclose(detector.alpha_, np.r_[np.ones(5), alpha[5:]], atol=1e-6)

    def test_with_another_clean_set_the_wait_for_a_better_loss_starts_anew(self, arrays):
        X, y, X_clean, y_clean = arrays
        options = dict(warm_start=True, outer_patience=3, average=False)
        same, other = (detector_of(max_iter=2, **options).fit(*arrays) for _ in range(2))
        for detector in (same, other):  # no loss will be better
            detector._outer_state = dataclasses.replace(detector._outer_state, best=-1.0, waited=2)
        same.set_params(max_iter=3).fit(*arrays)
        other.set_params(max_iter=3).fit(X, y, X_clean[:-1], y_clean[:-1])
        assert same._outer_state.lr_scale == pytest.approx(0.1)
        assert other._outer_state.lr_scale == 1

    def test_nothing_is_shared(self, arrays):
        X, y, X_clean, y_clean = arrays
        detector = detector_of(warm_start=True, max_iter=2).fit(*arrays)
        words = "no row of X was in the noisy set of the last fit with the same label: alpha is learnt afresh"
        for other, other_clean in ((X + 10, X_clean + 10), (X[:, :2], X_clean[:, :2])):
            options = {"net__module": functools.partial(mlp, other.shape[1])}
            with pytest.warns(UserWarning, match=words):
                detector.set_params(**options).fit(other, y, other_clean, y_clean)
            assert_equal(detector, detector_of(max_iter=2, **options).fit(other, y, other_clean, y_clean))

    def test_no_step_is_left(self, arrays):
        detector = detector_of(warm_start=True).fit(*arrays)
        alpha = detector.alpha_
        with pytest.warns(UserWarning, match="All of the max_iter=6 outer steps were taken before.* Raise max_iter to"):
            detector.fit(*arrays)
        np.testing.assert_array_equal(detector.alpha_, alpha)

    def test_more_steps_than_max_iter(self, arrays):
        detector = detector_of(warm_start=True).fit(*arrays).set_params(max_iter=4)
        with pytest.raises(ValueError, match=r"max_iter=4, but 6 outer steps were taken before.* warm_start=False to"):
            detector.fit(*arrays)
        assert detector.n_iter_ == 6

    def test_regression(self, arrays):
        X, _, X_clean, _ = arrays
        rows = X, X[:, :2] + 1, X_clean, X_clean[:, :2] + 1
        options = dict(net=lambda: mlp(3, 2), random_state=0, cv=None)
        whole = CorruptionDetector(max_iter=3, **options).fit(*rows)
        parts = CorruptionDetector(max_iter=1, warm_start=True, **options).fit(*rows).set_params(max_iter=3).fit(*rows)
        np.testing.assert_array_equal(parts.alpha_, whole.alpha_)


class TestInterrupt:
    def test_the_first_leaves_a_usable_result_that_can_be_taken_up_again(self, arrays, monkeypatch):
        whole = detector_of().fit(*arrays)
        # Three folds of the clean set in every step: the interrupt comes in the middle of the fourth.
        interrupting = Interrupting(monkeypatch, "hypergradient", 11)
        with pytest.warns(
            ConvergenceWarning,
            match="interrupted after 3 of 6 outer steps.* interrupt again to give it up.*with warm_start=True",
        ) as caught:
            detector = detector_of().fit(*arrays)
        assert caught[0].filename == __file__
        assert interrupting.n_calls == 11
        assert detector.interrupted_
        assert not whole.interrupted_
        assert detector.n_iter_ == len(detector.clean_loss_curve_) == 3
        assert_equal(detector, detector_of(max_iter=3).fit(*arrays))
        assert detector.predict().shape == (len(arrays[0]),)
        assert_equal(detector.set_params(warm_start=True).fit(*arrays), whole)
        assert not detector.interrupted_

    @pytest.mark.parametrize("fitted", [False, True])
    @pytest.mark.parametrize(
        ("name", "calls"),
        [("hypergradient", (1,)), ("judge_plainly", (1,)), ("record", (1,))],
        ids=["before the first step", "while judging", "before learning"],
    )
    def test_elsewhere_it_leaves_the_detector_as_it_was(self, arrays, monkeypatch, name, calls, fitted):
        detector = detector_of()
        if fitted:
            detector.fit(*arrays)
        before = vars(detector).copy()
        Interrupting(monkeypatch, name, *calls)
        X, y, X_clean, y_clean = arrays
        with pytest.raises(KeyboardInterrupt):
            detector.fit(X[:30], y[:30].astype(str), X_clean, y_clean.astype(str))
        assert vars(detector).keys() == before.keys()
        assert all(vars(detector)[key] is value for key, value in before.items())
        if not fitted:
            with pytest.raises(NotFittedError):
                detector.predict()

    def test_a_second_one_gives_the_fit_up(self, arrays, monkeypatch):
        detector = detector_of()
        Interrupting(monkeypatch, "hypergradient", 11)
        Interrupting(monkeypatch, "judge_plainly", 1)
        with pytest.warns(ConvergenceWarning, match="after 3 of 6"), pytest.raises(KeyboardInterrupt):
            detector.fit(*arrays)
        with pytest.raises(NotFittedError):
            detector.predict()

    def test_before_a_further_step_it_keeps_those_of_the_last_fit(self, arrays, monkeypatch):
        detector = detector_of(max_iter=3, warm_start=True).fit(*arrays)
        alpha = detector.alpha_
        Interrupting(monkeypatch, "hypergradient", 1)
        with pytest.warns(ConvergenceWarning, match="after 3 of 6"):
            detector.set_params(max_iter=6).fit(*arrays)
        np.testing.assert_array_equal(detector.alpha_, alpha)


class TestClosedForm:
    """The default learner: alpha begins at a prior, and stops early."""

    @staticmethod
    def assert_equal(found, expected, new_pairs):
        assert_equal(found, expected)
        np.testing.assert_array_equal(found.validation_loss_curve_, expected.validation_loss_curve_)
        np.testing.assert_array_equal(found.decision_function(*new_pairs), expected.decision_function(*new_pairs))
        np.testing.assert_array_equal(found.predict(*new_pairs), expected.predict(*new_pairs))

    @pytest.mark.parametrize(
        "options", [{}, {"clean_cv": None}, {"clean_cv": None, "average": False}, {"cv": None}], ids=str
    )
    def test_two_fits_equal_one(self, arrays, options):
        new_pairs = arrays[2], 1 - arrays[3]
        whole = closed_form_detector(max_iter=6, **options).fit(*arrays)
        parts = closed_form_detector(max_iter=2, warm_start=True, **options).fit(*arrays)
        assert parts.n_iter_ == 2 < whole.n_iter_
        self.assert_equal(parts.set_params(max_iter=6).fit(*arrays), whole, new_pairs)

    def test_two_fits_equal_one_by_default(self, arrays):
        whole = CorruptionDetector(max_iter=6, random_state=0).fit(*arrays)
        parts = CorruptionDetector(max_iter=2, random_state=0, warm_start=True).fit(*arrays)
        self.assert_equal(parts.set_params(max_iter=6).fit(*arrays), whole, (arrays[2], 1 - arrays[3]))

    def test_two_fits_equal_one_without_a_clean_set(self, arrays):
        X, y, X_clean, _ = arrays
        with pytest.warns(UserWarning, match="No clean set was given"):
            whole = closed_form_detector(max_iter=6).fit(X, y)
        parts = closed_form_detector(max_iter=2, warm_start=True)
        for max_iter in (2, 6):
            with pytest.warns(UserWarning, match="No clean set was given"):
                parts.set_params(max_iter=max_iter).fit(X, y)
        self.assert_equal(parts, whole, (X_clean, np.arange(20) % 2))

    def test_regression(self, arrays):
        X, _, X_clean, _ = arrays
        rows = X, X[:, :2] + 1, X_clean, X_clean[:, :2] + 1
        whole = closed_form_detector(max_iter=6).fit(*rows)
        parts = closed_form_detector(max_iter=2, warm_start=True).fit(*rows).set_params(max_iter=6).fit(*rows)
        for name in ("alpha_", "loss_", "predictions_", "validation_loss_curve_"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), err_msg=name)

    def test_shards_go_on_from_what_was_kept(self, arrays):
        detector = closed_form_detector(shard_size=20, max_iter=2, warm_start=True).fit(*arrays)
        alpha = detector.alpha_
        detector.set_params(max_iter=5, outer_lr=1e-9).fit(*arrays)
        np.testing.assert_allclose(detector.alpha_, alpha, atol=1e-6)
        assert detector.n_iter_ == len(detector.clean_loss_curve_) == 5

    def test_where_alpha_stopped_it_stays(self, arrays):
        detector = closed_form_detector(max_iter=100, warm_start=True).fit(*arrays)
        assert detector.n_iter_ < 100
        twin = pickle.loads(pickle.dumps(detector))
        self.assert_equal(detector.set_params(max_iter=200).fit(*arrays), twin, (arrays[2], 1 - arrays[3]))

    @pytest.mark.parametrize("options", [{}, {"clean_cv": None, "average": False}], ids=["folds", "no folds"])
    def test_verified_rows_move_to_the_clean_set(self, arrays, options):
        X, y, X_clean, y_clean = arrays
        detector = closed_form_detector(max_iter=5, warm_start=True, **options).fit(*arrays)
        alpha, n_before, folds = detector.alpha_, detector.n_iter_, detector._clean_rows.folds
        checked = detector.ranked_indices()[:10]
        left = np.setdiff1d(np.arange(len(X)), checked)
        detector.set_params(max_iter=n_before + 3, outer_lr=1e-9)
        detector.fit(X[left], y[left], (np.r_[X_clean, X[checked]],), (np.r_[y_clean, y[checked]],))
        np.testing.assert_allclose(detector.alpha_, alpha[left], atol=1e-6)
        assert detector.n_iter_ == len(detector.clean_loss_curve_) == n_before + 3
        if not options:
            np.testing.assert_array_equal(detector._clean_rows.folds[: len(folds)], folds)
        # And on: further steps with a learning rate move alpha.
        detector.set_params(max_iter=n_before + 6, outer_lr=0.5)
        detector.fit(X[left], y[left], (np.r_[X_clean, X[checked]],), (np.r_[y_clean, y[checked]],))
        assert n_before + 3 < detector.n_iter_ <= n_before + 6
        assert ((detector.alpha_ >= 0) & (detector.alpha_ <= 1)).all()

    def test_new_pairs_start_at_the_prior(self, arrays):
        X, y, X_clean, y_clean = arrays
        options = dict(clean_cv=None, average=False)
        still = closed_form_detector(max_iter=1, outer_lr=1e-9, **options).fit(*arrays)
        assert still.alpha_.std() > 0.05
        detector = closed_form_detector(max_iter=3, warm_start=True, **options).fit(X[:30], y[:30], X_clean, y_clean)
        alpha = detector.alpha_
        detector.set_params(max_iter=4, outer_lr=1e-9).fit(*arrays)
        np.testing.assert_allclose(detector.alpha_, np.r_[alpha, still.alpha_[30:]], atol=1e-6)

    def test_an_interrupt_leaves_a_usable_result_that_can_be_taken_up_again(self, arrays, monkeypatch):
        whole = closed_form_detector().fit(*arrays)
        # Three folds of the clean set in every step: the interrupt comes in the middle of the third.
        Interrupting(monkeypatch, "outer_gradient", 8, module=_closed_form_learning)
        with pytest.warns(ConvergenceWarning, match="interrupted after 2 of 12 outer steps"):
            detector = closed_form_detector().fit(*arrays)
        assert detector.interrupted_
        assert detector.n_iter_ == 2
        new_pairs = arrays[2], 1 - arrays[3]
        self.assert_equal(detector, closed_form_detector(max_iter=2).fit(*arrays), new_pairs)
        self.assert_equal(detector.set_params(warm_start=True).fit(*arrays), whole, new_pairs)
        assert not detector.interrupted_

    @pytest.mark.parametrize("fitted", [False, True])
    @pytest.mark.parametrize("name", ["noise_transition", "outer_gradient", "with_network"])
    def test_an_interrupt_elsewhere_leaves_the_detector_as_it_was(self, arrays, monkeypatch, name, fitted):
        X, y, X_clean, y_clean = arrays
        detector = closed_form_detector()
        if fitted:
            detector.fit(*arrays)
        before = vars(detector).copy()
        Interrupting(monkeypatch, name, 1, module=_closed_form_learning)
        with pytest.raises(KeyboardInterrupt):
            detector.fit(X[:30], y[:30].astype(str), X_clean, y_clean.astype(str))
        assert vars(detector).keys() == before.keys()
        assert all(vars(detector)[key] is value for key, value in before.items())


def test_a_fit_in_another_thread(arrays):
    for make in (detector_of, closed_form_detector):
        with ThreadPoolExecutor(1) as pool:
            assert_equal(pool.submit(make().fit, *arrays).result(), make().fit(*arrays))


@pytest.mark.usefixtures("global_generators_untouched")
@pytest.mark.parametrize("cls", [CorruptionDetector, NoisySetDetector, CleanSetDetector])
def test_a_fit_that_fails_leaves_the_detector_as_it_was(cls, arrays):
    X, y, X_clean, y_clean = arrays
    options = {"max_iter": 1, "cv": None} if cls is CorruptionDetector else {}
    detector = cls(mlp, random_state=0, **options).fit(*arrays)
    scores = detector.decision_function()
    with pytest.raises(ValueError, match="could not be applied to two rows"):
        detector.fit(np.c_[X, X], y.astype(str), np.c_[X_clean, X_clean], y_clean.astype(str))
    assert detector.n_features_in_ == 3
    np.testing.assert_array_equal(detector.decision_function(X, y), scores)
