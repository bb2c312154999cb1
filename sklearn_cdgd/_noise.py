"""How labels were turned into others, estimated from the noisy set itself.

Three laws compete. *One rate*: every label turns into any other at the same rate. *Rates of the classes*: every class
turns into every other at a rate of its own. *Plausible errors*, as people make them: rows that are hard to tell are
wrong more often, and a wrong label is one that could be mistaken for the right one. More numbers have to pay their way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.utils.random import sample_without_replacement

# Probabilities of networks are not believed beyond this.
LEAST = 1e-4
# What the log-likelihood must gain for each number of a law, in logarithms of the number of rows: 1/2 is the BIC.
_PRICE = 2
# Probabilities that plausible errors are found by: of so many rows that this costs a second at most.
_PLAUSIBLE_NUMBERS = 500_000


class Plausible(NamedTuple):
    """Errors that people would make.

    Attributes
    ----------
    log_odds : float
        That a label is wrong, where the row is half as hard as it can be.
    slope : float
        By which they rise from a row that is certain to one of which nothing is known; at least 0.
    power : float
        Of the probabilities that a wrong label is drawn by, in [0, 1]: 0 for any other label, 1 for what networks
        themselves would mistake the row for.
    """

    log_odds: float
    slope: float
    power: float

    def rates(self, probabilities: np.ndarray) -> np.ndarray:
        """Return how often each row has a wrong label, shape (n_rows,)."""
        entropy = -(probabilities * np.log(probabilities)).sum(axis=1) / np.log(probabilities.shape[1])
        return 1 / (1 + np.exp(-self.log_odds - self.slope * (entropy - 0.5)))

    def attraction(self, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how much each label of each row attracts, and how much all labels but this one do."""
        attraction = probabilities**self.power
        return attraction, (attraction.sum(axis=1, keepdims=True) - attraction).clip(1e-12)


class Noise(NamedTuple):
    """How labels were turned into others.

    Attributes
    ----------
    transition : ndarray of shape (n_classes, n_classes)
        Row c holds the probabilities of each given label where c is true, in the mean over rows.
    plausible : Plausible or None, default=None
        Where it depends on the row too.
    """

    transition: np.ndarray
    plausible: Plausible | None = None

    @property
    def rate(self) -> float:
        return float(1 - np.diag(self.transition).mean())

    def likelihood(self, probabilities: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Return how probable the given label of each row is for every class that could be true.

        Parameters
        ----------
        probabilities : ndarray of shape (n_rows, n_classes)
            Of the true class, by networks that did not see the given label.
        given : ndarray of shape (n_rows,)
            Given labels as 0 .. n_classes - 1.

        Returns
        -------
        likelihood : ndarray of shape (n_rows, n_classes)
        """
        if self.plausible is None:
            return self.transition.T[given]
        rows, probabilities = np.arange(len(given)), probabilities.clip(LEAST**2)
        rates, (attraction, of_others) = self.plausible.rates(probabilities), self.plausible.attraction(probabilities)
        found = (rates * attraction[rows, given])[:, None] / of_others
        found[rows, given] = 1 - rates
        return found


def noise_of(probabilities: np.ndarray, given: np.ndarray, log_odds=0.0) -> Noise:
    """Estimate how labels were turned into others.

    Parameters
    ----------
    probabilities : ndarray of shape (n_rows, n_classes)
        Of the true class, by networks that did not see the given label.
    given : ndarray of shape (n_rows,)
        Given labels as 0 .. n_classes - 1.
    log_odds : ndarray of shape (n_rows,) or float, default=0.0
        Further evidence that the given label is right.

    Returns
    -------
    noise : Noise
        By the law that explains the given labels best, once its numbers are paid for: mistakes of the networks look
        like noise of the rarer classes, or like errors that people would make.
    """
    n_rows, n_classes = probabilities.shape
    some = _some_rows(n_rows, n_classes)
    # With two classes a wrong label is the other one, however plausible.
    if n_classes > 2 and n_rows > 0:
        plausible, worth = _plausible_errors(probabilities[some].clip(LEAST**2), given[some])
        if worth > _by_classes(probabilities[some], given[some], 0.0, n_iter=50)[1]:
            return Noise(_mean_transition(probabilities[some].clip(LEAST**2), plausible), plausible)
    return Noise(noise_transition(probabilities, given, log_odds))


def _some_rows(n_rows: int, n_classes: int):
    n_chosen = max(250, _PLAUSIBLE_NUMBERS // n_classes)
    return slice(None) if n_rows <= n_chosen else sample_without_replacement(n_rows, n_chosen, random_state=0)


def _worth(log_likelihood: float, n_numbers: int, n_rows: int) -> float:
    return log_likelihood - _PRICE * n_numbers * np.log(max(n_rows, 1))


# --- one rate, and rates of the classes -------------------------------------------------------------------------------


def noise_transition(probabilities: np.ndarray, given: np.ndarray, log_odds=0.0, n_iter: int = 50) -> np.ndarray:
    """Estimate at which rate labels of every class were turned into others, by expectation maximisation.

    Parameters
    ----------
    probabilities, given, log_odds
        As for :func:`noise_of`.
    n_iter : int, default=50

    Returns
    -------
    transition : ndarray of shape (n_classes, n_classes)
        Row c holds the probabilities of each given label where c is true. All classes share one rate, at which labels
        turn into any other, unless the rows speak clearly for rates of their own.
    """
    return _by_classes(probabilities, given, log_odds, n_iter)[0]


def _by_classes(probabilities, given, log_odds, n_iter: int) -> tuple[np.ndarray, float]:
    """Return the transition, and the log-likelihood of the given labels less the price of its numbers."""
    n_rows, n_classes = probabilities.shape
    probabilities = probabilities.clip(LEAST**2)
    # Two rows' worth of belief per class, most of it in labels being right.
    prior = 1.6 * np.eye(n_classes) + 0.2 / n_classes
    is_given = np.eye(n_classes)[given]
    # The evidence makes the given label of a row more probable, whatever the rates.
    odds = np.exp(np.clip(log_odds, -50, 50))
    weights = probabilities * np.where(is_given, odds[..., None], 1.0)
    transition = prior / prior.sum(axis=1, keepdims=True)
    for _ in range(n_iter):
        joint = weights * transition.T[given]
        joint = (joint / joint.sum(axis=1, keepdims=True)).T @ is_given + prior
        transition = joint / joint.sum(axis=1, keepdims=True)
    own_fit = np.log((probabilities * transition.T[given]).sum(axis=1)).sum()
    believed = np.trace(prior), prior.sum() - np.trace(prior)
    rate, at_one_rate = one_rate(probabilities, given, odds, believed, n_iter)
    # A rate counts where it stands for a row or more.
    n_rates = ((joint - prior)[~np.eye(n_classes, dtype=bool)] >= 1).sum()
    of_own_rates, of_one_rate = _worth(own_fit, n_rates, n_rows), _worth(at_one_rate.sum(), 1, n_rows)
    if of_own_rates > of_one_rate:
        return transition, of_own_rates
    return np.where(np.eye(n_classes, dtype=bool), 1 - rate, rate / (n_classes - 1)), of_one_rate


def one_rate(probabilities, given, odds, believed, n_iter: int) -> tuple[float, np.ndarray]:
    """Return the rate at which labels turn into any other, and the log-likelihood of every given label at it.

    Parameters
    ----------
    probabilities, given, n_iter
        As for :func:`noise_transition`.
    odds : ndarray of shape (n_rows,) or float
        Further evidence that the given label is right.
    believed : pair of float
        Rows that are right and wrong, before any is seen.
    """
    n_rows, n_classes = probabilities.shape
    right = probabilities[np.arange(n_rows), given]
    wrong = (1 - right) / (n_classes - 1)
    rate = believed[1] / sum(believed)
    for _ in range(n_iter):
        is_wrong = rate * wrong / (rate * wrong + (1 - rate) * odds * right)
        rate = (is_wrong.sum() + believed[1]) / (n_rows + sum(believed))
    return rate, np.log(rate * wrong + (1 - rate) * right)


# --- plausible errors -------------------------------------------------------------------------------------------------


def _plausible_errors(probabilities: np.ndarray, given: np.ndarray) -> tuple[Plausible, float]:
    """Return the likeliest law of plausible errors, and its log-likelihood less the price of its numbers."""
    rows = np.arange(len(given))
    right = probabilities[rows, given]

    def log_likelihood(law: Plausible) -> float:
        rates, (attraction, of_others) = law.rates(probabilities), law.attraction(probabilities)
        drawn = probabilities / of_others
        wrong = attraction[rows, given] * (drawn.sum(axis=1) - drawn[rows, given])
        return np.log((rates * wrong + (1 - rates) * right).clip(1e-300)).sum()

    def objective(numbers):
        law = Plausible(*numbers)
        # Worth less than a row: where the rows say nothing, the rate is the same for all.
        return -log_likelihood(law) + 0.1 * law.slope**2 + 0.5 * law.power**2

    found = minimize(objective, [-1.0, 1.0, 0.3], bounds=[(-8.0, 3.0), (0.0, 6.0), (0.0, 1.0)], method="L-BFGS-B")
    law = Plausible(*map(float, found.x))
    return law, _worth(log_likelihood(law), len(law), len(given))


def _mean_transition(probabilities: np.ndarray, law: Plausible) -> np.ndarray:
    """Return at which rate labels of every class turn into others, in the mean over rows."""
    attraction, of_others = law.attraction(probabilities)
    wrong = probabilities * law.rates(probabilities)[:, None]
    into = (wrong / of_others).T @ attraction
    np.fill_diagonal(into, (probabilities - wrong).sum(axis=0))
    return into / into.sum(axis=1, keepdims=True)
