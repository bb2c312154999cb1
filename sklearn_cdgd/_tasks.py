"""The tasks of a fit, as scikit-learn's callbacks are told of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from ._learning import Learnt, Watcher
from ._outer import OuterState


class FitTasks:
    """Tells the callbacks of an estimator of its fit, and of the tasks in it, one after the other.

    Parameters
    ----------
    estimator : CallbackSupportMixin
    X, y : array-like
        What ``fit`` was given.
    n_tasks : int
        How many there will be at most.
    """

    def __init__(self, estimator, X, y, n_tasks: int):
        self._told = {"estimator": estimator, "X": X, "y": y}
        self._whole = estimator._init_callback_context(max_subtasks=n_tasks).call_on_fit_task_begin(**self._told)
        self._task = None

    def begin(self, name: str) -> None:
        self._task = self._whole.subcontext(task_name=name).call_on_fit_task_begin(**self._told)

    def end(self, fitted: Callable[[], dict]) -> bool:
        """End the task, and return whether a callback wants to stop.

        Parameters
        ----------
        fitted : callable() -> dict
            The attributes of the estimator as if the fit had stopped here; only called if a callback asks for them.
        """
        return self._task.call_on_fit_task_end(**self._told, reconstruction_attributes=fitted)

    def close(self) -> None:
        """End the fit."""
        self._whole.call_on_fit_task_end(**self._told, reconstruction_attributes=dict)


class OuterTasks(Watcher):
    """Tells callbacks of every outer step, and prints a line for it if the estimator is verbose.

    Parameters
    ----------
    tasks : FitTasks
    fitted : callable(Learnt) -> dict
        The attributes of the estimator as if the loop had ended there.
    max_iter, verbose : int
    """

    def __init__(self, tasks: FitTasks, fitted: Callable[[Learnt], dict], *, max_iter: int, verbose: int):
        self._tasks, self._fitted, self._max_iter, self._verbose = tasks, fitted, max_iter, verbose

    def begin(self, objective, n_before):
        self._n_before = n_before
        if self._verbose:
            self._print(f"forecast: {objective.describe(self._max_iter - n_before)}")
        self._start = time.perf_counter()

    def begin_step(self):
        self._tasks.begin("outer step")

    def end_step(self, learnt):
        if self._verbose:
            self._report(learnt.state)
        return self._tasks.end(lambda: self._fitted(learnt))

    def _report(self, state: OuterState) -> None:
        done = state.n_steps
        left = (time.perf_counter() - self._start) / (done - self._n_before) * (self._max_iter - done)
        kept = (state.alpha >= 0.5).mean()
        self._print(
            f"outer step {done}/{self._max_iter}: clean loss {state.values[-1]:.4f}, {kept:.1%} kept, {left:.0f} s left"
        )

    def _print(self, words: str) -> None:
        print(f"[CorruptionDetector] {words}", flush=True)
