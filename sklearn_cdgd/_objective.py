"""The outer objective: the clean loss along inner trainings, and its hypergradient by the inclusion variables."""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from torch import Tensor

from ._hypergradient import Forecast, forecast, hypergradient
from ._network import Network
from ._new_pairs import Watch
from ._recording import record
from ._unroll import State, stacked

# Up to so many rows a step takes as long as its number of operations, so initialisations are trained at once.
_STACKED_ROWS = 256


class OuterObjective:
    """A function of the inclusion variables and the number of the outer step.

    Parameters
    ----------
    network : Network
    noisy : pair of (X, targets)
    clean_sets : list of pairs of (X, targets)
        Each has inclusion variables of its own, learnt for its loss: what is left of the clean set without one fold.
    held_out : list of pairs of (X, targets)
        For each clean set the fold that it is left without; empty if there are none.
    n_inits : int
        Number of initialisations that the hypergradient of one outer step is averaged over.
    truncation : int or None
        In epochs.
    clean_every : int or "epoch"
    memory_budget : float or None
        Bytes; ``None`` takes an eighth of the machine's memory.
    compile : bool
    n_steps : int
        Number of outer steps that there will be at most, from the first fit on.
    seed : int

    Attributes
    ----------
    snapshots : list of (int, Snapshot)
        Of the trainings so far, with the number of the clean set.
    """

    def __init__(
        self,
        network: Network,
        noisy,
        clean_sets: list,
        held_out: list,
        *,
        n_inits: int,
        truncation: int | None,
        clean_every: int | str,
        memory_budget: float | None,
        compile: bool,
        n_steps: int,
        seed: int,
    ):
        self._network, self._n_rows, self._n_inits, self._seed = network, len(noisy[1]), n_inits, seed
        self._held_out = held_out
        plan, alpha = network.plan(self._n_rows, seed), torch.ones(self._n_rows, device=network.device)
        self._options = {
            "memory_budget": _default_memory_budget() if memory_budget is None else memory_budget,
            "truncation": None if truncation is None else truncation * plan.steps_per_epoch,
            "clean_every": plan.steps_per_epoch if clean_every == "epoch" else clean_every,
        }
        self._parts = []
        for clean in clean_sets:
            problem, recording, self._n_trainings = network.problem(noisy, clean), None, n_inits
            if n_inits > 2 and plan.rows_per_step <= _STACKED_ROWS:
                recording = record(stacked(problem, n_inits), plan, alpha, compile=compile)
            if recording is not None:
                problem, self._n_trainings = recording.problem, 1
            else:
                recording = record(problem, plan, alpha, compile=compile)
            self._parts.append((problem, recording))
        self._trainings_per_step = self._n_trainings * len(clean_sets)
        state = self._parts[0][0].initial_state(seed)
        n_trainings, n_stacked, n_sets = n_steps * self._n_trainings, n_inits // self._n_trainings, len(clean_sets)
        self._watches = [Watch(plan, n_trainings, state, n_stacked, n_sets) for _ in clean_sets]

    @property
    def snapshots(self) -> list:
        return [(k, snapshot) for k, watch in enumerate(self._watches) for snapshot in watch.snapshots]

    def __call__(self, alphas: Tensor, outer_step: int) -> tuple[float, Tensor, float]:
        """Return the mean objective, its hypergradient by the alpha of every clean set, and the held-out loss."""
        values, grads, held_out = zip(*(self._one(k, a, outer_step) for k, a in enumerate(alphas)), strict=True)
        return sum(values) / len(values), torch.stack(grads), sum(held_out) / len(held_out)

    def _one(self, k: int, alpha: Tensor, outer_step: int) -> tuple[float, Tensor, float]:
        (problem, recording), watch, results = self._parts[k], self._watches[k], []
        for n in range(self._n_trainings):
            # Every training has an initialisation of its own; one that trains several networks at once has several.
            first = self._seed + 1 + (outer_step * len(self._parts) + k) * self._n_inits + n
            plan, watched = self._network.plan(self._n_rows, first), watch.steps(outer_step * self._n_trainings + n)
            results.append(hypergradient(problem, alpha, plan, recording=recording, watched=watched, **self._options))
            watch.keep(results[-1].snapshots)
        n, held_out = len(results), self._held_out_loss(k, [result.state for result in results])
        return sum(r.value for r in results) / n, sum(r.grad for r in results) / n, held_out

    def _held_out_loss(self, k: int, states: list[State]) -> float:
        """Return the mean loss of the clean rows that the objective of a fold leaves out, at the end of trainings."""
        if not self._held_out:
            return math.nan
        if self._n_trainings < self._n_inits:
            states = [State(*(tuple(t[n] for t in part) for part in states[0])) for n in range(self._n_inits)]
        return float(np.mean([self._network.row_losses(state, *self._held_out[k]) for state in states]))

    def forecast(self, n_steps: int) -> tuple[int, Forecast]:
        """Return the number of inner steps in so many outer steps, and what they will cost."""
        (problem, recording), plan = self._parts[0], self._network.plan(self._n_rows, self._seed)
        alpha = torch.ones(self._n_rows, device=self._network.device)
        one, n_trainings = forecast(problem, alpha, plan, recording=recording, **self._options), n_steps
        n_trainings *= self._trainings_per_step
        return n_trainings * plan.n_steps, one._replace(seconds=n_trainings * one.seconds)


def _default_memory_budget() -> float:
    """Return an eighth of the machine's memory, in bytes: the same at every call, so that results are."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 8
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 1e9
