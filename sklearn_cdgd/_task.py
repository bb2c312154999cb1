"""What y is: labels or numbers. What the two have in common, apart from the training itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from ._stacking import OutOfFold, StackedEnsemble, StackingData, rows_to_explain

# What noisy and clean rows are compared by.
_COMPARED = ("answers", "losses", "calibration_answers", "calibration_losses")
_OF_FOLDS = ("answers", "losses", "permuted_losses")


class LabelQuality(NamedTuple):
    """What is held of every noisy row in the end.

    Attributes
    ----------
    answers : ndarray of shape (n_noisy, ...)
        Probabilities of the true class, or predictions.
    losses : ndarray of shape (n_noisy,)
        How badly the answers fit what was given.
    limit : float or None
        Rows whose loss is above are flagged; ``None``: rows whose label is not the most probable one.
    clean_answers, clean_losses
        The same for the clean rows, by networks that did not see them.
    rightness : ndarray of shape (n_noisy,) or None, default=None
        Weight of every row in a training that wants right rows only, in [0, 1].
    transition : ndarray of shape (n_classes, n_classes) or None, default=None
        Classification: estimated rates at which labels of every class (row) were turned into others (column).
    flag_frequency : ndarray of shape (n_noisy,) or None, default=None
        Share of the witnesses, by their say, that would flag the row if they were asked alone.
    p_values : ndarray of shape (n_noisy,) or None, default=None
        Conformal p-values of the hypothesis that the row is right.
    n_compared : int, default=0
        Number of clean rows that they come from; where classes are compared with their own, of the largest class.
    panel : StackedEnsemble or None, default=None
        Who judged; without the opinions.
    """

    answers: np.ndarray
    losses: np.ndarray
    limit: float | None
    clean_answers: np.ndarray
    clean_losses: np.ndarray
    rightness: np.ndarray | None = None
    transition: np.ndarray | None = None
    flag_frequency: np.ndarray | None = None
    p_values: np.ndarray | None = None
    n_compared: int = 0
    panel: StackedEnsemble | None = None


class Task(ABC):
    """How targets are checked and encoded, and what the answers of a network say of them.

    Throughout, `targets` are encoded, `answers` come from :meth:`Network.answers`, `losses` has one entry a row, and
    `limit` is the loss above which a row is flagged where there are no labels to compare.
    """

    n_classes: int | None = None

    @staticmethod
    @abstractmethod
    def check(y) -> np.ndarray:
        """Return `y` as an array, or raise."""

    @classmethod
    @abstractmethod
    def of(cls, y: np.ndarray, y_clean: np.ndarray) -> Task:
        """Return the task that the checked targets of both sets pose."""

    @abstractmethod
    def encode(self, y: np.ndarray) -> np.ndarray:
        """Return checked targets as a network takes them."""

    @abstractmethod
    def decode(self, targets: np.ndarray) -> np.ndarray:
        """Return what was encoded."""

    @abstractmethod
    def knows(self, y: np.ndarray) -> np.ndarray:
        """Return which of the targets can be encoded."""

    @abstractmethod
    def flags(self, targets, answers, losses, limit) -> np.ndarray: ...

    @abstractmethod
    def scores(self, targets, answers, losses, limit) -> np.ndarray:
        """Return how well the answers agree with the targets, in [0, 1]."""

    def fit_stacking(
        self, members: dict[tuple[str, str], OutOfFold], targets, clean_targets, clean_folds
    ) -> StackedEnsemble:
        """Fit weights and temperatures of members on held-out clean rows and on the labels of noisy rows, and average.

        Parameters
        ----------
        members : dict of (str, str) to OutOfFold
        targets : ndarray of shape (n_noisy, ...)
        clean_targets : ndarray of shape (n_clean, ...)
        clean_folds : ndarray of shape (n_clean,)

        Returns
        -------
        StackedEnsemble
        """
        names, stacked = tuple(members), self._stacked([*members.values()])
        rows = rows_to_explain(len(targets), self.n_classes or 1)
        data = StackingData(clean_targets, np.ones(len(clean_targets), dtype=bool), rows, targets[rows])
        whole = self._fit_stacking(names, stacked, data)
        compared = {name: np.empty_like(getattr(whole.ensemble, name)) for name in _COMPARED}
        for fold in range(clean_folds.max() + 1):
            own = clean_folds == fold
            of_fold = stacked._replace(**{name: getattr(stacked, name)[:, [fold]] for name in _OF_FOLDS})
            without = self._fit_stacking(
                names, of_fold, data._replace(known=of_other_folds(clean_folds, fold))
            ).ensemble
            for name, values in compared.items():
                if name in _OF_FOLDS:
                    values[fold] = getattr(without, name)[0]
                else:
                    values[own] = getattr(without, name)[own]
        return whole._replace(cross_fitted=whole.ensemble._replace(**compared))

    def _stacked(self, members: list[OutOfFold]) -> OutOfFold:
        """Return all members along a further first axis."""
        return OutOfFold(*(np.stack(parts) for parts in zip(*members, strict=True)))

    @abstractmethod
    def _fit_stacking(self, names, stacked: OutOfFold, data: StackingData) -> StackedEnsemble:
        """Return the ensemble whose weights and temperatures are fitted on the given rows."""

    @abstractmethod
    def rightness(self, opinion: OutOfFold, targets, clean_folds) -> np.ndarray:
        """Return a weight in [0, 1] for every clean fold and noisy row, large if the row seems right.

        The rows of the clean fold have no part in it, if they have none in the answers.
        """

    @abstractmethod
    def estimate_label_quality(
        self, panel: StackedEnsemble, targets, clean_targets, alpha, evidence, clean_folds
    ) -> LabelQuality:
        """Weigh what networks say of rows that they did not see against their targets, and against their influence."""

    @abstractmethod
    def plain_limit(self, clean_losses) -> float | None:
        """Return the limit of the paper's rule, given losses of clean rows."""

    @abstractmethod
    def confront(self, targets, answers, losses, transition) -> tuple[np.ndarray, np.ndarray]:
        """Return answers and losses of new pairs once their targets are known."""

    @abstractmethod
    def columns(self, targets, answers) -> dict[str, np.ndarray]:
        """Return the columns of the review table that show targets and answers."""


def of_other_folds(clean_folds: np.ndarray, fold: int) -> np.ndarray:
    """Return which clean rows may decide on what rows of a fold are compared with; all of them if there is one fold."""
    own = clean_folds == fold
    return own if own.all() else ~own


def frequency(panel: StackedEnsemble, flagged: np.ndarray) -> np.ndarray:
    """Return how often the members flag each row, by their weights and as a mean over the clean folds.

    Parameters
    ----------
    panel : StackedEnsemble
    flagged : bool ndarray of shape (n_members, n_folds, n_noisy)

    Returns
    -------
    frequency : ndarray of shape (n_noisy,)
    """
    return panel.weights @ flagged.mean(axis=1)


@contextmanager
def naming(argument: str):
    """Say which argument a message of scikit-learn is about; it calls them X and y whatever they are."""
    try:
        yield
    except TypeError as error:
        raise TypeError(f"{argument}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{argument}: {error}") from error
