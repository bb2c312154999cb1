"""Train networks with a given alpha and let them judge the noisy rows (the read-out CDGD_T)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ._inputs import concatenate_rows
from ._network import Network
from ._unroll import State, train


class Verdict(NamedTuple):
    """What the networks say of every row.

    Attributes
    ----------
    state : State
        A network that was trained on all rows.
    answers : ndarray of shape (n_noisy, ...)
        Class probabilities, or predictions.
    losses : ndarray of shape (n_noisy,)
    clean_losses : ndarray of shape (n_clean,)
    """

    state: State
    answers: np.ndarray
    losses: np.ndarray
    clean_losses: np.ndarray


def judge(
    network: Network,
    noisy,
    clean,
    alpha: np.ndarray,
    *,
    clean_weight: float,
    n_folds: int | None,
    n_judges: int,
    seed: int,
    rng: np.random.RandomState,
) -> Verdict:
    """Train on the alpha-weighted noisy rows, joined by the clean rows, and judge every row.

    A network that was trained on a row has partly memorised its target, so with folds a row is judged by networks
    that were trained on the other folds only.

    Parameters
    ----------
    network : Network
    noisy, clean : pair of (X, targets)
    alpha : ndarray of shape (n_noisy,)
    clean_weight : float
        Weight of the whole clean set in the training, in units of the whole noisy set; 0 leaves the clean rows out.
    n_folds : int or None
        ``None``: every row is judged by networks that were trained on all.
    n_judges : int
        Number of networks, each from its own initialisation, whose answers are averaged.
    seed : int
    rng : RandomState
        Deals the rows to the folds.

    Returns
    -------
    Verdict
    """
    n_noisy, n_clean = len(noisy[1]), len(clean[1])
    if clean_weight > 0:
        # Every clean row weighs as if its set was as large as the noisy one.
        noisy_and_clean = concatenate_rows(noisy[0], clean[0]), np.concatenate([noisy[1], clean[1]])
        weights = np.concatenate([alpha, np.full(n_clean, clean_weight * n_noisy / n_clean)])
    else:
        noisy_and_clean, weights = noisy, alpha
    X, targets = noisy_and_clean

    def trained(rows: np.ndarray, seed: int) -> State:
        of_rows = torch.as_tensor(weights[rows], dtype=torch.float32, device=network.device)
        return train(network.problem((X[rows], targets[rows]), clean), of_rows, network.plan(len(of_rows), seed))

    everyone = np.ones(len(targets), dtype=bool)
    splits = [(everyone, everyone)]
    if n_folds is not None:
        folds = np.concatenate([deal(part, n_folds, rng) for part in (targets[:n_noisy], targets[n_noisy:])])
        splits = [(folds != fold, folds == fold) for fold in np.unique(folds)]
    answers, losses, clean_losses = None, np.zeros(len(targets)), np.zeros(n_clean)
    for n, (kept, judged) in enumerate(splits):
        for m in range(n_judges):
            state = trained(kept, seed + 1 + n * n_judges + m)
            answer, loss = assess(network, state, X[judged], targets[judged])
            if answers is None:
                answers = np.zeros((len(targets), *answer.shape[1:]))
            answers[judged] += answer / n_judges
            losses[judged] += loss / n_judges
            if clean_weight == 0:  # no judge was trained on a clean row, so all of them judge all
                clean_losses += network.row_losses(state, *clean) / (n_judges * len(splits))
    if clean_weight > 0:
        clean_losses = losses[n_noisy:]
    if n_folds is not None:
        state = trained(everyone, seed)
    return Verdict(state, answers[:n_noisy], losses[:n_noisy], clean_losses)


def deal(targets: np.ndarray, n_folds: int, rng: np.random.RandomState) -> np.ndarray:
    """Deal rows to folds like cards, sorted by target, so that every fold gets its part of every class."""
    first = targets if targets.ndim == 1 else targets[:, 0]
    order = np.lexsort((rng.random_sample(len(first)), first))
    folds = np.empty(len(first), dtype=int)
    folds[order] = np.arange(len(first)) % n_folds
    return folds


def assess(network: Network, state: State, X, targets) -> tuple[np.ndarray, np.ndarray]:
    """Return the answer for every row and the loss of its target under one trained network."""
    return network.answers(state, X), network.row_losses(state, X, targets)
