"""Kernel machines as members of the ensemble: cross-fitted by exact leave-one-out predictions."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from ._closed_form import Ridge, leave_one_out
from ._kernels import kernel_features
from ._new_pairs_closed_form import Encoding, KernelEnsemble
from ._stacking import OutOfFold, StackedEnsemble

_PENALTIES = (0.3, 1.0, 3.0, 10.0)
# What a clean row weighs, beside a noisy row's 1.
_CLEAN_WEIGHTS = (1.0, 5.0)
# One-hot targets are predicted about this much too flat; each member's own temperature is fitted in stacking.
INVERSE_TEMPERATURE = 6.0
# Bytes that the out-of-fold predictions of all members may take; beyond there is one machine for each weighting.
_MOST_BYTES = 2**29
_N_WEIGHTINGS = 3


class KernelMachine(NamedTuple):
    """A ridge regression on the features of one kernel.

    Attributes
    ----------
    kernel : int
        Which of the features.
    penalty : float
    coefficients : ndarray of shape (n_folds, n_features, n_outputs)
        Without each clean fold.
    out_of_fold : OutOfFold
    """

    kernel: int
    penalty: float
    coefficients: np.ndarray
    out_of_fold: OutOfFold


class KernelRows:
    """Both sets as kernel machines see them.

    Parameters
    ----------
    noisy, clean : pair of (X, targets)
    encoding : Encoding
    clean_folds : ndarray of shape (n_clean,)
    permuted_targets : ndarray of shape (n_noisy, ...) or None
        Targets of other rows, where there are no labels.
    uses_clean : bool
        Whether clean rows are trained on.
    seed : int
        Draws landmarks.

    Attributes
    ----------
    features : list of KernelFeatures
    noisy_features, clean_features : list of ndarray of shape (n_rows, n_features)
    noisy_targets, clean_targets : ndarray of shape (n_rows, n_outputs)
        Encoded.
    """

    def __init__(self, noisy, clean, encoding: Encoding, clean_folds, permuted_targets, uses_clean: bool, seed: int):
        self.noisy, self.clean, self.encoding, self.permuted_targets = noisy, clean, encoding, permuted_targets
        self.clean_folds, self.n_folds, self.n_noisy = clean_folds, int(clean_folds.max()) + 1, len(noisy[1])
        self.features = kernel_features(noisy[0], clean[0], seed)
        self.penalties, self.clean_weights = _PENALTIES, _CLEAN_WEIGHTS
        n_numbers = self.n_folds * self.n_noisy * (encoding.n_classes or 1)
        n_machines = _N_WEIGHTINGS * len(self.features) * len(self.penalties) * len(self.clean_weights)
        self.is_lean = 4 * n_numbers * n_machines > _MOST_BYTES
        if self.is_lean:
            self.features, self.penalties, self.clean_weights = self.features[:1], (1.0,), (1.0,)
        if not uses_clean:
            self.clean_weights = (0.0,)
        self.noisy_features = [of_kernel(noisy[0]) for of_kernel in self.features]
        self.clean_features = [of_kernel(clean[0]) for of_kernel in self.features]
        self.noisy_targets = encoding.encode(noisy[1]).astype(np.float32)
        self.clean_targets = encoding.encode(clean[1]).astype(np.float32)

    def cross_fit(self, weighting: str, weights: np.ndarray) -> dict[tuple[str, str], KernelMachine]:
        """Train machines of every kernel, penalty and clean weight, each clean fold held out in turn.

        Noisy rows are predicted without themselves. Costs n_rows * n_features**2 for every kernel, clean weight and
        clean fold.

        Parameters
        ----------
        weighting : str
            Name of the weights, for reports.
        weights : ndarray of shape (n_folds, n_noisy)
            Of the noisy rows where each clean fold is held out.

        Returns
        -------
        machines : dict of (str, str) to KernelMachine
        """
        machines = {}
        for kernel, clean_weight in itertools.product(range(len(self.features)), self.clean_weights):
            kind = f"{self.features[kernel].kernel.name}, {weighting}"
            for penalty, machine in zip(self.penalties, self._machines(kernel, clean_weight, weights), strict=True):
                machines[kind, f"penalty {penalty:g}, clean rows {clean_weight:g}"] = machine
        return machines

    def _machines(self, kernel: int, clean_weight: float, weights: np.ndarray) -> list[KernelMachine]:
        """Return a machine for every penalty."""
        rows = np.concatenate([self.noisy_features[kernel], self.clean_features[kernel]])
        targets = np.concatenate([self.noisy_targets, self.clean_targets])
        predictions = np.empty((len(self.penalties), self.n_folds, *targets.shape), dtype=targets.dtype)
        coefficients = np.empty(
            (len(self.penalties), self.n_folds, rows.shape[1], targets.shape[1]), dtype=targets.dtype
        )
        for fold, seen in enumerate(self.seen()):
            ridge = Ridge(rows, np.concatenate([weights[fold], clean_weight * seen]).astype(rows.dtype))
            for n, penalty in enumerate(self.penalties):
                coefficients[n, fold] = ridge.coefficients(targets, penalty)
                predictions[n, fold] = leave_one_out(rows @ coefficients[n, fold], targets, ridge.leverages(penalty))
        return [
            KernelMachine(kernel, penalty, coefficients[n], self._out_of_fold(predictions[n]))
            for n, penalty in enumerate(self.penalties)
        ]

    def seen(self) -> list[np.ndarray]:
        """Return the clean rows that are trained on where each fold is held out; all of them if there is one fold."""
        return [(self.clean_folds != fold) | (self.n_folds == 1) for fold in range(self.n_folds)]

    def _out_of_fold(self, predictions: np.ndarray) -> OutOfFold:
        """Return what predictions of shape (n_folds, n_rows, n_outputs) say of the rows that they were made without."""
        clean = predictions[self.clean_folds, self.n_noisy + np.arange(len(self.clean_folds))]
        answers = self.encoding.decode(predictions[:, : self.n_noisy], INVERSE_TEMPERATURE)
        clean_answers = self.encoding.decode(clean, INVERSE_TEMPERATURE)
        losses = np.stack([self.encoding.losses(of_fold, self.noisy[1]) for of_fold in answers])
        clean_losses = self.encoding.losses(clean_answers, self.clean[1])
        permuted_losses = np.zeros_like(losses)
        if self.permuted_targets is not None:
            permuted_losses = np.stack([self.encoding.losses(of_fold, self.permuted_targets) for of_fold in answers])
        return OutOfFold(
            answers=answers,
            losses=losses,
            clean_answers=clean_answers,
            clean_losses=clean_losses,
            calibration_answers=clean_answers,
            calibration_losses=clean_losses,
            permuted_losses=permuted_losses,
        )

    def averaged(self, machines: dict[tuple[str, str], KernelMachine], ensemble: StackedEnsemble) -> KernelEnsemble:
        """Return the machines of an ensemble as one for each kernel, their weights scaled up to a sum of 1."""
        members = zip(ensemble.names, ensemble.weights, ensemble.inverse_temperatures, strict=True)
        weighted = [(machines[name], weight, power) for name, weight, power in members if name in machines]
        total = sum(weight for _, weight, _ in weighted)
        scale = INVERSE_TEMPERATURE * ensemble.inverse_temperature if self.encoding.n_classes is not None else 1.0
        coefficients = [np.zeros(1) for _ in self.features]
        for machine, weight, power in weighted:
            factor = scale * power * (weight / total if total > 0 else 1 / len(weighted))
            coefficients[machine.kernel] = coefficients[machine.kernel] + factor * machine.coefficients
        return KernelEnsemble(self.features, coefficients, self.encoding)
