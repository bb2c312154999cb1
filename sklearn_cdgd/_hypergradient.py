"""The derivative of the clean loss with respect to alpha, through the whole inner training.

With E the inner steps at which the clean loss is taken, the outer objective is the mean of L_c(theta_i) over i in E.
One reverse sweep over the training gives its exact gradient: the adjoint of the state is pulled back from step to step
while every step leaves its share on the alphas of its batch. The time is linear in the number of steps; what the sweep
needs to remember of the training is recomputed segment by segment, so memory is what the caller allows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ._unroll import BatchPlan, DivergenceError, Problem, State, advance, check_finite, inner_step


class Hypergradient(NamedTuple):
    """Outer objective and its gradient.

    Attributes
    ----------
    value : float
        Mean clean loss over the inner steps where it was taken.
    grad : Tensor of shape (n_noisy,)
        Derivative of `value` by alpha.
    state : State
        The state at the end of the inner training.
    """

    value: float
    grad: Tensor
    state: State


def hypergradient(
    problem: Problem,
    alpha: Tensor,
    plan: BatchPlan,
    *,
    segment: int | None = None,
    memory_budget: float = 1e9,
    truncation: int | None = None,
    clean_every: int = 1,
) -> Hypergradient:
    """Differentiate the clean loss through one inner training.

    Parameters
    ----------
    problem : Problem
    alpha : Tensor of shape (n_noisy,)
        Inclusion variable, in [0, 1].
    plan : BatchPlan
        Its seed decides the initialisation too.
    segment : int or None, default=None
        Number of inner steps whose graph is held at a time. ``None`` derives it from `memory_budget`. The result is the
        same to rounding; a training longer than one segment costs one more forward pass over all but its last segment.
    memory_budget : float, default=1e9
        Bytes that the graph of a segment and the states at segment borders may take.
    truncation : int or None, default=None
        Cut the dependence of the state on alpha every so many steps (Algorithm 2 of the paper). ``None`` is exact.
    clean_every : int, default=1
        Take the clean loss after every so many steps, and after the last.

    Returns
    -------
    Hypergradient

    Raises
    ------
    DivergenceError
        If the training leaves the finite numbers.
    """
    state = problem.initial_state(plan.seed)
    if segment is None:
        segment = segment_length(problem, state, alpha, plan, memory_budget)
    sweep = _ReverseSweep(problem, alpha.detach(), plan, segment, memory_budget, clean_every)
    window = truncation or plan.n_steps
    for first in range(0, plan.n_steps, window):
        state, _ = sweep.run(state, first, min(first + window, plan.n_steps), adjoint=None)
    check_finite(state, plan.n_steps)
    if not torch.isfinite(sweep.grad).all():
        raise DivergenceError(
            "The hypergradient is not finite although the inner training is: the network amplifies changes of alpha "
            f"without bound over {window} inner steps. Lower the learning rate of the network, scale X, or set "
            "`truncation`."
        )
    return Hypergradient(sweep.value, sweep.grad, state)


@dataclass
class _ReverseSweep:
    """Accumulates value and gradient over the windows of one training."""

    problem: Problem
    alpha: Tensor
    plan: BatchPlan
    segment: int
    memory_budget: float
    clean_every: int

    def __post_init__(self):
        self.value = 0.0
        self.grad = torch.zeros_like(self.alpha)
        n_steps, every = self.plan.n_steps, self.clean_every
        self.n_clean = n_steps // every + (n_steps % every > 0)

    def run(self, state: State, first: int, last: int, adjoint: tuple[Tensor, ...] | None):
        """Sweep the steps `first` to `last` that start from `state`.

        `adjoint` is the derivative of the rest of the objective by the state at `last`, ``None`` for zero. Returns the
        state at `last` and the adjoint of the state at `first`.
        """
        if last - first <= self.segment:
            return self._pull_back(state, first, last, adjoint)
        # States are stored at the borders of stretches; a stretch longer than a segment is swept in the same way.
        borders = list(range(first, last, self._stretch(state, last - first)))
        states = [state.detach()]
        for a, b in itertools.pairwise(borders):
            states.append(advance(self.problem, states[-1], self.alpha, self.plan, a, b))
            check_finite(states[-1], b)
        end = None
        for a, b in zip(reversed(borders), reversed([*borders[1:], last]), strict=True):
            reached, adjoint = self.run(states.pop(), a, b, adjoint)
            end = end or reached
        return end, adjoint

    def _stretch(self, state: State, n_steps: int) -> int:
        """Return how many steps may lie between stored states so that the states fit in the memory budget."""
        n_bytes = sum(t.numel() * t.element_size() for part in state for t in part)
        most = max(2, int(0.5 * self.memory_budget / n_bytes))
        stretch = self.segment
        while n_steps > stretch * most:
            stretch *= most
        return stretch

    def _pull_back(self, state: State, first: int, last: int, adjoint: tuple[Tensor, ...] | None):
        """Hold the graph of all steps from `first` to `last` and send one backward pass through it."""
        start = state = state.leaves()
        inclusion, clean_losses = _Leaves(self.alpha), {}
        for step in range(first, last):
            rows = self.plan.rows(step)
            seed = self.plan.step_seed(step)
            state = inner_step(self.problem, state, inclusion[rows], rows, seed, differentiable=True)
            if (step + 1) % self.clean_every == 0 or step + 1 == self.plan.n_steps:
                clean_losses[step + 1] = self.problem.clean_loss(state)

        outputs, cotangents = [], []
        if clean_losses:
            objective = torch.stack(list(clean_losses.values())).sum() / self.n_clean
            if not torch.isfinite(objective):
                raise _diverged(clean_losses)
            self.value += objective.item()
            outputs, cotangents = [objective], [torch.ones_like(objective)]
        if adjoint is not None:
            outputs, cotangents = [*outputs, *state.tracked], [*cotangents, *adjoint]
        if not outputs:
            return state.detach(), None
        inputs = [*start.tracked, *inclusion.leaves]
        grads = torch.autograd.grad(outputs, inputs, cotangents, materialize_grads=True)
        n_tracked = len(start.tracked)
        inclusion.accumulate(self.grad, grads[n_tracked:])
        return state.detach(), grads[:n_tracked]


class _Leaves:
    """alpha cut into one leaf a batch.

    Indexing inside the graph would cost a gradient of length n_noisy at every step.
    """

    def __init__(self, alpha: Tensor):
        self._alpha = alpha
        self._rows: list[Tensor | None] = []
        self.leaves: list[Tensor] = []

    def __getitem__(self, rows: Tensor | None) -> Tensor:
        if rows is None and self.leaves:
            return self.leaves[0]
        weights = self._alpha if rows is None else self._alpha[rows]
        self._rows.append(rows)
        self.leaves.append(weights.detach().requires_grad_())
        return self.leaves[-1]

    def accumulate(self, total: Tensor, grads: tuple[Tensor, ...]) -> None:
        """Add the gradients by the leaves to `total`, the gradient by alpha."""
        for rows, grad in zip(self._rows, grads, strict=True):
            if rows is None:
                total += grad
            else:
                total.index_add_(0, rows, grad)


def _diverged(clean_losses: dict[int, Tensor]) -> DivergenceError:
    step = next(step for step, loss in clean_losses.items() if not torch.isfinite(loss))
    return DivergenceError(
        f"The inner training diverged: the clean loss is not finite at inner step {step}. "
        "Lower the learning rate of the network, or scale X."
    )


def segment_length(problem: Problem, state: State, alpha: Tensor, plan: BatchPlan, memory_budget: float) -> int:
    """Return how many inner steps have a graph that fits in `memory_budget` bytes; at least one.

    The graph of the first step and its clean loss is built once, and what it saves is weighed.
    """
    saved: dict[int, Tensor] = {}

    def weigh(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    start, rows = state.leaves(), plan.rows(0)
    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
        weights = _Leaves(alpha)[rows]
        after = inner_step(problem, start, weights, rows, plan.step_seed(0), differentiable=True)
        problem.clean_loss(after)
    given = [*start.tracked, *problem.noisy(None), *problem.clean(None), alpha]
    for tensor in given:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    n_bytes = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    # Half is left to the stored states and to what the backward pass holds at once.
    return max(1, min(plan.n_steps, int(0.5 * memory_budget / max(n_bytes, 1))))
