"""What a detector asks of its two sets beyond what scikit-learn checks."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, issparse

from ._on_disk import is_on_disk, on_disk
from ._warnings import warn_user


def unwrap(given):
    """Return the content of a one-element tuple, the form that cross-validation never splits."""
    return given[0] if isinstance(given, tuple) and len(given) == 1 else given


def warn_of_wrong_clean_set(X, X_clean, split_along: bool) -> None:
    """Warn of what a search or a pipeline does to a clean set without a word."""
    if split_along and X_clean.shape[0] == X.shape[0]:
        warn_user(
            f"X_clean has as many rows as X ({X.shape[0]}). Cross-validation splits whatever is as long as X, the "
            "clean set too, silently. Pass tuples of one, X_clean=(X_clean,) and y_clean=(y_clean,): they are never "
            "split, and end this warning."
        )
    off = columns_off(X, X_clean) if X.ndim == 2 and not issparse(X) else np.zeros(0, dtype=bool)
    # Of columns without a scale of their own, dummies say, there may be many more.
    if off.sum() > 0.1 * len(off):
        warn_user(
            f"{off.sum()} of {len(off)} columns of X_clean lie far from those of X, the first of them column "
            f"{off.argmax()}. Did X go through a transformer that X_clean did not go through? A Pipeline transforms "
            "the clean set only with sklearn.set_config(enable_metadata_routing=True) and "
            'Pipeline(..., transform_input=["X_clean"]).'
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


def in_form_of(known, X):
    """Return rows as sparse or as dense as others."""
    if issparse(known) == issparse(X):
        return X
    return csr_array(X) if issparse(known) else X.toarray()


def in_one_form(X, X_clean):
    """Return both sets as sparse or dense as the first, and as integers only if both are."""
    if X_clean.dtype != X.dtype:
        X, X_clean = X.astype(np.float32, copy=False), X_clean.astype(np.float32, copy=False)
    return X, in_form_of(X, X_clean)


def for_look_ups(X):
    """Return rows with one axis, integers as float64, so that equal numbers of any type are found."""
    if issparse(X):
        return X
    X, dtype = X.reshape(len(X), -1), np.float64 if X.dtype == np.int64 else np.float32
    return on_disk(X, dtype) if is_on_disk(X) else X.astype(dtype, copy=False)


def stratified_draw(y: np.ndarray, fraction: float, rng: np.random.RandomState, *, by_label: bool) -> np.ndarray:
    """Return a mask with about `fraction` of the rows; where there are labels, of every label and at least one.

    One row is left at least.
    """
    drawn = np.zeros(len(y), dtype=bool)
    strata = [y == label for label in np.unique(y)] if by_label else [np.ones(len(y), dtype=bool)]
    for stratum in strata:
        rows = np.flatnonzero(stratum)
        n_drawn = max(1, min(round(fraction * len(rows)), len(rows) - 1))
        drawn[rng.choice(rows, n_drawn, replace=False)] = True
    if drawn.all():
        drawn[rng.randint(len(y))] = False
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
