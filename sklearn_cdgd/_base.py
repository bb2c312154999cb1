"""What the detectors share: checking their input, looking rows up, ranking, the review table."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ._checks import (
    for_look_ups,
    in_form_of,
    in_one_form,
    refuse_nan,
    stratified_draw,
    unwrap,
    warn_of_wrong_clean_set,
)
from ._classification import Classification, are_labels
from ._decision import last_of_lost_classes
from ._inputs import plain_rows, plain_targets, rows_dtype
from ._lookup import find_rows, same_rows
from ._nets import cloned, memo_of, task_of_net
from ._network import Network, trains_networks
from ._on_disk import is_on_disk, on_disk
from ._regression import Regression
from ._task import LabelQuality, Task, naming
from ._warnings import warn_user


class TrainingData(NamedTuple):
    """The checked and encoded input of ``fit``.

    Attributes
    ----------
    noisy, clean : (X, targets)
        Rows, as an ndarray of float32 or int64 or a CSR array of float32, and targets as the task encodes them.
    task : Task
    free : ndarray of shape (n_rows,)
        Which rows of X are the noisy ones. Where no clean set was given, the others stand in for it.
    """

    noisy: tuple[np.ndarray, np.ndarray]
    clean: tuple[np.ndarray, np.ndarray]
    task: Task
    free: np.ndarray

    def of_all_rows(self, of_noisy: np.ndarray, of_clean: np.ndarray) -> np.ndarray:
        """Return values for all rows of X, given those of the noisy and of the clean rows."""
        if self.free.all():
            return of_noisy
        values = np.empty((len(self.free), *of_noisy.shape[1:]), dtype=of_noisy.dtype)
        values[self.free], values[~self.free] = of_noisy, of_clean
        return values


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
        tags.input_tags.sparse = True
        return tags

    # torch cannot copy modules with lazy layers, so copies and clones need a hand.

    def __deepcopy__(self, memo):
        memo |= memo_of(self.net)
        memo[id(self)] = twin = copy.copy(self)
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def __sklearn_clone__(self):
        bare = copy.copy(self)
        bare.net = None
        twin = BaseEstimator.__sklearn_clone__(bare)
        twin.net = cloned(self.net)
        return twin

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

    def _sureness(self) -> dict[str, np.ndarray]:
        """Return columns of the review table that say how sure the flags are."""
        return {}

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
            If `X` does not have the features, or `y` not the labels, that were seen in ``fit``.
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
                warn_user(
                    f"All rows of class {label!r} were found to be wrong. The least suspicious of them is kept. "
                    "Check some of them, and add clean rows of this class."
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
            On the index of the noisy set: the score (`alpha` or `score`), `is_corrupted`, `given_label`,
            `suggested_label` and its `suggested_probability` (`given_target` and `predicted_target` where y is no
            label; numbered if a row has several), and the `loss` of what was given. CorruptionDetector adds
            `flag_frequency` and `p_value`.

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
            **self._sureness(),
        }
        return pd.DataFrame(columns, index=self._index)

    # --- checking the input of fit ----------------------------------------------------------------------------------

    def _check_training_data(self, X, y, X_clean, y_clean, rng: np.random.RandomState) -> TrainingData:
        """Check and encode the input of ``fit``, and remember the noisy set for later look-ups."""
        if (X_clean is None) != (y_clean is None):
            given, missing = ("X_clean", "y_clean") if y_clean is None else ("y_clean", "X_clean")
            raise ValueError(f"{given} was given without {missing}. Pass both, or neither.")
        index = X.index if hasattr(X, "iloc") else None  # a list has an `index` too
        if y is not None:
            with naming("y"):
                y = plain_targets(y)
        kind = self._kind_of_task(y)
        X, y = self._check_pair(X, y, "X", "y", kind, reset=True)
        if X_clean is None:
            free = ~stratified_draw(y, self.clean_fraction, rng, by_label=kind is Classification)
            clean = X[~free], y[~free]
            warn_user(
                f"No clean set was given: {len(clean[1])} rows of X, drawn at random, are assumed to be right. "
                "Pass X_clean and y_clean, rows that a person has checked."
            )
        else:
            free = np.ones(len(y), dtype=bool)
            clean = self._check_pair(unwrap(X_clean), unwrap(y_clean), "X_clean", "y_clean", kind, reset=False)
            if clean[0].shape[1:] != X.shape[1:]:
                raise ValueError(f"X_clean has rows of shape {clean[0].shape[1:]}, X of shape {X.shape[1:]}.")
            warn_of_wrong_clean_set(*in_one_form(X, clean[0]), split_along=not isinstance(X_clean, tuple))
        X, X_clean = in_one_form(X, clean[0])
        self._task = task = kind.of(y, clean[1])
        if kind is Classification:
            self.classes_ = task.classes
        self._index, self._X, self._targets, self._row_shape = index, for_look_ups(X), task.encode(y), X.shape[1:]
        noisy = (X, self._targets) if free.all() else (X[free], self._targets[free])
        return TrainingData(noisy, (X_clean, task.encode(clean[1])), task, free)

    def _kind_of_task(self, y) -> type[Task]:
        kind = self.task if self.task != "auto" else task_of_net(self.net)
        if kind is None:
            return Classification if are_labels(y) else Regression
        return {"classification": Classification, "regression": Regression}[kind]

    def _check_pair(self, X, y, X_name, y_name, kind: type[Task], *, reset):
        if y is None:
            raise ValueError(f"{type(self).__name__} requires {y_name} to be passed, but the target {y_name} is None.")
        X = self._check_rows(X, X_name, reset=reset, ensure_min_samples=2 if reset else 1)
        with naming(y_name), np.errstate(invalid="ignore"):
            y = kind.check(plain_targets(y))
        if X.shape[0] != len(y):
            raise ValueError(f"{X_name} and {y_name} differ in length: {X.shape[0]} rows, but {len(y)} targets.")
        return X, y

    def _check_rows(self, X, name: str, dtype=None, **options):
        """Return a copy of our own of checked rows; without `dtype`, in the type that they are to be stored in.

        Rows in a file stay there, or are copied to one.
        """
        if is_on_disk(X):
            with naming(name):
                return self._check_rows_on_disk(X, dtype, **options)
        # What is too large for float32 becomes infinite, and the check finds it.
        with naming(name), np.errstate(over="ignore", invalid="ignore"):
            X = plain_rows(X)
            if dtype is None:
                # Integers may be tokens, which a network of the user's can look up in an embedding.
                dtype = rows_dtype(X, keep_integers=self.net is not None)
            options |= dict(dtype=dtype, order="C", accept_sparse="csr", allow_nd=True, copy=True)
            try:
                X = validate_data(self, X, **options)
            except ValueError as error:
                if "could not convert string" not in str(error) and "with a sequence" not in str(error):
                    raise
                raise ValueError(
                    f"{error}. Rows must be numbers: encode words and categories in a Pipeline (TfidfVectorizer, "
                    "OneHotEncoder), or number tokens and pass a network with an embedding as net=."
                ) from error
            if 0 in X.shape[1:]:
                raise ValueError(f"rows of shape {X.shape[1:]} hold no feature.")
        if issparse(X):
            X = csr_array(X, dtype=np.float32)
            X.eliminate_zeros()
            if X.nnz < np.iinfo(np.int32).max:  # trees take no longer indices
                X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        return X

    def _check_rows_on_disk(self, X, dtype, **options):
        if dtype is None:
            integers = self.net is not None and np.dtype(X.dtype).kind in "iu" and X.dtype != np.uint64
            dtype = np.int64 if integers else np.float32
        X = on_disk(X, dtype)
        validate_data(self, X[:2], dtype=None, allow_nd=True, **options)
        if 0 in X.shape[1:]:
            raise ValueError(f"rows of shape {X.shape[1:]} hold no feature.")
        return X

    def _remember_verdict(self, data: TrainingData, conclusion: LabelQuality) -> None:
        """Set the fitted attributes that say what the network or networks think of all rows of X."""
        self._answers = data.of_all_rows(conclusion.answers, conclusion.clean_answers)
        self.loss_ = data.of_all_rows(conclusion.losses, conclusion.clean_losses)
        self.loss_limit_ = conclusion.limit
        setattr(self, "probabilities_" if isinstance(self._task, Classification) else "predictions_", self._answers)

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
        return self.loss_limit_ if self.loss_limit == "auto" else self.loss_limit

    # --- looking rows up --------------------------------------------------------------------------------------------

    @trains_networks
    def _of_rows(self, values, new_values, X, y, unknown) -> np.ndarray:
        """Return the values of the training rows that X and y name; of others new values, or without y `unknown`."""
        check_is_fitted(self)
        if X is None:
            if y is not None:
                raise ValueError("y was given without X. Pass both, or neither for the training rows.")
            return values().copy()
        X = self._check_rows(X, "X", self._X.dtype, reset=False)
        targets = None if y is None else self._encode_new(y, X.shape[0])
        rows = self._find(X, targets)
        missing, found = np.flatnonzero(rows < 0), values()[rows]
        if not len(missing):
            return found
        if targets is not None:
            found[missing] = new_values(X[missing], targets[missing])
            return found
        # scikit-learn's common checks ask for an answer here, so this cannot be an error.
        warn_user(
            f"{len(missing)} of {len(rows)} rows of X, the first of them row {missing[0]}, were not in the noisy set "
            f"and get {unknown}: whether a row is corrupted depends on its label. To have new rows judged, pass y too."
        )
        found[missing] = unknown
        return found

    def _find(self, X, targets: np.ndarray | None) -> np.ndarray:
        """Return the position of every row in the noisy set, -1 for a row that is not there.

        Of equal rows the most suspicious answers, unless targets tell them apart or X is the whole noisy set.
        """
        X, known = in_form_of(self._X, X if issparse(X) else X.reshape(len(X), -1)), self._X
        if same_rows(known, X) and (targets is None or np.array_equal(targets, self._targets)):
            return np.arange(X.shape[0])
        order = np.argsort(self._training_scores(), kind="stable")
        return find_rows(known, self._targets, order, X, targets)

    def _find_again(self, task: Task, X: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the position that every row of another noisy set has in this one, -1 for a new pair."""
        rows = np.full(X.shape[0], -1)
        if (type(task), X.shape[1:], targets.shape[1:]) == (
            type(self._task),
            self._X.shape[1:],
            self._targets.shape[1:],
        ):
            y = task.decode(targets)
            known = self._task.knows(y)
            if known.any():
                rows[known] = self._find(X[known], self._task.encode(y[known]))
        return rows

    def _encode_new(self, y, n_rows: int) -> np.ndarray:
        with naming("y"):
            targets = self._task.encode(self._task.check(plain_targets(y)))
        if len(targets) != n_rows:
            raise ValueError(f"X has {n_rows} rows, but y has {len(targets)}.")
        return targets


def all_or_nothing(fit):
    """Have a ``fit`` that does not come to its end leave the detector as it was."""

    @functools.wraps(fit)
    def restoring(self, *args, **kwargs):
        before = vars(self).copy()
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return restoring


def draw_seed(random_state) -> tuple[np.random.RandomState, int]:
    """Return scikit-learn's generator and an integer seed for torch drawn from it."""
    rng = check_random_state(random_state)
    return rng, int(rng.randint(np.iinfo(np.int32).max))
