"""What a detector has learnt of the rows that it meets again in its next ``fit``."""

from __future__ import annotations

import warnings

import joblib
import numpy as np
import torch

from ._base import BaseDetector, TrainingData
from ._outer import OuterState


def state_of(last: BaseDetector, detector: BaseDetector, data: TrainingData) -> OuterState:
    """Return where the outer loop of a new fit starts.

    Parameters
    ----------
    last : CorruptionDetector
        The detector as it was after its last fit.
    detector : CorruptionDetector
        The detector after the data of the new fit have been checked.
    data : TrainingData
        The data of the new fit.

    Returns
    -------
    OuterState
        On the CPU. With the same data it is the state at the end of the last fit; else pairs of row and label that are
        found again keep what they had.
    """
    state, n_rows, max_iter = last._outer_state.map(torch.tensor), len(data.free), detector.max_iter
    rows = last._find_again(data.task, detector._X, detector._targets)
    if (rows < 0).all():
        warnings.warn(
            "warm_start=True, but no row of X was in the noisy set of the last fit with the same label: alpha is "
            "learnt afresh.",
            UserWarning,
            stacklevel=6,
        )
        return OuterState.start(n_rows)
    if state.n_steps > max_iter:
        raise ValueError(
            f"max_iter={max_iter}, but {state.n_steps} outer steps were taken before, which count with "
            "warm_start=True. Raise max_iter, or set warm_start=False to start afresh."
        )
    if state.n_steps == max_iter:
        warnings.warn(
            f"All of the max_iter={max_iter} outer steps were taken before, and with warm_start=True they count: alpha "
            "is not moved. Raise max_iter to go on learning.",
            UserWarning,
            stacklevel=6,
        )
    same_rows = last._X.shape[0] == n_rows and (rows == np.arange(n_rows)).all()
    if same_rows and detector._clean_digest == last._clean_digest:
        return state
    return state.moved(torch.as_tensor(rows))


def digest(clean: tuple[np.ndarray, np.ndarray]) -> str:
    """Return what tells one clean set from another."""
    return joblib.hash(clean, coerce_mmap=True)
