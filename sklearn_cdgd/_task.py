"""What y is: labels or numbers. Everything that differs between the two, apart from the training itself."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels

from ._decision import flag_by_loss, flag_by_prediction


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
    def flags(self, targets, answers, losses, limit) -> np.ndarray: ...

    @abstractmethod
    def scores(self, targets, answers, losses, limit) -> np.ndarray:
        """Return how well the answers agree with the targets, in [0, 1]."""

    @abstractmethod
    def columns(self, targets, answers) -> dict[str, np.ndarray]:
        """Return the columns of the review table that show targets and answers."""


@dataclass(frozen=True)
class Classification(Task):
    """Labels, encoded as positions in the sorted classes of both sets."""

    classes: np.ndarray

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @staticmethod
    def check(y):
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        check_classification_targets(y)
        return y

    @classmethod
    def of(cls, y, y_clean):
        try:
            classes = unique_labels(y, y_clean)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"y and y_clean hold labels of different types that cannot be sorted together: {error}. "
                "Use either strings or numbers in both."
            ) from error
        if len(classes) < 2:
            raise ValueError(
                f"y and y_clean hold one class only, {classes.tolist()[0]!r}: at least two classes are needed."
            )
        absent = np.setdiff1d(y, y_clean)
        if len(absent):
            warnings.warn(
                f"The clean set has no row of class {', '.join(repr(c) for c in absent.tolist())}. "
                "Nothing verified speaks for these labels, so their rows are likely to be flagged: add clean rows.",
                UserWarning,
                stacklevel=6,
            )
        return cls(classes)

    def encode(self, y):
        if not np.isin(y, self.classes).all():
            unknown = np.setdiff1d(y, self.classes).tolist()
            raise ValueError(f"labels that were not seen in fit: {unknown}. Known are {self.classes.tolist()}.")
        return np.searchsorted(self.classes, y)

    def flags(self, targets, answers, losses, limit):
        return flag_by_prediction(answers, targets)

    def scores(self, targets, answers, losses, limit):
        return answers[np.arange(len(targets)), targets]

    def columns(self, targets, answers):
        return {
            "given_label": self.classes[targets],
            "suggested_label": self.classes[answers.argmax(axis=1)],
            "suggested_probability": answers.max(axis=1),
        }


@dataclass(frozen=True)
class Regression(Task):
    """Numbers, one or several a row; also what a net with a criterion of its own takes."""

    @staticmethod
    def check(y):
        with np.errstate(over="ignore"):  # too large for float32: the check finds it infinite
            y = check_array(y, ensure_2d=False, dtype=np.float32, input_name="y")
        return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y

    @classmethod
    def of(cls, y, y_clean):
        if y.shape[1:] != y_clean.shape[1:]:
            raise ValueError(f"y_clean has targets of shape {y_clean.shape[1:]}, y of shape {y.shape[1:]}.")
        if (y == y[0]).all():
            raise ValueError("y holds one value only: there is nothing to learn from it.")
        return cls()

    def encode(self, y):
        return y

    def flags(self, targets, answers, losses, limit):
        return flag_by_loss(losses, limit)

    def scores(self, targets, answers, losses, limit):
        return 1 / (1 + losses / limit)

    def columns(self, targets, answers):
        answers = answers.reshape(len(targets), -1)
        targets = targets.reshape(len(targets), -1)
        names = [""] if targets.shape[1] == 1 else [f"_{n}" for n in range(targets.shape[1])]
        given = {f"given_target{name}": column for name, column in zip(names, targets.T, strict=True)}
        names = [""] if answers.shape[1] == 1 else [f"_{n}" for n in range(answers.shape[1])]
        return given | {f"predicted_target{name}": column for name, column in zip(names, answers.T, strict=True)}


def kind_of(y) -> type[Task]:
    """Return the task that targets of this type pose.

    Numbers that are not whole are no labels, nor are more than 20 different numbers of which the average one stands in
    fewer than ten rows.
    """
    try:
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            kind = type_of_target(y)
    except (ValueError, TypeError):  # what is wrong with y is said by the check
        return Classification
    if kind == "multiclass" and np.asarray(y).dtype.kind in "iuf":
        n_distinct = len(np.unique(y))
        return Regression if n_distinct > max(20, len(y) / 10) else Classification
    return Regression if kind.startswith(("continuous", "multilabel", "multiclass-multioutput")) else Classification


@contextmanager
def naming(argument: str):
    """Say which argument a message of scikit-learn is about; it calls them X and y whatever they are."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"{argument}: {error}") from error
