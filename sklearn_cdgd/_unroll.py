"""The inner training as a pure function of the inclusion variable.

A :class:`Problem` says what is trained on what, a :class:`BatchPlan` in which order, and
:func:`inner_step` is one differentiable step on the alpha-weighted loss (arXiv 1905.05843, eq. 2)

.. math:: L^\\alpha(\\theta; B) = \\frac{1}{|B|} \\sum_{n \\in B} \\alpha_n \\ell_n(\\theta).

Nothing here draws from a global random generator: initialisation, order and dropout are functions of seeds, so
that every step can be replayed in the reverse sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ._optimizers import Optimizer, Tensors


class DivergenceError(ValueError):
    """An inner training left the finite numbers.

    The message says at which inner step, and what to do about it.

    Examples
    --------
    >>> import numpy as np
    >>> from skorch import NeuralNetRegressor
    >>> from torch import nn
    >>> from sklearn_cdgd import CorruptionDetector, DivergenceError
    >>> X = np.arange(20.0)[:, None]
    >>> net = NeuralNetRegressor(nn.Linear(1, 1), lr=1e3, batch_size=-1, max_epochs=50)
    >>> try:
    ...     CorruptionDetector(net, random_state=0).fit(X[:15], X[:15, 0], X[15:], X[15:, 0])
    ... except DivergenceError as error:
    ...     print("diverged")
    diverged
    """


class State(NamedTuple):
    """Everything that one inner step hands to the next.

    `buffers` (the running statistics of batch norm, say) are carried as data: no derivative goes through them.
    """

    params: Tensors
    optimizer: Tensors
    buffers: Tensors

    @property
    def tracked(self) -> Tensors:
        """The tensors that derivatives flow through."""
        return self.params + self.optimizer

    @property
    def n_bytes(self) -> int:
        """The memory that one state takes."""
        return sum(t.numel() * t.element_size() for part in self for t in part)

    def leaves(self) -> State:
        """Return the same values, cut off from their history, ready to be differentiated by."""
        params, optimizer = (tuple(t.detach().requires_grad_() for t in part) for part in self[:2])
        return State(params, optimizer, self.buffers)

    def detach(self) -> State:
        return State(*(tuple(t.detach() for t in part) for part in self))


@dataclass(frozen=True)
class Problem:
    """A network, an update rule and two data sets, reduced to pure functions.

    Parameters
    ----------
    initialize : callable(seed) -> (params, buffers)
        Fresh initial values, a function of the seed alone.
    train_losses : callable(params, buffers, X, y) -> (losses, buffers)
        The loss of every row in training mode, and the buffers afterwards.
    eval_losses : callable(params, buffers, X, y) -> losses
        The loss of every row in evaluation mode.
    optimizer : Optimizer
        The inner update rule.
    noisy, clean : callable(rows) -> (X, y)
        The chosen rows of each set; ``None`` chooses all.
    seeded : callable(seed) -> context manager, default=nullcontext
        Within it a step replays the random numbers (dropout) that belong to the seed. The default is for losses that
        draw none.
    """

    initialize: Callable[[int], tuple[Tensors, Tensors]]
    train_losses: Callable[..., tuple[Tensor, Tensors]]
    eval_losses: Callable[..., Tensor]
    optimizer: Optimizer
    noisy: Callable[[Tensor | None], tuple[object, Tensor]]
    clean: Callable[[Tensor | None], tuple[object, Tensor]]
    seeded: Callable[[int], AbstractContextManager] = nullcontext

    def initial_state(self, seed: int) -> State:
        params, buffers = self.initialize(seed)
        return State(params, self.optimizer.init(params), buffers)

    def clean_loss(self, state: State, rows: Tensor | None = None) -> Tensor:
        """Mean loss on the chosen rows of the clean set; ``None`` chooses all."""
        return self.eval_losses(state.params, state.buffers, *self.clean(rows)).mean()


def stacked(problem: Problem, n_inits: int) -> Problem:
    """Return the problem of training `n_inits` networks at once, from initialisations of their own.

    The parameters get a leading axis of length `n_inits`. The weighted loss is summed over the networks, so that each
    is trained as if alone, and the clean loss averaged. Worth it where the number of operations takes the time, not
    their size. The networks share the order of the rows.
    """
    train_losses = torch.func.vmap(problem.train_losses, in_dims=(0, 0, None, None), randomness="different")
    eval_losses = torch.func.vmap(problem.eval_losses, in_dims=(0, 0, None, None))

    def initialize(seed):
        parts = zip(*(problem.initialize(seed + n) for n in range(n_inits)), strict=True)
        return tuple(tuple(torch.stack(t) for t in zip(*part, strict=True)) for part in parts)

    def summed_train_losses(params, buffers, X, y):
        losses, buffers = train_losses(params, buffers, X, y)
        return losses.sum(0), buffers

    def mean_eval_losses(params, buffers, X, y):
        return eval_losses(params, buffers, X, y).mean(0)

    return replace(problem, initialize=initialize, train_losses=summed_train_losses, eval_losses=mean_eval_losses)


@dataclass(frozen=True)
class BatchPlan:
    """Which rows each inner step sees: a function of the seed that can be asked in any order.

    Parameters
    ----------
    n_rows, batch_size, n_epochs : int
        Rows of the noisy set, rows per step (the last batch of an epoch may be smaller; -1 or anything from `n_rows` on
        is full batch), passes over the noisy set.
    seed : int
        Decides the order of the rows and the dropout of every step.
    shuffle : bool, default=True
        Draw a new order for every epoch.
    """

    n_rows: int
    batch_size: int
    n_epochs: int
    seed: int
    shuffle: bool = True
    _last_order: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def full_batch(self) -> bool:
        return not 0 < self.batch_size < self.n_rows

    @property
    def rows_per_step(self) -> int:
        return self.n_rows if self.full_batch else self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        return 1 if self.full_batch else -(-self.n_rows // self.batch_size)

    @property
    def n_steps(self) -> int:
        return self.n_epochs * self.steps_per_epoch

    def rows(self, step: int) -> Tensor | None:
        """Return the row numbers of a step; ``None`` stands for all rows in their order."""
        if self.full_batch:
            return None
        epoch, batch = divmod(step, self.steps_per_epoch)
        if epoch not in self._last_order:
            self._last_order.clear()
            self._last_order[epoch] = self._order(epoch)
        return self._last_order[epoch][batch * self.batch_size : (batch + 1) * self.batch_size]

    def step_seed(self, step: int) -> int:
        """Return the seed of the randomness inside one step."""
        return (self.seed + 1_000_003 * (step + 1)) % 2**63

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.n_rows)
        generator = torch.Generator().manual_seed((self.seed + 7_919 * epoch) % 2**63)
        return torch.randperm(self.n_rows, generator=generator)


@dataclass(frozen=True)
class CleanPlan:
    """At which inner steps the clean loss is taken, and on which clean rows.

    Parameters
    ----------
    n_steps : int
        Number of inner steps.
    every : int, default=1
        The clean loss is taken after every so many steps, and after the last.
    batch_size : int or None, default=None
        Clean rows at a time: a window that goes round and round through the clean rows in one random order, so that
        each is used as often as any other, give or take once. ``None`` is all of them.
    n_rows : int, default=0
        Size of the clean set; needed for minibatches only.
    seed : int, default=0
        Decides the order.
    """

    n_steps: int
    every: int = 1
    batch_size: int | None = None
    n_rows: int = 0
    seed: int = 0

    def __post_init__(self):
        order = None
        if self.batch_size is not None and self.batch_size < self.n_rows:
            order = torch.randperm(self.n_rows, generator=torch.Generator().manual_seed((self.seed + 104_729) % 2**63))
        object.__setattr__(self, "_order", order)

    @property
    def steps(self) -> list[int]:
        """The inner steps after which the clean loss is taken."""
        return [step for step in range(self.n_steps) if self.has(step)]

    def has(self, step: int) -> bool:
        """Tell whether the clean loss is taken after an inner step."""
        return (step + 1) % self.every == 0 or step + 1 == self.n_steps

    def rows(self, step: int) -> Tensor | None:
        """Return the clean rows that a step with a clean loss sees; ``None`` stands for all."""
        if self._order is None:
            return None
        first = step // self.every * self.batch_size
        return self._order[torch.arange(first, first + self.batch_size) % self.n_rows]


def inner_step(
    problem: Problem, state: State, weights: Tensor, X: object, y: Tensor, *, differentiable: bool = False
) -> State:
    """Take one step of the inner training on the alpha-weighted loss.

    Parameters
    ----------
    problem : Problem
    state : State
        Its parameters must require a gradient.
    weights : Tensor of shape (n_batch,)
        alpha of the rows in the batch.
    X, y : Tensor
        The rows of the batch and their labels.
    differentiable : bool, default=False
        Keep the graph of the step, so that the new state can be differentiated by the old one and by `weights`.

    Returns
    -------
    state : State
    """
    grads, buffers = batch_gradient(problem, state, weights, X, y, differentiable=differentiable)
    return update(problem, state, grads, buffers, differentiable=differentiable)


def batch_gradient(
    problem: Problem, state: State, weights: Tensor, X: object, y: Tensor, *, differentiable: bool
) -> tuple[Tensors, Tensors]:
    """Return the gradient of the alpha-weighted loss, the first half of an inner step, and the buffers after it."""
    losses, buffers = problem.train_losses(state.params, state.buffers, X, y)
    objective = torch.dot(weights, losses) / len(losses)
    grads = torch.autograd.grad(objective, state.params, create_graph=differentiable, materialize_grads=True)
    return grads, buffers


def update(problem: Problem, state: State, grads: Tensors, buffers: Tensors, *, differentiable: bool) -> State:
    """Apply the update rule, the second half of an inner step."""
    with torch.set_grad_enabled(differentiable):
        params, optimizer = problem.optimizer.update(state.params, grads, state.optimizer)
    return State(params, optimizer, buffers)


def advance(problem: Problem, state: State, alpha: Tensor, plan: BatchPlan, first: int, last: int) -> State:
    """Train from inner step `first` to `last` without keeping a graph."""
    for step in range(first, last):
        rows = plan.rows(step)
        weights = alpha if rows is None else alpha[rows]
        with problem.seeded(plan.step_seed(step)):
            state = inner_step(problem, state.leaves(), weights, *problem.noisy(rows)).detach()
    return state


def train(problem: Problem, alpha: Tensor, plan: BatchPlan) -> State:
    """Train from a fresh initialisation to the end of the plan."""
    return train_in_parts(problem, alpha, plan, (1.0,))[0]


def train_in_parts(problem: Problem, alpha: Tensor, plan: BatchPlan, parts: Sequence[float]) -> list[State]:
    """Train from a fresh initialisation, and return the states after the given parts of the plan, in rising order."""
    state, done, states = problem.initial_state(plan.seed), 0, []
    for part in parts:
        last = max(1, round(part * plan.n_steps))
        state, done = advance(problem, state, alpha, plan, done, last), last
        check_finite(state, last)
        states.append(state)
    return states


def train_early_stopped(problem: Problem, alpha: Tensor, plan: BatchPlan) -> tuple[State, list[float]]:
    """Train to the end of the plan and return the state of the epoch with the least clean loss.

    Returns
    -------
    state : State
    clean_losses : list of float
        The clean loss after every epoch.
    """
    state, best, clean_losses = problem.initial_state(plan.seed), None, []
    for epoch in range(plan.n_epochs):
        first = epoch * plan.steps_per_epoch
        state = advance(problem, state, alpha, plan, first, first + plan.steps_per_epoch)
        with torch.no_grad():
            clean_losses.append(problem.clean_loss(state).item())
        if best is None or clean_losses[-1] < min(clean_losses[:-1]):
            best = state
        check_finite(state, first + plan.steps_per_epoch)
    return best, clean_losses


def check_finite(state: State, step: int) -> None:
    """Raise if a training has diverged.

    Raises
    ------
    DivergenceError
        If a parameter is not finite; names the step.
    """
    if not all(torch.isfinite(p).all() for p in state.params):
        raise DivergenceError(
            f"The inner training diverged: parameters of the network are not finite at inner step {step}. "
            "Lower the learning rate of the network, or scale X."
        )
