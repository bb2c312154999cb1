"""What a forest of trees says of rows: a witness that learns other things than networks do, and costs little."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

_N_TREES = 100
# Rows that each tree is grown on at most, so that time does not grow with their number.
_ROWS_A_TREE = 10_000


def probabilities_by_trees(X, targets, weights, others: list, n_classes: int, seed: int) -> list[np.ndarray]:
    """Grow a forest, and return the probability of every class for the rows of other sets.

    Parameters
    ----------
    X : {ndarray, sparse matrix} of shape (n_rows, n_features)
    targets : ndarray of shape (n_rows,)
        As 0 .. n_classes - 1.
    weights : ndarray of shape (n_rows,)
    others : list of {ndarray, sparse matrix} of shape (n_others, n_features)
    n_classes, seed : int

    Returns
    -------
    probabilities : list of ndarray of shape (n_others, n_classes)
        One vote is spread over all classes.
    """
    forest = ExtraTreesClassifier(
        _N_TREES,
        bootstrap=len(targets) > _ROWS_A_TREE,
        max_samples=min(1.0, _ROWS_A_TREE / len(targets)) if len(targets) > _ROWS_A_TREE else None,
        min_samples_leaf=LEAF,
        max_features=FEATURES,
        random_state=seed,
    ).fit(X, targets, weights)

    def said(rows):
        probabilities = np.full((rows.shape[0], n_classes), 1 / n_classes)
        probabilities[:, forest.classes_] += _N_TREES * forest.predict_proba(rows)
        return probabilities / (_N_TREES + 1)

    return [said(rows) for rows in others]


LEAF, FEATURES = 5, "sqrt"
