"""scikit-learn's callbacks, which came with 1.9."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_cdgd import CorruptionDetector

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


def quick(**options):
    net = NeuralNetClassifier(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)),
        criterion=nn.CrossEntropyLoss,
        lr=0.3,
        max_epochs=5,
        batch_size=-1,
    )
    return CorruptionDetector(**({"net": net, "max_iter": 4, "cv": None, "random_state": 0} | options))


def mean_alpha(detector, X, y):
    return detector.decision_function(X, y).mean()


def share_kept(detector, X, y):
    return (~detector.predict(X, y)).mean()


def test_every_outer_step_is_a_task(spheres):
    recorder = Recorder()
    quick().set_callbacks(recorder).fit(*spheres()[:4])
    steps = ["begin outer step", "end outer step"] * 4
    judges = ["begin judging networks", "end judging networks"]
    assert recorder.calls == ["setup", "begin fit", *steps, *judges, "end fit", "teardown"]


def test_a_callback_ends_the_outer_loop(spheres):
    arrays = spheres()[:4]
    detector = quick().set_callbacks(Recorder(n_tasks=2)).fit(*arrays)
    assert detector.n_iter_ == 2
    expected = quick(max_iter=2).fit(*arrays)
    np.testing.assert_array_equal(detector.alpha_, expected.alpha_)
    np.testing.assert_array_equal(detector.loss_, expected.loss_)


def test_callbacks_are_torn_down_if_the_fit_fails(spheres):
    X, y, X_clean, *_ = spheres()
    recorder = Recorder()
    with pytest.raises(ValueError, match="X_clean was given without y_clean"):
        quick().set_callbacks(recorder).fit(X, y, X_clean)
    assert recorder.calls == ["setup", "begin fit", "teardown"]


def test_scoring_monitor_sees_the_fit_as_if_it_had_stopped(spheres):
    X, y, X_clean, y_clean, _ = spheres()
    expected = [quick(max_iter=n).fit(X, y, X_clean, y_clean) for n in (1, 2, 3)]
    monitor = callback.ScoringMonitor(scoring={"alpha": mean_alpha, "kept": share_kept})
    detector = quick(max_iter=3).set_callbacks(monitor).fit(X, y, X_clean, y_clean)
    rows = [row for row in monitor.get_logs().data if row["task_name"] == "outer step"]
    assert [row["alpha"] for row in rows] == pytest.approx([d.alpha_.mean() for d in expected])
    assert [row["kept"] for row in rows] == pytest.approx([(~d.predict()).mean() for d in expected])
    # Being watched changes nothing.
    np.testing.assert_array_equal(detector.alpha_, expected[-1].alpha_)
    np.testing.assert_array_equal(detector.loss_, expected[-1].loss_)


def test_a_search_hands_its_callbacks_on(spheres):
    X, y, X_clean, y_clean, _ = spheres()
    recorder = Recorder()
    search = GridSearchCV(quick(max_iter=2), {"outer_lr": [0.1, 0.5]}, scoring=mean_alpha, cv=2)
    search.set_callbacks(recorder).fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
    of_detector = [task for name, task in recorder.ended if name == "CorruptionDetector"]
    assert of_detector.count("outer step") == 2 * (2 * 2 + 1)  # outer steps x (candidates x folds + refit)
    assert search.best_estimator_.n_iter_ == 2


def test_progress_bars(spheres, capsys):
    pytest.importorskip("rich")
    X, y, X_clean, y_clean, _ = spheres()
    quick().set_callbacks(callback.ProgressBar()).fit(X, y, X_clean, y_clean)
    assert "CorruptionDetector - fit" in capsys.readouterr().out
    search = GridSearchCV(quick(max_iter=1), {"outer_lr": [0.1, 0.5]}, scoring=mean_alpha, cv=2)
    search.set_callbacks(callback.ProgressBar()).fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
    shown = capsys.readouterr().out
    assert "GridSearchCV - fit" in shown
    assert "CorruptionDetector - fit" in shown


def test_clones_keep_their_callbacks(spheres):
    arrays = spheres()[:4]
    detector = clone(quick().set_callbacks(Recorder(n_tasks=1))).fit(*arrays)
    assert detector.n_iter_ == 1
    np.testing.assert_array_equal(copy.deepcopy(detector).alpha_, detector.alpha_)
    with pytest.raises(TypeError, match="callbacks must be instances"):
        detector.set_callbacks("progress")
