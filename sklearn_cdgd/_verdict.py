"""Train networks in several ways and let them judge the noisy rows (the read-out CDGD_T)."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch

from ._inputs import concatenate_rows
from ._neighbors import opinion_of_neighbors
from ._network import Network
from ._new_pairs import Evidence
from ._posterior import Opinion
from ._task import Conclusion, Task
from ._unroll import State, train_in_parts

# The clean rows weigh `clean_weight` in one kind of network and so many times more in another.
_HEAVIER = 10
# Networks are asked after these parts of their training: on hard data the best of them has only begun to learn.
_PARTS = {"a ninth of the training": 1 / 9, "a third": 1 / 3, "all of it": 1.0}


class Verdict(NamedTuple):
    """What the networks say of every row.

    Attributes
    ----------
    conclusion : Conclusion
    state : State
        A network that was trained on all rows, each with its probability of being right.
    """

    conclusion: Conclusion
    state: State


class Split(NamedTuple):
    """Which rows some networks are trained on, and which they judge: masks over the noisy and the clean set.

    `fold` is the clean fold that they do not see. Of the clean rows that they judge, `stand_ins` are those that other
    networks do not count as noisy rows for.
    """

    fold: int
    trained: np.ndarray
    judged: np.ndarray
    clean_trained: np.ndarray
    clean_judged: np.ndarray
    stand_ins: np.ndarray


class Court:
    """Networks that judge rows which they were not trained on.

    Parameters
    ----------
    network : Network
    noisy, clean : pair of (X, targets)
    n_judges : int
        Networks per split, each from its own initialisation, whose answers are averaged.
    seed : int
    swapped : ndarray of shape (n_noisy, ...) or None, default=None
        Targets of other rows, to see what losses wrong rows have.
    """

    def __init__(self, network: Network, noisy, clean, *, n_judges: int, seed: int, swapped: np.ndarray | None = None):
        self.network, self.noisy, self.clean, self.swapped = network, noisy, clean, swapped
        self.n_judges, self.seeds = n_judges, itertools.count(seed)

    def trained(
        self, weights: np.ndarray, clean_weight: float, rows: np.ndarray, clean_rows: np.ndarray, parts=(1.0,)
    ) -> list[State]:
        """Train on the chosen rows with their weights, and return the states after the given parts of the training.

        The chosen clean rows together weigh `clean_weight`, in units of the chosen noisy rows; at 0 they are left out.
        """
        clean_rows = clean_rows & (clean_weight > 0)
        (X, targets), (X_clean, clean_targets) = self.noisy, self.clean
        X = concatenate_rows(X[rows], X_clean[clean_rows])
        targets, n_clean = np.concatenate([targets[rows], clean_targets[clean_rows]]), clean_rows.sum()
        share = clean_weight * rows.sum() / n_clean if rows.any() and n_clean else 1.0
        weights = np.concatenate([weights[rows], np.full(n_clean, share)])
        weights /= max(1.0, weights.mean())  # heavier rows would be as good as a higher learning rate
        weights = torch.as_tensor(weights, dtype=torch.float32, device=self.network.device)
        problem = self.network.problem((X, targets), self.clean)
        return train_in_parts(problem, weights, self.network.plan(len(targets), next(self.seeds)), parts)

    def opinions(self, splits: list[Split], weights: np.ndarray, clean_weight: float, parts=(1.0,)) -> list[Opinion]:
        """Train networks for every split, and collect what they say of the rows that they judge.

        Parameters
        ----------
        splits : list of Split
        weights : ndarray of shape (n_folds, n_noisy)
            Of the noisy rows in the training of the networks that do not see each clean fold.
        clean_weight : float
        parts : sequence of float
            Of the training: there is an opinion for each.
        """
        shapes = (len(weights), len(self.noisy[1])), (len(self.clean[1]),), (len(self.clean[1]),)
        tallies = [[_Tally(shape) for shape in shapes] for _ in parts]
        swapped = np.zeros((len(parts), *shapes[0]))
        for split, _ in itertools.product(splits, range(self.n_judges)):
            states = self.trained(weights[split.fold], clean_weight, split.trained, split.clean_trained, parts)
            for n, (state, (noisy, clean, lone)) in enumerate(zip(states, tallies, strict=True)):
                noisy.add((split.fold, split.judged), *self._heard(state, self.noisy, split.judged))
                if self.swapped is not None:
                    rows = self.noisy[0][split.judged], self.swapped[split.judged]
                    swapped[n, split.fold, split.judged] = self.network.row_losses(state, *rows)
                heard = self._heard(state, self.clean, split.clean_judged)
                clean.add(split.clean_judged, *heard)
                lone.add(split.stand_ins, *(part[split.stand_ins[split.clean_judged]] for part in heard))
        means = (itertools.chain.from_iterable(tally.means() for tally in of_part) for of_part in tallies)
        return [Opinion(*of_part, losses) for of_part, losses in zip(means, swapped, strict=True)]

    def _heard(self, state: State, pair, rows: np.ndarray):
        X, targets = (part[rows] for part in pair)
        return self.network.answers(state, X), self.network.row_losses(state, X, targets)


class _Tally:
    """Means of answers and losses over the networks that judged each row."""

    def __init__(self, shape):
        self.shape, self.answers, self.losses, self.counts = shape, None, np.zeros(shape), np.zeros(shape)

    def add(self, rows, answers, losses):
        if self.answers is None:
            self.answers = np.zeros(self.shape + answers.shape[1:])
        self.answers[rows] += answers
        self.losses[rows] += losses
        self.counts[rows] += 1

    def means(self):
        counts = self.counts.reshape(self.counts.shape + (1,) * (self.answers.ndim - self.counts.ndim))
        return self.answers / counts, self.losses / self.counts


def judge(
    network: Network,
    noisy,
    clean,
    task: Task,
    alphas: np.ndarray,
    *,
    clean_folds: np.ndarray,
    noisy_folds: np.ndarray,
    evidence: Evidence | None = None,
    clean_weight: float,
    n_judges: int,
    seed: int,
) -> Verdict:
    """Train networks on the alpha-weighted noisy rows, joined by the clean rows, and let them judge every row.

    A network that was trained on a row has partly memorised its target, so with folds a row is judged by networks that
    were trained on the other folds only. Clean rows are judged so too, and their losses decide how much each kind of
    network has to say: those trained with alpha, with the clean rows weighing little or much; with every row at its
    full weight; on the clean rows alone; and, at last, with the weights that these together suggest.

    Parameters
    ----------
    network : Network
    noisy, clean : pair of (X, targets)
    task : Task
    alphas : ndarray of shape (n_clean_folds, n_noisy)
        Inclusion variables, each learnt without one fold of the clean set.
    clean_folds : ndarray of shape (n_clean,)
        The fold of every clean row.
    clean_weight : float
        Weight of the whole clean set in the training, in units of the whole noisy set; 0 leaves the clean rows out.
    noisy_folds : ndarray of shape (n_noisy,)
        The fold of every noisy row.
    evidence : Evidence or None, default=None
        What the trainings that alpha was learnt from say of rows; for labels only.
    n_judges : int
        Networks per pair of folds, each from its own initialisation.
    seed : int

    Returns
    -------
    Verdict
    """
    rng = np.random.RandomState(seed)
    swapped = None if task.n_classes is not None else rng.permutation(noisy[1])
    court = Court(network, noisy, clean, n_judges=n_judges, seed=seed, swapped=swapped)
    all_noisy, all_clean = np.ones(len(noisy[1]), dtype=bool), np.ones(len(clean[1]), dtype=bool)
    rotations = [(k, clean_folds != k, clean_folds == k) for k in range(len(alphas))]
    if len(alphas) == 1:  # one clean row cannot be left out of itself
        rotations = [(0, all_clean, all_clean)]
    n_folds = noisy_folds.max() + 1
    stand_in_folds = rng.permutation(np.arange(len(clean[1])) % n_folds)
    crossed = [
        Split(k, noisy_folds != j, noisy_folds == j, seen, held_out, held_out & (stand_in_folds == j))
        for k, seen, held_out in rotations
        for j in range(n_folds)
    ]
    ones, kinds = np.ones_like(alphas), {}

    def ask(name: str, *arguments) -> None:
        opinions = court.opinions(*arguments, tuple(_PARTS.values()))
        kinds.update({(name, part): opinion for part, opinion in zip(_PARTS, opinions, strict=True)})

    ask("rows weighted by alpha", crossed, alphas, clean_weight)
    ask("all rows as they are", crossed, ones, clean_weight)
    if clean_weight > 0:
        ask("rows weighted by alpha, heavy clean rows", crossed, alphas, _HEAVIER * clean_weight)
        clean_only = [Split(k, ~all_noisy, all_noisy, seen, held_out, held_out) for k, seen, held_out in rotations]
        ask("clean rows alone", clean_only, ones, 1.0)
    suggested = task.rightness(task.convene(kinds, clean[1]).blended, noisy[1])
    ask("rows weighted by what these say", crossed, suggested, clean_weight)
    if task.n_classes is not None and clean_weight > 0 and network.compares_rows:
        pairs = ((network.features(X), targets) for X, targets in (noisy, clean))
        kinds["nearest neighbours", "all of it"] = opinion_of_neighbors(*pairs, suggested, clean_folds, task.n_classes)
    panel = task.convene(kinds, clean[1])
    conclusion = task.conclude(panel, noisy[1], clean[1], alphas.mean(axis=0), evidence, clean_folds)
    return Verdict(conclusion, *court.trained(conclusion.rightness, clean_weight, all_noisy, all_clean))


def judge_plainly(
    network: Network, noisy, clean, task: Task, alpha: np.ndarray, *, clean_weight: float, n_judges: int, seed: int
) -> Verdict:
    """Let networks judge the rows that they were trained on with alpha, as in the paper.

    Parameters
    ----------
    network, noisy, clean, task, clean_weight, n_judges, seed
        As for :func:`judge`.
    alpha : ndarray of shape (n_noisy,)

    Returns
    -------
    Verdict
    """
    court = Court(network, noisy, clean, n_judges=n_judges, seed=seed)
    everyone = np.ones(len(noisy[1]), dtype=bool), np.ones(len(clean[1]), dtype=bool)
    noisy_rows, clean_rows = everyone
    split = Split(0, noisy_rows, noisy_rows, clean_rows, clean_rows, clean_rows)
    (opinion,) = court.opinions([split], alpha[None], clean_weight)
    clean_said = opinion.clean_answers, opinion.clean_losses
    conclusion = Conclusion(opinion.answers[0], opinion.losses[0], task.plain_limit(opinion.clean_losses), *clean_said)
    return Verdict(conclusion, *court.trained(alpha, clean_weight, *everyone))


def held_out_losses(network: Network, rows, n_folds: int, *, seed: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the loss of every row under a network that was trained on the other folds.

    Parameters
    ----------
    network : Network
    rows : pair of (X, targets)
    n_folds : int
    seed : int
    rng : RandomState
        Deals the rows to the folds.

    Returns
    -------
    losses : ndarray of shape (n_rows,)
    """
    court, folds = Court(network, rows, rows, n_judges=1, seed=seed), deal(rows[1], n_folds, rng)
    losses = np.zeros(len(folds))
    for fold in range(n_folds):
        held_out = folds == fold
        (state,) = court.trained(np.ones(len(folds)), 0.0, ~held_out, held_out)
        losses[held_out] = network.row_losses(state, rows[0][held_out], rows[1][held_out])
    return losses


def leaving_out(rows, folds: np.ndarray) -> tuple[list, list]:
    """Return what is left of rows and targets without each fold, and the folds; all and none if there is one fold."""
    if folds.max() == 0:
        return [rows], []
    X, targets = rows
    masks = [folds == fold for fold in range(folds.max() + 1)]
    return [(X[~held_out], targets[~held_out]) for held_out in masks], [(X[m], targets[m]) for m in masks]


def deal(targets: np.ndarray, n_folds: int, rng: np.random.RandomState) -> np.ndarray:
    """Deal rows to folds like cards, sorted by target, so that every fold gets its part of every class.

    Returns
    -------
    folds : ndarray of shape (n_rows,)
        Numbers from 0 on; there are no more folds than rows.
    """
    first = targets if targets.ndim == 1 else targets[:, 0]
    order = np.lexsort((rng.random_sample(len(first)), first))
    folds = np.empty(len(first), dtype=int)
    folds[order] = np.arange(len(first)) % n_folds
    return folds
