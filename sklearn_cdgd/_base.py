"""What the detectors share: checking their input, looking rows up, ranking, the review table."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ._network import Network, task_of_net, trains_networks
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
    def _new_scores(self, X: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return one number for every pair, none of which was in the noisy set; large = keep."""

    @abstractmethod
    def _new_flags(self, X: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return True for every pair, none of which was in the noisy set, that is held to be corrupted."""

    @abstractmethod
    def _review_order(self) -> tuple[np.ndarray, ...]:
        """Return sort keys over the training rows, the first the most important; small = suspicious."""

    # --- the public methods -----------------------------------------------------------------------------------------

    def decision_function(self, X=None, y=None):
        """Score rows: the larger, the more likely the row is right.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...) or None, default=None
            Rows, in any order. Those of the noisy set that was passed to ``fit`` are found by value, and get what was
            learnt of them. ``None`` stands for the whole noisy set.
        y : array-like of shape (n_samples,) or None, default=None
            Their labels. Needed for pairs of row and label that were not in the noisy set, and to tell apart equal
            rows that were given different labels; without it the most suspicious of equal rows answers.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
            In [0, 1]. Pairs that were not in the noisy set get an estimate. Without `y` a row that was not in the
            noisy set gets NaN, and a warning: nothing can be said of it without its label.

        Raises
        ------
        ValueError
            If `X` does not have the features, or `y` not the labels, that were seen in ``fit``, or if the network
            computes NaN for a new pair.
        """
        return self._of_rows(self._training_scores, self._new_scores, X, y, unknown=np.nan)

    def predict(self, X=None, y=None):
        """Flag corrupted rows.

        Parameters
        ----------
        X, y
            As in :meth:`decision_function`.

        Returns
        -------
        is_corrupted : ndarray of shape (n_samples,)
            Boolean mask, True = corrupted, so that ``X[~is_corrupted]`` keeps the good rows. Without `y` a row that
            was not in the noisy set gets False, and a warning.

        Raises
        ------
        ValueError
            As in :meth:`decision_function`.
        """
        return self._of_rows(self._training_flags, self._new_flags, X, y, unknown=False)

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
            On the index of the noisy set: the score (`alpha` or `score`), `is_corrupted`, `given_label`,
            `suggested_label` and its `suggested_probability` (`given_target` and `predicted_target` where y is no
            label; numbered if a row has several), and the `loss` of what was given.

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
                stacklevel=4,
            )
        else:
            free = np.ones(len(y), dtype=bool)
            pair = _unwrap(X_clean), _unwrap(y_clean)
            X_clean, y_clean = self._check_pair(*pair, "X_clean", "y_clean", kind, reset=False)
            if X_clean.shape[1:] != X.shape[1:]:
                raise ValueError(f"X_clean has rows of shape {X_clean.shape[1:]}, X of shape {X.shape[1:]}.")
        self._task = task = kind.of(y, y_clean)
        if kind is Classification:
            self.classes_ = task.classes
        targets = task.encode(y)
        self._index, self._X, self._targets = index, X.reshape(len(X), -1), targets
        self._row_shape = X.shape[1:]
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
        """Return what the rules of the task ask for, of the training rows."""
        return self._targets, self._answers, self.loss_, self._limit()

    def _new_verdict(self, X: np.ndarray, targets: np.ndarray) -> tuple:
        """Return what the rules of the task ask for, of pairs that were not in the noisy set."""
        return targets, *self._judge_new(X, targets), self._limit()

    def _judge_new(self, X: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `net_` answers to rows that no network was trained on, and the losses of their targets."""
        network = self._fitted_network()
        return network.answers(network.state, X), refuse_nan(network.row_losses(network.state, X, targets))

    def _fitted_network(self) -> Network:
        two_rows = self._X[:2].reshape(2, *self._row_shape), self._targets[:2]
        return Network.of_fitted(self.net_, *two_rows, self._task.n_classes)

    def _limit(self) -> float | None:
        return getattr(self, "loss_limit_", None) if self.loss_limit == "auto" else self.loss_limit

    # --- looking rows up --------------------------------------------------------------------------------------------

    @trains_networks
    def _of_rows(self, values, new_values, X, y, unknown) -> np.ndarray:
        """Return the values of the training rows that X and y name; of others new values, or without y `unknown`."""
        check_is_fitted(self)
        if X is None:
            if y is not None:
                raise ValueError("y was given without X. Pass both, or neither for the training rows.")
            return values().copy()
        with np.errstate(over="ignore"):
            X = validate_data(self, X, reset=False, dtype=np.float32, order="C", allow_nd=True)
        targets = None if y is None else self._encode_new(y, len(X))
        rows = self._find(X.reshape(len(X), -1), targets)
        missing, found = np.flatnonzero(rows < 0), values()[rows]
        if not len(missing):
            return found
        if targets is not None:
            found[missing] = new_values(X[missing], targets[missing])
            return found
        # scikit-learn's common checks ask for an answer here, so this cannot be an error.
        warnings.warn(
            f"{len(missing)} of {len(X)} rows of X, the first of them row {missing[0]}, were not in the noisy set and "
            f"get {unknown}: whether a row is corrupted depends on its label. To have new rows judged, pass y too.",
            UserWarning,
            stacklevel=4,
        )
        found[missing] = unknown
        return found

    def _find(self, X: np.ndarray, targets: np.ndarray | None) -> np.ndarray:
        """Return the position of every row in the noisy set, -1 for a row that is not there.

        Of equal rows the most suspicious answers, unless targets tell them apart or X is the whole noisy set.
        """
        known = self._X
        scale = np.abs(known).max(axis=0).astype(np.float64)
        tolerance = _ROW_TOLERANCE * np.where(scale > 0, scale, 1)
        if (
            X.shape == known.shape
            and (np.abs(np.subtract(X, known, dtype=np.float64)) <= tolerance).all()
            and (targets is None or np.array_equal(targets, self._targets))
        ):
            return np.arange(len(X))

        order = np.argsort(self._training_scores(), kind="stable")

        def key(row, target):
            return row.tobytes() if targets is None else (row.tobytes(), target.tobytes())

        exact = {key(known[n], self._targets[n]): n for n in reversed(order)}
        asked = self._targets[:1].repeat(len(X), axis=0) if targets is None else targets
        found = np.array([exact.get(key(*pair), -1) for pair in zip(X, asked, strict=True)])
        # A row that went through a transformer again differs in its last bits.
        rest = np.flatnonzero(found < 0)
        if len(rest):
            neighbors = NearestNeighbors(radius=1.0, metric="chebyshev").fit(known[order] / tolerance)
            near = neighbors.radius_neighbors(X[rest] / tolerance, return_distance=False)
            for i, candidates in zip(rest, near, strict=True):
                candidates = order[np.sort(candidates)]
                if targets is not None:
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


def _unwrap(given):
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


def refuse_nan(values: np.ndarray) -> np.ndarray:
    """Return what networks make of new pairs, unless it is not a number."""
    n_bad = np.isnan(values).sum()
    if n_bad:
        raise ValueError(
            f"{n_bad} of {len(values)} new pairs cannot be judged: the loss of the network is NaN on them. "
            "Their values are far outside of what it was trained on; check the units of X."
        )
    return values


def draw_seed(random_state) -> tuple[np.random.RandomState, int]:
    """Return scikit-learn's generator and an integer seed for torch drawn from it."""
    rng = check_random_state(random_state)
    return rng, int(rng.randint(np.iinfo(np.int32).max))
