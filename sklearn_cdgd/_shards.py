"""A large noisy set in parts: alpha and opinions of every shard by itself, one conclusion for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ._hypergradient import Snapshot
from ._learning import Folds, Learnt, Settings, hear_all, learn, trainer_of
from ._network import Network
from ._new_pairs import N_SNAPSHOTS, Evidence
from ._outer import OuterState
from ._posterior import Opinion, Panel
from ._task import Conclusion, Task
from ._trainer import Trainer
from ._verdict import CLEAN_FOLDS, Verdict, deal, judge_plainly, with_network
from ._workers import Workers


class Shard(NamedTuple):
    """What was learnt from one shard.

    Attributes
    ----------
    state : OuterState
        In NumPy arrays.
    snapshots : list of (int, Snapshot)
        Its share of those that are kept.
    panel : Panel or None
        Without the single opinions; ``None`` if no row is kept from the networks that judge it.
    evidence : Evidence or None
    flag_frequency : ndarray of shape (n_rows,) or None
    """

    state: OuterState
    snapshots: list[tuple[int, Snapshot]]
    panel: Panel | None
    evidence: Evidence | None
    flag_frequency: np.ndarray | None


class ShardLearner:
    """Learns one shard after the other.

    Parameters
    ----------
    network : Network
    clean : pair of (X, targets)
    clean_folds : ndarray of shape (n_clean,)
        The same for all shards.
    task : Task
    settings : Settings
    n_shards : int
    snapshots : list of (int, Snapshot)
        Of earlier fits.
    seed : int
    """

    def __init__(self, network: Network, clean, clean_folds, task: Task, settings: Settings, n_shards, snapshots, seed):
        self.network, self.clean, self.clean_folds, self.task = network, clean, clean_folds, task
        self.settings, self.n_shards, self.snapshots, self.seed = settings, n_shards, snapshots, seed

    def parts(self) -> tuple:
        """Return what an equal learner is made of."""
        rest = self.task, self.settings, self.n_shards, self.snapshots, self.seed
        return self.network, *self.clean, self.clean_folds, *rest

    @classmethod
    def of_parts(cls, network, X_clean, clean_targets, *rest) -> ShardLearner:
        """Return a learner like the one that the parts are of."""
        return cls(network, (X_clean, clean_targets), *rest)

    def learn(self, number: int, X, targets: np.ndarray, start: OuterState) -> Shard:
        """Learn alpha of the rows of one shard, and let networks judge them."""
        settings, seed = self.settings, (self.seed + 7_368_787 * number) % (2**31 - 1)
        noisy, folds = (X, targets), Folds.dealt(self.settings, targets, self.clean[1], seed, self.clean_folds)
        workers = Workers(1, trainer_of(self.network, noisy, self.clean, settings, folds))
        learnt = learn(workers, settings, Learnt(start.map(torch.as_tensor), self.snapshots), seed)
        state = learnt.state
        if state.interrupted:
            raise KeyboardInterrupt
        if settings.verbose:
            included = f"{(state.alpha >= 0.5).mean():.1%} kept"
            words = f"shard {number + 1}/{self.n_shards}: clean loss {state.values[-1]:.4f}, {included}"
            print(f"[CorruptionDetector] {words}", flush=True)
        kept = thinned(learnt.snapshots, self.n_shards)
        if settings.cv is None:
            return Shard(state, kept, None, None, None)
        panel, evidence = hear_all(workers, self.task, settings, learnt, folds, seed, label_seed=self.seed)
        alpha = settings.alphas(state).mean(axis=0)
        said = panel, targets, self.clean[1], alpha, evidence, self.clean_folds
        return Shard(state, kept, panel._replace(opinions=[]), evidence, self.task.conclude(*said).flag_frequency)


class ShardJobs(Sequence):
    """The jobs of a :class:`ShardLearner`; the rows of a shard are taken when it is its turn.

    Parameters
    ----------
    noisy : pair of (X, targets)
    shards : list of ndarray
        The row numbers of each.
    state : OuterState
        Of all rows.
    """

    def __init__(self, noisy, shards: list[np.ndarray], state: OuterState):
        self.noisy, self.shards, self.state = noisy, shards, state

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, number: int) -> tuple:
        if not 0 <= number < len(self):
            raise IndexError(number)
        (X, targets), rows = self.noisy, self.shards[number]
        state = self.state.placed(torch.as_tensor(rows)).map(lambda t: t.numpy())
        return number, X[rows], targets[rows], state


def shards_of(targets: np.ndarray, shard_size: int, rng: np.random.RandomState) -> list[np.ndarray]:
    """Return the row numbers of shards of nearly the same size, each with its part of every class."""
    number = deal(targets, -(-len(targets) // shard_size), rng)
    order = np.argsort(number, kind="stable")
    return np.split(order, np.bincount(number).cumsum()[:-1])


def thinned(snapshots: list[tuple[int, Snapshot]], n_shards: int) -> list[tuple[int, Snapshot]]:
    """Return every `n_shards`-th snapshot of each clean fold."""
    folds = {fold for fold, _ in snapshots}
    return [s for fold in sorted(folds) for s in [s for s in snapshots if s[0] == fold][::n_shards]]


# --- all shards together ----------------------------------------------------------------------------------------------


def learn_in_shards(
    network: Network,
    noisy,
    clean,
    task: Task,
    settings: Settings,
    start: Learnt,
    clean_folds: np.ndarray | None,
    *,
    shard_size: int,
    n_jobs: int | None,
    seed: int,
) -> tuple[Learnt, Verdict, np.ndarray]:
    """Learn alpha shard by shard, draw one conclusion, and train a network on all rows.

    Parameters
    ----------
    network : Network
    noisy, clean : pair of (X, targets)
    task : Task
    settings : Settings
    start : Learnt
    clean_folds : ndarray of shape (n_clean,) or None
        ``None``: they are dealt here.
    shard_size : int
        Most rows in a shard.
    n_jobs : int or None
        Workers, each of which has one shard at a time.
    seed : int

    Returns
    -------
    learnt : Learnt
    verdict : Verdict
    clean_folds : ndarray of shape (n_clean,)
    """
    rng = np.random.RandomState(seed)
    shards = shards_of(noisy[1], shard_size, rng)
    if clean_folds is None:
        clean_folds = deal(clean[1], settings.clean_cv or CLEAN_FOLDS, rng)
    learner = ShardLearner(network, clean, clean_folds, task, settings, len(shards), start.snapshots, seed)
    with Workers(n_jobs, learner) as workers:
        results = workers(ShardLearner.learn, ShardJobs(noisy, shards, start.state))
    state, trainer = whole_state([result.state for result in results], shards), Trainer(network, noisy, clean)
    snapshots = [snapshot for result in results for snapshot in result.snapshots]
    learnt = Learnt(state, thinned(snapshots, -(-len(snapshots) // N_SNAPSHOTS)))
    alpha, weight = settings.alphas(state).mean(axis=0), settings.clean_weight
    if settings.cv is None:
        options = {"clean_weight": weight, "n_judges": settings.n_judges, "seed": seed}
        return learnt, judge_plainly(Workers(1, trainer), task, alpha, **options), clean_folds
    conclusion = conclude_all(results, shards, task, noisy[1], clean[1], alpha, clean_folds)
    return learnt, with_network(trainer, conclusion, weight, seed), clean_folds


def whole_state(states: list[OuterState], shards: list[np.ndarray]) -> OuterState:
    """Return the state of all rows. Curves are means over the shards; the rule of the learning rate starts afresh."""
    per_row = {
        name: in_order([getattr(state, name) for state in states], shards, axis=1)
        for name in ("alpha", "mean", "first", "second", "count")
    }
    curves = {
        name: tuple(np.mean([getattr(state, name) for state in states], axis=0).tolist())
        for name in ("values", "held_out", "lrs")
    }
    lr_scale = max(state.lr_scale for state in states)
    return replace(states[0], best=math.inf, waited=0, lr_scale=lr_scale, **per_row, **curves)


def conclude_all(
    results: list[Shard], shards: list[np.ndarray], task: Task, targets, clean_targets, alpha, clean_folds
) -> Conclusion:
    """Draw one conclusion from what was said of all shards.

    Clean rows were judged with every shard. Their means decide how much is believed; where they stand beside noisy
    rows, they have to have been judged as often as these, so each then takes what was said with one of the shards.

    Returns
    -------
    Conclusion
    """
    panels, n_clean = [result.panel for result in results], len(clean_targets)
    turns = np.random.RandomState(0).permutation(np.arange(n_clean) % len(results)), np.arange(n_clean)

    def of_one(values) -> np.ndarray:
        return np.stack(values)[turns]

    def joined(name: str, gather: Callable, *options) -> np.ndarray:
        return gather([getattr(panel.blended, name) for panel in panels], *options)

    blended = Opinion(
        answers=joined("answers", in_order, shards, 1),
        losses=joined("losses", in_order, shards, 1),
        clean_answers=np.mean([panel.blended.clean_answers for panel in panels], axis=0),
        clean_losses=np.mean([panel.blended.clean_losses for panel in panels], axis=0),
        stand_in_answers=joined("stand_in_answers", of_one),
        stand_in_losses=joined("stand_in_losses", of_one),
        swapped_losses=joined("swapped_losses", in_order, shards, 1),
    )
    held_out, say = (np.mean([getattr(panel, name) for panel in panels], axis=0) for name in ("held_out", "shares"))
    evidence = None
    if results[0].evidence is not None:
        noisy, *of_clean = zip(*(result.evidence for result in results), strict=True)
        evidence = Evidence(in_order(noisy, shards), *map(of_one, of_clean))
    compared = blended._replace(
        answers=in_order([panel.compared.answers for panel in panels], shards, 1),
        losses=in_order([panel.compared.losses for panel in panels], shards, 1),
        stand_in_answers=of_one([panel.compared.stand_in_answers for panel in panels]),
        stand_in_losses=of_one([panel.compared.stand_in_losses for panel in panels]),
    )
    panel = Panel(panels[0].names, [], held_out, say, blended, compared)
    conclusion = task.conclude(panel, targets, clean_targets, alpha, evidence, clean_folds)
    return conclusion._replace(flag_frequency=in_order([result.flag_frequency for result in results], shards))


def in_order(parts: Sequence[np.ndarray], shards: list[np.ndarray], axis: int = 0) -> np.ndarray:
    """Put what is known of the rows of every shard together, in the order of all rows."""
    return np.take(np.concatenate(parts, axis=axis), np.argsort(np.concatenate(shards)), axis=axis)
