"""Target noise: from losses of members that did not see a row to the probability that its target is wrong."""

from __future__ import annotations

import numpy as np
from sklearn.isotonic import IsotonicRegression

# What one unit of alpha takes from the logarithm of a loss.
_ALPHA_LOG_LOSS = 0.3


def alpha_log_loss(alpha: np.ndarray) -> np.ndarray:
    """Return the evidence of the inclusion variable where there are no labels: what it adds to the log of a loss."""
    return _ALPHA_LOG_LOSS * (alpha.mean() - alpha)


def p_wrong_by_loss(losses: np.ndarray, clean_losses: np.ndarray, permuted_losses: np.ndarray) -> np.ndarray:
    """Return, where there are no labels, the probability that each row is wrong, given its loss.

    Losses of right rows are those of clean rows, losses of wrong ones those of targets that belong to other rows. The
    share of wrong rows is the one that makes the losses of the noisy rows most likely.

    Parameters
    ----------
    losses : ndarray of shape (n_rows,)
    clean_losses : ndarray of shape (n_clean,)
    permuted_losses : ndarray of shape (n_swapped,)
        All by networks that did not see the rows.

    Returns
    -------
    suspicion : ndarray of shape (n_rows,)
        In (0, 1), rising with the loss.
    """
    n_clean, n_swapped = len(clean_losses), len(permuted_losses)
    kind = np.repeat([0.0, 1.0], [n_clean, n_swapped])
    weights = np.repeat([1 / n_clean, 1 / n_swapped], [n_clean, n_swapped])
    least = 1 / (n_clean + 2)  # what no clean row tells is not believed
    of_loss = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip")
    swapped = of_loss.fit(np.concatenate([clean_losses, permuted_losses]), kind, weights).predict(losses)
    odds, share = swapped / (1 - swapped), 0.1
    for _ in range(200):  # expectation maximisation, with two rows' worth of belief
        wrong = share * odds / (1 - share + share * odds)
        share = (wrong.sum() + 0.2) / (len(wrong) + 2)
    return wrong
