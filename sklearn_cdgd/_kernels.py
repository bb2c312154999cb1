"""Features of rows whose dot products are a kernel: what a ridge regression needs to be a kernel machine.

The first kernel is the limit that a network of one hidden ReLU layer has when it is made infinitely wide: its neural
tangent kernel (arXiv 1806.07572). The others are Laplace kernels, which see single columns and near neighbours better.

A kernel is represented by its values at some rows, the landmarks (Williams and Seeger, 2001), so that no matrix is ever
as long and as wide as the noisy set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import issparse, vstack
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.preprocessing import QuantileTransformer

# Landmarks are at least so many, if there are so many rows, and grow with the root of the number of rows.
_FEWEST_LANDMARKS, _MOST_LANDMARKS = 400, 1500
# Clean rows make up to a third of the landmarks.
_CLEAN_SHARE = 3
# Rows that say how columns are scaled, and how far rows lie apart.
_SCALING_ROWS, _DISTANCE_ROWS = 20_000, 500
_N_QUANTILES, _LARGEST_QUANTILE = 200, 3.0
# Scaled values beyond, of rows that come after the fit, would overflow in a square.
_FARTHEST = 1e6
# Directions of a smaller share of the largest eigenvalue are rounding.
_LEAST_EIGENVALUE = 1e-7
# Numbers that may be dense at a time, 64 MB in float64.
_BLOCK = 2**23
# Sparse rows with more columns are compared by sparse dot products, and not centred.
_WIDE = 2000


class Kernel(NamedTuple):
    """How two rows are compared.

    Attributes
    ----------
    name : str
        As reports show it.
    columns : {"standardized", "quantiles"}
        Columns are brought to mean 0 and variance 1, or to the quantiles of a normal distribution, which suits columns
        with heavy tails.
    function : callable(A, B, unit) -> ndarray of shape (len(A), len(B))
    width : float
        Bandwidth, in units of the median distance between rows.
    """

    name: str
    columns: str
    function: Callable
    width: float = 1.0


def wide_network(A, B, unit: float) -> np.ndarray:
    """Return the neural tangent kernel of one hidden ReLU layer with biases.

    Parameters
    ----------
    A, B : {ndarray, sparse array} of shape (n_rows, n_features)
    unit : float
        Not used: a network has no bandwidth.

    Returns
    -------
    values : ndarray of shape (n_rows of A, n_rows of B)
    """
    dots = _dots(A, B) + 1  # a column of ones, for the biases
    lengths = np.sqrt(np.outer(_squares(A) + 1, _squares(B) + 1))
    cosine = np.clip(dots / lengths, -1, 1)
    share = 1 - np.arccos(cosine) / np.pi
    return lengths * (np.sqrt(1 - cosine**2) / np.pi + share * cosine) + dots * share


def laplace(A, B, unit: float) -> np.ndarray:
    """Return ``exp(-distance / unit)``; shapes as for :func:`wide_network`."""
    return np.exp(-euclidean_distances(A, B) / unit)


KERNELS = (
    Kernel("wide network kernel", "standardized", wide_network),
    Kernel("smooth Laplace kernel", "quantiles", laplace),
    Kernel("narrow Laplace kernel", "standardized", laplace, width=0.3),
)


class KernelFeatures:
    """Features of one kernel, from landmarks among the rows of a fit.

    Parameters
    ----------
    kernel : Kernel
    columns : Columns
        How rows are scaled.
    landmarks : {ndarray, sparse array} of shape (n_landmarks, n_features)
        Scaled rows.

    Attributes
    ----------
    n_features : int
        At most the number of landmarks, less if landmarks are alike.
    """

    def __init__(self, kernel: Kernel, columns: Columns, landmarks):
        self.kernel, self.columns, self.landmarks = kernel, columns, landmarks
        self.unit = 1.0 if kernel.function is wide_network else kernel.width * _median_distance(landmarks)
        values, directions = np.linalg.eigh(kernel.function(landmarks, landmarks, self.unit))
        known = values > _LEAST_EIGENVALUE * values[-1]
        self.projection = directions[:, known] / np.sqrt(values[known])
        self.n_features = int(known.sum())

    def __call__(self, X) -> np.ndarray:
        """Return the features of rows as they were passed to ``fit``, float32 of shape (n_rows, n_features)."""
        features = np.empty((X.shape[0], self.n_features), dtype=np.float32)
        for block in _blocks(X, len(self.projection)):
            rows = self.columns(X[block])
            features[block] = self.kernel.function(rows, self.landmarks, self.unit) @ self.projection
        return features


def kernel_features(X, X_clean, seed: int) -> list[KernelFeatures]:
    """Return the features of every kernel that suits the rows.

    Parameters
    ----------
    X, X_clean : checked rows of shape (n_rows, ...)
        In memory, sparse, or in a file.
    seed : int
        Draws the landmarks where there are more rows than these.

    Returns
    -------
    features : list of KernelFeatures
    """
    rng = np.random.RandomState(seed)
    n_rows, n_clean = X.shape[0], X_clean.shape[0]
    wanted = n_landmarks(n_rows + n_clean)
    n_of_clean = min(n_clean, max(wanted // _CLEAN_SHARE, wanted - n_rows))
    chosen = _draw(n_rows, wanted - n_of_clean, rng)
    chosen_clean = _draw(n_clean, n_of_clean, rng)
    some = X[_draw(n_rows, _SCALING_ROWS, rng)]
    kinds = [Columns.of(some, kind) for kind in ("standardized", "quantiles")]
    columns = {kind.kind: kind for kind in kinds if kind is not None}
    landmarks = {name: _below(kind(X[chosen]), kind(X_clean[chosen_clean])) for name, kind in columns.items()}
    return [
        KernelFeatures(kernel, columns[kernel.columns], landmarks[kernel.columns])
        for kernel in KERNELS
        if kernel.columns in columns
    ]


def n_landmarks(n_rows: int) -> int:
    """Return the number of landmarks for so many rows."""
    return min(n_rows, int(np.clip(10 * np.sqrt(n_rows), _FEWEST_LANDMARKS, _MOST_LANDMARKS)))


class Columns:
    """Brings columns to one scale, whatever their units.

    A column is centred, and divided by the spread that it has where it is not zero: its standard deviation over
    the root of the share of rows in which it is filled. So rare categories and words keep the weight of frequent ones.

    Parameters
    ----------
    kind : {"standardized", "quantiles"}
    center, factor : ndarray of shape (n_features,)
        What is subtracted from columns, and what they are multiplied with; 0 for a constant column.
    before : callable or None
        What is done to rows first.
    """

    def __init__(self, kind: str, center: np.ndarray, factor: np.ndarray, before: Callable | None = None):
        self.kind, self.center, self.factor, self.before = kind, center, factor, before

    @classmethod
    def of(cls, X, kind: str) -> Columns | None:
        """Return the scaling that suits some rows; ``None`` for quantiles of sparse rows with many columns."""
        wide = _stays_sparse(X)
        if wide and kind == "quantiles":
            return None
        before = NormalQuantiles(X) if kind == "quantiles" else None
        rows = _as_numbers(X) if before is None else before(X)
        mean = np.asarray(rows.mean(axis=0), dtype=np.float64).ravel()
        if wide:
            variance = np.asarray(rows.multiply(rows).mean(axis=0), dtype=np.float64).ravel()
            filled = np.diff(rows.tocsc().indptr) / rows.shape[0]
            center = np.zeros(1)  # zeros stay zeros
        else:
            variance, filled, center = rows.var(axis=0), (rows != 0).mean(axis=0), mean
        spread = np.sqrt(variance / np.maximum(filled, 1e-300))
        # Below float32's resolution around the mean a spread is rounding.
        known = (variance > 0) & (np.sqrt(variance) > 1e-6 * np.abs(mean))
        factor = np.where(known, 1 / np.where(known, spread, 1), 0.0) / np.sqrt(len(spread))
        return cls(kind, center, factor, before)

    def __call__(self, X):
        """Return rows of shape (n_rows, ...) as scaled vectors in float64; those with many sparse columns stay so."""
        rows = _as_numbers(X) if self.before is None else self.before(X)
        if issparse(rows):
            return rows.multiply(self.factor).tocsr()
        return ((rows - self.center) * self.factor).clip(-_FARTHEST, _FARTHEST)

    def apart(self, X):
        """Return vectors that are as far apart as scaled rows; sparse ones stay sparse, as they need no centre."""
        return X.astype(np.float64).multiply(self.factor).tocsr() if issparse(X) else self(X)


class NormalQuantiles:
    """Maps columns to the quantiles of a normal distribution, clipped at 3.

    Parameters
    ----------
    X : rows of shape (n_rows, ...)
    """

    def __init__(self, X):
        # The transformer takes differences below 1e-7 for none, so columns are standardized first.
        self._standardized = Columns.of(X, "standardized")
        self._quantiles = QuantileTransformer(
            n_quantiles=min(_N_QUANTILES, X.shape[0]),
            output_distribution="normal",
            subsample=_SCALING_ROWS,
            random_state=0,
        ).fit(self._standardized(X))

    def __call__(self, X) -> np.ndarray:
        return self._quantiles.transform(self._standardized(X)).clip(-_LARGEST_QUANTILE, _LARGEST_QUANTILE)


def _as_numbers(X):
    return X.astype(np.float64) if _stays_sparse(X) else _vectors(X)


def _stays_sparse(X) -> bool:
    return issparse(X) and X.shape[1] > _WIDE


def _vectors(X) -> np.ndarray:
    return X.toarray().astype(np.float64) if issparse(X) else np.asarray(X, dtype=np.float64).reshape(len(X), -1)


def _blocks(X, width: int) -> Iterator[slice]:
    """Return slices of rows, so many that neither they nor their features are large."""
    width = max(width, 1 if _stays_sparse(X) else int(np.prod(X.shape[1:])))
    step = max(1, _BLOCK // width)
    return (slice(first, first + step) for first in range(0, X.shape[0], step))


def _draw(n_rows: int, n_wanted: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the numbers of so many rows, in ascending order; all of them if there are no more."""
    if n_rows <= n_wanted:
        return np.arange(n_rows)
    return np.sort(rng.choice(n_rows, n_wanted, replace=False))


def _below(first, second):
    return vstack([first, second], format="csr") if issparse(first) else np.concatenate([first, second])


def _median_distance(rows) -> float:
    """Return the median distance of some rows, 1 where all are equal."""
    some = rows[:: -(-rows.shape[0] // _DISTANCE_ROWS)]
    return float(np.median(euclidean_distances(some))) or 1.0


def _dots(A, B) -> np.ndarray:
    return np.asarray((A @ B.T).toarray() if issparse(A) else A @ B.T)


def _squares(A) -> np.ndarray:
    return np.asarray(A.multiply(A).sum(axis=1)).ravel() if issparse(A) else np.einsum("ij,ij->i", A, A)
