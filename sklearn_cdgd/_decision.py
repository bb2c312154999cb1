"""From scores to flags: every rule answers True for a corrupted row."""

from __future__ import annotations

import numpy as np


def flag_by_threshold(alpha: np.ndarray, threshold: float) -> np.ndarray:
    """CDGD_alpha: flag the rows whose inclusion variable is below `threshold`."""
    return alpha < threshold


def flag_by_prediction(probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """CDGD_T: flag the rows whose given label is not the most probable one."""
    return probabilities.argmax(axis=1) != codes
