"""Workers: the same answers wherever a function runs, data that travel once, and workers that die."""

from __future__ import annotations

import functools
import os
import signal
import threading

import joblib
import numpy as np
import pytest
from helpers import RESULTS, assert_same_result, quick_detector, skorch_net
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_cdgd import CorruptionDetector, _workers
from sklearn_cdgd._workers import Workers, _idle


class Sums:
    """A tool that notes how often it was made of parts."""

    def __init__(self, numbers, notes=None):
        self.numbers, self.notes = numbers, notes

    def parts(self):
        return self.numbers, self.notes

    @classmethod
    def of_parts(cls, numbers, notes):
        if notes is not None:
            with open(notes, "a") as file:
                file.write(".")
        return cls(numbers, notes)


def plus(tool, number):
    return float(tool.numbers.sum()) + number


def plus_or_die(tool, number, flag):
    """Kill the process that this runs in, as long as there is no file `flag`; with an empty name always."""
    if not flag or not os.path.exists(flag):
        if flag:
            open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return plus(tool, number)


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_answers_come_in_order_and_parts_travel_once(backend, tmp_path):
    notes = tmp_path / "notes"
    with joblib.parallel_config(backend=backend), Workers(2, Sums(np.arange(200_000.0), notes)) as workers:
        for call in range(5):
            expected = [np.arange(200_000.0).sum() + n + call for n in range(4)]
            assert workers(plus, [(n + call,) for n in range(4)]) == expected
    assert 1 <= len(notes.read_text()) <= 2  # once a worker


def test_alone_the_tool_itself_is_used():
    tool = Sums(np.ones(3))
    tool.lock = threading.Lock()  # cannot be pickled
    assert Workers(None, tool)(lambda same, n: (same is tool, n), [(1,), (2,)]) == [(True, 1), (True, 2)]
    assert Workers(1, tool)(plus, [(1,)]) == [4.0]


def test_threads_keep_nothing_after_the_end():
    with joblib.parallel_config(backend="threading"), Workers(2, Sums(np.ones(3))) as workers:
        workers(plus, [(1,), (2,)])
        assert len(_idle) == 1
    assert not _idle


def test_a_newer_tool_takes_the_place_of_an_older_one():
    two = lambda length: Workers(2, Sums(np.ones(length)))  # noqa: E731
    with joblib.parallel_config(backend="threading"), two(3) as older, two(4) as newer:
        assert older(plus, [(1,)]) == [4.0]
        assert newer(plus, [(1,)]) == [5.0]
        assert len(_idle) == 1
        assert older(plus, [(1,), (2,)]) == [4.0, 5.0]  # its parts are sent again


def test_a_worker_that_dies_is_replaced(tmp_path):
    workers = Workers(2, Sums(np.ones(3)))
    assert workers(plus, [(1,), (2,)]) == [4.0, 5.0]
    assert workers(plus_or_die, [(n, str(tmp_path / "flag")) for n in range(3)]) == [3.0, 4.0, 5.0]
    assert workers(plus, [(1,), (2,)]) == [4.0, 5.0]


def test_workers_that_die_again_and_again(monkeypatch):
    monkeypatch.setattr(_workers, "_N_TRIES", 2)
    with pytest.raises(RuntimeError, match=r"A worker died in each of 2 tries .*lower n_jobs or shard_size"):
        Workers(2, Sums(np.ones(3)))(plus_or_die, [(1, ""), (2, "")])


def test_an_error_of_a_function_is_raised_once(tmp_path):
    with pytest.raises(AttributeError, match="no_such"):
        Workers(2, Sums(np.ones(3)))(lambda tool: tool.no_such, [()])


# --- the detector -----------------------------------------------------------------------------------------------------


def restless(hidden=8):
    """Batch norm, dropout and a lazy layer: everything that a training carries along."""
    return nn.Sequential(nn.LazyLinear(hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.2), nn.Linear(hidden, 2))


def net():
    # A function without a name, which is no trouble for joblib.
    module = functools.partial(lambda hidden: restless(hidden), hidden=5)
    return skorch_net(module, batch_size=30, max_epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"n_inits": 3, "net": skorch_net()}], ids=["any", "stacked"])
def test_one_and_two_workers_learn_the_same(spheres, options):
    arrays = spheres()[:4]
    detector = CorruptionDetector(net(), max_iter=1, cv=2, clean_cv=2, random_state=0).set_params(**options)
    alone = detector.fit(*arrays)
    results = {name: getattr(alone, name) for name in RESULTS}
    new_scores = alone.decision_function(*arrays[2:])
    for backend in ("loky", "threading"):
        with joblib.parallel_config(backend=backend):
            fitted = detector.set_params(n_jobs=2).fit(*arrays)
        for name, expected in results.items():
            np.testing.assert_array_equal(getattr(fitted, name), expected, err_msg=f"{name}, {backend}")
        np.testing.assert_array_equal(fitted.decision_function(*arrays[2:]), new_scores)
    assert not _idle


@pytest.mark.parametrize("options", [{}, {"clean_cv": None}, {"shard_size": 60}, {"task": "regression"}], ids=str)
def test_one_and_two_workers_learn_the_same_in_closed_form(spheres, options):
    """Forests are grown by the workers, or shards learnt."""
    arrays = spheres()[:4]
    names = [name for name in RESULTS if name != "probabilities_" or "task" not in options]
    alone = CorruptionDetector(random_state=0, max_iter=3, **options).fit(*arrays)
    new_scores = alone.decision_function(*arrays[2:])
    for backend in ("loky", "threading"):
        with joblib.parallel_config(backend=backend):
            fitted = clone(alone).set_params(n_jobs=2).fit(*arrays)
        assert_same_result(fitted, alone, names)
        np.testing.assert_array_equal(fitted.decision_function(*arrays[2:]), new_scores)
    assert not _idle


def test_n_jobs_may_come_from_outside(spheres, monkeypatch):
    arrays, detector = spheres()[:4], quick_detector()
    alpha = detector.fit(*arrays).alpha_
    called = []
    monkeypatch.setattr(Workers, "_run", lambda self, *args, run=Workers._run: called.append(1) or run(self, *args))
    with joblib.parallel_config(backend="threading", n_jobs=2):
        np.testing.assert_array_equal(detector.fit(*arrays).alpha_, alpha)
    assert called


def test_a_net_that_cannot_be_sent(spheres):
    lock = threading.Lock()

    def locked():
        with lock:
            return restless()

    detector = CorruptionDetector(NeuralNetClassifier(locked, criterion=nn.CrossEntropyLoss), max_iter=1)
    with pytest.raises(TypeError, match=r"n_jobs needs a net that can be sent.*cannot be pickled.*set n_jobs=None"):
        detector.set_params(n_jobs=2).fit(*spheres()[:4])


def test_an_error_in_a_worker_is_the_error_of_the_fit(spheres):
    detector = quick_detector(n_jobs=2).set_params(net__lr=1e30)
    with pytest.raises(ValueError, match="diverged"):
        detector.fit(*spheres()[:4])
    assert not hasattr(detector, "alpha_")


@pytest.mark.parametrize("make", [quick_detector, CorruptionDetector], ids=["network", "closed form"])
def test_results_are_remembered_whatever_the_number_of_workers(make, spheres, tmp_path, monkeypatch):
    arrays = spheres()[:4]
    alpha = make(memory=str(tmp_path), random_state=0).fit(*arrays).alpha_
    monkeypatch.setattr(Workers, "__call__", lambda *args: pytest.fail("trained again"))
    found = make(memory=str(tmp_path), n_jobs=2, random_state=0).fit(*arrays).alpha_
    np.testing.assert_array_equal(found, alpha)
