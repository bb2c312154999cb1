"""Targets that are numbers: how they are checked, and what losses say of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from sklearn.utils import check_array, column_or_1d

from ._decision import best_expected_f1, conformal_p_values, flag_by_loss, loss_limit
from ._stacking import OutOfFold, StackedEnsemble, average, stacking_weights
from ._target_noise import alpha_log_loss, p_wrong_by_loss
from ._task import LabelQuality, Task, frequency, of_other_folds


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

    def _fit_stacking(self, names, stacked, data):
        weights = stacking_weights(stacked.clean_losses[:, data.known])
        ensemble = OutOfFold(*(average(values, weights) for values in stacked))
        ones = np.ones(len(weights))
        return StackedEnsemble(names, stacked.clean_losses, weights, ones, 1.0, ensemble, members=stacked)

    def rightness(self, opinion, targets, clean_folds):
        known = [opinion.clean_losses[of_other_folds(clean_folds, fold)] for fold in range(len(opinion.losses))]
        of_folds = zip(opinion.losses, known, opinion.permuted_losses, strict=True)
        return np.stack([1 - p_wrong_by_loss(*losses) for losses in of_folds])

    def estimate_label_quality(self, panel, targets, clean_targets, alpha, evidence, clean_folds):
        opinion = panel.ensemble
        # Losses of a criterion of the user's can be negative; alpha raises or lowers what is above the least of them.
        least, factor = min(0.0, opinion.losses.min(), opinion.clean_losses.min()), np.exp(alpha_log_loss(alpha))

        def raised(losses):
            return (losses - least) * factor + least

        losses = raised(opinion.losses.mean(axis=0))
        suspicion = p_wrong_by_loss(losses, opinion.clean_losses, opinion.permuted_losses.mean(axis=0))
        spared = suspicion <= best_expected_f1(suspicion)
        # Where every row is better flagged, the limit is the least loss there is.
        limit = float(losses[spared].max() if spared.any() else losses.min())
        flag_frequency = None if panel.members is None else frequency(panel, raised(panel.members.losses) > limit)
        return LabelQuality(
            opinion.answers.mean(axis=0),
            losses,
            limit,
            opinion.clean_answers,
            opinion.clean_losses,
            1 - suspicion,
            None,
            flag_frequency,
            conformal_p_values(-panel.cross_fitted.losses, -panel.cross_fitted.calibration_losses, clean_folds),
            len(clean_targets),
            panel._replace(members=None, cross_fitted=None),
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
