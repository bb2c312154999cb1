"""Scorers for searches in which `y` is a noisy label: against the truth about corruption, and on clean rows."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length

__all__ = ["make_clean_scorer", "make_detection_scorer"]

_RESPONSES = ("flags", "scores")


def make_detection_scorer(score_func, *, response="flags", truth=None):
    """Make a scorer that asks how well a detector finds the corrupted rows.

    For data whose errors are known, because they were planted or checked. The scorer takes the truth in one of two
    ways:

    * as metadata `is_corrupted`, with ``sklearn.set_config(enable_metadata_routing=True)``:
      ``GridSearchCV(detector, grid, scoring=scorer).fit(X, y, is_corrupted=is_corrupted)``;
    * as `truth`, here, without routing.

    Parameters
    ----------
    score_func : callable(is_corrupted, response) -> float
        A metric of :mod:`sklearn.metrics`, such as `f1_score` for flags or `average_precision_score` for scores; the
        positive class is "corrupted". Larger must be better.
    response : {"flags", "scores"}, default="flags"
        What the metric compares the truth with: the flags of ``predict``, or for metrics of a ranking minus the scores
        of ``decision_function``, so that more suspicious rows come first.
    truth : tuple (X, y, is_corrupted) or None, default=None
        All rows that cross-validation will split, as they are passed to it, their given labels and the truth about
        each. The rows of a fold are found by value, before any transformer.

    Returns
    -------
    scorer : callable(estimator, X, y, is_corrupted=None) -> float
        `estimator` is a detector, or a pipeline, search or FilteredClassifier around one.

    Raises
    ------
    ValueError
        If `response` is none of the above, if the parts of `truth` differ in length or say different things of equal
        pairs; when called, if nothing says which rows are corrupted.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.metrics import average_precision_score
    >>> from sklearn_cdgd import NoisySetDetector
    >>> from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres
    >>> from sklearn_cdgd.metrics import make_detection_scorer
    >>> X, y = make_concentric_spheres(300, 2, random_state=0)
    >>> y_noisy, is_corrupted = flip_labels(y[:250], 0.2, random_state=0)
    >>> detector = NoisySetDetector(random_state=0).fit(X[:250], y_noisy, X[250:], y[250:])
    >>> scorer = make_detection_scorer(average_precision_score, response="scores")
    >>> bool(scorer(detector, X[:250], y_noisy, is_corrupted=is_corrupted) > 0.5)
    True
    """
    if response not in _RESPONSES:
        raise ValueError(f"response must be 'flags' or 'scores'; got {response!r}.")
    return _DetectionScorer(score_func, response, None if truth is None else _lookup(*truth))


def make_clean_scorer(scoring, X_clean, y_clean):
    """Make a scorer that tests on rows that are known to be right, whatever rows it is handed.

    In a search over noisy data every fold has wrong labels, so its score rewards what agrees with them. Keep some clean
    rows for this scorer that the detector does not get: it is fitted to those that it gets.

    Parameters
    ----------
    scoring : str or callable
        As in :class:`~sklearn.model_selection.GridSearchCV`: a name such as ``"accuracy"``, or a scorer.
    X_clean : array-like of shape (n_clean, ...)
    y_clean : array-like of shape (n_clean,)

    Returns
    -------
    scorer : callable(estimator, X, y) -> float

    Raises
    ------
    ValueError
        If `scoring` is no known name, or if `X_clean` and `y_clean` differ in length.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.dummy import DummyClassifier
    >>> from sklearn_cdgd.metrics import make_clean_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> scorer = make_clean_scorer("accuracy", X[:10], y[:10])
    >>> scorer(DummyClassifier(strategy="constant", constant=1).fit(X, y), X, y)
    0.0
    """
    check_consistent_length(X_clean, y_clean)
    return _CleanScorer(get_scorer(scoring), X_clean, y_clean)


class _DetectionScorer(BaseEstimator):
    """An estimator only in that scikit-learn routes metadata to it by the signature of ``score``."""

    __metadata_request__score = {"is_corrupted": True}

    def __init__(self, score_func, response, truth):
        self.score_func = score_func
        self.response = response
        self.truth = truth

    def __repr__(self):
        name = getattr(self.score_func, "__name__", self.score_func)
        return f"make_detection_scorer({name}, response={self.response!r})"

    def __call__(self, estimator, X, y, is_corrupted=None):
        return self.score(estimator, X, y, is_corrupted)

    def score(self, estimator, X, y, is_corrupted=None):
        if is_corrupted is None:
            is_corrupted = self._known(X, y)
        detector, X = _detector_within(estimator, X)
        answer = detector.predict(X, y) if self.response == "flags" else -detector.decision_function(X, y)
        return self.score_func(np.asarray(is_corrupted), answer)

    def _known(self, X, y) -> np.ndarray:
        if self.truth is None:
            raise ValueError(
                "The scorer was not told which rows are corrupted. With "
                "sklearn.set_config(enable_metadata_routing=True), pass is_corrupted=... to fit or to cross_validate; "
                "without, give make_detection_scorer truth=(X, y, is_corrupted)."
            )
        found = [self.truth.get(pair) for pair in _pairs(X, y)]
        if None in found:
            raise ValueError(
                f"truth knows nothing of {found.count(None)} of {len(found)} pairs of row and label, the first of them "
                f"row {found.index(None)}. It must hold all rows of the X and y that cross-validation splits."
            )
        return np.array(found)


class _CleanScorer:
    def __init__(self, scorer, X_clean, y_clean):
        self.scorer, self.X_clean, self.y_clean = scorer, X_clean, y_clean

    def __repr__(self):
        return f"make_clean_scorer({self.scorer!r}, {len(self.y_clean)} rows)"

    def __call__(self, estimator, X=None, y=None):
        return self.scorer(estimator, self.X_clean, self.y_clean)


def _detector_within(estimator, X):
    """Return the detector within searches, pipelines and filtered estimators, and what X is when it gets there.

    A pipeline cannot hand `y` on to ``predict`` where metadata is routed.
    """
    while True:
        if isinstance(estimator, Pipeline):
            X = estimator[:-1].transform(X) if len(estimator) > 1 else X
            estimator = estimator[-1]
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "detector_"):
            estimator = estimator.detector_
        else:
            return estimator, X


def _lookup(X, y, is_corrupted) -> dict:
    check_consistent_length(X, y, is_corrupted)
    known = {}
    for n, (pair, answer) in enumerate(zip(_pairs(X, y), np.asarray(is_corrupted, dtype=bool).tolist(), strict=True)):
        if known.setdefault(pair, answer) != answer:
            raise ValueError(
                f"truth says of row {n} that it is {'' if answer else 'not '}corrupted, and the opposite of an equal "
                "row with an equal label. Pass is_corrupted as metadata instead, with "
                "sklearn.set_config(enable_metadata_routing=True)."
            )
    return known


def _pairs(X, y) -> list:
    """Return one hashable object for every pair of row and label."""
    X, y = np.asarray(X), np.asarray(y)
    keys = [row.tobytes() if X.dtype != object else repr(row.tolist()) for row in X]
    return [(key, repr(np.asarray(label).tolist())) for key, label in zip(keys, y, strict=True)]
