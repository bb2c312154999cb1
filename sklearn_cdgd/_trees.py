"""What a forest of trees says of rows: a witness that learns other things than networks do, and costs little.

Of tables trees often learn more than a network, and in many dimensions they keep to the few columns that tell
something. Where they cannot, as with rotated or many weak features, their answers fit the labels badly, and they have
nothing to say.
"""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

_N_TREES = 100
# A leaf of fewer rows would memorise labels, of which many are wrong.
_LEAF = 5
# Rows that each tree is grown on at most, so that time does not grow with their number.
_ROWS_A_TREE = 10_000


def answers_by_trees(
    X, targets: np.ndarray, weights: np.ndarray, others: list, *, n_classes: int | None, seed: int
) -> list[np.ndarray]:
    """Grow a forest, and return what it says of the rows of other sets.

    Parameters
    ----------
    X : {ndarray, sparse array} of shape (n_rows, n_features)
    targets : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Labels as 0 .. n_classes - 1, or numbers.
    weights : ndarray of shape (n_rows,)
        Rows of weight 0 are left out; one at least has to weigh more.
    others : list of {ndarray, sparse array} of shape (n_others, n_features)
    n_classes : int or None
        ``None`` if the targets are numbers.
    seed : int

    Returns
    -------
    answers : list of ndarray of shape (n_others, n_classes), (n_others,) or (n_others, n_outputs)
        Probabilities, where one vote is spread over all classes, or predictions.
    """
    counts = weights > 0
    if not counts.all():
        X, targets, weights = X[counts], targets[counts], weights[counts]
    many = len(targets) > _ROWS_A_TREE
    options = {"bootstrap": True, "max_samples": _ROWS_A_TREE} if many else {}
    kind = ExtraTreesRegressor if n_classes is None else ExtraTreesClassifier
    features = 1.0 if n_classes is None else "sqrt"
    # One job, also in a context of many: threads would add the votes up in the order in which they are done.
    forest = kind(_N_TREES, min_samples_leaf=_LEAF, max_features=features, n_jobs=1, random_state=seed, **options)
    forest.fit(X, targets, weights)
    if n_classes is None:
        return [forest.predict(rows) for rows in others]

    def probabilities(rows):
        votes = np.full((rows.shape[0], n_classes), 1 / n_classes)
        votes[:, forest.classes_] += _N_TREES * forest.predict_proba(rows)
        return votes / (_N_TREES + 1)

    return [probabilities(rows) for rows in others]
