"""From what networks say of rows and of held-out clean rows to the probability that a given label is right.

The steps: networks that were trained in different ways share the say by how they do on clean rows that they did not
see, the sharpness of their probabilities is set on the same rows, and the given label is weighed against the rate at
which labels of each class turn into others, which is estimated from the noisy set itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

# Probabilities of networks are not believed beyond this.
_LEAST = 1e-4
# Candidates this many standard errors behind the best in held-out loss keep a say of exp(-1).
_PATIENCE = 1 / 3
# What one unit of alpha adds to the log-odds that a label is right, and takes from the logarithm of a loss.
_ALPHA_LOG_ODDS = 2.0
_ALPHA_LOG_LOSS = 0.3


class Opinion(NamedTuple):
    """What networks that were trained in one way say of rows that they were not trained on.

    Attributes
    ----------
    answers : ndarray of shape (n_folds, n_noisy, ...)
        Class probabilities or predictions for the noisy rows, by the networks that do not know each clean fold.
    losses : ndarray of shape (n_folds, n_noisy)
    clean_answers : ndarray of shape (n_clean, ...)
        The same for clean rows, by all networks that do not know them.
    clean_losses : ndarray of shape (n_clean,)
    lone_answers : ndarray of shape (n_clean, ...)
        By as few of these networks as judge a noisy row: what a noisy row can be compared with.
    lone_losses : ndarray of shape (n_clean,)
    """

    answers: np.ndarray
    losses: np.ndarray
    clean_answers: np.ndarray
    clean_losses: np.ndarray
    lone_answers: np.ndarray
    lone_losses: np.ndarray


class Panel(NamedTuple):
    """Several opinions, and how much of the say each has.

    Attributes
    ----------
    names : tuple of str
        In which way the networks were trained.
    opinions : list of Opinion
    held_out : ndarray of shape (n_opinions, n_clean)
        Losses of the clean rows, which decide the shares.
    shares : ndarray of shape (n_opinions,)
    blended : Opinion
    """

    names: tuple[str, ...]
    opinions: list[Opinion]
    held_out: np.ndarray
    shares: np.ndarray
    blended: Opinion


def mixed(opinions: list[Opinion], shares: np.ndarray) -> Opinion:
    """Return the mean of opinions with the given shares of the say."""
    return Opinion(*(np.tensordot(shares, np.stack(parts), axes=1) for parts in zip(*opinions, strict=True)))


def log_losses(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the log-loss of every row, shape (n_rows,)."""
    return -np.log(probabilities[np.arange(len(targets)), targets].clip(_LEAST))


def shares(held_out_losses: np.ndarray) -> np.ndarray:
    """Return how much of the say each kind of network has.

    Parameters
    ----------
    held_out_losses : ndarray of shape (n_kinds, n_clean)
        Losses of clean rows that the networks were not trained on.

    Returns
    -------
    shares : ndarray of shape (n_kinds,)
        Positive, with sum 1. They fall with the distance to the best kind, measured in standard errors of the paired
        difference: what a small clean set cannot tell apart is averaged.
    """
    best = held_out_losses[held_out_losses.mean(axis=1).argmin()]
    behind = held_out_losses - best
    error = behind.std(axis=1) / np.sqrt(behind.shape[1])
    weights = np.exp(-behind.mean(axis=1) / (_PATIENCE * error + 1e-12))
    return weights / weights.sum()


def sharpened(probabilities: np.ndarray, power: float) -> np.ndarray:
    """Return probabilities proportional to their power: above 1 sharper, below 1 flatter."""
    logs = power * np.log(probabilities.clip(_LEAST**2))
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def calibrating_power(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Return the power that makes probabilities of held-out clean rows fit their labels best.

    A prior that is worth a few rows keeps it near 1, so that five rows do not decide.
    """

    def objective(log_power):
        losses = log_losses(sharpened(probabilities, np.exp(log_power)), targets)
        return losses.sum() + 2 * log_power**2

    return float(np.exp(minimize_scalar(objective, bounds=(-1.5, 1.0), method="bounded").x))


def noise_transition(probabilities: np.ndarray, given: np.ndarray, log_odds=0.0, n_iter: int = 50) -> np.ndarray:
    """Estimate at which rate labels of every class were turned into others, by expectation maximisation.

    Parameters
    ----------
    probabilities : ndarray of shape (n_rows, n_classes)
        Of the true class, by networks that did not see the given label.
    given : ndarray of shape (n_rows,)
        Given labels as 0 .. n_classes - 1.
    log_odds : ndarray of shape (n_rows,) or float, default=0.0
        Further evidence that the given label is right.
    n_iter : int, default=50

    Returns
    -------
    transition : ndarray of shape (n_classes, n_classes)
        Row c holds the probabilities of each given label where c is true.
    """
    n_classes = probabilities.shape[1]
    # Two rows' worth of belief per class, most of it in labels being right.
    prior = 1.6 * np.eye(n_classes) + 0.2 / n_classes
    transition = prior / prior.sum(axis=1, keepdims=True)
    given_as_columns = np.eye(n_classes)[given]
    for _ in range(n_iter):
        joint = posterior(probabilities, given, transition, log_odds).T @ given_as_columns + prior
        transition = joint / joint.sum(axis=1, keepdims=True)
    return transition


def posterior(probabilities: np.ndarray, given: np.ndarray, transition: np.ndarray, log_odds=0.0) -> np.ndarray:
    """Return the probabilities of the true class once the given label is known, shape (n_rows, n_classes)."""
    weights = probabilities.clip(_LEAST**2) * transition[:, given].T
    rows = np.arange(len(given))
    weights[rows, given] *= np.exp(log_odds)
    return weights / weights.sum(axis=1, keepdims=True)


def alpha_log_odds(alpha: np.ndarray) -> np.ndarray:
    """Return the evidence of the inclusion variable for a label being right: none at its mean."""
    return _ALPHA_LOG_ODDS * (alpha - alpha.mean())


def alpha_log_loss(alpha: np.ndarray) -> np.ndarray:
    """Return the evidence of the inclusion variable where there are no labels: what it adds to the log of a loss."""
    return _ALPHA_LOG_LOSS * (alpha.mean() - alpha)


def best_expected_f1(suspicion: np.ndarray) -> float:
    """Return the probability from which on flagging rows gives the best expected F1.

    Parameters
    ----------
    suspicion : ndarray of shape (n_rows,)
        Probabilities that rows are corrupted.

    Returns
    -------
    limit : float
        Rows above it are flagged. It lies near half the F1 that is to be expected: 0.5 where rows are clear, lower
        where flags have to be gambled on.
    """
    ordered = np.sort(suspicion)[::-1]
    f1 = 2 * np.cumsum(ordered) / (np.arange(1, len(ordered) + 1) + ordered.sum() + 1e-12)
    last = int(f1.argmax())
    following = ordered[last + 1] if last + 1 < len(ordered) else 0.0
    return float((ordered[last] + following) / 2)


def share_of_clean(losses: np.ndarray, clean_losses: np.ndarray) -> np.ndarray:
    """Return, where there are no labels, a weight for every row: how much commoner its loss is among clean rows.

    The share of clean rows with as great a loss, in units of the share of all noisy rows with as great a loss, at
    most 1: an estimate of the probability that a row with such a loss is right.
    """
    clean, noisy = np.sort(clean_losses), np.sort(losses)
    of_clean = (len(clean) - np.searchsorted(clean, losses) + 1) / (len(clean) + 1)
    of_noisy = (len(noisy) - np.searchsorted(noisy, losses)) / len(noisy)
    weights, order = np.minimum(1, of_clean / of_noisy), np.argsort(losses, kind="stable")
    weights[order] = np.minimum.accumulate(weights[order])
    return weights
