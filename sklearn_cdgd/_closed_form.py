"""The inner learner in closed form: weighted ridge regression on features.

With the features of :mod:`_kernels` it is what a network of one hidden layer, made infinitely wide, becomes when it is
trained to the end with weight decay (arXiv 1806.07572). Its training, its leave-one-out predictions, the derivative of
the clean loss by the weights, and the influence of a row that was not in the fit are formulas, linear in the
number of rows. They are in the type of the features, float32 or float64. Throughout,

.. math::

    \\theta = H^{-1} \\Phi^T W Y, \\qquad H = \\Phi^T W \\Phi + \\lambda I,

minimises :math:`\\sum_n w_n |Y_n - \\phi_n^T \\theta|^2 + \\lambda |\\theta|^2`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve

# A row whose prediction follows its own target to this degree has none without it.
_LARGEST_LEVERAGE = 1 - 1e-9


class Ridge:
    """Weighted ridge regression, for every regularisation by one decomposition.

    Parameters
    ----------
    features : ndarray of shape (n_rows, n_features)
    weights : ndarray of shape (n_rows,)
        At least 0. Rows of weight 0 are predicted, and teach nothing.

    Notes
    -----
    Costs n_rows * n_features**2 + n_features**3 once, and n_rows * n_features * n_outputs for each prediction.
    """

    def __init__(self, features: np.ndarray, weights: np.ndarray):
        self._features, self._weights = features, weights
        values, self._directions = _eigh(weighted_gram(features, weights))
        self._values = values.clip(0)
        self._squares = np.square(features @ self._directions)

    def coefficients(self, targets: np.ndarray, penalty: float) -> np.ndarray:
        """Return theta of shape (n_features, n_outputs), for targets of shape (n_rows, n_outputs)."""
        moments = self._features.T @ (self._weights[:, None] * targets)
        inverse = 1 / (self._values + penalty)
        return self._directions @ (inverse[:, None] * (self._directions.T @ moments))

    def leverages(self, penalty: float) -> np.ndarray:
        """Return the derivative of every prediction by its own target, shape (n_rows,), in [0, 1)."""
        return (self._weights * (self._squares @ (1 / (self._values + penalty)))).clip(0, _LARGEST_LEVERAGE)

    def leave_one_out(self, targets: np.ndarray, penalty: float) -> np.ndarray:
        """Return what every row is predicted to be by the regression without it, shape (n_rows, n_outputs)."""
        predictions = self._features @ self.coefficients(targets, penalty)
        return leave_one_out(predictions, targets, self.leverages(penalty))


def _eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # torch's decomposition takes half the time of NumPy's, above all in float32.
    values, directions = torch.linalg.eigh(torch.from_numpy(matrix))
    return values.numpy(), directions.numpy()


def leave_one_out(predictions: np.ndarray, targets: np.ndarray, leverages: np.ndarray) -> np.ndarray:
    """Return predictions without the row itself, given those with it; exact for a ridge regression."""
    own = leverages[:, None]
    return (predictions - own * targets) / (1 - own)


def weighted_gram(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted second moments of features, shape (n_features, n_features)."""
    scaled = np.sqrt(weights)[:, None] * features
    return scaled.T @ scaled  # of one array by itself: BLAS computes one triangle


class OuterGradient(NamedTuple):
    """The clean loss of one inner training, and its derivative.

    Attributes
    ----------
    losses : ndarray of shape (n_clean,)
    gradient : ndarray of shape (n_noisy,)
        Of the mean loss of the clean rows that are learnt from, by the weights of the noisy rows.
    coefficients, adjoint : ndarray of shape (n_features, n_outputs)
        theta and :math:`V = H^{-1} \\sum_c \\phi_c g_c^T`, from which :func:`influence` follows.
    """

    losses: np.ndarray
    gradient: np.ndarray
    coefficients: np.ndarray
    adjoint: np.ndarray


def outer_gradient(
    features, targets, weights, penalty: float, clean_features, clean_loss, learnt_from
) -> OuterGradient:
    """Train on the weighted noisy rows, and differentiate the clean loss by the weights.

    .. math:: \\partial J / \\partial w_n = (\\phi_n^T V) \\cdot (Y_n - \\phi_n^T \\theta)

    Parameters
    ----------
    features : ndarray of shape (n_noisy, n_features)
    targets : ndarray of shape (n_noisy, n_outputs)
    weights : ndarray of shape (n_noisy,)
    penalty : float
    clean_features : ndarray of shape (n_clean, n_features)
    clean_loss : callable(predictions) -> (losses, gradients)
        The loss of every clean row, and its derivative by the predictions, shapes (n_clean,) and (n_clean, n_outputs).
    learnt_from : bool ndarray of shape (n_clean,)
        The clean rows whose loss is differentiated.

    Returns
    -------
    OuterGradient
    """
    gram = weighted_gram(features, weights)
    gram.flat[:: len(gram) + 1] += penalty
    factor = cho_factor(gram, check_finite=False)
    theta = cho_solve(factor, features.T @ (weights[:, None] * targets), check_finite=False)
    losses, gradients = clean_loss(clean_features @ theta)
    gradients = gradients[learnt_from] / learnt_from.sum()
    adjoint = cho_solve(factor, clean_features[learnt_from].T @ gradients, check_finite=False)
    return OuterGradient(losses, influence(features, targets, theta, adjoint), theta, adjoint)


def influence(features, targets, coefficients, adjoint) -> np.ndarray:
    """Return the derivative of the clean loss by the weight of each row, in the fit or not, shape (n_rows,)."""
    return np.einsum("ij,ij->i", features @ adjoint, targets - features @ coefficients)


# --- the outer losses -------------------------------------------------------------------------------------------------


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return probabilities along the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def log_loss(codes: np.ndarray, inverse_temperature: float):
    """Return the function from predictions of one-hot targets to log-losses and their gradients.

    Parameters
    ----------
    codes : ndarray of shape (n_clean,)
        Labels as 0 .. n_classes - 1.
    inverse_temperature : float
        What predictions are multiplied with before the softmax.
    """

    def loss(predictions):
        probabilities = softmax(inverse_temperature * predictions)
        rows = np.arange(len(codes))
        losses = -np.log(probabilities[rows, codes].clip(1e-12))
        gradients = probabilities
        gradients[rows, codes] -= 1
        return losses, inverse_temperature * gradients

    return loss


def huber_loss(targets: np.ndarray):
    """Return the function from predictions to Huber losses with limit 1, means over outputs, and their gradients."""

    def loss(predictions):
        residuals = predictions - targets
        near = residuals.clip(-1, 1)
        return (near * (residuals - near / 2)).mean(axis=1), near / targets.shape[1]

    return loss
