"""Train networks in several ways and let them judge the noisy rows (the read-out CDGD_T)."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from ._forests import grow_forests
from ._inputs import chosen_rows
from ._neighbors import nearest_rows, opinion_of_neighbors
from ._network import Network
from ._stacking import NEIGHBORS, OutOfFold, StackedEnsemble
from ._task import LabelQuality, Task
from ._trainer import Trainer
from ._unroll import State
from ._workers import Workers

# The clean rows weigh `clean_weight` in one kind of network and so many times more in another.
_HEAVIER = 10
# Folds in which the judging networks are kept from clean rows where alpha is learnt from all of them.
CLEAN_FOLDS = 3
# Networks are asked after these parts of their training: on hard data the best of them has only begun to learn.
_WHOLE = "all of it"
_PARTS = {"a ninth of the training": 1 / 9, "a third": 1 / 3, _WHOLE: 1.0}


class Verdict(NamedTuple):
    """What the networks say of every row.

    Attributes
    ----------
    conclusion : LabelQuality
    state : State
        A network that was trained on all rows, each with its probability of being right.
    judges : object or None, default=None
        What predicts rows that come later, by a method `predict`; ``None``: the network.
    """

    conclusion: LabelQuality
    state: State
    judges: object = None


class Split(NamedTuple):
    """Which rows some networks are trained on, and which they judge: masks over the noisy and the clean set.

    `fold` is the clean fold that they do not see. Of the clean rows that they judge, `stand_ins` are those that these
    networks help to compare with noisy rows: as many help with each as judge a noisy row, all folds together.
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
    workers : Workers
        Of a :class:`Trainer`. The networks of one opinion are trained by them, side by side.
    n_judges : int
        Networks per split, each from its own initialisation, whose answers are averaged.
    seed : int
    swapped : ndarray of shape (n_noisy, ...) or None, default=None
        Targets of other rows, to see what losses wrong rows have.
    """

    def __init__(self, workers: Workers, *, n_judges: int, seed: int, swapped: np.ndarray | None = None):
        self.workers, self.n_judges, self.seeds, self.swapped = workers, n_judges, itertools.count(seed), swapped

    def opinions(self, splits: list[Split], weights: np.ndarray, clean_weight: float, parts=(1.0,)) -> list[OutOfFold]:
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
        splits = [split for split in splits for _ in range(self.n_judges)]
        jobs = [
            (split, weights[split.fold], clean_weight, next(self.seeds), self._swapped(split), parts)
            for split in splits
        ]
        return self._collected(splits, weights.shape, self.workers(_judgement, jobs))

    def _collected(self, splits: list[Split], shape: tuple[int, int], judgements) -> list[OutOfFold]:
        """Return an opinion for every part of the training, given what was heard for each split."""
        n_clean, opinions = len(splits[0].clean_judged), []
        for of_part in zip(*judgements, strict=True):
            noisy, clean, stand_ins = (_Tally(n) for n in (shape, (n_clean,), (n_clean,)))
            swapped = np.zeros(shape)
            for split, (of_noisy, of_clean, of_swapped) in zip(splits, of_part, strict=True):
                noisy.add((split.fold, split.judged), *of_noisy)
                clean.add(split.clean_judged, *of_clean)
                stand_ins.add(split.stand_ins, *(part[split.stand_ins[split.clean_judged]] for part in of_clean))
                swapped[split.fold, split.judged] += of_swapped
            opinions.append(OutOfFold(*noisy.means(), *clean.means(), *stand_ins.means(), swapped / noisy.counts))
        return opinions

    def _swapped(self, split: Split) -> np.ndarray | None:
        return None if self.swapped is None else self.swapped[split.judged]


def _judgement(trainer: Trainer, split: Split, weights, clean_weight: float, seed: int, swapped, parts) -> list[tuple]:
    """Return what one network says after every part of its training.

    That is answers and losses for the noisy rows that it judges, the same for the clean rows, and the losses of the
    noisy rows with `swapped` targets, 0 without.
    """
    heard = []
    for state in trainer.trained(weights, clean_weight, split.trained, split.clean_trained, seed, parts):
        of_noisy = trainer.heard(state, trainer.noisy, split.judged)
        of_clean = trainer.heard(state, trainer.clean, split.clean_judged)
        rows = chosen_rows(trainer.noisy[0], split.judged), swapped
        heard.append((of_noisy, of_clean, 0.0 if swapped is None else trainer.network.row_losses(state, *rows)))
    return heard


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


def with_network(trainer: Trainer, conclusion: LabelQuality, clean_weight: float, seed: int) -> Verdict:
    """Train a network on all rows, each with its probability of being right."""
    all_rows = (np.ones(len(targets), dtype=bool) for _, targets in (trainer.noisy, trainer.clean))
    return Verdict(conclusion, *trainer.trained(conclusion.rightness, clean_weight, *all_rows, seed))


def hear(
    workers: Workers,
    task: Task,
    alphas: np.ndarray,
    *,
    clean_folds: np.ndarray,
    noisy_folds: np.ndarray,
    clean_weight: float,
    n_judges: int,
    witnesses: str,
    seed: int,
) -> StackedEnsemble:
    """Train networks on the alpha-weighted noisy rows, joined by the clean rows, and hear what they say of every row.

    A network that was trained on a row has partly memorised its target, so with folds a row is judged by networks that
    were trained on the other folds only. Clean rows are judged so too, and their losses decide how much each kind of
    network has to say: those trained with alpha, with the clean rows weighing little or much; with every row at its
    full weight; on the clean rows alone; and, at last, with the weights that these together suggest.

    Parameters
    ----------
    workers : Workers
        Of a :class:`Trainer`.
    task : Task
    alphas : ndarray of shape (n_clean_folds, n_noisy)
        Inclusion variables, each learnt without one fold of the clean set.
    clean_folds : ndarray of shape (n_clean,)
        The fold of every clean row.
    noisy_folds : ndarray of shape (n_noisy,)
        The fold of every noisy row.
    clean_weight : float
        Weight of the whole clean set in the training, in units of the whole noisy set; 0 leaves the clean rows out.
    n_judges : int
        Networks per pair of folds, each from its own initialisation.
    witnesses : {"all", "networks"}
        Whether forests and nearest neighbours are heard too.
    seed : int

    Returns
    -------
    StackedEnsemble
    """
    trainer, rng = workers.tool, np.random.RandomState(seed)
    noisy, clean, network = trainer.noisy, trainer.clean, trainer.network
    swapped = None if task.n_classes is not None else rng.permutation(noisy[1])
    court = Court(workers, n_judges=n_judges, seed=seed, swapped=swapped)
    crossed, clean_only = splits_of(clean_folds, noisy_folds, rng)
    ones, kinds = np.ones_like(alphas), {}

    def ask(name: str, *arguments) -> None:
        opinions = court.opinions(*arguments, tuple(_PARTS.values()))
        kinds.update({(name, part): opinion for part, opinion in zip(_PARTS, opinions, strict=True)})

    ask("rows weighted by alpha", crossed, alphas, clean_weight)
    ask("all rows as they are", crossed, ones, clean_weight)
    if clean_weight > 0:
        ask("rows weighted by alpha, heavy clean rows", crossed, alphas, _HEAVIER * clean_weight)
        ask("clean rows alone", clean_only, ones, 1.0)
    compares = witnesses == "all" and clean_weight > 0 and network.compares_rows
    has_labels, has_trees = task.n_classes is not None, compares and network.can_score_predictions(noisy[1])

    def convened() -> StackedEnsemble:
        return task.fit_stacking(kinds, noisy[1], clean[1], clean_folds)

    if has_trees:
        kinds |= grow_forests(workers, "rows weighted by alpha", alphas, clean_folds, swapped, seed)
    suggested = task.rightness(convened().cross_fitted, noisy[1], clean_folds)
    ask("rows weighted by what these say", crossed, suggested, clean_weight)
    if has_trees:
        kinds |= grow_forests(workers, "rows weighted by what these say", suggested, clean_folds, swapped, seed + 1)
    if compares and has_labels:
        nearest = nearest_rows(network.features(noisy[0]), network.features(clean[0]))
        kinds[NEIGHBORS, _WHOLE] = opinion_of_neighbors(
            nearest, noisy[1], clean[1], suggested, clean_folds, task.n_classes
        )
    return convened()


def splits_of(
    clean_folds: np.ndarray, noisy_folds: np.ndarray, rng: np.random.RandomState
) -> tuple[list[Split], list[Split]]:
    """Pair every fold of the clean rows with every fold of the noisy rows, and with all of them at once.

    Parameters
    ----------
    clean_folds : ndarray of shape (n_clean,)
    noisy_folds : ndarray of shape (n_noisy,)
    rng : RandomState
        Chooses for every clean row the networks by which it is compared with noisy rows.

    Returns
    -------
    crossed : list of Split
        For networks that are trained on the rest of both sets.
    clean_only : list of Split
        For networks that are trained on the rest of the clean set alone.
    """
    n_clean_folds, n_folds = clean_folds.max() + 1, noisy_folds.max() + 1
    all_noisy = np.ones(len(noisy_folds), dtype=bool)
    rotations = [(k, clean_folds != k, clean_folds == k) for k in range(n_clean_folds)]
    if n_clean_folds == 1:  # one clean row cannot be left out of itself
        rotations = [(0, clean_folds == 0, clean_folds == 0)]
    # A noisy row is judged once for each clean fold: a clean row is heard as often, by networks of its own fold.
    first_folds = rng.permutation(np.arange(len(clean_folds)) % n_folds)
    stands_in = [(j - first_folds) % n_folds < n_clean_folds for j in range(n_folds)]
    crossed = [
        Split(k, noisy_folds != j, noisy_folds == j, seen, held_out, held_out & stands_in[j])
        for k, seen, held_out in rotations
        for j in range(n_folds)
    ]
    return crossed, [Split(k, ~all_noisy, all_noisy, seen, held_out, held_out) for k, seen, held_out in rotations]


def judge_plainly(
    workers: Workers, task: Task, alpha: np.ndarray, *, clean_weight: float, n_judges: int, seed: int
) -> Verdict:
    """Let networks judge the rows that they were trained on with alpha, as in the paper.

    Parameters
    ----------
    workers, task, clean_weight, n_judges, seed
        As for :func:`hear`.
    alpha : ndarray of shape (n_noisy,)

    Returns
    -------
    Verdict
    """
    trainer, court = workers.tool, Court(workers, n_judges=n_judges, seed=seed)
    noisy_rows, clean_rows = (np.ones(len(targets), dtype=bool) for _, targets in (trainer.noisy, trainer.clean))
    split = Split(0, noisy_rows, noisy_rows, clean_rows, clean_rows, clean_rows)
    (opinion,) = court.opinions([split], alpha[None], clean_weight)
    clean_said = opinion.clean_answers, opinion.clean_losses
    conclusion = LabelQuality(
        opinion.answers[0], opinion.losses[0], task.plain_limit(opinion.clean_losses), *clean_said
    )
    return Verdict(conclusion, *trainer.trained(alpha, clean_weight, noisy_rows, clean_rows, next(court.seeds)))


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
    trainer, folds = Trainer(network, rows, rows), deal(rows[1], n_folds, rng)
    losses = np.zeros(len(folds))
    for fold in range(n_folds):
        held_out = folds == fold
        (state,) = trainer.trained(np.ones(len(folds)), 0.0, ~held_out, held_out, seed + fold)
        losses[held_out] = network.row_losses(state, rows[0][held_out], rows[1][held_out])
    return losses


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
