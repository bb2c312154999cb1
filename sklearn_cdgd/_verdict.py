"""Train networks with a given alpha and let them judge the noisy rows (the read-out CDGD_T)."""

from __future__ import annotations

from collections.abc import Iterator
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
        The network that was trained on all rows.
    probabilities : ndarray of shape (n_noisy, n_classes)
    losses : ndarray of shape (n_noisy,)
    """

    state: State
    probabilities: np.ndarray
    losses: np.ndarray


def judge(
    network: Network, noisy, clean, alpha: np.ndarray, *, clean_weight: float, folds: np.ndarray | None, seed: int
):
    """Train on the alpha-weighted noisy rows, joined by the clean rows, and judge every noisy row.

    A network that was trained on a row has partly memorised its label, so with `folds` a row is judged by a network
    that was trained on the other folds only.

    Parameters
    ----------
    network : Network
    noisy, clean : pair of (X, codes)
    alpha : ndarray of shape (n_noisy,)
    clean_weight : float
        Weight of every clean row in the training; 0 leaves the clean rows out.
    folds : ndarray of shape (n_noisy,) or None
        Fold of every noisy row. ``None``: every row is judged by the one network that was trained on all.
    seed : int

    Returns
    -------
    Verdict
    """
    state = _train_on(network, noisy, clean, alpha, clean_weight, seed)
    if folds is None:
        return Verdict(state, *assess(network, state, *noisy))
    X, codes = noisy
    probabilities, losses = np.empty((len(X), network.n_classes)), np.empty(len(X))
    for fold, (kept, judged) in enumerate(_splits(folds)):
        judge_state = _train_on(network, (X[kept], codes[kept]), clean, alpha[kept], clean_weight, seed + 1 + fold)
        probabilities[judged], losses[judged] = assess(network, judge_state, X[judged], codes[judged])
    return Verdict(state, probabilities, losses)


def stratified_folds(codes: np.ndarray, n_folds: int, rng: np.random.RandomState) -> np.ndarray:
    """Deal the rows of every class to the folds like cards; a class may have fewer rows than there are folds."""
    order = np.lexsort((rng.random_sample(len(codes)), codes))
    folds = np.empty(len(codes), dtype=int)
    folds[order] = np.arange(len(codes)) % n_folds
    return folds


def _splits(folds: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for fold in np.unique(folds):
        judged = folds == fold
        yield ~judged, judged


def _train_on(network: Network, noisy, clean, alpha, clean_weight, seed) -> State:
    if clean_weight > 0:
        noisy = tuple(np.concatenate(pair) for pair in zip(noisy, clean, strict=True))
        alpha = np.concatenate([alpha, np.full(len(clean[0]), clean_weight)])
    weights = torch.as_tensor(alpha, dtype=torch.float32, device=network.device)
    return train(network.problem(noisy, clean), weights, network.plan(len(weights), seed))


def assess(network: Network, state: State, X, codes) -> tuple[np.ndarray, np.ndarray]:
    """Return the class probabilities of every row and the loss of its label under one trained network."""
    return network.probabilities(state, X), network.row_losses(state, X, codes)
