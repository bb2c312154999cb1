"""The outer objective: the clean loss along inner trainings, and its hypergradient by the inclusion variables."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from ._hypergradient import Snapshot
from ._new_pairs import Watch
from ._trainer import Trainer
from ._workers import Workers

_AVERAGED = ("value", "grad", "held_out")


class OuterObjective:
    """A function of the inclusion variables and the number of the outer step.

    Parameters
    ----------
    workers : Workers
        Of a :class:`Trainer`. The trainings of one outer step are done by them, side by side.
    n_steps : int
        Number of outer steps that there will be at most, from the first fit on.
    seed : int

    Attributes
    ----------
    snapshots : list of (int, Snapshot)
        Of the trainings so far, with the number of the clean set.
    """

    def __init__(self, workers: Workers, *, n_steps: int, seed: int):
        trainer = workers.tool
        self._workers, self._trainer, self._seed = workers, trainer, seed
        self._n_parts, self._n_inits, n_stacked = trainer.n_parts, trainer.manner.n_inits, trainer.n_stacked
        self._n_trainings = self._n_inits // n_stacked
        params, _ = trainer.network.initialize(seed)
        self._watch = Watch(trainer.plan(seed), n_steps * self._n_trainings, params, n_stacked, self._n_parts)
        self._snapshots: list[list[Snapshot]] = [[] for _ in range(self._n_parts)]

    @property
    def snapshots(self) -> list[tuple[int, Snapshot]]:
        return [(part, snapshot) for part, of_part in enumerate(self._snapshots) for snapshot in of_part]

    def __call__(self, alphas: Tensor, outer_step: int) -> tuple[float, Tensor, float]:
        """Return the mean objective, its hypergradient by the alpha of every clean set, and the held-out loss."""
        of_parts = [alpha.cpu().numpy() for alpha in alphas]
        jobs = []
        for part, n in itertools.product(range(self._n_parts), range(self._n_trainings)):
            # Every training has an initialisation of its own; one that trains several networks at once has several.
            seed = self._seed + 1 + (outer_step * self._n_parts + part) * self._n_inits + n
            jobs.append((part, of_parts[part], seed, self._watch.steps(outer_step * self._n_trainings + n, part)))
        trained = self._workers(Trainer.hypergradient, jobs)
        for (part, *_), one in zip(jobs, trained, strict=True):
            self._snapshots[part] += one.snapshots
        values, grads, held_out = (self._means([getattr(one, name) for one in trained]) for name in _AVERAGED)
        grad = torch.as_tensor(np.stack(grads), device=alphas.device)
        return sum(values) / len(values), grad, sum(held_out) / len(held_out)

    def _means(self, of_trainings: list) -> list:
        """Return the mean over the trainings of every part."""
        n = self._n_trainings
        return [sum(of_trainings[first : first + n]) / n for first in range(0, len(of_trainings), n)]

    def describe(self, n_steps: int) -> str:
        """Say what so many outer steps will cost."""
        one, n_trainings = self._trainer.forecast(), n_steps * self._n_parts * self._n_trainings
        n_inner = n_trainings * self._trainer.plan(self._seed).n_steps
        return (
            f"{n_inner} inner steps, about {n_trainings * one.seconds:.0f} s to learn alpha, "
            f"{one.n_bytes / 1e6:.0f} MB beside the data"
        )
