"""What a detector has learnt of the rows that it meets again in its next ``fit``."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import joblib
import numpy as np
import torch

from ._base import BaseDetector, TrainingData
from ._outer import OuterState
from ._warnings import warn_user


class Start(NamedTuple):
    """Where the outer loop of a fit starts.

    Attributes
    ----------
    state : OuterState
        On the CPU, with the rows of the noisy set.
    snapshots : list of (int, Snapshot)
        Of the trainings of earlier fits, with the clean fold that was left out.
    """

    state: OuterState
    snapshots: list


def start_after(last: BaseDetector | None, detector: BaseDetector, data: TrainingData) -> Start:
    """Return where the outer loop of a new fit starts.

    Parameters
    ----------
    last : CorruptionDetector or None
        The detector as it was after its last fit, ``None`` for a fresh start.
    detector : CorruptionDetector
        The detector after the data of the new fit have been checked.
    data : TrainingData
        The data of the new fit.

    Returns
    -------
    Start
        With the same data it is the end of the last fit; else pairs of row and label that are found again keep what
        they had.
    """
    n_folds = 1 if detector.clean_cv is None else min(detector.clean_cv, len(data.clean[1]))
    fresh = Start(OuterState.start(n_folds, int(data.free.sum())), [])
    if last is None:
        return fresh
    state, max_iter = last._outer_state.map(torch.tensor), detector.max_iter
    rows = last._find_again(data.task, detector._X, detector._targets)
    if (rows < 0).all():
        warn_user(
            "warm_start=True, but no row of X was in the noisy set of the last fit with the same label: alpha is "
            "learnt afresh."
        )
        return fresh
    if state.n_steps > max_iter:
        raise ValueError(
            f"max_iter={max_iter}, but {state.n_steps} outer steps were taken before, which count with "
            "warm_start=True. Raise max_iter, or set warm_start=False to start afresh."
        )
    if state.n_steps == max_iter:
        warn_user(
            f"All of the max_iter={max_iter} outer steps were taken before, and with warm_start=True they count: alpha "
            "is not moved. Raise max_iter to go on learning."
        )
    if len(state.alpha) != n_folds:
        state = state.map(lambda t: t.mean(dim=0, keepdim=True).expand(n_folds, -1))
    same_rows = last._X.shape[0] == len(rows) and (rows == np.arange(len(rows))).all()
    rows = torch.as_tensor(rows[data.free])
    if same_rows and digest(data.clean) == last._clean_digest:
        return Start(state.placed(rows), last._alpha_estimate.snapshots)
    return Start(replace(state.placed(rows), best=float("inf"), waited=0), [])


def digest(clean: tuple[np.ndarray, np.ndarray]) -> str:
    """Return what tells one clean set from another."""
    return joblib.hash(clean, coerce_mmap=True)


def of_all_rows(state: OuterState, free: np.ndarray) -> OuterState:
    """Return a state of the noisy rows as arrays over all rows of X; the others are as at the start."""
    places = np.where(free, np.cumsum(free) - 1, -1)
    return state.map(torch.as_tensor).placed(torch.as_tensor(places)).map(lambda t: t.numpy())
