"""Forests of trees: members that learn other things than networks and kernels do, and cost little.

Of tables trees often learn more than a network, and in many dimensions they keep to the few columns that tell
something. Where they cannot, as with rotated or many weak features, their predictions fit the labels badly, and their
weight is small. A row is judged by the trees whose bootstrap sample it is not in (out-of-bag predictions), so one
forest for each clean fold is enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.base import is_regressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

N_TREES = 50
# Share of the trees of a forest whose bootstrap sample a row is not in, where samples are as large as the set.
_OUT_OF_BAG = 0.37
# Rows that each tree is grown on at most, so that time does not grow with their number.
_ROWS_A_TREE = 10_000
# Weights are not smaller, so that no sample is without any.
_LEAST_WEIGHT = 1e-6


class Forest(NamedTuple):
    """A kind of forest.

    Attributes
    ----------
    name : str
    classifier, regressor : type
    leaf : int
        Least rows of a leaf: smaller ones would memorise labels, of which many are wrong.
    """

    name: str
    classifier: type
    regressor: type
    leaf: int


FORESTS = (
    Forest("extra trees", ExtraTreesClassifier, ExtraTreesRegressor, 3),
    Forest("random forest", RandomForestClassifier, RandomForestRegressor, 5),
)


def out_of_bag(
    kind: Forest, X, targets: np.ndarray, weights: np.ndarray, others, *, n_classes: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grow a forest, and return what it predicts for rows that its trees were not grown on.

    Parameters
    ----------
    kind : Forest
    X : {ndarray, sparse array} of shape (n_rows, n_features)
    targets : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Labels as 0 .. n_classes - 1, or numbers.
    weights : ndarray of shape (n_rows,)
    others : {ndarray, sparse array} of shape (n_others, n_features)
        Rows that the forest does not know.
    n_classes : int or None
        ``None`` if the targets are numbers.
    seed : int

    Returns
    -------
    predictions : ndarray of shape (n_rows, n_classes), (n_rows,) or (n_rows, n_outputs)
        Probabilities, where one vote is spread over all classes, or predictions: by the trees that do not know the row.
    of_others, of_others_by_few : ndarray of shape (n_others, ...)
        By all trees, and by as many as do not know a row of `X`.
    """
    options = {"max_samples": _ROWS_A_TREE} if len(targets) > _ROWS_A_TREE else {}
    cls, features = (kind.regressor, 1.0) if n_classes is None else (kind.classifier, "sqrt")
    # One job, also in a context of many: threads would add the votes up in the order in which they are done.
    forest = cls(
        N_TREES,
        min_samples_leaf=kind.leaf,
        max_features=features,
        bootstrap=True,
        n_jobs=1,
        random_state=seed,
        **options,
    )
    forest.fit(X, targets, weights.clip(_LEAST_WEIGHT))
    n_few = max(1, round(_OUT_OF_BAG * N_TREES))
    if n_classes is None:
        by_tree = np.stack([tree.predict(others) for tree in forest.estimators_])
        # What every tree was grown on is predicted as if nothing were known.
        unknown = np.average(targets, axis=0, weights=weights.clip(_LEAST_WEIGHT))
        return _out_of_bag(forest, X, unknown), by_tree.mean(axis=0), by_tree[:n_few].mean(axis=0)
    by_tree = np.stack([tree.predict_proba(others) for tree in forest.estimators_])

    def smoothed(votes: np.ndarray, n_trees: int) -> np.ndarray:
        probabilities = np.full((len(votes), n_classes), 1 / n_classes)
        probabilities[:, forest.classes_] += n_trees * votes
        return probabilities / (n_trees + 1)

    unknown = np.full(len(forest.classes_), 1 / len(forest.classes_))
    return (
        smoothed(_out_of_bag(forest, X, unknown), n_few),
        smoothed(by_tree.mean(axis=0), N_TREES),
        smoothed(by_tree[:n_few].mean(axis=0), n_few),
    )


def _out_of_bag(forest, X, unknown: np.ndarray) -> np.ndarray:
    """Return the mean prediction of the trees whose sample a row is not in, `unknown` where there is no such tree.

    scikit-learn's own out-of-bag predictions are 0 there, and come with a warning.
    """
    X = X.tocsr() if issparse(X) else X
    totals = np.zeros((X.shape[0], *np.shape(unknown)))
    counts = np.zeros((X.shape[0],) + (1,) * np.ndim(unknown))
    for tree, sample in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        rows = np.flatnonzero(np.bincount(sample, minlength=X.shape[0]) == 0)
        if len(rows):
            predict = tree.predict if is_regressor(forest) else tree.predict_proba
            totals[rows] += predict(X[rows])
            counts[rows] += 1
    return np.where(counts > 0, totals / counts.clip(1), unknown)
