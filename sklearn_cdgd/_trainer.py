"""A network and its two sets: all trainings of a fit, one by one, in whatever process they run."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import numpy as np
import torch

from ._hypergradient import Forecast, Snapshot, forecast, hypergradient
from ._inputs import chosen_rows, concatenate_rows
from ._network import Network
from ._new_pairs import stored
from ._recording import Recording, record
from ._unroll import BatchPlan, CleanPlan, Problem, State, stacked, train_in_parts

# What one clean row weighs at most in a training on minibatches: so many rows, or this share of a batch. Heavier ones
# make a step overshoot whenever they come up, and the training diverge.
_HEAVIEST = 10, 0.1
# Up to so many rows a step takes as long as its number of operations, so initialisations are trained at once.
_STACKED_ROWS = 256


class Manner(NamedTuple):
    """How hypergradients are taken.

    Attributes
    ----------
    n_inits : int
        Number of initialisations that a hypergradient is averaged over.
    truncation : int or None
        In epochs.
    clean_every : int or "epoch"
    clean_batch_size : int or None
    memory_budget : float or None
        Bytes; ``None`` takes an eighth of the machine's memory.
    compile : bool
    """

    n_inits: int = 1
    truncation: int | None = None
    clean_every: int | str = 1
    clean_batch_size: int | None = None
    memory_budget: float | None = None
    compile: bool = False


class Trained(NamedTuple):
    """What comes back of one training that was differentiated through.

    Attributes
    ----------
    value : float
    grad : ndarray of shape (n_noisy,)
    held_out : float
        Mean loss of the clean rows that the objective leaves out, at the end of the training; NaN if there are none.
    snapshots : list of Snapshot
        NumPy arrays in place of tensors.
    """

    value: float
    grad: np.ndarray
    held_out: float
    snapshots: list[Snapshot]


class _Part(NamedTuple):
    problem: Problem
    recording: Recording | None
    n_stacked: int


class Trainer:
    """A network and its two sets.

    Parameters
    ----------
    network : Network
    noisy, clean : pair of (X, targets)
    clean_folds : ndarray of shape (n_clean,) or None, default=None
        The folds of the clean set that alpha is learnt without, each in its turn. ``None``, or one fold: alpha is
        learnt from the whole.
    manner : Manner
    """

    def __init__(self, network: Network, noisy, clean, clean_folds=None, manner: Manner = Manner()):  # noqa: B008
        self.network, self.noisy, self.clean, self.manner = network, noisy, clean, manner
        self.clean_folds = np.zeros(len(clean[1]), dtype=int) if clean_folds is None else clean_folds
        self._parts: dict[int, _Part] = {}

    def parts(self) -> tuple:
        """Return what an equal trainer is made of."""
        budget = _default_memory_budget() if self.manner.memory_budget is None else self.manner.memory_budget
        manner = self.manner._replace(memory_budget=budget)  # rounding depends on it, so not on the machine
        return self.network, *self.noisy, *self.clean, self.clean_folds, manner

    @classmethod
    def of_parts(cls, network, X, targets, X_clean, clean_targets, clean_folds, manner) -> Trainer:
        """Return a trainer like the one that the parts are of."""
        return cls(network, (X, targets), (X_clean, clean_targets), clean_folds, manner)

    # --- with a derivative --------------------------------------------------------------------------------------------

    @property
    def n_parts(self) -> int:
        """The number of objectives: one without each fold of the clean set."""
        return int(self.clean_folds.max()) + 1

    @property
    def n_stacked(self) -> int:
        """The number of networks that one training trains at once: all initialisations, or one."""
        return self._part(0).n_stacked if self._may_stack() else 1

    def plan(self, seed: int) -> BatchPlan:
        """Return the plan of a training on the noisy set."""
        return self.network.plan(len(self.noisy[1]), seed)

    def hypergradient(self, part: int, alpha: np.ndarray, seed: int, watched: set[int]) -> Trained:
        """Train from the initialisation of a seed, and differentiate the clean loss without a fold by alpha."""
        problem, recording, n_stacked = self._part(part)
        alpha, plan = torch.as_tensor(alpha, device=self.network.device), self.plan(seed)
        result = hypergradient(problem, alpha, plan, recording=recording, watched=watched, **self._options(part, plan))
        states = [result.state]
        if n_stacked > 1:
            states = [State(*(tuple(t[n] for t in tensors) for tensors in result.state)) for n in range(n_stacked)]
        snapshots = stored(result.snapshots, n_stacked)
        return Trained(result.value, result.grad.cpu().numpy(), self._held_out_loss(part, states), snapshots)

    def forecast(self) -> Forecast:
        """Say what one hypergradient will take."""
        problem, recording, _ = self._part(0)
        alpha, plan = torch.ones(len(self.noisy[1]), device=self.network.device), self.plan(0)
        return forecast(problem, alpha, plan, recording=recording, **self._options(0, plan))

    def _part(self, part: int) -> _Part:
        """Return what is trained without a fold; it is recorded when it is asked for first."""
        if part not in self._parts:
            (X, targets), seen = self.clean, ~self._left_out(part)
            problem, plan = self.network.problem(self.noisy, (X[seen], targets[seen])), self.plan(0)
            alpha = torch.ones(len(self.noisy[1]), device=self.network.device)
            options = {"clean_rows": self._clean_plan(part, plan).rows(0), "compile": self.manner.compile}
            recording, n_stacked = None, 1
            if self._may_stack():
                recording = record(stacked(problem, self.manner.n_inits), plan, alpha, **options)
            if recording is None:
                recording = record(problem, plan, alpha, **options)
            else:
                problem, n_stacked = recording.problem, self.manner.n_inits
            self._parts[part] = _Part(problem, recording, n_stacked)
        return self._parts[part]

    def _may_stack(self) -> bool:
        return self.manner.n_inits > 2 and self.plan(0).rows_per_step <= _STACKED_ROWS

    def _left_out(self, part: int) -> np.ndarray:
        return (self.clean_folds == part) & (self.n_parts > 1)

    def _options(self, part: int, plan: BatchPlan) -> dict:
        manner = self.manner
        return {
            "memory_budget": _default_memory_budget() if manner.memory_budget is None else manner.memory_budget,
            "truncation": None if manner.truncation is None else manner.truncation * plan.steps_per_epoch,
            "clean_plan": self._clean_plan(part, plan),
        }

    def _clean_plan(self, part: int, plan: BatchPlan) -> CleanPlan:
        every, n_rows = self.manner.clean_every, int((~self._left_out(part)).sum())
        every = plan.steps_per_epoch if every == "epoch" else every
        return CleanPlan(plan.n_steps, every, self.manner.clean_batch_size, n_rows, plan.seed)

    def _held_out_loss(self, part: int, states: list[State]) -> float:
        rows = self._left_out(part)
        if not rows.any():
            return math.nan
        return float(np.mean([self.network.row_losses(state, *(t[rows] for t in self.clean)) for state in states]))

    # --- without ------------------------------------------------------------------------------------------------------

    def trained(
        self, weights: np.ndarray, clean_weight: float, rows: np.ndarray, clean_rows: np.ndarray, seed, parts=(1.0,)
    ) -> list[State]:
        """Train on the chosen rows with their weights, and return the states after the given parts of the training.

        The chosen clean rows together weigh `clean_weight`, in units of the chosen noisy rows, unless that is more than
        minibatches bear; at 0 they are left out.
        """
        clean_rows = clean_rows & (clean_weight > 0)
        (X, targets), (X_clean, clean_targets) = self.noisy, self.clean
        X = concatenate_rows(X, rows, X_clean, clean_rows)
        targets, n_clean = np.concatenate([targets[rows], clean_targets[clean_rows]]), clean_rows.sum()
        plan = self.network.plan(len(targets), seed)
        share = clean_weight * rows.sum() / n_clean if rows.any() and n_clean else 1.0
        if plan.steps_per_epoch > 1:
            n_rows, of_batch = _HEAVIEST
            share = min(share, max(n_rows, of_batch * plan.rows_per_step))
        weights = np.concatenate([weights[rows], np.full(n_clean, share)])
        weights /= max(1.0, weights.mean())  # heavier rows would be as good as a higher learning rate
        weights = torch.as_tensor(weights, dtype=torch.float32, device=self.network.device)
        problem = self.network.problem((X, targets), self.clean)
        return train_in_parts(problem, weights, plan, parts)

    def heard(self, state: State, pair, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what a trained network answers to some rows of a pair of X and targets, and their losses."""
        X, targets = chosen_rows(pair[0], rows), pair[1][rows]
        return self.network.answers(state, X), self.network.row_losses(state, X, targets)


def _default_memory_budget() -> float:
    """Return an eighth of the machine's memory, in bytes: the same at every call, so that results are."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 8
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 1e9
