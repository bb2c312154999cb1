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


def flag_by_p_value(p_values: np.ndarray, fdr: float) -> np.ndarray:
    """Flag rows so that the expected share of right rows among the flagged is at most `fdr`.

    The procedure of Benjamini and Hochberg, with Storey's estimate of the share of right rows.
    """
    n_rows = len(p_values)
    ordered = np.sort(p_values)
    # Storey's estimate is one of the rows that are not flagged, so none of the p-values that it comes from is.
    below = (ordered < 0.5) & (ordered * share_of_right(p_values) <= fdr * np.arange(1, n_rows + 1) / n_rows)
    passing = np.flatnonzero(below)
    return p_values <= (ordered[passing[-1]] if len(passing) else -1.0)


def least_share_flagged(p_values: np.ndarray, n_clean: int, fdr: float) -> float:
    """Return the share of all rows that has to be flagged for any to be: no p-value is below 1 / (n_clean + 1)."""
    return share_of_right(p_values) / (fdr * (n_clean + 1))


def share_of_right(p_values: np.ndarray) -> float:
    """Estimate the share of right rows from the p-values from 0.5 on, where hardly any wrong row is (Storey 2002)."""
    return min(1.0, 2 * (1 + (p_values >= 0.5).sum()) / len(p_values))


def conformal_p_values(
    scores: np.ndarray, clean_scores: np.ndarray, clean_folds: np.ndarray, groups=None, clean_groups=None
) -> np.ndarray:
    """Return for every noisy row the share of clean rows that look as bad (arXiv 2104.08279).

    If the row is right and drawn like the clean rows, a value below p comes up with probability p at most.

    Parameters
    ----------
    scores : ndarray of shape (n_folds, n_noisy)
        Large = keep; by networks that know neither the row nor the clean fold.
    clean_scores : ndarray of shape (n_clean,)
        By networks of the same kind that do not know the fold of the row.
    clean_folds : ndarray of shape (n_clean,)
    groups, clean_groups : ndarray of shape (n_noisy,) and (n_clean,), or None
        Rows are compared with clean rows of their group.

    Returns
    -------
    p_values : ndarray of shape (n_noisy,)
        In (0, 1]; 1 where the group has no clean row. No p-value is below one over the number of clean rows plus one.
    """
    if groups is None:
        groups, clean_groups = np.zeros(scores.shape[1]), np.zeros(len(clean_scores))
    p_values = np.ones(scores.shape[1])
    for group in np.unique(groups):
        rows, n_clean = groups == group, (clean_groups == group).sum()
        as_bad = np.zeros(rows.sum())
        for fold, of_fold in enumerate(scores):
            known = np.sort(clean_scores[(clean_groups == group) & (clean_folds == fold)])
            as_bad += np.searchsorted(known, of_fold[rows], side="right")
        p_values[rows] = (1 + as_bad) / (1 + n_clean)
    return p_values


def best_expected_f1(suspicion: np.ndarray) -> float:
    """Return the probability from which on flagging rows gives the best expected F1.

    Parameters
    ----------
    suspicion : ndarray of shape (n_rows,)
        Probabilities that rows are corrupted.

    Returns
    -------
    limit : float
        Rows above it are flagged. It lies near half the F1 that is to be expected: 0.5 where rows are clear, lower
        where flags have to be gambled on.
    """
    ordered = np.sort(suspicion)[::-1]
    f1 = 2 * np.cumsum(ordered) / (np.arange(1, len(ordered) + 1) + ordered.sum() + 1e-12)
    last = int(f1.argmax())
    following = ordered[last + 1] if last + 1 < len(ordered) else 0.0
    return float((ordered[last] + following) / 2)


def best_alpha_threshold(alpha: np.ndarray, p_wrong: np.ndarray) -> float:
    """Return the threshold on alpha below which flagging rows gives the best expected F1.

    Parameters
    ----------
    alpha : ndarray of shape (n_rows,)
    p_wrong : ndarray of shape (n_rows,)
        Probabilities that rows are corrupted.

    Returns
    -------
    threshold : float
        In [0, 1].
    """
    order = np.argsort(alpha, kind="stable")
    ranked = alpha[order]
    f1 = 2 * np.cumsum(p_wrong[order]) / (np.arange(1, len(alpha) + 1) + p_wrong.sum() + 1e-12)
    # A threshold cannot part equal alphas.
    f1[:-1][ranked[:-1] == ranked[1:]] = -1
    last = int(f1.argmax())
    following = ranked[last + 1] if last + 1 < len(ranked) else 1.0
    return float((ranked[last] + following) / 2)


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
