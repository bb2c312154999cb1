"""Train networks with a given alpha and let them judge the noisy rows (the read-out CDGD_T)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ._network import Network
from ._unroll import State, train


class Verdict(NamedTuple):
    """What the networks say of every noisy row.

    Attributes
    ----------
    state : State
        A network that was trained on all rows.
    probabilities : ndarray of shape (n_noisy, n_classes)
    losses : ndarray of shape (n_noisy,)
    """

    state: State
    probabilities: np.ndarray
    losses: np.ndarray


def judge(
    network: Network,
    noisy,
    clean,
    alpha: np.ndarray,
    *,
    clean_weight: float,
    folds: np.ndarray | None,
    n_judges: int,
    seed: int,
) -> Verdict:
    """Train on the alpha-weighted noisy rows, joined by the clean rows, and judge every noisy row.

    A network that was trained on a row has partly memorised its label, so with `folds` a row is judged by a network
    that was trained on the other folds only.

    Parameters
    ----------
    network : Network
    noisy, clean : pair of (X, codes)
    alpha : ndarray of shape (n_noisy,)
    clean_weight : float
        Weight of the whole clean set in the training, in units of the whole noisy set; 0 leaves the clean rows out.
    folds : ndarray of shape (n_noisy,) or None
        Fold of every noisy row. ``None``: every row is judged by networks that were trained on all.
    n_judges : int
        Number of networks, each from its own initialisation, whose answers are averaged.
    seed : int

    Returns
    -------
    Verdict
    """
    X, codes = noisy
    # Every row weighs as if its set was as large as the noisy one.
    clean_alpha = np.full(len(clean[0]), clean_weight * len(X) / len(clean[0]))

    def trained(rows: np.ndarray, seed: int) -> State:
        joined, weights = (X[rows], codes[rows]), alpha[rows]
        if clean_weight > 0:
            joined = tuple(np.concatenate(pair) for pair in zip(joined, clean, strict=True))
            weights = np.concatenate([weights, clean_alpha])
        weights = torch.as_tensor(weights, dtype=torch.float32, device=network.device)
        return train(network.problem(joined, clean), weights, network.plan(len(weights), seed))

    everyone = np.ones(len(X), dtype=bool)
    splits = [(everyone, everyone)] if folds is None else [(folds != fold, folds == fold) for fold in np.unique(folds)]
    probabilities, losses = np.zeros((len(X), network.n_classes)), np.zeros(len(X))
    for n, (kept, judged) in enumerate(splits):
        for m in range(n_judges):
            state = trained(kept, seed + 1 + n * n_judges + m)
            of_rows = assess(network, state, X[judged], codes[judged])
            probabilities[judged] += of_rows[0] / n_judges
            losses[judged] += of_rows[1] / n_judges
    return Verdict(state if folds is None else trained(everyone, seed), probabilities, losses)


def stratified_folds(codes: np.ndarray, n_folds: int, rng: np.random.RandomState) -> np.ndarray:
    """Deal the rows of every class to the folds like cards; a class may have fewer rows than there are folds."""
    order = np.lexsort((rng.random_sample(len(codes)), codes))
    folds = np.empty(len(codes), dtype=int)
    folds[order] = np.arange(len(codes)) % n_folds
    return folds


def assess(network: Network, state: State, X, codes) -> tuple[np.ndarray, np.ndarray]:
    """Return the class probabilities of every row and the loss of its label under one trained network."""
    return network.probabilities(state, X), network.row_losses(state, X, codes)
