"""Learning rates that change during a training, as a table.

A scheduler of torch changes an optimiser in place. What it does follows from the number of steps alone, so it is run
on an optimiser of nothing, and the learning rates are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class Scheduler:
    """How one learning-rate scheduler is made, and when it steps.

    Parameters
    ----------
    make : callable(optimizer) -> torch.optim.lr_scheduler.LRScheduler
    name : str
        What it is called in messages.
    every_batch : bool
        Whether it steps after every batch, or after every epoch.
    """

    make: Callable[[Optimizer], object]
    name: str
    every_batch: bool


@dataclass(frozen=True)
class Schedule:
    """Learning rates of every parameter group, a function of the step alone.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its class, and the options of its groups, are those of the training; it is not touched.
    schedulers : list of Scheduler
        They act on the same learning rates, in this order.
    """

    optimizer: Optimizer
    schedulers: list[Scheduler]

    def learning_rates(self, n_epochs: int, steps_per_epoch: int, n_steps: int | None = None) -> Tensor:
        """Return the learning rate of every group at every step.

        Parameters
        ----------
        n_epochs, steps_per_epoch : int
        n_steps : int or None, default=None
            Stop after so many steps.

        Returns
        -------
        lrs : Tensor of shape (n_groups, n_steps)
            In float64.

        Raises
        ------
        ValueError
            If a scheduler fails.
        """
        optimizer = self._without_parameters()
        running = [(s, self._made(s, optimizer)) for s in self.schedulers]
        n_steps = min(n_epochs * steps_per_epoch, n_steps or n_epochs * steps_per_epoch)
        lrs = []
        for step in range(n_steps):
            lrs.append([float(group["lr"]) for group in optimizer.param_groups])
            optimizer.step()  # moves nothing, but torch warns if a scheduler is ahead
            is_last_of_epoch = (step + 1) % steps_per_epoch == 0
            for scheduler, its_steps in running:
                if scheduler.every_batch or is_last_of_epoch:
                    try:
                        its_steps.step()
                    except Exception as error:
                        raise ValueError(
                            f"The learning-rate schedule {scheduler.name} of net failed after step {step + 1} of "
                            f"{n_steps} inner steps: {error}. It has to cover them all, and to follow from their "
                            "number alone."
                        ) from error
        return torch.tensor(lrs, dtype=torch.float64).T

    def changes_besides_lr(self) -> list[str]:
        """Return the options other than the learning rate that the schedulers take over, such as the momentum."""
        optimizer = self._without_parameters()
        running = [self._made(scheduler, optimizer) for scheduler in self.schedulers]
        optimizer.step()
        for scheduler in running:
            scheduler.step()
        changed = [
            key
            for before, after in zip(self.optimizer.param_groups, optimizer.param_groups, strict=True)
            for key in before
            if key not in ("params", "lr") and before[key] != after[key]
        ]
        return list(dict.fromkeys(changed))

    def _without_parameters(self) -> Optimizer:
        groups = [
            {k: v for k, v in group.items() if k not in ("params", "initial_lr")}
            | {"params": [torch.zeros((), requires_grad=True)]}
            for group in self.optimizer.param_groups
        ]
        return type(self.optimizer)(groups)

    def _made(self, scheduler: Scheduler, optimizer: Optimizer):
        try:
            return scheduler.make(optimizer)
        except Exception as error:
            raise ValueError(f"The learning-rate schedule {scheduler.name} of net cannot be made: {error}") from error
