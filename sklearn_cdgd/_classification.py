"""Targets that are labels: how they are checked and encoded, and what probabilities say of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels

from ._decision import best_expected_f1, conformal_p_values, flag_by_loss, flag_by_prediction
from ._label_noise import evidence_weight, noise_transition, posterior
from ._stacking import (
    LEAST_PROBABILITY,
    OutOfFold,
    StackedEnsemble,
    average,
    fit_inverse_temperatures,
    log_losses,
    log_probabilities,
    marginal_losses,
    relative,
    stacking_weights,
    target_probabilities,
    temperature_scale,
)
from ._task import LabelQuality, Task, frequency
from ._warnings import warn_user

# What a member says as probabilities.
_PROBABILITIES = ("answers", "clean_answers", "calibration_answers")
# Classes with so many clean rows are calibrated by their own: fewer would make p-values too coarse.
_CALIBRATING_ROWS = 200


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

    def _stacked(self, members):
        stacked = super()._stacked(members)
        # Averages of logarithms are what is calibrated: each is taken once.
        return stacked._replace(**{name: log_probabilities(getattr(stacked, name)) for name in _PROBABILITIES})

    def _fit_stacking(self, names, stacked, data):
        known, clean_targets = data.known, data.clean_targets[data.known]

        def fit_temperatures(clean, noisy):
            return fit_inverse_temperatures(clean[:, known], clean_targets, noisy, data.targets)

        noisy = relative(stacked.answers[:, :, data.rows].mean(axis=1))
        powers = fit_temperatures(stacked.clean_answers, noisy)
        clean_losses = -np.log(
            target_probabilities(stacked.clean_answers, data.clean_targets, powers).clip(LEAST_PROBABILITY)
        )
        noisy_losses = marginal_losses(target_probabilities(noisy, data.targets, powers), self.n_classes)
        weights = stacking_weights(clean_losses[:, known], noisy_losses)
        logs = {name: relative(average(getattr(stacked, name), weights * powers))[None] for name in _PROBABILITIES}
        noisy = relative(logs["answers"][:, :, data.rows].mean(axis=1))
        power = fit_temperatures(logs["clean_answers"], noisy)
        answers = {name: temperature_scale(values, power)[0].astype(np.float64) for name, values in logs.items()}
        ensemble = OutOfFold(
            **answers,
            losses=np.zeros(stacked.losses.shape[1:]),
            clean_losses=log_losses(answers["clean_answers"], data.clean_targets),
            calibration_losses=log_losses(answers["calibration_answers"], data.clean_targets),
            permuted_losses=np.zeros(stacked.losses.shape[1:]),
        )
        members = stacked._replace(answers=temperature_scale(stacked.answers, powers))
        return StackedEnsemble(names, clean_losses, weights, powers, float(power[0]), ensemble, members=members)

    def rightness(self, opinion, targets, clean_folds):
        return np.stack(
            [_rightness(of_fold, targets, noise_transition(of_fold, targets)) for of_fold in opinion.answers]
        )

    def estimate_label_quality(self, panel, targets, clean_targets, alpha, evidence, clean_folds):
        opinion, log_odds = panel.ensemble, 0.0
        probabilities = opinion.answers.mean(axis=0)
        if evidence is not None:
            transition = noise_transition(probabilities, targets)
            log_odds = evidence.noisy * evidence_weight(opinion.clean_answers, clean_targets, transition, evidence)
        transition = noise_transition(probabilities, targets, log_odds)
        answers = posterior(probabilities, targets, transition, log_odds)
        clean_answers = posterior(opinion.clean_answers, clean_targets, transition)
        right = _of_targets(answers, targets)
        suspicious = best_expected_f1(1 - right)
        flag_frequency = None
        if panel.members is not None:
            flagged = 1 - _rightness(panel.members.answers, targets, transition, log_odds) > suspicious
            flag_frequency = frequency(panel, flagged)
        p_values, n_compared = self._p_values(panel.cross_fitted, targets, clean_targets, clean_folds)
        return LabelQuality(
            answers,
            log_losses(answers, targets),
            float(-np.log1p(-suspicious)),
            clean_answers,
            log_losses(clean_answers, clean_targets),
            right,
            transition,
            flag_frequency,
            p_values,
            n_compared,
            panel._replace(members=None, cross_fitted=None),
        )

    def _p_values(self, opinion: OutOfFold, targets, clean_targets, clean_folds) -> tuple[np.ndarray, int]:
        """Return p-values, and the number of clean rows that the largest group of rows is compared with."""
        # The rates of a fold come from noisy rows only, so its clean rows have no part in what they are compared by.
        transitions = [noise_transition(answers, targets) for answers in opinion.answers]
        pairs = zip(opinion.answers, transitions, strict=True)
        scores = np.stack([_rightness(answers, targets, transition) for answers, transition in pairs])
        clean_scores = np.empty(len(clean_targets))
        for fold, transition in enumerate(transitions):
            own = clean_folds == fold
            clean_scores[own] = _rightness(opinion.calibration_answers[own], clean_targets[own], transition)
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


def are_labels(y) -> bool:
    """Tell whether targets are labels by their type.

    Numbers that are not whole are no labels, nor are more than 20 different numbers of which the average one stands in
    fewer than ten rows.
    """
    try:
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            kind = type_of_target(y)
    except (ValueError, TypeError):  # what is wrong with y is said by the check
        return True
    if kind == "multiclass" and np.asarray(y).dtype.kind in "iuf":
        n_distinct = len(np.unique(y))
        return n_distinct <= max(20, len(y) / 10)
    return not kind.startswith(("continuous", "multilabel", "multiclass-multioutput"))


def _of_targets(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return probabilities[..., np.arange(len(targets)), targets]


def _rightness(probabilities: np.ndarray, targets: np.ndarray, transition: np.ndarray, log_odds=0.0) -> np.ndarray:
    """Return how probable the given labels are, once it is known that they were given."""
    return _of_targets(posterior(probabilities, targets, transition, log_odds), targets)
