"""The tasks of a fit, as scikit-learn's callbacks are told of them."""

from __future__ import annotations

from collections.abc import Callable


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
