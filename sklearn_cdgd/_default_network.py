"""The network that stands in when the user brings none, and what it takes from the data."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array, issparse
from torch import nn

# Columns of sparse data are made dense in blocks of so many numbers.
_BLOCK = 2**22


class DefaultNetwork(nn.Module):
    """The network that stands in when the user brings none: robust scaling and one hidden ReLU layer.

    Inputs are centred by the median and divided by the quartile range of the training rows, then bent smoothly into
    (-3, 3), as in RealMLP (arXiv 2407.04491), so that unscaled columns and outliers do no harm.

    Parameters
    ----------
    center, scale : array-like of shape (n_features,)
        What is subtracted from, and then multiplied with, every row.
    n_outputs : int
        Number of classes, or of targets.
    target_center, target_scale : array-like of shape (n_outputs,) or None, default=None
        Regression: the network learns targets in these units, and returns them in their own.
    n_hidden : int, default=200
        Hidden units.
    """

    def __init__(self, center, scale, n_outputs, target_center=None, target_scale=None, n_hidden=200):
        super().__init__()
        for name, value in [("target_center", target_center), ("target_scale", target_scale)]:
            self.register_buffer(name, None if value is None else torch.as_tensor(value, dtype=torch.float32))
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))
        self.hidden = nn.Linear(len(self.center), n_hidden)
        self.output = nn.Linear(n_hidden, n_outputs)

    def scaled(self, X):
        """Return what the hidden layer sees of rows."""
        # Far outliers overflow to infinity, and times the factor 0 of a constant column to NaN.
        return smooth_clip(torch.nan_to_num((X.flatten(1) - self.center) * self.scale, nan=0.0))

    def forward(self, X):
        output = self.output(torch.relu(self.hidden(self.scaled(X))))
        return output if self.target_scale is None else output * self.target_scale + self.target_center


class ScaledHuberLoss(nn.Module):
    """Huber loss of targets in units of `scale`, so that neither their units nor their outliers decide the training.

    Parameters
    ----------
    scale : array-like of shape (n_outputs,)
        One unit of every target.
    """

    def __init__(self, scale):
        super().__init__()
        self.reduction = "mean"
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))

    def forward(self, output, target):
        return nn.functional.huber_loss(output / self.scale, target / self.scale, reduction=self.reduction)


def smooth_clip(Z):
    """Bend numbers into (-3, 3); small ones hardly change."""
    Z = Z.clip(-1e6, 1e6)  # the square of larger ones would overflow
    return Z / (1 + (Z / 3) ** 2) ** 0.5


def robust_scaling(X) -> tuple[np.ndarray, np.ndarray]:
    """Return the median and the factor of every column; a constant column gets the factor 0."""
    low, center, high = _quartiles(X)
    flat = X if issparse(X) else X.reshape(len(X), -1)
    largest, smallest = _dense(flat.max(axis=0)), _dense(flat.min(axis=0))
    spread = largest - smallest
    # A column with most of its mass on one value has no quartile range; half its range stands in.
    spread = np.where(high > low, high - low, spread / 2)
    # Below float32's resolution around the median a spread is rounding.
    known = spread > np.maximum(1e-6 * np.abs(center), np.finfo(np.float32).tiny)
    return center, np.where(known, 1 / np.where(known, spread, 1), 0.0)


def _quartiles(X) -> np.ndarray:
    """Return the three quartiles of every column."""
    if not issparse(X):
        return np.quantile(X.reshape(len(X), -1).astype(np.float64), [0.25, 0.5, 0.75], axis=0)
    n_rows, columns = X.shape[0], csc_array(X)
    quartiles = np.zeros((3, X.shape[1]))
    # In all other columns the zeros reach from below the first quartile to above the third.
    filled = np.flatnonzero(np.diff(columns.indptr) > (n_rows - 1) // 4)
    for block in np.array_split(filled, max(1, -(-len(filled) * n_rows // _BLOCK))):
        quartiles[:, block] = np.quantile(columns[:, block].toarray().astype(np.float64), [0.25, 0.5, 0.75], axis=0)
    return quartiles


def _dense(row) -> np.ndarray:
    return np.asarray(row.toarray() if issparse(row) else row, dtype=np.float64).ravel()


def target_units(targets) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and unit of every target; a constant one is measured in its own units."""
    center, scale = robust_scaling(targets)
    return center, 1 / np.where(scale > 0, scale, 1)


def stable_lr(X, center, scale) -> float:
    """Return a learning rate for the default network that leaves its training stable, so that hypergradients are.

    The curvature of the loss in the first layer is bounded by the largest eigenvalue of the second moments of the
    scaled rows; the bias adds 1.
    """
    # Scaled rows are a part with the zeros of X, and what becomes of a zero.
    if issparse(X):
        at_zero = smooth_clip(-center * scale)
        columns = X.indices
        Z = csr_array((smooth_clip((X.data - center[columns]) * scale[columns]) - at_zero[columns], columns, X.indptr))
        Z.resize(X.shape)
    else:
        Z, at_zero = smooth_clip((X.reshape(len(X), -1) - center) * scale), np.zeros(len(center))
    direction = np.ones(len(center))
    for _ in range(20):  # power iteration; a few per cent are enough
        direction = direction / np.linalg.norm(direction).clip(1e-12)
        projected = Z @ direction + at_zero @ direction
        direction = (Z.T @ projected + at_zero * projected.sum()) / len(projected)
    return 0.6 / (1 + 2 * np.linalg.norm(direction))
