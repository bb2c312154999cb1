"""What a detector has learnt of the rows that it meets again in its next ``fit``."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import joblib
import numpy as np
import torch

from ._base import BaseDetector, TrainingData
from ._checks import for_look_ups, in_form_of
from ._learning import Learnt
from ._lookup import find_rows
from ._outer import OuterState
from ._verdict import deal
from ._warnings import warn_user


class Start(NamedTuple):
    """Where a fit starts.

    Attributes
    ----------
    learnt : Learnt
        On the CPU, with the rows of the noisy set.
    clean_folds : ndarray of shape (n_clean,) or None, default=None
        The folds of an earlier fit, where alpha has learnt from them; ``None`` if they are still to be dealt.
    """

    learnt: Learnt
    clean_folds: np.ndarray | None = None


class CleanRows(NamedTuple):
    """What is remembered of the clean set of a fit.

    Attributes
    ----------
    X : ndarray of shape (n_clean, n_features) or CSR array
    folds : ndarray of shape (n_clean,)
    digest : str
        Tells one clean set from another.
    """

    X: np.ndarray
    folds: np.ndarray
    digest: str

    @classmethod
    def of(cls, clean: tuple[np.ndarray, np.ndarray], folds: np.ndarray) -> CleanRows:
        return cls(for_look_ups(clean[0]), folds, digest(clean))

    def folds_of(self, clean: tuple[np.ndarray, np.ndarray], n_folds: int, seed: int) -> np.ndarray:
        """Return the folds of another clean set: rows that are found again keep theirs, the others are dealt.

        The alpha of a fold has learnt from the rows of all others, so a row that changed its fold would be judged by
        networks that know it.
        """
        X = in_form_of(self.X, for_look_ups(clean[0]))
        places = find_rows(self.X, None, np.arange(len(self.folds)), X)
        folds, fresh = self.folds[places], places < 0
        folds[fresh] = deal(clean[1][fresh], n_folds, np.random.RandomState(seed))
        return folds


def start_after(last: BaseDetector | None, detector: BaseDetector, data: TrainingData, seed: int) -> Start:
    """Return where the outer loop of a new fit starts.

    Parameters
    ----------
    last : CorruptionDetector or None
        The detector as it was after its last fit, ``None`` for a fresh start.
    detector : CorruptionDetector
        The detector after the data of the new fit have been checked.
    data : TrainingData
        The data of the new fit.
    seed : int
        Deals clean rows that are new.

    Returns
    -------
    Start
        With the same data it is the end of the last fit; else pairs of row and label that are found again keep what
        they had.
    """
    n_folds = 1 if detector.clean_cv is None else min(detector.clean_cv, len(data.clean[1]))
    fresh = Start(Learnt(OuterState.start(n_folds, int(data.free.sum())), []))
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
    # Without clean_cv alpha has learnt from all clean rows, whatever their folds.
    clean_folds = None if detector.clean_cv is None else last._clean_rows.folds_of(data.clean, n_folds, seed)
    if len(state.alpha) != n_folds or (clean_folds is not None and len(np.unique(clean_folds)) < n_folds):
        warn_user(
            f"warm_start=True, but alpha was learnt for {len(state.alpha)} folds of the clean set, of which the "
            f"{n_folds} of this fit cannot be made: alpha is learnt afresh."
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
    same_rows = last._X.shape[0] == len(rows) and (rows == np.arange(len(rows))).all()
    rows = torch.as_tensor(rows[data.free])
    stops_early, n_rows = detector._settings().stops_early, len(data.noisy[1])
    # What was kept in every shard is known of its rows, but not which held-out losses that had.
    forgets = stops_early and detector.shard_size is not None and detector.shard_size < n_rows
    if same_rows and digest(data.clean) == last._clean_rows.digest and not forgets:
        return Start(Learnt(state.placed(rows), last._alpha_estimate.snapshots), clean_folds)
    state = replace(state.placed(rows), best=float("inf"), waited=0)
    if stops_early:  # other clean rows are held out now: go on from what was kept
        state = replace(state, alpha=state.kept, mean=state.kept, kept_losses=(), kept_step=state.n_steps)
    return Start(Learnt(state, []), clean_folds)


def digest(clean: tuple[np.ndarray, np.ndarray]) -> str:
    """Return what tells one clean set from another."""
    return joblib.hash(clean, coerce_mmap=True)


def of_all_rows(state: OuterState, free: np.ndarray) -> OuterState:
    """Return a state of the noisy rows as arrays over all rows of X; the others are as at the start."""
    places = np.where(free, np.cumsum(free) - 1, -1)
    return state.map(torch.as_tensor).placed(torch.as_tensor(places)).map(lambda t: t.numpy())
