"""The method on one set of rows: learn alpha, then let networks that it helps to train judge the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch

from ._hypergradient import Snapshot
from ._new_pairs import AlphaEstimate, Evidence, evidence_of
from ._objective import OuterObjective
from ._outer import OuterState, learn_alpha
from ._stacking import StackedEnsemble
from ._task import Task
from ._trainer import Manner, Trainer
from ._verdict import CLEAN_FOLDS, Verdict, deal, hear, judge_plainly, with_network
from ._workers import Workers

# alpha stops after so many outer steps without progress on held-out clean rows.
_MAX_WAIT = 3


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
    closed_form: bool = False

    @property
    def stops_early(self) -> bool:
        """Whether held-out clean rows say where alpha stops."""
        return self.closed_form and self.clean_cv is not None

    @property
    def max_wait(self) -> int | None:
        """After how many outer steps without progress on held-out clean rows alpha stops."""
        return _MAX_WAIT if self.stops_early else None

    def alphas(self, state: OuterState) -> np.ndarray:
        """Return what counts as alpha, for every fold of the clean set."""
        alpha = state.kept if self.stops_early else state.mean if self.average else state.alpha
        return np.asarray(alpha, dtype=np.float64)


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


class Learner(ABC):
    """Learns alpha of one set of rows, and judges them: what the two inner learners have in common.

    Parameters
    ----------
    workers : Workers
        Of a :class:`Trainer`.
    task : Task
    settings : Settings
    folds : Folds
    seed : int
    """

    # The loop ends so many outer steps after the last progress on held-out clean rows; see learn_alpha.
    max_wait: int | None = None

    def __init__(self, workers: Workers, task: Task, settings: Settings, folds: Folds, seed: int):
        self.workers, self.task, self.settings, self.folds, self.seed = workers, task, settings, folds, seed

    def learn(self, start: Learnt, watcher: Watcher) -> Learnt:
        """Learn alpha, from where an earlier fit stopped.

        Parameters
        ----------
        start : Learnt
        watcher : Watcher

        Returns
        -------
        Learnt
            In NumPy arrays. An interrupt ends the loop early, which ``state.interrupted`` tells.

        Raises
        ------
        KeyboardInterrupt
            If there was no outer step before the interrupt.
        """
        settings = self.settings
        state = self._begin(start)
        if state.is_done(settings.max_iter, self.max_wait):
            return Learnt(as_arrays(state), start.snapshots)
        objective = self._objective()
        watcher.begin(objective, state.n_steps)

        def outer_step(alphas, step):
            watcher.begin_step()
            return objective(alphas, step)

        def learnt(state: OuterState) -> Learnt:
            return Learnt(as_arrays(state), [*start.snapshots, *objective.snapshots])

        state = learn_alpha(
            outer_step,
            state,
            lr=settings.outer_lr,
            eps=settings.outer_eps,
            max_iter=settings.max_iter,
            patience=settings.outer_patience,
            max_wait=self.max_wait,
            on_step=lambda state: watcher.end_step(learnt(state)),
        )
        if state.interrupted and state.n_steps == 0:
            raise KeyboardInterrupt
        return learnt(state)

    @abstractmethod
    def _begin(self, start: Learnt) -> OuterState:
        """Return the state before the first outer step of this fit."""

    @abstractmethod
    def _objective(self):
        """Return the outer objective, a function as :func:`learn_alpha` takes it, with `snapshots` and `describe`."""

    @abstractmethod
    def hear_all(self, learnt: Learnt, label_seed: int) -> tuple[StackedEnsemble, Evidence | None, object]:
        """Cross-fit members with the help of alpha, and stack them.

        Parameters
        ----------
        learnt : Learnt
        label_seed : int
            Draws wrong labels for clean rows.

        Returns
        -------
        ensemble : StackedEnsemble
        evidence : Evidence or None
            What the trainings say that alpha was learnt from.
        judges : object or None
            What judges pairs that come later, by a method `predict`; ``None``: the network.
        """

    @abstractmethod
    def judge(self, learnt: Learnt) -> Verdict:
        """Judge every row, and train the network on what is held to be right."""

    @abstractmethod
    def alpha_estimate(self, learnt: Learnt, alpha: np.ndarray):
        """Return what estimates alpha of pairs that come later: an object with a method `alpha`."""

    def alpha(self, learnt: Learnt) -> np.ndarray:
        """Return the inclusion variables, shape (n_noisy,)."""
        return self.settings.alphas(learnt.state).mean(axis=0)


class NetworkLearner(Learner):
    """The learner whose inner training is that of a network, unrolled."""

    def _begin(self, start):
        return start.state.map(lambda t: t.to(self.workers.tool.network.device))

    def _objective(self):
        return OuterObjective(self.workers, n_steps=self.settings.max_iter, seed=self.seed)

    def hear_all(self, learnt, label_seed):
        trainer, alphas, evidence = self.workers.tool, self.settings.alphas(learnt.state), None
        if self.settings.clean_cv is not None and self.task.n_classes is not None:
            sets = trainer.noisy, trainer.clean, self.folds.clean
            evidence = evidence_of(trainer.network, learnt.snapshots, *sets, label_seed)
        ensemble = hear(
            self.workers,
            self.task,
            np.broadcast_to(alphas, (self.folds.clean.max() + 1, alphas.shape[1])),
            noisy_folds=self.folds.noisy,
            clean_folds=self.folds.clean,
            clean_weight=self.settings.clean_weight,
            n_judges=self.settings.n_judges,
            witnesses=self.settings.witnesses,
            seed=self.seed,
        )
        return ensemble, evidence, None

    def judge(self, learnt):
        trainer, alpha, clean_weight = self.workers.tool, self.alpha(learnt), self.settings.clean_weight
        if self.folds.noisy.max() == 0:  # no row can be left out
            options = {"clean_weight": clean_weight, "n_judges": self.settings.n_judges, "seed": self.seed}
            return judge_plainly(self.workers, self.task, alpha, **options)
        ensemble, evidence, _ = self.hear_all(learnt, label_seed=self.seed)
        quality = self.task.estimate_label_quality(
            ensemble, trainer.noisy[1], trainer.clean[1], alpha, evidence, self.folds.clean
        )
        return with_network(trainer, quality, clean_weight, self.seed)

    def alpha_estimate(self, learnt, alpha):
        trainer = self.workers.tool
        return AlphaEstimate.calibrated(trainer.network, learnt.snapshots, trainer.noisy, alpha)


def as_arrays(state: OuterState) -> OuterState:
    return state.map(lambda t: torch.as_tensor(t).cpu().numpy())
