"""The network that stands in when the user brings none, and what it takes from the data."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


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

    def forward(self, X):
        Z = smooth_clip((X.flatten(1) - self.center) * self.scale)
        output = self.output(torch.relu(self.hidden(Z)))
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
    return Z / (1 + (Z / 3) ** 2) ** 0.5


def robust_scaling(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the median and the factor of every column; a constant column gets the factor 0."""
    X = X.reshape(len(X), -1).astype(np.float64)
    low, center, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    spread = X.max(axis=0) - X.min(axis=0)
    # A column with most of its mass on one value has no quartile range; half its range stands in.
    spread = np.where(high > low, high - low, spread / 2)
    # Below float32's resolution around the median a spread is rounding.
    known = spread > 1e-6 * np.abs(center)
    return center, np.where(known, 1 / np.where(known, spread, 1), 0.0)


def target_units(targets) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and unit of every target; a constant one is measured in its own units."""
    center, scale = robust_scaling(targets)
    return center, 1 / np.where(scale > 0, scale, 1)


def stable_lr(X, center, scale) -> float:
    """Return a learning rate for the default network that leaves its training stable, so that hypergradients are.

    The curvature of the loss in the first layer is bounded by the largest eigenvalue of the second moments of the
    scaled rows; the bias adds 1.
    """
    Z = smooth_clip((X.reshape(len(X), -1) - center) * scale)
    direction = np.ones(Z.shape[1])
    for _ in range(20):  # power iteration; a few per cent are enough
        direction = Z.T @ (Z @ (direction / np.linalg.norm(direction).clip(1e-12))) / len(Z)
    return 0.6 / (1 + 2 * np.linalg.norm(direction))
