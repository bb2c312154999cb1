"""A large noisy set in parts: alpha and opinions of every shard by itself, one conclusion for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ._hypergradient import Snapshot
from ._learners import learner_of
from ._learning import Folds, Learnt, Settings, Watcher, trainer_of
from ._network import Network
from ._new_pairs import N_SNAPSHOTS, AlphaEstimate, Evidence
from ._new_pairs_closed_form import MeanAlpha, MeanEnsemble
from ._outer import OuterState
from ._stacking import OutOfFold, StackedEnsemble
from ._task import LabelQuality, Task
from ._trainer import Trainer
from ._verdict import CLEAN_FOLDS, Verdict, deal, judge_plainly, with_network
from ._workers import Workers

# Shards whose kernel machines judge pairs that come later; more would say the same.
_MOST_ESTIMATES = 4


class Shard(NamedTuple):
    """What was learnt from one shard.

    Attributes
    ----------
    state : OuterState
        In NumPy arrays.
    snapshots : list of (int, Snapshot)
        Its share of those that are kept.
    panel : StackedEnsemble or None
        Without the single opinions; ``None`` if no row is kept from the networks that judge it.
    evidence : Evidence or None
    flag_frequency : ndarray of shape (n_rows,) or None
    estimate, judges : object or None
        What knows pairs that come later, where the inner learner is in closed form.
    """

    state: OuterState
    snapshots: list[tuple[int, Snapshot]]
    panel: StackedEnsemble | None
    evidence: Evidence | None
    flag_frequency: np.ndarray | None
    estimate: object = None
    judges: object = None


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
        learner = learner_of(settings)(workers, self.task, settings, folds, seed)
        learner.max_wait = None  # all shards take the same number of outer steps
        learnt = learner.learn(Learnt(start.map(torch.as_tensor), self.snapshots), Watcher())
        state = learnt.state
        if state.interrupted:
            raise KeyboardInterrupt
        if settings.verbose:
            included = f"{(state.alpha >= 0.5).mean():.1%} kept"
            words = f"shard {number + 1}/{self.n_shards}: clean loss {state.values[-1]:.4f}, {included}"
            print(f"[CorruptionDetector] {words}", flush=True)
        alpha, kept, estimate = learner.alpha(learnt), [], None
        if settings.closed_form:
            estimate = learner.alpha_estimate(learnt, alpha) if number < _MOST_ESTIMATES else None
        else:
            kept = thinned(learnt.snapshots, self.n_shards)
        if settings.cv is None:
            return Shard(state, kept, None, None, None, estimate)
        panel, evidence, judges = learner.hear_all(learnt, label_seed=self.seed)
        said = panel, targets, self.clean[1], alpha, evidence, self.clean_folds
        frequency = self.task.estimate_label_quality(*said).flag_frequency
        return Shard(
            state, kept, panel._replace(members=None), evidence, frequency, estimate, judges if estimate else None
        )


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
) -> tuple[Learnt, object, Verdict, np.ndarray]:
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
    estimate : object
        Estimates alpha of pairs that come later.
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
    if settings.closed_form:
        estimate = MeanAlpha([result.estimate for result in results if result.estimate is not None])
    else:
        estimate = AlphaEstimate.calibrated(network, learnt.snapshots, noisy, alpha)
    if settings.cv is None:
        options = {"clean_weight": weight, "n_judges": settings.n_judges, "seed": seed}
        return learnt, estimate, judge_plainly(Workers(1, trainer), task, alpha, **options), clean_folds
    conclusion = label_quality_of_shards(results, shards, task, noisy[1], clean[1], alpha, clean_folds)
    verdict = with_network(trainer, conclusion, weight, seed)
    if settings.closed_form:
        verdict = verdict._replace(judges=MeanEnsemble([r.judges for r in results if r.judges is not None]))
    return learnt, estimate, verdict, clean_folds


def whole_state(states: list[OuterState], shards: list[np.ndarray]) -> OuterState:
    """Return the state of all rows. Curves are means over the shards; the rule of the learning rate starts afresh."""
    per_row = {
        name: in_order([getattr(state, name) for state in states], shards, axis=1)
        for name in ("alpha", "mean", "first", "second", "count", "kept")
    }
    curves = {
        name: tuple(np.mean([getattr(state, name) for state in states], axis=0).tolist())
        for name in ("values", "held_out", "lrs")
    }
    lr_scale = max(state.lr_scale for state in states)
    return replace(states[0], best=math.inf, waited=0, lr_scale=lr_scale, **per_row, **curves)


def label_quality_of_shards(
    results: list[Shard], shards: list[np.ndarray], task: Task, targets, clean_targets, alpha, clean_folds
) -> LabelQuality:
    """Draw one conclusion from what was said of all shards.

    Clean rows were judged with every shard. Their means decide how much is believed; where they stand beside noisy
    rows, they have to have been judged as often as these, so each then takes what was said with one of the shards.

    Returns
    -------
    LabelQuality
    """
    panels, n_clean = [result.panel for result in results], len(clean_targets)
    turns = np.random.RandomState(0).permutation(np.arange(n_clean) % len(results)), np.arange(n_clean)

    def of_one(values) -> np.ndarray:
        return np.stack(values)[turns]

    def joined(name: str, gather: Callable, *options) -> np.ndarray:
        return gather([getattr(panel.ensemble, name) for panel in panels], *options)

    blended = OutOfFold(
        answers=joined("answers", in_order, shards, 1),
        losses=joined("losses", in_order, shards, 1),
        clean_answers=np.mean([panel.ensemble.clean_answers for panel in panels], axis=0),
        clean_losses=np.mean([panel.ensemble.clean_losses for panel in panels], axis=0),
        calibration_answers=joined("calibration_answers", of_one),
        calibration_losses=joined("calibration_losses", of_one),
        permuted_losses=joined("permuted_losses", in_order, shards, 1),
    )
    of_members = ("clean_losses", "weights", "inverse_temperatures", "inverse_temperature")
    means = {name: np.mean([getattr(panel, name) for panel in panels], axis=0) for name in of_members}
    evidence = None
    if results[0].evidence is not None:
        noisy, *of_clean = zip(*(result.evidence for result in results), strict=True)
        evidence = Evidence(in_order(noisy, shards), *map(of_one, of_clean))
    compared = blended._replace(
        answers=in_order([panel.cross_fitted.answers for panel in panels], shards, 1),
        losses=in_order([panel.cross_fitted.losses for panel in panels], shards, 1),
        calibration_answers=of_one([panel.cross_fitted.calibration_answers for panel in panels]),
        calibration_losses=of_one([panel.cross_fitted.calibration_losses for panel in panels]),
    )
    panel = StackedEnsemble(panels[0].names, ensemble=blended, cross_fitted=compared, **means)
    conclusion = task.estimate_label_quality(panel, targets, clean_targets, alpha, evidence, clean_folds)
    return conclusion._replace(flag_frequency=in_order([result.flag_frequency for result in results], shards))


def in_order(parts: Sequence[np.ndarray], shards: list[np.ndarray], axis: int = 0) -> np.ndarray:
    """Put what is known of the rows of every shard together, in the order of all rows."""
    return np.take(np.concatenate(parts, axis=axis), np.argsort(np.concatenate(shards)), axis=axis)
