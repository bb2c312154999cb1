"""alpha for a pair of row and label that was not in the fit.

The trainings that alpha was learnt from are watched at some of their inner steps. From these snapshots the influence
that a new pair would have had on the clean loss follows, and what alpha the training rows of the same influence got.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression

from ._hypergradient import Snapshot
from ._influence import influence
from ._inputs import rows_at_once
from ._network import Network
from ._optimizers import Tensors
from ._unroll import BatchPlan

# Snapshots are taken in the first part of a training. Later the network has partly memorised the rows that it is
# trained on, and treats a new row unlike a training row of the same kind.
_WATCHED_PART = 1 / 3
# So many snapshots rank new pairs as well as ten times as many.
N_SNAPSHOTS = 48
# A large network gets fewer of them: as many as fit in so many bytes, but at least four.
_SNAPSHOT_BYTES = 1e8
# Rows at a time: the influence needs the graph of two derivatives.
_CHUNK = 1024
# Training rows that say which alpha goes with which influence; more would say the same.
_CALIBRATION_ROWS = 5000
_GOLDEN_RATIO = 0.6180339887


class Watch:
    """Chooses the inner steps of the trainings of an outer loop of which snapshots are taken.

    Parameters
    ----------
    plan : BatchPlan
        Of any of the trainings.
    n_trainings : int
        How many there will be at most.
    params : tuple of Tensor
        Of one network; their size decides how many snapshots are kept.
    n_stacked : int
        Number of networks that are trained at once; each gets a snapshot of its own.
    n_watches : int, default=1
        How many outer loops share the snapshots, each watched by itself.
    """

    def __init__(self, plan: BatchPlan, n_trainings: int, params: Tensors, n_stacked: int, n_watches: int = 1):
        n_bytes = 2 * sum(p.numel() * p.element_size() for p in params)
        n_wanted = int(np.clip(_SNAPSHOT_BYTES / n_bytes, 4, N_SNAPSHOTS))
        self._n_wanted = max(1, -(-n_wanted // n_watches) // n_stacked)
        self._n_steps = max(1, round(_WATCHED_PART * plan.n_steps))
        self._n_trainings = n_trainings

    def steps(self, training: int, watch: int = 0) -> set[int]:
        """Return the steps to be watched in a training, given its number and that of its outer loop."""
        wanted = (n * self._n_wanted // self._n_trainings for n in (training, training + 1))
        first, last = (watch * self._n_wanted + n for n in wanted)
        # Multiples of the golden ratio are spread evenly, however many of them are taken.
        return {int((_GOLDEN_RATIO * n + 0.5) % 1 * self._n_steps) for n in range(first, last)}


def stored(snapshots: list[Snapshot], n_stacked: int) -> list[Snapshot]:
    """Return snapshots of every network by itself, with NumPy arrays in place of tensors."""
    if n_stacked > 1:
        snapshots = [
            Snapshot(*(tuple(t[n] for t in part) for part in snapshot))
            for snapshot in snapshots
            for n in range(n_stacked)
        ]
    return [Snapshot(*(tuple(_array(t) for t in part) for part in snapshot)) for snapshot in snapshots]


class AlphaEstimate(NamedTuple):
    """What is kept of a fit for pairs that come later; NumPy arrays only.

    Attributes
    ----------
    snapshots : list of (int, Snapshot)
        With the clean fold that alpha was learnt without.
    influences : ndarray of shape (n_knots,)
        Increasing.
    alphas : ndarray of shape (n_knots,)
        alpha at each of them; in between it is interpolated.
    """

    snapshots: list[tuple[int, Snapshot]]
    influences: np.ndarray
    alphas: np.ndarray

    @classmethod
    def calibrated(cls, network: Network, snapshots: list[Snapshot], noisy, alpha: np.ndarray) -> AlphaEstimate:
        """Return the estimate that fits the alpha of the training rows best among all that fall with the influence."""
        some = slice(None, None, -(-len(alpha) // _CALIBRATION_ROWS))
        (X, targets), alpha = noisy, alpha[some]
        of_rows = influence_of(network, [snapshot for _, snapshot in snapshots], X[some], targets[some])
        fitted = IsotonicRegression(increasing=False).fit_transform(of_rows, alpha)
        # Knots in the middle of the steps of the fit: so pairs on the same step still differ, and can be ranked.
        levels, step = np.unique(-fitted, return_inverse=True)
        return cls(snapshots, np.bincount(step, of_rows) / np.bincount(step), -levels)

    def alpha(self, network: Network, X, targets) -> np.ndarray:
        """Return the estimated alpha of each pair."""
        of_pairs = influence_of(network, [snapshot for _, snapshot in self.snapshots], X, targets)
        return np.interp(of_pairs, self.influences, self.alphas)


class Evidence(NamedTuple):
    """How much each row helps the clean loss: minus its influence, in units of its spread over the noisy set.

    Attributes
    ----------
    noisy : ndarray of shape (n_noisy,)
        Summed over the clean folds.
    right, wrong : ndarray of shape (n_clean,)
        Of every clean row where its fold is left out, with its own label and with a wrong one.
    wrong_targets : ndarray of shape (n_clean,)
    """

    noisy: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    wrong_targets: np.ndarray


def evidence_of(
    network: Network, snapshots: list[tuple[int, Snapshot]], noisy, clean, clean_folds: np.ndarray, seed: int
) -> Evidence:
    """Return what the trainings that alpha was learnt from say of the noisy rows, and of clean rows left out of them.

    Parameters
    ----------
    network : Network
    snapshots : list of (int, Snapshot)
        With the clean fold that was left out.
    noisy, clean : pair of (X, labels)
    clean_folds : ndarray of shape (n_clean,)
    seed : int
        Draws the wrong labels.

    Returns
    -------
    Evidence
        Zeros for folds that have no snapshot.
    """
    (X, targets), (X_clean, clean_targets) = noisy, clean
    n_classes, n_clean = network.n_classes, len(clean_targets)
    shifts = np.random.RandomState(seed).randint(1, n_classes, size=n_clean)
    wrong_targets = (clean_targets + shifts) % n_classes
    evidence = Evidence(np.zeros(len(targets)), np.zeros(n_clean), np.zeros(n_clean), wrong_targets)
    for fold in np.unique(clean_folds):
        own = [snapshot for n, snapshot in snapshots if n == fold]
        if not own:
            continue
        of_noisy, held_out = influence_of(network, own, X, targets), clean_folds == fold
        center, spread = of_noisy.mean(), of_noisy.std() + 1e-30
        evidence.noisy[:] += (center - of_noisy) / spread
        for values, labels in ((evidence.right, clean_targets), (evidence.wrong, wrong_targets)):
            of_fold = influence_of(network, own, X_clean[held_out], labels[held_out])
            values[held_out] = (center - of_fold) / spread
    return evidence


def influence_of(network: Network, snapshots: list[Snapshot], X, targets) -> np.ndarray:
    """Return by how much the clean loss would rise with the weight of each pair, in no particular unit."""
    problem = network.problem((X, targets), (X, targets))
    snapshots = [
        Snapshot(*(tuple(torch.tensor(a, device=network.device) for a in part) for part in snapshot))
        for snapshot in snapshots
    ]
    parts = [
        influence(problem.eval_losses, snapshots, *problem.noisy(chunk), n_rows=1)
        for chunk in torch.arange(len(targets)).split(rows_at_once(X, _CHUNK))
    ]
    return torch.cat(parts).cpu().numpy().astype(np.float64)


def _array(tensor: torch.Tensor) -> np.ndarray:
    # A copy: what a sweep hands out may be a view of one large block.
    return tensor.cpu().numpy().copy()
