"""scikit-learn's callbacks, which came with 1.9."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from helpers import assert_same_result, closed_form_detector, quick_detector
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn below 1.9 has no callbacks")


class Recorder:
    """Notes what it is told; wants to stop after `n_tasks` tasks.

    Searches hand callbacks on to the estimators in them if they name a depth.
    """

    max_propagation_depth = None

    def __init__(self, n_tasks=None):
        self.n_tasks, self.ended, self.calls = n_tasks, [], []

    def setup(self, estimator, context):
        self.calls.append("setup")

    def teardown(self, estimator, context):
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None):
        self.calls.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context):
        self.calls.append(f"end {context.task_name}")
        self.ended.append((context.estimator_name, context.task_name))
        return len(self.ended) == self.n_tasks


def of_network(**options):
    return quick_detector(**({"max_iter": 4} | options))


@pytest.fixture(params=[of_network, closed_form_detector], ids=["network", "closed form"])
def detector_of(request):
    """Return a maker of detectors."""
    return request.param


def mean_alpha(detector, X, y):
    return detector.decision_function(X, y).mean()


def share_kept(detector, X, y):
    return (~detector.predict(X, y)).mean()


def test_every_outer_step_is_a_task(detector_of, spheres):
    recorder = Recorder()
    detector = detector_of(max_iter=4).set_callbacks(recorder).fit(*spheres()[:4])
    steps = ["begin outer step", "end outer step"] * detector.n_iter_
    judges = ["begin judging networks", "end judging networks"]
    assert recorder.calls == ["setup", "begin fit", *steps, *judges, "end fit", "teardown"]


def test_a_callback_ends_the_outer_loop(detector_of, spheres):
    arrays = spheres()[:4]
    detector = detector_of().set_callbacks(Recorder(n_tasks=2)).fit(*arrays)
    assert detector.n_iter_ == 2
    assert_same_result(detector, detector_of(max_iter=2).fit(*arrays))


def test_callbacks_are_torn_down_if_the_fit_fails(detector_of, spheres):
    X, y, X_clean, *_ = spheres()
    recorder = Recorder()
    with pytest.raises(ValueError, match="X_clean was given without y_clean"):
        detector_of().set_callbacks(recorder).fit(X, y, X_clean)
    assert recorder.calls == ["setup", "begin fit", "teardown"]


def test_scoring_monitor_sees_the_fit_as_if_it_had_stopped(detector_of, spheres):
    X, y, X_clean, y_clean, _ = spheres()
    expected = [detector_of(max_iter=n).fit(X, y, X_clean, y_clean) for n in (1, 2, 3)]
    monitor = callback.ScoringMonitor(scoring={"alpha": mean_alpha, "kept": share_kept})
    detector = detector_of(max_iter=3).set_callbacks(monitor).fit(X, y, X_clean, y_clean)
    rows = [row for row in monitor.get_logs().data if row["task_name"] == "outer step"]
    assert [row["alpha"] for row in rows] == pytest.approx([d.alpha_.mean() for d in expected])
    assert [row["kept"] for row in rows] == pytest.approx([(~d.predict()).mean() for d in expected])
    assert_same_result(detector, expected[-1])  # being watched changes nothing


def test_a_search_hands_its_callbacks_on(detector_of, spheres):
    X, y, X_clean, y_clean, _ = spheres()
    recorder = Recorder()
    search = GridSearchCV(detector_of(max_iter=2), {"outer_lr": [0.1, 0.5]}, scoring=mean_alpha, cv=2)
    search.set_callbacks(recorder).fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
    of_detector = [task for name, task in recorder.ended if name == "CorruptionDetector"]
    assert of_detector.count("outer step") == 2 * (2 * 2 + 1)  # outer steps x (candidates x folds + refit)
    assert search.best_estimator_.n_iter_ == 2


def test_progress_bars(detector_of, spheres, capsys):
    pytest.importorskip("rich")
    X, y, X_clean, y_clean, _ = spheres()
    detector_of().set_callbacks(callback.ProgressBar()).fit(X, y, X_clean, y_clean)
    assert "CorruptionDetector - fit" in capsys.readouterr().out
    search = GridSearchCV(detector_of(max_iter=1), {"outer_lr": [0.1, 0.5]}, scoring=mean_alpha, cv=2)
    search.set_callbacks(callback.ProgressBar()).fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
    shown = capsys.readouterr().out
    assert "GridSearchCV - fit" in shown
    assert "CorruptionDetector - fit" in shown


def test_clones_keep_their_callbacks(detector_of, spheres):
    arrays = spheres()[:4]
    detector = clone(detector_of().set_callbacks(Recorder(n_tasks=1))).fit(*arrays)
    assert detector.n_iter_ == 1
    np.testing.assert_array_equal(copy.deepcopy(detector).alpha_, detector.alpha_)
    with pytest.raises(TypeError, match="callbacks must be instances"):
        detector.set_callbacks("progress")
