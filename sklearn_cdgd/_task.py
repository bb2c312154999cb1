"""What y is: labels or numbers. Everything that differs between the two, apart from the training itself."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels

from ._decision import conformal_p_values, flag_by_loss, flag_by_prediction, loss_limit
from ._posterior import (
    Opinion,
    Panel,
    alpha_log_loss,
    best_expected_f1,
    calibrating_power,
    evidence_weight,
    log_losses,
    marginal_losses,
    mixed,
    noise_transition,
    posterior,
    rows_to_explain,
    shares,
    sharpened,
    suspicion_by_loss,
)
from ._warnings import warn_user

# What noisy and clean rows are compared by.
_COMPARED = ("answers", "losses", "lone_answers", "lone_losses")
# Classes with so many clean rows are calibrated by their own: fewer would make p-values too coarse.
_CALIBRATING_ROWS = 200


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
            own, others = clean_folds == fold, _of_other_folds(clean_folds, fold)
            of_others = self._weighed(opinions, grounds._replace(known=others, folds=[fold]))[-1]
            for name, values in compared.items():
                rows = own if name.startswith("lone") else fold
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
            warn_user(
                f"The clean set has no row of class {', '.join(repr(c) for c in absent.tolist())}. "
                "Nothing verified speaks for these labels, so their rows are likely to be flagged: add clean rows."
            )
        return cls(classes)

    def encode(self, y):
        if not np.isin(y, self.classes).all():
            unknown = np.setdiff1d(y, self.classes).tolist()
            raise ValueError(f"labels that were not seen in fit: {unknown}. Known are {self.classes.tolist()}.")
        return np.searchsorted(self.classes, y)

    def decode(self, targets):
        return self.classes[targets]

    def knows(self, y):
        classes = set(self.classes.tolist())
        return np.array([label in classes for label in y.tolist()])

    def flags(self, targets, answers, losses, limit):
        return flag_by_prediction(answers, targets) if limit is None else flag_by_loss(losses, limit)

    def scores(self, targets, answers, losses, limit):
        return _of_targets(answers, targets)

    def _weighed(self, opinions, grounds):
        sharp = [_sharpened(opinion, grounds) for opinion in opinions.values()]
        held_out = np.stack([log_losses(opinion.clean_answers, grounds.clean_targets) for opinion in sharp])
        of_noisy = np.stack([marginal_losses(_said(opinion, grounds), grounds.targets) for opinion in sharp])
        say = shares(held_out[:, grounds.known], of_noisy)
        return sharp, held_out, say, _sharpened(mixed(sharp, say), grounds)

    def rightness(self, opinion, targets, clean_folds):
        return np.stack(
            [_rightness(of_fold, targets, noise_transition(of_fold, targets)) for of_fold in opinion.answers]
        )

    def conclude(self, panel, targets, clean_targets, alpha, evidence, clean_folds):
        opinion, log_odds = panel.blended, 0.0
        probabilities = opinion.answers.mean(axis=0)
        if evidence is not None:
            transition = noise_transition(probabilities, targets)
            log_odds = evidence.noisy * evidence_weight(opinion.clean_answers, clean_targets, transition, evidence)
        transition = noise_transition(probabilities, targets, log_odds)
        answers = posterior(probabilities, targets, transition, log_odds)
        clean_answers = posterior(opinion.clean_answers, clean_targets, transition)
        right = _of_targets(answers, targets)
        suspicious = best_expected_f1(1 - right)
        flagged = [
            [1 - _rightness(of_fold, targets, transition, log_odds) > suspicious for of_fold in member.answers]
            for member in panel.opinions
        ]
        p_values, n_compared = self._p_values(panel.compared, targets, clean_targets, clean_folds)
        return Conclusion(
            answers,
            log_losses(answers, targets),
            float(-np.log1p(-suspicious)),
            clean_answers,
            log_losses(clean_answers, clean_targets),
            right,
            transition,
            _frequency(panel, flagged),
            p_values,
            n_compared,
            panel._replace(opinions=[], compared=None),
        )

    def _p_values(self, opinion: Opinion, targets, clean_targets, clean_folds) -> tuple[np.ndarray, int]:
        """Return p-values, and the number of clean rows that the largest group of rows is compared with."""
        # The rates of a fold come from noisy rows only, so its clean rows have no part in what they are compared by.
        transitions = [noise_transition(answers, targets) for answers in opinion.answers]
        pairs = zip(opinion.answers, transitions, strict=True)
        scores = np.stack([_rightness(answers, targets, transition) for answers, transition in pairs])
        clean_scores = np.empty(len(clean_targets))
        for fold, transition in enumerate(transitions):
            own = clean_folds == fold
            clean_scores[own] = _rightness(opinion.lone_answers[own], clean_targets[own], transition)
        n_clean = np.bincount(clean_targets, minlength=self.n_classes)
        # A class without clean rows has nothing that it could be compared with.
        by_itself = (n_clean >= _CALIBRATING_ROWS) | (n_clean == 0)
        groups = np.where(by_itself, np.arange(self.n_classes), -1)
        of_groups = groups[targets], groups[clean_targets]
        p_values = conformal_p_values(scores, clean_scores, clean_folds, *of_groups)
        return p_values, int(np.unique(of_groups[1], return_counts=True)[1].max())

    def plain_limit(self, clean_losses):
        return None

    def confront(self, targets, answers, losses, transition):
        if transition is None:
            return answers, losses
        answers = posterior(answers, targets, transition)
        return answers, log_losses(answers, targets)

    def columns(self, targets, answers):
        return {
            "given_label": self.decode(targets),
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

    def decode(self, targets):
        return targets

    def knows(self, y):
        return np.ones(len(y), dtype=bool)

    def flags(self, targets, answers, losses, limit):
        return flag_by_loss(losses, limit)

    def scores(self, targets, answers, losses, limit):
        return expit((limit - losses) / max(abs(limit), np.finfo(float).tiny))

    def _weighed(self, opinions, grounds):
        members = [*opinions.values()]
        held_out = np.stack([opinion.clean_losses for opinion in members])
        say = shares(held_out[:, grounds.known])
        return members, held_out, say, mixed(members, say)

    def rightness(self, opinion, targets, clean_folds):
        known = [opinion.clean_losses[_of_other_folds(clean_folds, fold)] for fold in range(len(opinion.losses))]
        of_folds = zip(opinion.losses, known, opinion.swapped_losses, strict=True)
        return np.stack([1 - suspicion_by_loss(*losses) for losses in of_folds])

    def conclude(self, panel, targets, clean_targets, alpha, evidence, clean_folds):
        opinion = panel.blended
        # Losses of a criterion of the user's can be negative; alpha raises or lowers what is above the least of them.
        least, factor = min(0.0, opinion.losses.min(), opinion.clean_losses.min()), np.exp(alpha_log_loss(alpha))

        def raised(losses):
            return (losses - least) * factor + least

        losses = raised(opinion.losses.mean(axis=0))
        suspicion = suspicion_by_loss(losses, opinion.clean_losses, opinion.swapped_losses.mean(axis=0))
        spared = suspicion <= best_expected_f1(suspicion)
        # Where every row is better flagged, the limit is the least loss there is.
        limit = float(losses[spared].max() if spared.any() else losses.min())
        flagged = [raised(o.losses) > limit for o in panel.opinions]
        return Conclusion(
            opinion.answers.mean(axis=0),
            losses,
            limit,
            opinion.clean_answers,
            opinion.clean_losses,
            1 - suspicion,
            None,
            _frequency(panel, flagged),
            conformal_p_values(-panel.compared.losses, -panel.compared.lone_losses, clean_folds),
            len(clean_targets),
            panel._replace(opinions=[], compared=None),
        )

    def plain_limit(self, clean_losses):
        return loss_limit(clean_losses)

    def confront(self, targets, answers, losses, transition):
        return answers, losses

    def columns(self, targets, answers):
        answers = answers.reshape(len(targets), -1)
        targets = targets.reshape(len(targets), -1)
        names = [""] if targets.shape[1] == 1 else [f"_{n}" for n in range(targets.shape[1])]
        given = {f"given_target{name}": column for name, column in zip(names, targets.T, strict=True)}
        names = [""] if answers.shape[1] == 1 else [f"_{n}" for n in range(answers.shape[1])]
        return given | {f"predicted_target{name}": column for name, column in zip(names, answers.T, strict=True)}


def _of_other_folds(clean_folds: np.ndarray, fold: int) -> np.ndarray:
    """Return which clean rows may decide on what rows of a fold are compared with; all of them if there is one fold."""
    own = clean_folds == fold
    return own if own.all() else ~own


def _of_targets(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return probabilities[np.arange(len(targets)), targets]


def _rightness(probabilities: np.ndarray, targets: np.ndarray, transition: np.ndarray, log_odds=0.0) -> np.ndarray:
    """Return how probable the given labels are, once it is known that they were given."""
    return _of_targets(posterior(probabilities, targets, transition, log_odds), targets)


def _frequency(panel: Panel, flagged: list) -> np.ndarray | None:
    """Return how often the members of a panel flag each row; ``None`` if their opinions were not kept."""
    return panel.shares @ np.mean(flagged, axis=1) if panel.opinions else None


def _said(opinion: Opinion, grounds: Grounds) -> np.ndarray:
    """Return what is said of the noisy rows that decide."""
    return opinion.answers[np.ix_(grounds.folds, grounds.rows)].mean(axis=0)


def _sharpened(opinion: Opinion, grounds: Grounds) -> Opinion:
    known = grounds.known
    clean = opinion.clean_answers[known], grounds.clean_targets[known]
    power = calibrating_power(*clean, _said(opinion, grounds), grounds.targets)
    fields = ("answers", "clean_answers", "lone_answers")
    return opinion._replace(**{name: sharpened(getattr(opinion, name), power) for name in fields})


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
    except TypeError as error:
        raise TypeError(f"{argument}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{argument}: {error}") from error
