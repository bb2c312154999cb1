"""Detect wrong rows, then fit any scikit-learn estimator without them."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, issparse, vstack
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from ._base import BaseDetector, unwrap
from ._compat import HasMethods, StrOptions, fit_context
from ._decision import last_of_lost_classes
from ._warnings import warn_user


def _estimator_has(method):
    """Say whether the inner estimator has a method, and raise its own error if not."""

    def check(self):
        getattr(getattr(self, "estimator_", self.estimator), method)
        return True

    return check


class _Filtered(MetaEstimatorMixin, BaseEstimator):
    """What classifier and regressor share: all but what a suggestion is."""

    __metadata_request__fit = {"X_clean": True, "y_clean": True}

    _parameter_constraints = {
        "estimator": [HasMethods(["fit", "predict"])],
        "detector": [BaseDetector],
        "mode": [StrOptions({"drop", "weight", "relabel"})],
        "use_clean": ["boolean"],
    }

    def __init__(self, estimator, detector, *, mode="drop", use_clean=True):
        self.estimator = estimator
        self.detector = detector
        self.mode = mode
        self.use_clean = use_clean

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags = get_tags(self.detector).input_tags
        tags.input_tags.sparse &= get_tags(self.estimator).input_tags.sparse
        return tags

    # The estimator that is to be fitted is the user's, so its parameters are validated by its own fit.
    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, X_clean=None, y_clean=None):
        """Fit the detector, then the estimator on what it leaves.

        Parameters
        ----------
        X : array-like of shape (n_noisy, n_features)
            Rows of the noisy set.
        y : array-like of shape (n_noisy,)
            Their labels or targets, some of them wrong.
        X_clean : array-like of shape (n_clean, n_features), or a tuple of one, default=None
            Rows of the clean set. Without a clean set, a part of the noisy set is assumed to be right.
        y_clean : array-like of shape (n_clean,), or a tuple of one, default=None
            Their labels or targets, all of them right.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the input is not what the detector expects, or if ``mode="weight"`` and the estimator takes no weights.

        Warns
        -----
        UserWarning
            If every row, or every row of a class, was found to be wrong.
        """
        weights_name = _weight_parameter(self.estimator) if self.mode == "weight" else None
        self.detector_ = self._new_detector().fit(X, y, X_clean, y_clean)
        X, y = _indexable(X), np.asarray(y)
        y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
        X_clean, y_clean = unwrap(X_clean), None if y_clean is None else np.asarray(unwrap(y_clean))
        flags, weights = self._judge(y, y_clean)

        self.sample_indices_ = np.flatnonzero(~flags) if self.mode == "drop" else np.arange(len(y))
        if self.mode == "relabel":
            y = np.where(flags.reshape(len(y), *[1] * (y.ndim - 1)), self._suggestions(), y)
        X, y, weights = _safe_indexing(X, self.sample_indices_), y[self.sample_indices_], weights[self.sample_indices_]
        if self.use_clean and X_clean is not None:
            X, y = _stack(X, X_clean), np.concatenate([y, y_clean.reshape(len(y_clean), *y.shape[1:])])
            weights = np.concatenate([weights, np.ones(len(y_clean))])
        weights = {} if weights_name is None else {weights_name: weights}
        self.estimator_ = clone(self.estimator).fit(X, y, **weights)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.detector_, name):
                setattr(self, name, getattr(self.detector_, name))
        return self

    def _new_detector(self) -> BaseDetector:
        detector = clone(self.detector)
        return detector.set_params(task=self._task) if detector.task == "auto" else detector

    def _judge(self, y, y_clean) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows are taken to be wrong, and the weight of every row; a class that is lost is warned of."""
        flags, scores = self.detector_.predict(), self.detector_.decision_function()
        codes = self._codes(y)
        lost = last_of_lost_classes(scores <= 0 if self.mode == "weight" else flags, scores, codes)
        joined = self.use_clean and y_clean is not None
        verified = np.isin(codes[lost], self._codes(y_clean if joined else y[:0]))
        for row, is_verified in zip(lost, verified, strict=True):
            instead = "Only clean rows speak for them now." if is_verified else "The least suspicious of them is kept."
            warn_user(
                f"All {(codes == codes[row]).sum()} rows{self._of_class(row, y)} were found to be wrong. {instead} "
                "Check some of them, and add clean rows."
            )
        flags, scores = flags.copy(), scores.copy()
        flags[lost[~verified]], scores[lost[~verified]] = False, 1.0
        return flags, scores

    def _codes(self, y) -> np.ndarray:
        """Return the class of every target; numbers are of one class."""
        return np.zeros(len(y), dtype=int)

    def _of_class(self, row, y) -> str:
        return ""

    def predict(self, X):
        """Predict with the fitted estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        """
        check_is_fitted(self)
        return self.estimator_.predict(X)

    @available_if(_estimator_has("score"))
    def score(self, X, y):
        """Return the score that the fitted estimator gives itself on rows that should be clean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        score : float
        """
        check_is_fitted(self)
        return self.estimator_.score(X, y)


class FilteredClassifier(ClassifierMixin, _Filtered):
    """Find the wrong rows with the help of a clean set, and fit a classifier without them.

    Parameters
    ----------
    estimator : classifier
        Any scikit-learn classifier; it is cloned.
    detector : CorruptionDetector, NoisySetDetector, CleanSetDetector
        Finds the wrong rows; it is cloned. ``task="auto"`` is classification here, whatever the labels look like.
    mode : {"drop", "weight", "relabel"}, default="drop"
        What becomes of the noisy set: ``"drop"`` leaves flagged rows out, ``"weight"`` fits all rows with the
        detector's scores (alpha, for a CorruptionDetector) as sample weights, ``"relabel"`` gives flagged rows the
        label that the detector suggests.
    use_clean : bool, default=True
        Whether the clean rows join the training, with weight 1 and their own labels. They are right, so leaving them
        out only makes sense to measure the detector alone. Rows of the noisy set that stand in for a clean set never
        join a second time.

    Attributes
    ----------
    estimator_ : classifier
        Fitted.
    detector_ : object
        Fitted; ``detector_.predict()`` flags the rows, ``detector_.to_frame()`` shows them.
    sample_indices_ : ndarray of shape (n_kept,)
        Positions of the rows of the noisy set that `estimator_` was fitted to.
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Defined when `X` has string column names.

    See Also
    --------
    FilteredRegressor : The same for numbers.
    CorruptionDetector : Finds the rows.

    Notes
    -----
    No class disappears: if every row of a class is flagged (or weighs nothing), a warning says so, and unless clean
    rows speak for the class, its least suspicious row is kept with its own label and full weight.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from sklearn_cdgd import CleanSetDetector, FilteredClassifier
    >>> from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres
    >>> X, y = make_concentric_spheres(500, 2, random_state=0)
    >>> y_noisy, is_corrupted = flip_labels(y[:300], 0.3, random_state=0)
    >>> tree = DecisionTreeClassifier(random_state=0)
    >>> filtered = FilteredClassifier(tree, CleanSetDetector(random_state=0))
    >>> filtered = filtered.fit(X[:300], y_noisy, X_clean=X[300:400], y_clean=y[300:400])
    >>> bool(filtered.score(X[400:], y[400:]) > tree.fit(X[:300], y_noisy).score(X[400:], y[400:]))
    True
    """

    _task = "classification"

    @property
    def classes_(self):
        """Labels, sorted."""
        return self.estimator_.classes_

    def _codes(self, y):
        return np.searchsorted(self.detector_.classes_, y)

    def _of_class(self, row, y):
        return f" of class {y[[row]].tolist()[0]!r}"

    def _suggestions(self) -> np.ndarray:
        return self.detector_.classes_[self.detector_.probabilities_.argmax(axis=1)]

    @available_if(_estimator_has("predict_proba"))
    def predict_proba(self, X):
        """Predict class probabilities with the fitted classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_estimator_has("predict_log_proba"))
    def predict_log_proba(self, X):
        """Predict the logarithms of class probabilities with the fitted classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self.estimator_.predict_log_proba(X)

    @available_if(_estimator_has("decision_function"))
    def decision_function(self, X):
        """Return the decision function of the fitted classifier (not the detector's).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self.estimator_.decision_function(X)


class FilteredRegressor(RegressorMixin, _Filtered):
    """Find the wrong rows with the help of a clean set, and fit a regressor without them.

    Parameters
    ----------
    estimator : regressor
        Any scikit-learn regressor; it is cloned.
    detector : CorruptionDetector, NoisySetDetector, CleanSetDetector
        Finds the wrong rows; it is cloned. ``task="auto"`` is regression here, whatever the targets look like.
    mode : {"drop", "weight", "relabel"}, default="drop"
        What becomes of the noisy set: ``"drop"`` leaves flagged rows out, ``"weight"`` fits all rows with the
        detector's scores (alpha, for a CorruptionDetector) as sample weights, ``"relabel"`` gives flagged rows the
        target that the detector predicts.
    use_clean : bool, default=True
        Whether the clean rows join the training, with weight 1 and their own targets.

    Attributes
    ----------
    estimator_ : regressor
        Fitted.
    detector_ : object
        Fitted; ``detector_.predict()`` flags the rows, ``detector_.to_frame()`` shows them.
    sample_indices_ : ndarray of shape (n_kept,)
        Positions of the rows of the noisy set that `estimator_` was fitted to.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Defined when `X` has string column names.

    See Also
    --------
    FilteredClassifier : The same for labels.

    Notes
    -----
    If every row is flagged (or weighs nothing), a warning says so, and unless clean rows join, the least suspicious
    one is kept.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn_cdgd import CleanSetDetector, FilteredRegressor
    >>> X = np.random.RandomState(0).uniform(size=(150, 1))
    >>> y = X[:, 0].copy()
    >>> y[:30] = 5
    >>> filtered = FilteredRegressor(LinearRegression(), CleanSetDetector(random_state=0))
    >>> filtered = filtered.fit(X[:100], y[:100], X_clean=X[100:], y_clean=y[100:])
    >>> bool(filtered.sample_indices_.min() >= 30)
    True
    """

    _task = "regression"

    def _suggestions(self) -> np.ndarray:
        return self.detector_.predictions_


def _weight_parameter(estimator) -> str:
    """Return the name under which the estimator's fit takes sample weights."""
    if isinstance(estimator, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, last = estimator.steps[-1]
        if has_fit_parameter(last, "sample_weight"):
            return f"{name}__sample_weight"
    elif isinstance(estimator, Pipeline) or has_fit_parameter(estimator, "sample_weight"):
        return "sample_weight"
    raise ValueError(
        f"mode='weight' needs an estimator whose fit takes sample_weight; {type(estimator).__name__} does not. "
        "Use mode='drop', or another estimator."
    )


def _indexable(X):
    """Return rows in a form that can be picked from."""
    if issparse(X):
        return csr_array(X)
    return X if hasattr(X, "shape") else np.asarray(X)


def _stack(X, X_clean):
    """Put the clean rows below the noisy ones, in the type of these."""
    if issparse(X):
        return csr_array(vstack([X, csr_array(X_clean)]))
    if issparse(X_clean):
        X_clean = X_clean.toarray()
    if type(X_clean) is not type(X) and hasattr(X, "columns"):
        names = {"columns" if hasattr(X, "iloc") else "schema": X.columns}
        X_clean = type(X)(np.asarray(X_clean), **names)
    if hasattr(X, "iloc"):
        import pandas as pd

        return pd.concat([X, X_clean])
    if hasattr(X, "vstack"):
        import polars as pl

        return pl.concat([X, X_clean], how="vertical_relaxed")
    return np.concatenate([X, np.asarray(X_clean)])
