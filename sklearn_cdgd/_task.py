"""What y is: labels or numbers. What the two have in common, apart from the training itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from ._posterior import Opinion, Panel, rows_to_explain

# What noisy and clean rows are compared by.
_COMPARED = ("answers", "losses", "stand_in_answers", "stand_in_losses")


class Conclusion(NamedTuple):
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
    panel : Panel or None, default=None
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
    panel: Panel | None = None


class Grounds(NamedTuple):
    """What decides how much each opinion has to say, and how it is calibrated.

    Attributes
    ----------
    clean_targets : ndarray of shape (n_clean,)
    known : bool array of shape (n_clean,)
        The clean rows that decide.
    rows : int array of shape (n_rows,)
        The noisy rows that decide.
    targets : ndarray of shape (n_rows,)
        Of these.
    folds : list of int
        The clean folds of which the networks that do not know them are asked about the noisy rows.
    """

    clean_targets: np.ndarray
    known: np.ndarray
    rows: np.ndarray
    targets: np.ndarray
    folds: list[int]


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

    def convene(self, opinions: dict[tuple[str, str], Opinion], targets, clean_targets, clean_folds) -> Panel:
        """Blend opinions: each contributes by how it does on the clean rows, and by how it explains the noisy ones."""
        folds, known = [*range(clean_folds.max() + 1)], np.ones(len(clean_targets), dtype=bool)
        rows = rows_to_explain(len(targets), self.n_classes or 1)
        grounds = Grounds(clean_targets, known, rows, targets[rows], folds)
        members, held_out, say, blended = self._weighed(opinions, grounds)
        compared = {name: np.empty_like(getattr(blended, name)) for name in _COMPARED}
        for fold in folds:
            own, others = clean_folds == fold, of_other_folds(clean_folds, fold)
            of_others = self._weighed(opinions, grounds._replace(known=others, folds=[fold]))[-1]
            for name, values in compared.items():
                rows = own if name.startswith("stand_in") else fold
                values[rows] = getattr(of_others, name)[rows]
        return Panel(tuple(opinions), members, held_out, say, blended, blended._replace(**compared))

    @abstractmethod
    def _weighed(self, opinions, grounds: Grounds) -> tuple[list[Opinion], np.ndarray, np.ndarray, Opinion]:
        """Return opinions, their losses on clean rows, their shares, and their blend."""

    @abstractmethod
    def rightness(self, opinion: Opinion, targets, clean_folds) -> np.ndarray:
        """Return a weight in [0, 1] for every clean fold and noisy row, large if the row seems right.

        The rows of the clean fold have no part in it, if they have none in the answers.
        """

    @abstractmethod
    def conclude(self, panel: Panel, targets, clean_targets, alpha, evidence, clean_folds) -> Conclusion:
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


def frequency(panel: Panel, flagged: list) -> np.ndarray | None:
    """Return how often the members of a panel flag each row; ``None`` if their opinions were not kept."""
    return panel.shares @ np.mean(flagged, axis=1) if panel.opinions else None


@contextmanager
def naming(argument: str):
    """Say which argument a message of scikit-learn is about; it calls them X and y whatever they are."""
    try:
        yield
    except TypeError as error:
        raise TypeError(f"{argument}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{argument}: {error}") from error
