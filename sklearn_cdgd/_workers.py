"""joblib's workers, which keep from call to call what they need: data go to each of them once."""

from __future__ import annotations

import concurrent.futures
import pickle
import threading
import uuid
from collections.abc import Callable
from typing import Protocol

import joblib
import numpy as np
from scipy.sparse import issparse

# A call is repeated if a worker dies in it: functions are pure, so the answer is the same.
_N_TRIES = 3


class Tool(Protocol):
    """What functions work with, and every worker makes for itself: costly to send and to make, cheap to keep."""

    def parts(self) -> tuple:
        """Return what an equal tool is made of: arrays, and things that can be pickled."""

    @classmethod
    def of_parts(cls, *parts) -> Tool:
        """Return an equal tool."""


class Workers:
    """Runs functions of a tool and further arguments, here or in joblib's workers.

    Parameters
    ----------
    n_jobs : int or None
        As for :class:`joblib.Parallel`. Where that comes to one worker, functions run here with `tool` itself.
    tool : Tool

    Raises
    ------
    TypeError
        If a part of the tool cannot be sent to other processes.
    """

    def __init__(self, n_jobs: int | None, tool: Tool):
        self.tool, self._n_jobs = tool, n_jobs
        self._alone = joblib.effective_n_jobs(n_jobs) == 1
        self._token, self._sent = uuid.uuid4().hex, False
        self._parts = () if self._alone else tuple(map(_packed, tool.parts()))

    def __call__(self, function: Callable, jobs: list[tuple]) -> list:
        """Return ``function(tool, *job)`` for every job, in their order.

        Raises
        ------
        RuntimeError
            If workers die again and again.
        """
        if self._alone:
            return [function(self.tool, *job) for job in jobs]
        for n_left in reversed(range(_N_TRIES)):
            try:
                return self._run(function, jobs)
            except Exception as error:
                if not _is_death(error):
                    raise
                if not n_left:
                    raise RuntimeError(
                        f"A worker died in each of {_N_TRIES} tries ({type(error).__name__}, see above). Most often "
                        "the memory was full: lower n_jobs or shard_size, or see what ended it."
                    ) from error
        raise AssertionError("not reached")

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error) -> None:
        # What threads of this process have kept; other processes keep it until they meet another tool.
        with _LOCK:
            _idle.pop(self._token, None)

    def _run(self, function: Callable, jobs: list[tuple]) -> list:
        parts, self._sent = () if self._sent else self._parts, True
        results = self._dispatch(function, jobs, parts)
        # A worker that came later has nothing yet.
        missing = [n for n, result in enumerate(results) if isinstance(result, _Missing)]
        if missing:
            again = self._dispatch(function, [jobs[n] for n in missing], self._parts)
            for n, result in zip(missing, again, strict=True):
                results[n] = result
        return results

    def _dispatch(self, function: Callable, jobs: list[tuple], parts: tuple) -> list:
        # Copy on write: torch takes no array that cannot be written to. All is in one tuple, as joblib puts large
        # arguments, classes too, on one of dask's workers first, and waits for ever if that one dies meanwhile.
        parallel = joblib.Parallel(n_jobs=self._n_jobs, mmap_mode="c", batch_size=1)
        work = joblib.delayed(_work)
        return parallel(work((self._token, type(self.tool), function, job, parts)) for job in jobs)


class _Missing:
    """The answer of a worker that was sent a token only, and does not know it."""


# The tools of this process that no function is using, by their token.
_idle: dict[str, list] = {}
_LOCK = threading.Lock()


def _work(order: tuple):
    """Do one job in a worker. Threads never share a tool."""
    token, kind, function, job, parts = order
    with _LOCK:
        tool = _idle[token].pop() if _idle.get(token) else None
    if tool is None:
        if not parts:
            return _Missing()
        tool = kind.of_parts(*map(_unpacked, parts))
    try:
        return function(tool, *job)
    finally:
        with _LOCK:
            for other in _idle.keys() - {token}:
                del _idle[other]  # of an earlier fit
            _idle.setdefault(token, []).append(tool)


class _Packed(bytes):
    """A pickled part."""


def _packed(part):
    """Return a part in a form in which joblib sends it well: arrays as they are, the rest pickled by value."""
    if isinstance(part, np.ndarray) or issparse(part):
        return part
    try:
        return _Packed(pickle.dumps(joblib.wrap_non_picklable_objects(part, keep_wrapper=False)))
    except Exception as error:  # anything can go wrong in pickling
        raise TypeError(
            f"n_jobs needs a net that can be sent to other processes, and this one cannot be pickled: {error}. "
            "Describe it by a class or a function that makes it, without open files, locks or generators; or set "
            "n_jobs=None."
        ) from error


def _unpacked(part):
    return pickle.loads(part) if isinstance(part, _Packed) else part


def _is_death(error: Exception) -> bool:
    """Whether an error says that a worker is gone, and nothing of what it did."""
    is_gone = isinstance(error, concurrent.futures.BrokenExecutor | concurrent.futures.CancelledError)
    return is_gone or type(error).__module__.split(".")[0] == "distributed"
