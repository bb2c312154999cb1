"""What the detectors share: checking their input, looking rows up, ranking, the review table."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

# Two rows are the same if they differ by at most this share of every column's largest value.
_ROW_TOLERANCE = 1e-5


class TrainingData(NamedTuple):
    """The checked and encoded input of ``fit``.

    Attributes
    ----------
    noisy, clean : (X, codes)
        float32 rows, and labels as positions in `classes`.
    classes : ndarray of shape (n_classes,)
    free : ndarray of shape (n_noisy,)
        False for rows that are assumed to be clean.
    """

    noisy: tuple[np.ndarray, np.ndarray]
    clean: tuple[np.ndarray, np.ndarray]
    classes: np.ndarray
    free: np.ndarray

    @property
    def has_clean_set(self) -> bool:
        """Whether the clean rows are rows of their own, not a part of the noisy set."""
        return bool(self.free.all())


class BaseDetector(BaseEstimator, ABC):
    """Base of all detectors: everything but how the rows are scored and flagged."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        return tags

    # --- what a detector defines ------------------------------------------------------------------------------------

    @abstractmethod
    def _training_scores(self) -> np.ndarray:
        """Return one number for every training row; large = keep."""

    @abstractmethod
    def _training_flags(self) -> np.ndarray:
        """Return True for every training row that is held to be corrupted."""

    @abstractmethod
    def _review_order(self) -> tuple[np.ndarray, ...]:
        """Return sort keys over the training rows, the first the most important; small = suspicious."""

    # --- the public methods -----------------------------------------------------------------------------------------

    def decision_function(self, X=None, y=None):
        """Score rows: the larger, the more likely the row is right.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...) or None, default=None
            Rows of the noisy set that was passed to ``fit``, in any order; they are found by value. ``None`` stands for
            the whole noisy set.
        y : array-like of shape (n_samples,) or None, default=None
            Their labels; only needed to tell apart equal rows that were given different labels.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
            In [0, 1]. A row that was not in the noisy set gets NaN, and a warning: without its label nothing can be
            said of it.

        Raises
        ------
        ValueError
            If `X` does not have the features, or `y` not the labels, that were seen in ``fit``.
        NotImplementedError
            If a pair of row and label was not in the noisy set.
        """
        return self._of_rows(self._training_scores, X, y, unknown=np.nan)

    def predict(self, X=None, y=None):
        """Flag corrupted rows.

        Parameters
        ----------
        X, y
            As in :meth:`decision_function`.

        Returns
        -------
        is_corrupted : ndarray of shape (n_samples,)
            Boolean mask, True = corrupted, so that ``X[~is_corrupted]`` keeps the good rows. A row that was not in the
            noisy set gets False, and a warning.

        Raises
        ------
        ValueError, NotImplementedError
            As in :meth:`decision_function`.
        """
        return self._of_rows(self._training_flags, X, y, unknown=False)

    def ranked_indices(self):
        """Return the positions of all training rows, the most suspicious first.

        Returns
        -------
        indices : ndarray of shape (n_noisy,)
        """
        check_is_fitted(self)
        return np.lexsort(self._review_order()[::-1])

    def to_frame(self):
        """Return what a person needs to review the noisy set.

        Returns
        -------
        frame : pandas.DataFrame of shape (n_noisy, 5)
            On the index of the noisy set: the score (`alpha` or `score`), `is_corrupted`, `given_label`,
            `suggested_label` and the `loss` of the given label.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        check_is_fitted(self)
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas. Install it with: pip install pandas") from error
        columns = {
            "alpha" if hasattr(self, "alpha_") else "score": self._training_scores(),
            "is_corrupted": self._training_flags(),
            "given_label": self.classes_[self._codes],
            "suggested_label": self.classes_[self.probabilities_.argmax(axis=1)],
            "loss": self.loss_,
        }
        return pd.DataFrame(columns, index=self._index)

    # --- checking the input of fit ----------------------------------------------------------------------------------

    def _check_training_data(self, X, y, X_clean, y_clean, rng: np.random.RandomState) -> TrainingData:
        """Check and encode the input of ``fit``, and remember the noisy set for later look-ups."""
        if (X_clean is None) != (y_clean is None):
            given, missing = ("X_clean", "y_clean") if y_clean is None else ("y_clean", "X_clean")
            raise ValueError(f"{given} was given without {missing}. Pass both, or neither.")
        index = getattr(X, "index", None)
        X, y = self._check_pair(X, y, "X", "y", reset=True)
        if X_clean is None:
            free = ~_stratified_draw(y, self.clean_fraction, rng)
            X_clean, y_clean = X[~free], y[~free]
            warnings.warn(
                f"No clean set was given: {len(X_clean)} rows of X, drawn at random, are assumed to be right. "
                "Pass X_clean and y_clean, rows that a person has checked.",
                UserWarning,
                stacklevel=4,
            )
        else:
            free = np.ones(len(y), dtype=bool)
            X_clean, y_clean = self._check_pair(_unwrap(X_clean), _unwrap(y_clean), "X_clean", "y_clean", reset=False)
            if X_clean.shape[1:] != X.shape[1:]:
                raise ValueError(f"X_clean has rows of shape {X_clean.shape[1:]}, X of shape {X.shape[1:]}.")
        classes = _classes(y, y_clean)
        codes, codes_clean = np.searchsorted(classes, y), np.searchsorted(classes, y_clean)
        absent = np.setdiff1d(codes, codes_clean)
        if len(absent):
            warnings.warn(
                f"The clean set has no row of class {', '.join(repr(c) for c in classes[absent].tolist())}. "
                "Nothing verified speaks for these labels, so their rows are likely to be flagged: add clean rows.",
                UserWarning,
                stacklevel=4,
            )
        self.classes_ = classes
        self._index, self._X, self._codes = index, X.reshape(len(X), -1), codes
        return TrainingData((X, codes), (X_clean, codes_clean), classes, free)

    def _check_pair(self, X, y, X_name, y_name, *, reset):
        if y is None:
            raise ValueError(f"{type(self).__name__} requires {y_name} to be passed, but the target {y_name} is None.")
        with _naming(X_name), np.errstate(over="ignore"):  # too large for float32: the check finds it infinite
            X = validate_data(self, X, reset=reset, dtype=np.float32, order="C", allow_nd=True)
        with _naming(y_name):
            y = _check_labels(y)
            check_classification_targets(y)
        if len(X) != len(y):
            raise ValueError(f"{X_name} and {y_name} differ in length: {len(X)} rows, but {len(y)} labels.")
        return X, y

    # --- looking rows up --------------------------------------------------------------------------------------------

    def _of_rows(self, values, X, y, unknown) -> np.ndarray:
        """Return the values of the training rows that X and y name, and `unknown` for others."""
        check_is_fitted(self)
        if X is None:
            if y is not None:
                raise ValueError("y was given without X. Pass both, or neither for the training rows.")
            return values().copy()
        with np.errstate(over="ignore"):
            X = validate_data(self, X, reset=False, dtype=np.float32, order="C", allow_nd=True)
        rows = self._find(X.reshape(len(X), -1), y)
        missing = np.flatnonzero(rows < 0)
        if not len(missing):
            return values()[rows]
        some = f"{len(missing)} of {len(X)} rows of X, the first of them row {missing[0]}, were not in the noisy set"
        if y is not None:
            raise NotImplementedError(
                f"{some} with the label that y gives them. New pairs cannot be scored yet: "
                "add them to the noisy set and fit again."
            )
        # scikit-learn's common checks ask for an answer here, so this cannot be an error.
        warnings.warn(
            f"{some} and get {unknown}: whether a row is corrupted depends on its label. "
            "To have new rows judged, pass y too.",
            UserWarning,
            stacklevel=3,
        )
        return np.where(rows >= 0, values()[rows], unknown)

    def _find(self, X: np.ndarray, y) -> np.ndarray:
        """Return the position of every row in the noisy set, -1 for a row that is not there.

        Of equal rows the most suspicious answers, unless `y` tells them apart or X is the whole noisy set.
        """
        known = self._X
        scale = np.abs(known).max(axis=0)
        tolerance = _ROW_TOLERANCE * np.where(scale > 0, scale, 1)
        codes = None if y is None else self._codes_of(y, len(X))
        if (
            X.shape == known.shape
            and (np.abs(X - known) <= tolerance).all()
            and (y is None or (codes == self._codes).all())
        ):
            return np.arange(len(X))

        order = np.argsort(self._training_scores(), kind="stable")
        labelled = (lambda row, code: row.tobytes()) if y is None else (lambda row, code: (row.tobytes(), code))
        exact = {labelled(known[n], self._codes[n]): n for n in reversed(order)}
        found = np.array([exact.get(labelled(row, None if y is None else codes[i]), -1) for i, row in enumerate(X)])
        # A row that went through a transformer again differs in its last bits.
        rest = np.flatnonzero(found < 0)
        if len(rest):
            neighbors = NearestNeighbors(radius=1.0, metric="chebyshev").fit(known[order] / tolerance)
            near = neighbors.radius_neighbors(X[rest] / tolerance, return_distance=False)
            for i, candidates in zip(rest, near, strict=True):
                candidates = order[np.sort(candidates)]
                if y is not None:
                    candidates = candidates[self._codes[candidates] == codes[i]]
                found[i] = candidates[0] if len(candidates) else -1
        return found

    def _codes_of(self, y, n_rows: int) -> np.ndarray:
        with _naming("y"):
            y = _check_labels(y)
        if len(y) != n_rows:
            raise ValueError(f"X has {n_rows} rows, but y has {len(y)}.")
        if not np.isin(y, self.classes_).all():
            unknown = np.setdiff1d(y, self.classes_).tolist()
            raise ValueError(f"y has labels that were not seen in fit: {unknown}. Known are {self.classes_.tolist()}.")
        return np.searchsorted(self.classes_, y)


def _check_labels(y) -> np.ndarray:
    return column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)


@contextmanager
def _naming(argument: str):
    """Say which argument a message of scikit-learn is about; it calls them X and y whatever they are."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"{argument}: {error}") from error


def _classes(y: np.ndarray, y_clean: np.ndarray) -> np.ndarray:
    try:
        classes = unique_labels(y, y_clean)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"y and y_clean hold labels of different types that cannot be sorted together: {error}. "
            "Use either strings or numbers in both."
        ) from error
    if len(classes) < 2:
        raise ValueError(
            f"y and y_clean hold one class only, {classes.tolist()[0]!r}: at least two classes are needed."
        )
    return classes


def _unwrap(given):
    """Return the content of a one-element tuple, the form that cross-validation never splits."""
    return given[0] if isinstance(given, tuple) and len(given) == 1 else given


def _stratified_draw(y: np.ndarray, fraction: float, rng: np.random.RandomState) -> np.ndarray:
    """Return a mask with about `fraction` of the rows of every class, and at least one of each."""
    drawn = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        drawn[rng.choice(rows, max(1, round(fraction * len(rows))), replace=False)] = True
    return drawn


def draw_seed(random_state) -> tuple[np.random.RandomState, int]:
    """Return scikit-learn's generator and an integer seed for torch drawn from it."""
    rng = check_random_state(random_state)
    return rng, int(rng.randint(np.iinfo(np.int32).max))
