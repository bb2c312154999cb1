"""What the nearest neighbours of a row say of its label: evidence that costs no training.

A network that is too simple for the data, a linear one say, cannot tell a hard row from a wrong one; neighbours often
can. Where they cannot, as in many dimensions, they do badly on held-out clean rows, and have nothing to say.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import issparse, vstack
from sklearn.neighbors import NearestNeighbors

from ._stacking import OutOfFold, log_losses

# Of the nearest rows so many are looked at, until their weights add up to the number of neighbours.
_LOOKED_AT = 50
_N_NEIGHBORS = 10


def nearest_rows(Z, Z_clean) -> np.ndarray:
    """Return for every row of both sets the numbers of the nearest others, the nearest first.

    Parameters
    ----------
    Z, Z_clean : {ndarray, sparse array} of shape (n_rows, n_features)

    Returns
    -------
    nearest : ndarray of shape (n_noisy + n_clean, n_neighbors)
        Clean rows are numbered after the noisy ones.
    """
    everyone = vstack([Z, Z_clean], format="csr") if issparse(Z) else np.concatenate([Z, Z_clean])
    # A query without rows leaves every row out of its own neighbours.
    search = NearestNeighbors(n_neighbors=min(_LOOKED_AT, everyone.shape[0] - 1)).fit(everyone)
    return search.kneighbors(return_distance=False)


def opinion_of_neighbors(
    nearest: np.ndarray, targets, clean_targets, weights: np.ndarray, clean_folds: np.ndarray, n_classes: int
) -> OutOfFold:
    """Let every row be judged by the rows around it, and by itself not.

    Parameters
    ----------
    nearest : ndarray of shape (n_noisy + n_clean, n_neighbors)
        See :func:`nearest_rows`.
    targets : ndarray of shape (n_noisy,)
        As 0 .. n_classes - 1.
    clean_targets : ndarray of shape (n_clean,)
    weights : ndarray of shape (n_folds, n_noisy)
        What the vote of every noisy row counts, in [0, 1], where a clean fold is not to be known. Clean rows count 1.
    clean_folds : ndarray of shape (n_clean,)
    n_classes : int

    Returns
    -------
    OutOfFold
    """
    labels, n_noisy, n_clean = np.concatenate([targets, clean_targets]), len(targets), len(clean_targets)
    answers = np.empty((len(weights), n_noisy, n_classes))
    clean_answers = np.empty((n_clean, n_classes))
    for fold, of_noisy in enumerate(weights):
        unseen = clean_folds == fold
        votes = np.concatenate([of_noisy, ~unseen])
        answers[fold] = _shares_of_votes(labels[nearest[:n_noisy]], votes[nearest[:n_noisy]], n_classes)
        judged = nearest[n_noisy:][unseen]
        clean_answers[unseen] = _shares_of_votes(labels[judged], votes[judged], n_classes)
    losses = np.stack([log_losses(of_fold, targets) for of_fold in answers])
    clean_losses = log_losses(clean_answers, clean_targets)
    of_clean = clean_answers, clean_losses
    return OutOfFold(answers, losses, *of_clean, *of_clean, np.zeros_like(losses))


def _shares_of_votes(labels: np.ndarray, votes: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the share of every class among the votes of the nearest, one vote being spread over all classes."""
    votes = votes * (votes.cumsum(axis=1) <= _N_NEIGHBORS)
    counts = np.full((len(labels), n_classes), 1 / n_classes)
    np.add.at(counts, (np.arange(len(labels))[:, None], labels), votes)
    return counts / counts.sum(axis=1, keepdims=True)
