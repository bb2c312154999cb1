"""From scores to flags: every rule answers True for a corrupted row."""

from __future__ import annotations

import numpy as np


def flag_by_threshold(alpha: np.ndarray, threshold: float) -> np.ndarray:
    """CDGD_alpha: flag the rows whose inclusion variable is below `threshold`."""
    return alpha < threshold


def flag_by_prediction(probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """CDGD_T: flag the rows whose given label is not the most probable one."""
    return probabilities.argmax(axis=1) != codes


def flag_by_loss(losses: np.ndarray, limit: float) -> np.ndarray:
    """CDGD_T without labels: flag the rows whose loss is above `limit`."""
    return losses > limit


def loss_limit(clean_losses: np.ndarray, share: float = 0.95) -> float:
    """Return the loss that `share` of the clean rows stay below, under networks that did not see them.

    About ``1 - share`` of the good rows are flagged by it.
    """
    return float(np.quantile(clean_losses, share))


def last_of_lost_classes(flags: np.ndarray, scores: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the position of the least suspicious row of every class whose rows are all flagged.

    Parameters
    ----------
    flags : bool ndarray of shape (n_rows,)
    scores : ndarray of shape (n_rows,)
        Large = keep.
    codes : ndarray of shape (n_rows,)
        The given labels.

    Returns
    -------
    positions : ndarray of shape (n_classes_lost,)
    """
    lost = np.setdiff1d(codes, codes[~flags])
    return np.array([np.flatnonzero(codes == code)[scores[codes == code].argmax()] for code in lost], dtype=int)
