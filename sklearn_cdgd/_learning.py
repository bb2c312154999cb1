"""The method on one set of rows: learn alpha, then let networks that it helps to train judge the rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ._hypergradient import Snapshot
from ._new_pairs import Evidence, evidence_of
from ._objective import OuterObjective
from ._outer import OuterState, learn_alpha
from ._posterior import Panel
from ._task import Task
from ._trainer import Manner, Trainer
from ._verdict import CLEAN_FOLDS, Verdict, deal, hear, judge_plainly, with_network
from ._workers import Workers


class Settings(NamedTuple):
    """The parameters of :class:`CorruptionDetector` that say how alpha is learnt, and how rows are judged."""

    manner: Manner
    max_iter: int
    outer_lr: float
    outer_eps: float
    outer_patience: int
    average: bool
    cv: int | None
    clean_cv: int | None
    n_judges: int
    clean_weight: float
    witnesses: str = "all"
    verbose: int = 0

    def alphas(self, state: OuterState) -> np.ndarray:
        """Return what counts as alpha, for every fold of the clean set."""
        return np.asarray(state.mean if self.average else state.alpha, dtype=np.float64)


class Folds(NamedTuple):
    """The fold of every row: shapes (n_noisy,) and (n_clean,)."""

    noisy: np.ndarray
    clean: np.ndarray

    @classmethod
    def dealt(cls, settings: Settings, noisy_targets, clean_targets, seed: int, clean=None) -> Folds:
        """Deal the rows of both sets, or those of the noisy set alone where the folds of `clean` are given."""
        rng = np.random.RandomState(seed)
        noisy = deal(noisy_targets, settings.cv or 1, rng)
        return cls(noisy, deal(clean_targets, settings.clean_cv or CLEAN_FOLDS, rng) if clean is None else clean)


class Learnt(NamedTuple):
    """Where the outer loop ended, or is to start.

    Attributes
    ----------
    state : OuterState
    snapshots : list of (int, Snapshot)
        Of the trainings so far, with the clean fold that was left out.
    """

    state: OuterState
    snapshots: list[tuple[int, Snapshot]]


class Watcher:
    """Is told of the outer loop. This one keeps silent."""

    def begin(self, objective: OuterObjective, n_before: int) -> None:
        """Be told of the loop, and of the number of outer steps that earlier fits took."""

    def begin_step(self) -> None: ...

    def end_step(self, learnt: Learnt) -> bool:
        """Return whether to stop."""
        return False


def trainer_of(network, noisy, clean, settings: Settings, folds: Folds) -> Trainer:
    """Return what trains all networks of a fit."""
    return Trainer(network, noisy, clean, folds.clean if settings.clean_cv else None, settings.manner)


def learn(workers: Workers, settings: Settings, start: Learnt, seed: int, watcher: Watcher = Watcher()) -> Learnt:  # noqa: B008
    """Learn alpha, from where an earlier fit stopped.

    Parameters
    ----------
    workers : Workers
        Of a :class:`Trainer`.
    settings : Settings
    start : Learnt
    seed : int
    watcher : Watcher, default=Watcher()

    Returns
    -------
    Learnt
        In NumPy arrays. An interrupt ends the loop early, which ``state.interrupted`` tells.

    Raises
    ------
    KeyboardInterrupt
        If there was no outer step before the interrupt.
    """
    state, snapshots = start
    if state.n_steps == settings.max_iter:
        return Learnt(_as_arrays(state), snapshots)
    objective = OuterObjective(workers, n_steps=settings.max_iter, seed=seed)
    watcher.begin(objective, state.n_steps)

    def outer_step(alphas, step):
        watcher.begin_step()
        return objective(alphas, step)

    state = learn_alpha(
        outer_step,
        state.map(lambda t: t.to(workers.tool.network.device)),
        lr=settings.outer_lr,
        eps=settings.outer_eps,
        max_iter=settings.max_iter,
        patience=settings.outer_patience,
        on_step=lambda state: watcher.end_step(Learnt(_as_arrays(state), [*snapshots, *objective.snapshots])),
    )
    if state.interrupted and state.n_steps == 0:
        raise KeyboardInterrupt
    return Learnt(_as_arrays(state), [*snapshots, *objective.snapshots])


def hear_all(
    workers: Workers, task: Task, settings: Settings, learnt: Learnt, folds: Folds, seed: int, label_seed: int
) -> tuple[Panel, Evidence | None]:
    """Hear what networks say of rows that they do not know, and what the trainings say that alpha was learnt from.

    Parameters
    ----------
    workers : Workers
        Of a :class:`Trainer`.
    task : Task
    settings : Settings
    learnt : Learnt
    folds : Folds
    seed : int
    label_seed : int
        Draws wrong labels for clean rows.

    Returns
    -------
    panel : Panel
    evidence : Evidence or None
        ``None`` where there are no labels, or no clean rows that alpha was learnt without.
    """
    trainer, alphas, evidence = workers.tool, settings.alphas(learnt.state), None
    if settings.clean_cv is not None and task.n_classes is not None:
        sets = trainer.noisy, trainer.clean, folds.clean
        evidence = evidence_of(trainer.network, learnt.snapshots, *sets, label_seed)
    panel = hear(
        workers,
        task,
        np.broadcast_to(alphas, (folds.clean.max() + 1, alphas.shape[1])),
        noisy_folds=folds.noisy,
        clean_folds=folds.clean,
        clean_weight=settings.clean_weight,
        n_judges=settings.n_judges,
        witnesses=settings.witnesses,
        seed=seed,
    )
    return panel, evidence


def judge(workers: Workers, task: Task, settings: Settings, learnt: Learnt, folds: Folds, seed: int) -> Verdict:
    """Let networks judge every row, draw the conclusion, and train a network with it.

    Parameters
    ----------
    workers, task, settings, learnt, folds, seed
        As for :func:`hear_all`.

    Returns
    -------
    Verdict
    """
    trainer, alpha = workers.tool, settings.alphas(learnt.state).mean(axis=0)
    if folds.noisy.max() == 0:  # no row can be left out
        options = {"clean_weight": settings.clean_weight, "n_judges": settings.n_judges, "seed": seed}
        return judge_plainly(workers, task, alpha, **options)
    panel, evidence = hear_all(workers, task, settings, learnt, folds, seed, label_seed=seed)
    conclusion = task.conclude(panel, trainer.noisy[1], trainer.clean[1], alpha, evidence, folds.clean)
    return with_network(trainer, conclusion, settings.clean_weight, seed)


def _as_arrays(state: OuterState) -> OuterState:
    return state.map(lambda t: torch.as_tensor(t).cpu().numpy())
