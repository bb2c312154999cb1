"""Label noise: from calibrated probabilities of the true class to the probability that a given label is right.

The noise transition, the rate at which labels of each class turn into others, is estimated from the noisy set itself;
with it Bayes' rule weighs a given label against the probabilities of members that did not see it.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from ._stacking import LEAST_PROBABILITY, PRIOR_RIGHT, PRIOR_WRONG, one_rate


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
        Row c holds the probabilities of each given label where c is true. All classes share one rate, at which labels
        turn into any other, unless the rows speak clearly for rates of their own: mistakes of the networks look like
        noise of the rarer classes. Fewer rows than n_classes**2 cannot speak clearly.
    """
    n_rows, n_classes = probabilities.shape
    probabilities = probabilities.clip(LEAST_PROBABILITY**2)
    # The evidence makes the given label of a row more probable, whatever the rates.
    odds = np.exp(np.clip(log_odds, -50, 50))
    rate, at_one_rate = one_rate(probabilities[np.arange(n_rows), given], n_classes, odds, n_iter)
    of_one_rate = np.where(np.eye(n_classes, dtype=bool), 1 - rate, rate / (n_classes - 1))
    if n_classes**2 > n_rows:  # more rates than rows would fit anything
        return of_one_rate
    # Two rows' worth of belief per class, most of it in labels being right.
    prior = PRIOR_RIGHT * np.eye(n_classes) + PRIOR_WRONG / n_classes
    is_given = np.eye(n_classes)[given]
    weights = probabilities * np.where(is_given, odds[..., None], 1.0)
    transition = prior / prior.sum(axis=1, keepdims=True)
    for _ in range(n_iter):
        joint = weights * transition.T[given]
        joint = (joint / joint.sum(axis=1, keepdims=True)).T @ is_given + prior
        transition = joint / joint.sum(axis=1, keepdims=True)
    own_fit = np.log((probabilities * transition.T[given]).sum(axis=1)).sum()
    # A rate counts where it stands for a row or more; each has to pay its way, four times as dearly as in the BIC.
    n_rates = ((joint - prior)[~np.eye(n_classes, dtype=bool)] >= 1).sum()
    pays = own_fit - at_one_rate.sum() > 2 * (n_rates - 1) * np.log(n_rows)
    return transition if pays else of_one_rate


def posterior(probabilities: np.ndarray, given: np.ndarray, transition: np.ndarray, log_odds=0.0) -> np.ndarray:
    """Return the probabilities of the true class once the given label is known.

    Parameters
    ----------
    probabilities : ndarray of shape (..., n_rows, n_classes)
    given : ndarray of shape (n_rows,)
    transition : ndarray of shape (n_classes, n_classes)
    log_odds : ndarray of shape (n_rows,) or float, default=0.0
        Further evidence that the given label is right.

    Returns
    -------
    probabilities : ndarray of shape (..., n_rows, n_classes)
    """
    weights = probabilities.clip(LEAST_PROBABILITY**2) * transition[:, given].T
    weights[..., np.arange(len(given)), given] *= np.exp(np.clip(log_odds, -50, 50))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def evidence_weight(clean_answers: np.ndarray, clean_targets: np.ndarray, transition: np.ndarray, evidence) -> float:
    """Return by how much one unit of the influence of a row changes the log-odds that its label is right.

    On some data influence tells more than networks do, on others it only points at rows that are hard. Clean rows that
    were left out decide, each once with its label and once with a wrong one, by a logistic regression of which label is
    right on what the networks say and on the influence. Wrong labels count as much as there are of them.

    Parameters
    ----------
    clean_answers : ndarray of shape (n_clean, n_classes)
        Probabilities by networks that did not see the rows.
    clean_targets : ndarray of shape (n_clean,)
    transition : ndarray of shape (n_classes, n_classes)
    evidence : Evidence
        With the values `right` and `wrong` of each clean row, and its `wrong_targets`.

    Returns
    -------
    weight : float
        At least 0.
    """

    def log_odds(targets):
        right = posterior(clean_answers, targets, transition)[np.arange(len(targets)), targets].clip(1e-6, 1 - 1e-6)
        return np.log(right / (1 - right))

    right, wrong = log_odds(clean_targets), log_odds(evidence.wrong_targets)
    rate = 1 - np.diag(transition).mean()

    def objective(factors):
        of_networks, of_evidence = factors
        losses = np.logaddexp(0, -of_networks * right - of_evidence * evidence.right)
        losses += rate / (1 - rate) * np.logaddexp(0, of_networks * wrong + of_evidence * evidence.wrong)
        # Worth a few rows: networks are believed as they are, and influence not at all.
        return losses.sum() + 2 * (of_networks - 1) ** 2 + of_evidence**2 / 2

    return float(minimize(objective, [1.0, 0.1], bounds=[(0.1, 3.0), (0.0, 3.0)]).x[1])
