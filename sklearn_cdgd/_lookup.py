"""Find rows by value: which rows of a set are these?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy.sparse import issparse
from sklearn.neighbors import NearestNeighbors

# Two rows are the same if they differ by at most this share of every column's largest value.
_TOLERANCE = 1e-5
# Rows that are compared at a time.
_BLOCK = 2**16


def find_rows(known, known_targets, order, X, targets=None) -> np.ndarray:
    """Return the position of every row of X in `known`, -1 for a row that is not there.

    A row that went through a transformer once more differs from itself in the last bits, so float32 rows are found with
    a tolerance of 1e-5 of every column's largest value. Sparse rows are found so if their non-zeros stand in the same
    columns. Rows in float64 hold integers and must be equal.

    Parameters
    ----------
    known : ndarray or canonical CSR array of shape (n_known, n_features)
    known_targets : ndarray of shape (n_known, ...)
    order : ndarray of shape (n_known,)
        The positions of `known`. Of equal rows the one that comes first is the answer.
    X : like `known`, of shape (n_rows, n_features)
    targets : ndarray of shape (n_rows, ...) or None, default=None
        Tell apart equal rows.

    Returns
    -------
    positions : ndarray of shape (n_rows,)
    """
    there, asked = _bytes_of(known), _bytes_of(X)
    wanted = [b""] * X.shape[0] if targets is None else [target.tobytes() for target in targets]
    given = [b""] * known.shape[0] if targets is None else [target.tobytes() for target in known_targets]
    exact = {(there[n], given[n]): n for n in reversed(order)}
    found = np.array([exact.get(pair, -1) for pair in zip(asked, wanted, strict=True)])
    rest = np.flatnonzero(found < 0)
    if len(rest) and known.dtype == np.float32:
        near = (_near_sparse if issparse(known) else _near_dense)(known, order, X[rest])
        for i, candidates in zip(rest, near, strict=True):
            found[i] = next((n for n in candidates if given[n] == wanted[i]), -1)
    return found


def same_rows(known, X) -> bool:
    """Tell whether X is the set itself, to the tolerance of :func:`find_rows`."""
    if X.shape != known.shape:
        return False
    if issparse(known):
        same_places = np.array_equal(X.indptr, known.indptr) and np.array_equal(X.indices, known.indices)
        return same_places and bool((np.abs(X.data - known.data) <= _tolerance(known)[known.indices]).all())
    tolerance = _tolerance(known)
    with np.errstate(over="ignore"):
        return all((np.abs(X[block] - known[block]) <= tolerance).all() for block in _blocks(len(known)))


def _tolerance(known) -> np.ndarray:
    if known.dtype != np.float32:
        return np.zeros(known.shape[1])
    if issparse(known):
        largest = abs(known).max(axis=0).toarray().ravel().astype(np.float64)
    else:
        largest = np.max([np.abs(known[block]).max(axis=0) for block in _blocks(len(known))], axis=0).astype(np.float64)
    return _TOLERANCE * np.where(largest > 0, largest, 1)


def _blocks(n_rows: int) -> list[slice]:
    """Return slices of rows, so that those in a file are not all read at once."""
    return [slice(first, first + _BLOCK) for first in range(0, n_rows, _BLOCK)]


def _bytes_of(X) -> list:
    if not issparse(X):
        return [row.tobytes() for row in X + X.dtype.type(0)]  # makes -0.0 the same as 0.0
    indices = X.indices.astype(np.int64)
    ends = zip(X.indptr[:-1], X.indptr[1:], strict=True)
    return [(indices[a:b].tobytes(), X.data[a:b].tobytes()) for a, b in ends]


def _near_dense(known, order, X) -> list:
    tolerance = _tolerance(known)
    neighbors = NearestNeighbors(radius=1.0, metric="chebyshev").fit(known[order] / tolerance)
    near = neighbors.radius_neighbors(X / tolerance, return_distance=False)
    return [order[np.sort(candidates)] for candidates in near]


def _near_sparse(known, order, X) -> list:
    tolerance, places = _tolerance(known), defaultdict(list)
    known, at = known[order], _bytes_of(known[order])
    for n, (indices, _) in enumerate(at):
        places[indices].append(n)

    def near(row, indices):
        columns, values = X.indices[row], X.data[row]
        alike = places.get(indices, [])
        return [
            order[n]
            for n in alike
            if (np.abs(known.data[known.indptr[n] : known.indptr[n + 1]] - values) <= tolerance[columns]).all()
        ]

    slices = map(slice, X.indptr[:-1], X.indptr[1:])
    return [near(row, indices) for row, (indices, _) in zip(slices, _bytes_of(X), strict=True)]
