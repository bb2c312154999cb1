"""From what networks say of rows and of held-out clean rows to the probability that a given label is right.

The steps: networks that were trained in different ways share the say by how they do on clean rows that they did not
see, the sharpness of their probabilities is set on the same rows, and the given label is weighed against the rate at
which labels of each class turn into others, which is estimated from the noisy set itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression
from sklearn.utils.random import sample_without_replacement

# Probabilities of networks are not believed beyond this.
_LEAST = 1e-4
# Candidates this many standard errors behind the best in held-out loss keep a say of exp(-1).
_PATIENCE = 2 / 3
# What the fit to a noisy label counts for, beside that to a clean one. They are many, and they favour a witness who was
# taught by them, wrong ones included.
_HEED = 0.1
# How noisy labels are explained is seen by so many rows, fewer where there are many classes, so that it costs little.
_FIT_ROWS, _FIT_NUMBERS = (250, 1000), 20_000
# Witnesses that are no networks.
TREES, NEIGHBORS = "trees", "nearest neighbours"
# What one unit of alpha takes from the logarithm of a loss, where there are no labels.
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
    stand_in_answers : ndarray of shape (n_clean, ...)
        By as few of these networks as judge a noisy row, all folds together: what a noisy row can be compared with.
    stand_in_losses : ndarray of shape (n_clean,)
    swapped_losses : ndarray of shape (n_folds, n_noisy)
        Of the noisy rows with the targets of others; zeros where there are labels.
    """

    answers: np.ndarray
    losses: np.ndarray
    clean_answers: np.ndarray
    clean_losses: np.ndarray
    stand_in_answers: np.ndarray
    stand_in_losses: np.ndarray
    swapped_losses: np.ndarray


class Panel(NamedTuple):
    """Several opinions, and how much of the say each has.

    Attributes
    ----------
    names : tuple of (str, str)
        In which way the witnesses were trained, and after which part of the training they were asked.
    opinions : list of Opinion
    held_out : ndarray of shape (n_opinions, n_clean)
        Losses of the clean rows, which decide the shares.
    shares : ndarray of shape (n_opinions,)
    blended : Opinion
    compared : Opinion or None
        The same, where the clean rows of each fold had no part in what is said without them: noisy and clean rows are
        compared by it.
    """

    names: tuple[tuple[str, str], ...]
    opinions: list[Opinion]
    held_out: np.ndarray
    shares: np.ndarray
    blended: Opinion
    compared: Opinion | None = None

    @property
    def are_networks(self) -> np.ndarray:
        """Which opinions are those of networks, bool array of shape (n_opinions,)."""
        return np.array([not name.startswith((TREES, NEIGHBORS)) for name, _ in self.names])


def mixed(opinions: list[Opinion], shares: np.ndarray) -> Opinion:
    """Return the mean of opinions with the given shares of the say."""
    return Opinion(*(np.tensordot(shares, np.stack(parts), axes=1) for parts in zip(*opinions, strict=True)))


def log_losses(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the log-loss of every row, shape (n_rows,)."""
    return -np.log(probabilities[np.arange(len(targets)), targets].clip(_LEAST))


def rows_to_explain(n_rows: int, n_classes: int) -> np.ndarray:
    """Return the numbers of the noisy rows whose labels witnesses have to explain: all of few, a sample of many."""
    n_chosen = int(np.clip(_FIT_NUMBERS // n_classes, *_FIT_ROWS))
    return np.arange(n_rows) if n_rows <= n_chosen else sample_without_replacement(n_rows, n_chosen, random_state=0)


def marginal_losses(probabilities: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return how badly probabilities of true labels explain the labels that were given, some of which are wrong.

    A thousand noisy rows tell more of a witness than twenty clean ones do, once the noise is allowed for.

    Parameters
    ----------
    probabilities : ndarray of shape (n_rows, n_classes)
        Of the true class, by networks that did not see the given label.
    given : ndarray of shape (n_rows,)

    Returns
    -------
    losses : ndarray of shape (n_rows,)
        Minus the log-likelihood of each label, at the noise that makes all of them most likely.
    """
    n_rows, n_classes = probabilities.shape
    probabilities = probabilities.clip(_LEAST**2)
    if n_classes**2 > n_rows:  # too few rows for rates of each class, and one rate is found without large tables
        return -_one_rate(probabilities, given, 1.0, (1.8, 0.2), n_iter=20)[1]
    transition = noise_transition(probabilities, given, n_iter=20)
    return -np.log((probabilities * transition.T[given]).sum(axis=1))


def shares(clean_losses: np.ndarray, noisy_losses: np.ndarray | None = None) -> np.ndarray:
    """Return how much of the say each kind of witness has.

    Parameters
    ----------
    clean_losses : ndarray of shape (n_kinds, n_clean)
        Of clean rows that the witnesses were not trained on.
    noisy_losses : ndarray of shape (n_kinds, n_noisy) or None, default=None
        Of noisy rows; see :func:`marginal_losses`.

    Returns
    -------
    shares : ndarray of shape (n_kinds,)
        Positive, with sum 1. They fall with the distance to the best kind, measured in standard errors of the paired
        difference: what few rows cannot tell apart is averaged.
    """
    logs = _standing(clean_losses)
    if noisy_losses is not None:
        logs = logs + _HEED * _standing(noisy_losses)
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def _standing(losses: np.ndarray) -> np.ndarray:
    """Return 0 for the best kind, and the less the farther another is behind.

    Of one row there is no standard error: it tells no kind from another.
    """
    if losses.shape[1] < 2:
        return np.zeros(len(losses))
    behind = losses - losses[losses.mean(axis=1).argmin()]
    error = behind.std(axis=1) / np.sqrt(behind.shape[1])
    return -behind.mean(axis=1) / (_PATIENCE * error + 1e-12)


def sharpened(probabilities: np.ndarray, power: float) -> np.ndarray:
    """Return probabilities proportional to their power: above 1 sharper, below 1 flatter."""
    logs = power * np.log(probabilities.clip(_LEAST**2))
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def calibrating_power(probabilities: np.ndarray, targets: np.ndarray, of_noisy=None, given=None) -> float:
    """Return the power that makes probabilities of held-out rows fit their labels best.

    A prior that is worth a few rows keeps it near 1, so that five rows do not decide.

    Parameters
    ----------
    probabilities : ndarray of shape (n_clean, n_classes)
    targets : ndarray of shape (n_clean,)
    of_noisy : ndarray of shape (n_noisy, n_classes) or None, default=None
        The same for rows whose labels may be wrong; see :func:`marginal_losses`.
    given : ndarray of shape (n_noisy,) or None, default=None

    Returns
    -------
    power : float
    """

    def objective(log_power):
        power = np.exp(log_power)
        loss = log_losses(sharpened(probabilities, power), targets).sum() + 2 * log_power**2
        return loss if of_noisy is None else loss + _HEED * marginal_losses(sharpened(of_noisy, power), given).sum()

    return float(np.exp(minimize_scalar(objective, bounds=(-1.5, 2.5), method="bounded", options={"xatol": 0.02}).x))


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
    probabilities = probabilities.clip(_LEAST**2)
    # Two rows' worth of belief per class, most of it in labels being right.
    prior = 1.6 * np.eye(n_classes) + 0.2 / n_classes
    believed = np.trace(prior), prior.sum() - np.trace(prior)
    # The evidence makes the given label of a row more probable, whatever the rates.
    odds = np.exp(np.clip(log_odds, -50, 50))
    rate, at_one_rate = _one_rate(probabilities, given, odds, believed, n_iter)
    of_one_rate = np.where(np.eye(n_classes, dtype=bool), 1 - rate, rate / (n_classes - 1))
    if n_classes**2 > n_rows:  # more rates than rows would fit anything
        return of_one_rate
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


def _one_rate(probabilities, given, odds, believed, n_iter: int) -> tuple[float, np.ndarray]:
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


def posterior(probabilities: np.ndarray, given: np.ndarray, transition: np.ndarray, log_odds=0.0) -> np.ndarray:
    """Return the probabilities of the true class once the given label is known, shape (n_rows, n_classes)."""
    weights = probabilities.clip(_LEAST**2) * transition[:, given].T
    rows = np.arange(len(given))
    weights[rows, given] *= np.exp(np.clip(log_odds, -50, 50))
    return weights / weights.sum(axis=1, keepdims=True)


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


def suspicion_by_loss(losses: np.ndarray, clean_losses: np.ndarray, swapped_losses: np.ndarray) -> np.ndarray:
    """Return, where there are no labels, the probability that each row is wrong, given its loss.

    Losses of right rows are those of clean rows, losses of wrong ones those of targets that belong to other rows. The
    share of wrong rows is the one that makes the losses of the noisy rows most likely.

    Parameters
    ----------
    losses : ndarray of shape (n_rows,)
    clean_losses : ndarray of shape (n_clean,)
    swapped_losses : ndarray of shape (n_swapped,)
        All by networks that did not see the rows.

    Returns
    -------
    suspicion : ndarray of shape (n_rows,)
        In (0, 1), rising with the loss.
    """
    n_clean, n_swapped = len(clean_losses), len(swapped_losses)
    kind = np.repeat([0.0, 1.0], [n_clean, n_swapped])
    weights = np.repeat([1 / n_clean, 1 / n_swapped], [n_clean, n_swapped])
    least = 1 / (n_clean + 2)  # what no clean row tells is not believed
    of_loss = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip")
    swapped = of_loss.fit(np.concatenate([clean_losses, swapped_losses]), kind, weights).predict(losses)
    odds, share = swapped / (1 - swapped), 0.1
    for _ in range(200):  # expectation maximisation, with two rows' worth of belief
        wrong = share * odds / (1 - share + share * odds)
        share = (wrong.sum() + 0.2) / (len(wrong) + 2)
    return wrong
