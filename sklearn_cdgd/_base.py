"""What the detectors share: checking their input, looking rows up, ranking, the review table."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ._decision import last_of_lost_classes
from ._network import task_of_net
from ._task import Classification, Regression, Task, kind_of, naming

# Two rows are the same if they differ by at most this share of every column's largest value.
_ROW_TOLERANCE = 1e-5


class TrainingData(NamedTuple):
    """The checked and encoded input of ``fit``.

    Attributes
    ----------
    noisy, clean : (X, targets)
        float32 rows, and targets as the task encodes them.
    task : Task
    free : ndarray of shape (n_noisy,)
        False for rows that are assumed to be clean.
    """

    noisy: tuple[np.ndarray, np.ndarray]
    clean: tuple[np.ndarray, np.ndarray]
    task: Task
    free: np.ndarray

    @property
    def has_clean_set(self) -> bool:
        """Whether the clean rows are rows of their own, not a part of the noisy set."""
        return bool(self.free.all())


class BaseDetector(BaseEstimator, ABC):
    """Base of all detectors: everything but how the rows are scored and flagged."""

    # With metadata routing a clean set reaches the detector unasked.
    __metadata_request__fit = {"X_clean": True, "y_clean": True}

    def get_metadata_routing(self):
        """Return which metadata the methods ask for: a clean set, unless ``set_fit_request`` was told otherwise.

        Returns
        -------
        routing : MetadataRequest
        """
        requests = super().get_metadata_routing()
        # fit_resample is a method to scikit-learn only once imbalanced-learn is imported, and has no
        # set_fit_resample_request on classes that are older than that.
        if hasattr(requests, "fit_resample"):
            for name in ("X_clean", "y_clean"):
                if requests.fit_resample.requests.get(name) is None:
                    requests.fit_resample.add_request(param=name, alias=True)
        return requests

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

    def fit_resample(self, X, y, X_clean=None, y_clean=None):
        """Fit, and return the rows that are not flagged: a sampler's method, for imbalanced-learn's pipelines.

        Parameters
        ----------
        X, y, X_clean, y_clean
            As in ``fit``.

        Returns
        -------
        X_kept, y_kept
            The kept rows, in the type they came in. ``sample_indices_`` holds their positions.

        Warns
        -----
        UserWarning
            If all rows of a class are flagged: the least suspicious of them is kept.

        Notes
        -----
        imbalanced-learn's pipelines hand a sampler parameters only with
        ``sklearn.set_config(enable_metadata_routing=True)``, and ignore `transform_input` for it (0.14): put the
        detector before transformers, or pass a transformed clean set. Otherwise a warning of ``fit`` tells.
        """
        self.fit(X, y, X_clean, y_clean)
        flags = self.predict()
        if isinstance(self._task, Classification):
            spared = last_of_lost_classes(flags, self.decision_function(), self._targets)
            flags[spared] = False
            for label in self.classes_[self._targets[spared]].tolist():
                warnings.warn(
                    f"All rows of class {label!r} were found to be wrong. The least suspicious of them is kept. "
                    "Check some of them, and add clean rows.",
                    UserWarning,
                    stacklevel=2,
                )
        self.sample_indices_ = np.flatnonzero(~flags)
        return _safe_indexing(X, self.sample_indices_), _safe_indexing(y, self.sample_indices_)

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
        frame : pandas.DataFrame with n_noisy rows
            On the index of the noisy set: the score (`alpha` or `score`), `is_corrupted`, `given_label` and
            `suggested_label` (`given_target` and `predicted_target` where y is no label; numbered if a row has
            several), and the `loss`.

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
            **self._task.columns(self._targets, self._answers),
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
        kind = self._kind_of_task(y)
        X, y = self._check_pair(X, y, "X", "y", kind, reset=True)
        if X_clean is None:
            free = ~_stratified_draw(y, self.clean_fraction, rng, by_label=kind is Classification)
            X_clean, y_clean = X[~free], y[~free]
            warnings.warn(
                f"No clean set was given: {len(X_clean)} rows of X, drawn at random, are assumed to be right. "
                "Pass X_clean and y_clean, rows that a person has checked.",
                UserWarning,
                stacklevel=5,
            )
        else:
            free = np.ones(len(y), dtype=bool)
            split_along = not isinstance(X_clean, tuple)
            pair = unwrap(X_clean), unwrap(y_clean)
            X_clean, y_clean = self._check_pair(*pair, "X_clean", "y_clean", kind, reset=False)
            if X_clean.shape[1:] != X.shape[1:]:
                raise ValueError(f"X_clean has rows of shape {X_clean.shape[1:]}, X of shape {X.shape[1:]}.")
            _warn_of_wrong_clean_set(X, X_clean, split_along)
        self._task = task = kind.of(y, y_clean)
        if kind is Classification:
            self.classes_ = task.classes
        targets = task.encode(y)
        self._index, self._X, self._targets = index, X.reshape(len(X), -1), targets
        return TrainingData((X, targets), (X_clean, task.encode(y_clean)), task, free)

    def _kind_of_task(self, y) -> type[Task]:
        kind = self.task if self.task != "auto" else task_of_net(self.net)
        if kind is None:
            return kind_of(y)
        return {"classification": Classification, "regression": Regression}[kind]

    def _check_pair(self, X, y, X_name, y_name, kind: type[Task], *, reset):
        if y is None:
            raise ValueError(f"{type(self).__name__} requires {y_name} to be passed, but the target {y_name} is None.")
        with naming(X_name), np.errstate(over="ignore"):  # too large for float32: the check finds it infinite
            X = validate_data(
                self, X, reset=reset, dtype=np.float32, order="C", allow_nd=True, ensure_min_samples=2 if reset else 1
            )
        with naming(y_name):
            y = kind.check(y)
        if len(X) != len(y):
            raise ValueError(f"{X_name} and {y_name} differ in length: {len(X)} rows, but {len(y)} targets.")
        return X, y

    def _remember_verdict(self, answers: np.ndarray, losses: np.ndarray, limit: float | None) -> None:
        """Set the fitted attributes that say what the network or networks think of the noisy rows."""
        self._answers, self.loss_ = answers, losses
        if isinstance(self._task, Classification):
            self.probabilities_ = answers
        else:
            self.predictions_, self.loss_limit_ = answers, limit

    def _verdict(self) -> tuple:
        """Return what the rules of the task ask for."""
        limit = getattr(self, "loss_limit_", None) if self.loss_limit == "auto" else self.loss_limit
        return self._targets, self._answers, self.loss_, limit

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
        targets = None if y is None else self._encode_new(y, len(X))
        if (
            X.shape == known.shape
            and (np.abs(X - known) <= tolerance).all()
            and (y is None or np.array_equal(targets, self._targets))
        ):
            return np.arange(len(X))

        order = np.argsort(self._training_scores(), kind="stable")

        def key(row, target):
            return row.tobytes() if y is None else (row.tobytes(), target.tobytes())

        exact = {key(known[n], self._targets[n]): n for n in reversed(order)}
        asked = self._targets[:1].repeat(len(X), axis=0) if y is None else targets
        found = np.array([exact.get(key(*pair), -1) for pair in zip(X, asked, strict=True)])
        # A row that went through a transformer again differs in its last bits.
        rest = np.flatnonzero(found < 0)
        if len(rest):
            neighbors = NearestNeighbors(radius=1.0, metric="chebyshev").fit(known[order] / tolerance)
            near = neighbors.radius_neighbors(X[rest] / tolerance, return_distance=False)
            for i, candidates in zip(rest, near, strict=True):
                candidates = order[np.sort(candidates)]
                if y is not None:
                    same = self._targets[candidates] == targets[i]
                    candidates = candidates[same.reshape(len(candidates), targets[i].size).all(axis=1)]
                found[i] = candidates[0] if len(candidates) else -1
        return found

    def _encode_new(self, y, n_rows: int) -> np.ndarray:
        with naming("y"):
            targets = self._task.encode(self._task.check(y))
        if len(targets) != n_rows:
            raise ValueError(f"X has {n_rows} rows, but y has {len(targets)}.")
        return targets


def _warn_of_wrong_clean_set(X: np.ndarray, X_clean: np.ndarray, split_along: bool) -> None:
    """Warn of what a search or a pipeline does to a clean set without a word."""
    if split_along and len(X_clean) == len(X):
        warnings.warn(
            f"X_clean has as many rows as X ({len(X)}). Cross-validation splits whatever is as long as X, the clean "
            "set too, silently. Pass tuples of one, X_clean=(X_clean,) and y_clean=(y_clean,): they are never split, "
            "and end this warning.",
            UserWarning,
            stacklevel=6,
        )
    off = columns_off(X, X_clean) if X.ndim == 2 else np.zeros(0, dtype=bool)
    # Of columns without a scale of their own, dummies say, there may be many more.
    if off.sum() > 0.1 * len(off):
        warnings.warn(
            f"{off.sum()} of {len(off)} columns of X_clean lie far from those of X, the first of them column "
            f"{off.argmax()}. Did X go through a transformer that X_clean did not go through? A Pipeline transforms "
            "the clean set only with sklearn.set_config(enable_metadata_routing=True) and "
            'Pipeline(..., transform_input=["X_clean"]).',
            UserWarning,
            stacklevel=6,
        )


def columns_off(X: np.ndarray, X_clean: np.ndarray) -> np.ndarray:
    """Return which columns of the clean set can hardly be on the same scale as those of the noisy set.

    A column is off if most clean rows are further outside the range of the noisy rows than half its width, or if 20
    or more clean rows all lie closer together than a tenth of the noisy rows' middle third. Rows drawn from one source
    do neither, whatever their distribution, but for one column in some thousand.
    """
    X = X[:: -(-len(X) // 10_000)].astype(np.float64)
    low, high = X.min(axis=0), X.max(axis=0)
    margin = (high - low) / 2 + 1e-6 * np.abs(high)
    outside = (X_clean < low - margin) | (X_clean > high + margin)
    third, two_thirds = np.quantile(X, [1 / 3, 2 / 3], axis=0)
    narrow = np.ptp(X_clean.astype(np.float64), axis=0) < (two_thirds - third) / 10
    return (outside.mean(axis=0) > 0.5) | (narrow & (len(X_clean) >= 20))


def unwrap(given):
    """Return the content of a one-element tuple, the form that cross-validation never splits."""
    return given[0] if isinstance(given, tuple) and len(given) == 1 else given


def _stratified_draw(y: np.ndarray, fraction: float, rng: np.random.RandomState, *, by_label: bool) -> np.ndarray:
    """Return a mask with about `fraction` of the rows; where there are labels, of every label and at least one."""
    drawn = np.zeros(len(y), dtype=bool)
    strata = [y == label for label in np.unique(y)] if by_label else [np.ones(len(y), dtype=bool)]
    for stratum in strata:
        rows = np.flatnonzero(stratum)
        drawn[rng.choice(rows, max(1, round(fraction * len(rows))), replace=False)] = True
    return drawn


def draw_seed(random_state) -> tuple[np.random.RandomState, int]:
    """Return scikit-learn's generator and an integer seed for torch drawn from it."""
    rng = check_random_state(random_state)
    return rng, int(rng.randint(np.iinfo(np.int32).max))
