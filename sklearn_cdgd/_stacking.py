"""Stacking: out-of-fold probabilities of several members become one set of calibrated probabilities.

Every member's temperature, its weight, and the temperature of the weighted geometric mean are fitted on held-out clean
rows and on how well the labels of the noisy rows are explained, errors allowed for. All members are fitted at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.utils.random import sample_without_replacement

# Probabilities are not believed beyond this; their logarithms are not taken below its square.
LEAST_PROBABILITY = 1e-4
# A member so many standard errors behind the best in held-out loss keeps a weight of exp(-1).
_WEIGHT_TEMPERATURE = 0.5
# A standard error is not believed to be less than this loss on a single row: few rows that every member gets right
# tell little.
_LEAST_ERROR = 0.3
# What the likelihood of a noisy label counts, beside that of a clean one. Noisy labels are many, and they favour a
# member that was taught by them, wrong ones included.
_NOISY_LABEL_WEIGHT = 0.1
# The same where temperatures are fitted.
_NOISY_TEMPERATURE_WEIGHT = 0.3
# Noisy rows whose labels are explained, fewer where there are many classes, so that they cost little.
_FIT_ROWS, _FIT_NUMBERS = (250, 1000), 10_000
# Bounds of the logarithm of an inverse temperature, its prior's precision in rows, and the steps of the search.
_TEMPERATURE_BOUNDS, _TEMPERATURE_PRIOR, _SEARCH_STEPS = (-3.0, 3.5), 1.0, 12
_GOLDEN_RATIO = 0.6180339887
# Rows of right and wrong labels that the noise rate is believed to have before any is seen, for each class.
PRIOR_RIGHT, PRIOR_WRONG = 1.6, 0.2


# What kinds of members are called, beside networks; the name of a kernel ends so.
TREES, NEIGHBORS, KERNEL = "trees", "nearest neighbours", "kernel, "


class OutOfFold(NamedTuple):
    """What one member of the ensemble, or all in a further first axis, predicts for rows that it was not trained on.

    Attributes
    ----------
    answers : ndarray of shape (n_folds, n_noisy, ...)
        Class probabilities or predictions for the noisy rows, where each clean fold is held out.
    losses : ndarray of shape (n_folds, n_noisy)
    clean_answers : ndarray of shape (n_clean, ...)
        The same for clean rows, where their own fold is held out.
    clean_losses : ndarray of shape (n_clean,)
    calibration_answers : ndarray of shape (n_clean, ...)
        By as few models as predict a noisy row, all folds together: what a noisy row can be compared with.
    calibration_losses : ndarray of shape (n_clean,)
    permuted_losses : ndarray of shape (n_folds, n_noisy)
        Of the noisy rows with the targets of others; zeros where there are labels.
    """

    answers: np.ndarray
    losses: np.ndarray
    clean_answers: np.ndarray
    clean_losses: np.ndarray
    calibration_answers: np.ndarray
    calibration_losses: np.ndarray
    permuted_losses: np.ndarray


class StackedEnsemble(NamedTuple):
    """Members, and their weighted average.

    Attributes
    ----------
    names : tuple of (str, str)
        Of every member: its kind, and which one of that kind it is.
    clean_losses : ndarray of shape (n_members, n_clean)
        Of held-out clean rows, at each member's own temperature.
    weights : ndarray of shape (n_members,)
        With sum 1.
    inverse_temperatures : ndarray of shape (n_members,)
        Classification: by what the logarithms of a member's probabilities are multiplied before they are averaged.
    inverse_temperature : float
        And those of the average.
    ensemble : OutOfFold
        The average.
    cross_fitted : OutOfFold or None, default=None
        The same, where the clean rows of each fold had no part in weights and temperatures: noisy and clean rows are
        compared by it.
    members : OutOfFold or None, default=None
        Of all members, calibrated.
    """

    names: tuple[tuple[str, str], ...]
    clean_losses: np.ndarray
    weights: np.ndarray
    inverse_temperatures: np.ndarray
    inverse_temperature: float
    ensemble: OutOfFold
    cross_fitted: OutOfFold | None = None
    members: OutOfFold | None = None

    @property
    def are_learners(self) -> np.ndarray:
        """Which members are networks or kernel machines, bool array of shape (n_members,)."""
        return np.array([not name.startswith((TREES, NEIGHBORS)) for name, _ in self.names])

    @property
    def is_closed_form(self) -> bool:
        """Whether these are kernel machines."""
        return any(KERNEL in name for name, _ in self.names)


class StackingData(NamedTuple):
    """The rows on which weights and temperatures are fitted.

    Attributes
    ----------
    clean_targets : ndarray of shape (n_clean,)
    known : bool array of shape (n_clean,)
        The clean rows among them.
    rows : int array of shape (n_rows,)
        The noisy rows among them.
    targets : ndarray of shape (n_rows,)
        Of these.
    """

    clean_targets: np.ndarray
    known: np.ndarray
    rows: np.ndarray
    targets: np.ndarray


def rows_to_explain(n_rows: int, n_classes: int) -> np.ndarray:
    """Return the numbers of the noisy rows whose labels have to be explained: all of few, a sample of many."""
    n_chosen = int(np.clip(_FIT_NUMBERS // n_classes, *_FIT_ROWS))
    return np.arange(n_rows) if n_rows <= n_chosen else sample_without_replacement(n_rows, n_chosen, random_state=0)


def log_losses(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the log-loss of every row.

    Parameters
    ----------
    probabilities : ndarray of shape (..., n_rows, n_classes)
    targets : ndarray of shape (n_rows,)

    Returns
    -------
    losses : ndarray of shape (..., n_rows)
    """
    return -np.log(_of_targets(probabilities, targets).clip(LEAST_PROBABILITY))


def log_probabilities(probabilities: np.ndarray) -> np.ndarray:
    """Return logarithms in float32, with a floor, relative to the most probable class."""
    return relative(np.log(probabilities.astype(np.float32).clip(LEAST_PROBABILITY**2)))


def relative(log_probs: np.ndarray) -> np.ndarray:
    """Return logarithms, up to a constant for each row, so that the largest is 0 and stays so at any temperature."""
    return log_probs - log_probs.max(axis=-1, keepdims=True)


def temperature_scale(log_probs: np.ndarray, inverse_temperatures) -> np.ndarray:
    """Return probabilities at other temperatures: above 1 sharper, below 1 flatter.

    Parameters
    ----------
    log_probs : ndarray of shape (..., n_rows, n_classes)
        As :func:`relative` returns them.
    inverse_temperatures : float or ndarray of shape (n_members,)
        For the first axis, if there are several.
    """
    scores = _scaled(log_probs, inverse_temperatures)
    scores /= np.einsum("...c->...", scores)[..., None]
    return scores


def _scaled(log_probs: np.ndarray, inverse_temperatures) -> np.ndarray:
    powers = np.asarray(inverse_temperatures, dtype=log_probs.dtype)
    scores = log_probs * powers.reshape(powers.shape + (1,) * (log_probs.ndim - powers.ndim))
    return np.exp(scores, out=scores)


def target_probabilities(log_probs: np.ndarray, targets: np.ndarray, inverse_temperatures) -> np.ndarray:
    """Return the probabilities of the targets alone, shape (..., n_rows); see :func:`temperature_scale`."""
    scores = _scaled(log_probs, inverse_temperatures)
    return _of_targets(scores, targets) / np.einsum("...c->...", scores)


def fit_inverse_temperatures(clean_log_probs, clean_targets, noisy_log_probs, noisy_targets) -> np.ndarray:
    """Return for every member the inverse temperature at which it explains both sets best (arXiv 1706.04599).

    A prior that is worth a row keeps it near 1, so that five rows do not decide.

    Parameters
    ----------
    clean_log_probs : ndarray of shape (n_members, n_clean, n_classes)
    clean_targets : ndarray of shape (n_clean,)
    noisy_log_probs : ndarray of shape (n_members, n_noisy, n_classes)
    noisy_targets : ndarray of shape (n_noisy,)
        Labels of which some are wrong; see :func:`marginal_losses`.

    Returns
    -------
    inverse_temperatures : ndarray of shape (n_members,)
    """

    n_classes = clean_log_probs.shape[-1]

    def objective(logs):
        powers = np.exp(logs)
        clean = target_probabilities(clean_log_probs, clean_targets, powers).clip(LEAST_PROBABILITY)
        noisy = marginal_losses(target_probabilities(noisy_log_probs, noisy_targets, powers), n_classes)
        return (
            -np.log(clean).sum(axis=-1) + _NOISY_TEMPERATURE_WEIGHT * noisy.sum(axis=-1) + _TEMPERATURE_PRIOR * logs**2
        )

    return np.exp(_golden_section(objective, *_TEMPERATURE_BOUNDS, len(clean_log_probs)))


def _golden_section(objective, low: float, high: float, n: int) -> np.ndarray:
    """Minimise n functions of one number each, all at once."""
    low, high = np.full(n, low), np.full(n, high)
    left, right = high - _GOLDEN_RATIO * (high - low), low + _GOLDEN_RATIO * (high - low)
    of_left, of_right = objective(left), objective(right)
    for _ in range(_SEARCH_STEPS):
        falls = of_left > of_right  # the minimum lies to the right of `left`
        low, high = np.where(falls, left, low), np.where(falls, high, right)
        fresh = np.where(falls, low + _GOLDEN_RATIO * (high - low), high - _GOLDEN_RATIO * (high - low))
        left, right, values = np.where(falls, right, fresh), np.where(falls, fresh, left), objective(fresh)
        of_left, of_right = np.where(falls, of_right, values), np.where(falls, values, of_left)
    return (low + high) / 2


def stacking_weights(clean_losses: np.ndarray, noisy_losses: np.ndarray | None = None) -> np.ndarray:
    """Return the weight of every member.

    Weights fall with the distance to the best member, measured in standard errors of the paired difference: what few
    rows cannot tell apart is averaged.

    Parameters
    ----------
    clean_losses : ndarray of shape (n_members, n_clean)
        Of clean rows that the members were not trained on.
    noisy_losses : ndarray of shape (n_members, n_noisy) or None, default=None
        Of noisy rows; see :func:`marginal_losses`.

    Returns
    -------
    weights : ndarray of shape (n_members,)
        Positive, with sum 1.
    """
    logs = _log_weights(clean_losses)
    if noisy_losses is not None:
        logs = logs + _NOISY_LABEL_WEIGHT * _log_weights(noisy_losses)
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def _log_weights(losses: np.ndarray) -> np.ndarray:
    """Return 0 for the best member, and the less the farther another is behind.

    Of one row there is no standard error: it tells no member from another.
    """
    if losses.shape[1] < 2:
        return np.zeros(len(losses))
    n_rows = losses.shape[1]
    behind = losses - losses[losses.mean(axis=1).argmin()]
    error = np.hypot(behind.std(axis=1) / np.sqrt(n_rows), _LEAST_ERROR / n_rows)
    return -behind.mean(axis=1) / (_WEIGHT_TEMPERATURE * error + 1e-12)


def average(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted sum over the first axis."""
    return np.tensordot(weights.astype(values.dtype), values, axes=1)


def marginal_losses(right: np.ndarray, n_classes: int) -> np.ndarray:
    """Return how badly probabilities of true labels explain the labels that were given, some of which are wrong.

    A thousand noisy rows tell more of a member than twenty clean ones do, once the noise is allowed for.

    Parameters
    ----------
    right : ndarray of shape (..., n_rows)
        Probabilities of the given labels, by members that did not see them.
    n_classes : int

    Returns
    -------
    losses : ndarray of shape (..., n_rows)
        Minus the log-likelihood of each label, at the one rate of errors that makes all of them most likely.
    """
    return -one_rate(right, n_classes, n_iter=10)[1]


def one_rate(right: np.ndarray, n_classes: int, odds=1.0, n_iter: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Return the rate at which labels turn into any other, by expectation maximisation.

    Parameters
    ----------
    right : ndarray of shape (..., n_rows)
        Probabilities that the given label is the true one, before it is known that it was given.
    n_classes : int
    odds : ndarray of shape (n_rows,) or float, default=1.0
        Further evidence that the given label is right.
    n_iter : int, default=50

    Returns
    -------
    rate : ndarray of shape (...)
    log_likelihood : ndarray of shape (..., n_rows)
        Of every given label at this rate.
    """
    right = right.clip(LEAST_PROBABILITY**2)
    wrong = (1 - right) / (n_classes - 1)
    prior_right = n_classes * PRIOR_RIGHT + PRIOR_WRONG
    prior_wrong = (n_classes - 1) * PRIOR_WRONG
    believed = prior_right + prior_wrong
    rate = np.full((*right.shape[:-1], 1), prior_wrong / believed, dtype=right.dtype)
    for _ in range(n_iter):
        is_wrong = rate * wrong
        is_wrong /= is_wrong + (1 - rate) * odds * right
        rate = (is_wrong.sum(axis=-1, keepdims=True) + prior_wrong) / (right.shape[-1] + believed)
    return rate[..., 0], np.log(rate * wrong + (1 - rate) * right)


def _of_targets(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return probabilities[..., np.arange(len(targets)), targets]
