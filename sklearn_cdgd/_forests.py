"""Forests as members of the ensemble: one of each kind for every clean fold, grown by the workers."""

from __future__ import annotations

import numpy as np

from ._inputs import as_vectors, concatenate_rows
from ._stacking import TREES, OutOfFold, log_losses
from ._trainer import Trainer
from ._trees import FORESTS, Forest, out_of_bag
from ._workers import Workers


def grow_forests(
    workers: Workers,
    weighting: str,
    weights: np.ndarray,
    clean_folds: np.ndarray,
    permuted_targets,
    seed: int,
    kinds: tuple[Forest, ...] = FORESTS,
) -> dict[tuple[str, str], OutOfFold]:
    """Grow forests on weighted noisy rows and the clean rows, and collect their out-of-bag predictions.

    Parameters
    ----------
    workers : Workers
        Of a :class:`Trainer`.
    weighting : str
        Name of the weights, for reports.
    weights : ndarray of shape (n_folds, n_noisy)
        Of the noisy rows where each clean fold is held out.
    clean_folds : ndarray of shape (n_clean,)
    permuted_targets : ndarray of shape (n_noisy, ...) or None
        Targets of other rows, where there are no labels.
    seed : int
    kinds : tuple of Forest, default=FORESTS

    Returns
    -------
    members : dict of (str, str) to OutOfFold
    """
    n_folds = int(clean_folds.max()) + 1
    jobs = [
        (kind, weights[fold], clean_folds, fold, permuted_targets, (seed + 7919 * number + fold) % (2**31 - 1))
        for number, kind in enumerate(kinds)
        for fold in range(n_folds)
    ]
    grown = workers(_grow, jobs)
    by_kind = zip(kinds, [grown[n : n + n_folds] for n in range(0, len(grown), n_folds)], strict=True)
    return {(f"{TREES}, {weighting}", kind.name): _joined(of_folds, clean_folds) for kind, of_folds in by_kind}


def _grow(trainer: Trainer, kind: Forest, weights, clean_folds, fold: int, permuted_targets, seed: int) -> OutOfFold:
    """Return what one forest says of all noisy rows, and of the clean rows that it does not know."""
    (X, targets), (X_clean, clean_targets), network = trainer.noisy, trainer.clean, trainer.network
    held_out = clean_folds == fold
    seen = ~held_out if not held_out.all() else held_out  # one clean row cannot be left out of itself
    all_rows = np.ones(len(targets), dtype=bool)
    answers, clean_answers, calibration_answers = out_of_bag(
        kind,
        as_vectors(concatenate_rows(X, all_rows, X_clean, seen)),
        np.concatenate([targets, clean_targets[seen]]),
        np.concatenate([weights, np.ones(seen.sum())]),
        as_vectors(X_clean[held_out]),
        n_classes=network.n_classes,
        seed=seed,
    )
    answers = answers[: len(targets)]
    loss = log_losses if network.n_classes is not None else network.prediction_losses
    return OutOfFold(
        answers=answers,
        losses=loss(answers, targets),
        clean_answers=clean_answers,
        clean_losses=loss(clean_answers, clean_targets[held_out]),
        calibration_answers=calibration_answers,
        calibration_losses=loss(calibration_answers, clean_targets[held_out]),
        permuted_losses=np.zeros(len(targets)) if permuted_targets is None else loss(answers, permuted_targets),
    )


def _joined(of_folds: list[OutOfFold], clean_folds: np.ndarray) -> OutOfFold:
    """Put what is said without every clean fold together."""
    order = np.argsort(np.concatenate([np.flatnonzero(clean_folds == fold) for fold in range(len(of_folds))]))

    def join(name: str) -> np.ndarray:
        parts = [getattr(of_fold, name) for of_fold in of_folds]
        return np.concatenate(parts)[order] if name.startswith(("clean", "calibration")) else np.stack(parts)

    return OutOfFold(**{name: join(name) for name in OutOfFold._fields})
