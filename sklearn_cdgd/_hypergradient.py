"""The derivative of the clean loss with respect to alpha, through the whole inner training.

With E the inner steps at which the clean loss is taken, the outer objective is the mean of L_c(theta_i) over i in E.
One reverse sweep over the training gives its exact gradient: the adjoint of the state is pulled back from step to step
while every step leaves its share on the alphas of its batch. The time is linear in the number of steps.

There are two ways to pull back. With a :class:`~sklearn_cdgd._recording.Recording` every step is replayed from the
state before it, so that only the states have to be kept. Without one, autograd keeps the graph of a whole segment of
steps. Either way, what is not kept is computed again, and the result is the same to rounding.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ._optimizers import Tensors
from ._recording import Recording
from ._unroll import (
    BatchPlan,
    CleanPlan,
    DivergenceError,
    Problem,
    State,
    advance,
    batch_gradient,
    check_finite,
    inner_step,
    update,
)


class Snapshot(NamedTuple):
    """One inner step, seen from a row that might have been in its batch.

    Attributes
    ----------
    params, buffers : tuple of Tensor
        The network before the step.
    direction : tuple of Tensor
        Derivative of the outer objective by the batch gradient of the step, in the shapes of `params`.
    """

    params: Tensors
    buffers: Tensors
    direction: Tensors


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
    snapshots : list of Snapshot
        Of the inner steps in `watched`, the last first.
    """

    value: float
    grad: Tensor
    state: State
    snapshots: list[Snapshot]


def hypergradient(
    problem: Problem,
    alpha: Tensor,
    plan: BatchPlan,
    *,
    recording: Recording | None = None,
    segment: int | None = None,
    memory_budget: float = 1e9,
    truncation: int | None = None,
    clean_plan: CleanPlan | None = None,
    watched: Collection[int] = (),
) -> Hypergradient:
    """Differentiate the clean loss through one inner training.

    Parameters
    ----------
    problem : Problem
    alpha : Tensor of shape (n_noisy,)
        Inclusion variable, in [0, 1].
    plan : BatchPlan
        Its seed decides the initialisation too.
    recording : Recording or None, default=None
        The operations of this problem. With a recording a hypergradient costs little more than twice the arithmetic of
        the training, and memory for one state per inner step.
    segment : int or None, default=None
        Without a recording: number of inner steps whose graph is held at a time. ``None`` derives it from
        `memory_budget`. A training longer than one segment costs one more forward pass over all but its last segment.
    memory_budget : float, default=1e9
        Bytes that graphs and stored states may take. If the states of all steps do not fit, states are stored in levels
        (every k-th, then every step between two of them), at the price of one more forward pass a level.
    truncation : int or None, default=None
        Cut the dependence of the state on alpha every so many steps (Algorithm 2 of the paper). ``None`` is exact.
    clean_plan : CleanPlan or None, default=None
        When to take the clean loss, and on which rows. ``None``: after every step, on all of them.
    watched : collection of int, default=()
        Inner steps to take snapshots of, for the influence of rows that are not in the noisy set. A watched step costs
        about twice what another does.

    Returns
    -------
    Hypergradient

    Raises
    ------
    DivergenceError
        If the training leaves the finite numbers.
    """
    state, clean_plan = problem.initial_state(plan.seed), clean_plan or CleanPlan(plan.n_steps)
    if recording is not None:
        segment = 1
    elif segment is None:
        segment = segment_length(problem, state, alpha, plan, clean_plan, memory_budget)
    sweep = _ReverseSweep(problem, alpha.detach(), plan, recording, segment, memory_budget, clean_plan, watched)
    window = truncation or plan.n_steps
    for first in range(0, plan.n_steps, window):
        state, _ = sweep.run(state, first, min(first + window, plan.n_steps))
        sweep.check_losses()
    check_finite(state, plan.n_steps)
    if not torch.isfinite(sweep.grad.square()).all():  # Adam squares it
        raise DivergenceError(
            "The hypergradient is not finite although the inner training is: the network amplifies changes of alpha "
            f"without bound over {window} inner steps. Lower the learning rate of the network, scale X, or set "
            "`truncation`."
        )
    return Hypergradient(sweep.losses_so_far().mean().item(), sweep.grad, state, sweep.snapshots)


class Forecast(NamedTuple):
    """What one hypergradient will take: seconds, and bytes beside the data."""

    seconds: float
    n_bytes: float


def forecast(
    problem: Problem,
    alpha: Tensor,
    plan: BatchPlan,
    *,
    recording: Recording | None,
    memory_budget: float,
    truncation: int | None,
    clean_plan: CleanPlan,
) -> Forecast:
    """Time the first inner steps, and say what :func:`hypergradient` with the same arguments will take."""
    state = problem.initial_state(plan.seed)
    segment = 1 if recording is not None else segment_length(problem, state, alpha, plan, clean_plan, memory_budget)
    n_steps = min(4, plan.n_steps)
    start = time.perf_counter()
    for _ in range(2):  # the first round warms up
        sweep = _ReverseSweep(problem, alpha.detach(), plan, recording, segment, memory_budget, clean_plan)
        start = time.perf_counter()
        sweep.run(state, 0, n_steps)
    seconds = (time.perf_counter() - start) * plan.n_steps / n_steps
    window = truncation or plan.n_steps
    n_states = -(-min(window, plan.n_steps) // segment)
    n_bytes = min(n_states * state.n_bytes, 0.5 * memory_budget)
    per_step = graph_bytes(problem, state, alpha, plan, clean_plan)
    return Forecast(seconds, n_bytes + segment * per_step)


@dataclass
class _ReverseSweep:
    """Accumulates clean losses and gradient over the windows of one training."""

    problem: Problem
    alpha: Tensor
    plan: BatchPlan
    recording: Recording | None
    segment: int
    memory_budget: float
    clean_plan: CleanPlan
    watched: Collection[int] = ()

    def __post_init__(self):
        self.snapshots: list[Snapshot] = []
        self.grad = torch.zeros_like(self.alpha)
        self.clean_steps = self.clean_plan.steps
        self.clean_losses = self.alpha.new_zeros(self.plan.n_steps)
        self.share = self.alpha.new_full((), 1 / len(self.clean_steps))

    def run(
        self, state: State, first: int, last: int, adjoint: Tensors | None = None, after: State | None = None
    ) -> tuple[State, Tensors | None]:
        """Sweep the steps `first` to `last`.

        Parameters
        ----------
        state : State
            The state before step `first`.
        first, last : int
        adjoint : tuple of Tensor or None
            The derivative of the rest of the objective by the state at `last`; ``None`` for zero.
        after : State or None
            The state at `last` where it is known.

        Returns
        -------
        after : State
            The state at `last`.
        adjoint : tuple of Tensor or None
            The derivative by `state`.
        """
        if last - first <= self.segment:
            if self.recording is not None:
                if first in self.watched:
                    self._take_snapshot(state, first, adjoint)
                return self._pull_recorded(state, after, first, adjoint)
            return self._pull_graph(state, first, last, adjoint)
        # States are stored at the borders of stretches; a stretch longer than a segment is swept in the same way.
        borders = [*range(first, last, self._stretch(state, last - first)), last]
        stretches = list(itertools.pairwise(borders))
        states = _States(state, len(stretches))
        for n, (a, b) in enumerate(stretches[:-1]):
            states[n + 1] = self._advance(states[n], a, b)
        reached = None
        for n, (a, b) in reversed(list(enumerate(stretches))):
            stretch_end, adjoint = self.run(states[n], a, b, adjoint, after)
            reached, after = reached or stretch_end, states[n]
        return reached, adjoint

    def losses_so_far(self) -> Tensor:
        """Return the clean losses that were taken."""
        return self.clean_losses[self.clean_steps]

    def check_losses(self) -> None:
        """Raise if a clean loss so far is not finite."""
        bad = torch.isfinite(self.clean_losses).logical_not().nonzero()
        if len(bad):
            raise DivergenceError(
                f"The inner training diverged: the clean loss is not finite at inner step {bad[0].item() + 1}. "
                "Lower the learning rate of the network, or scale X."
            )

    def _advance(self, state: State, first: int, last: int) -> State:
        if self.recording is None:
            state = advance(self.problem, state, self.alpha, self.plan, first, last)
            check_finite(state, last)
            return state
        for step in range(first, last):
            rows = self.plan.rows(step)
            state = self.recording.step(state, self._weights(rows), rows, self.plan.step_seed(step))
        return state

    def _stretch(self, state: State, n_steps: int) -> int:
        """Return how many steps may lie between stored states so that the states fit in the memory budget."""
        most = max(2, int(0.5 * self.memory_budget / state.n_bytes))
        stretch = self.segment
        while n_steps > stretch * most:
            stretch *= most
        return stretch

    def _pull_recorded(self, state: State, after: State | None, step: int, adjoint: Tensors | None):
        """Replay one step and its reverse."""
        rows, seed = self.plan.rows(step), self.plan.step_seed(step)
        weights = self._weights(rows)
        if after is None:
            after = self.recording.step(state, weights, rows, seed)
        if adjoint is None:
            adjoint = tuple(torch.zeros_like(t) for t in state.tracked)
        if self.clean_plan.has(step):
            rows_of_clean = self.clean_plan.rows(step)
            self.clean_losses[step], adjoint = self.recording.clean(after, rows_of_clean, self.share, adjoint)
        adjoint, share = self.recording.pull(state, weights, rows, seed, adjoint)
        self._leave(rows, share)
        return after, adjoint

    def _take_snapshot(self, state: State, step: int, adjoint: Tensors | None) -> None:
        """Send the adjoint through the graph of one step for the snapshot alone: watching changes no result."""
        grad = self.grad.clone()
        self._pull_graph(state, step, step + 1, adjoint)
        self.grad.copy_(grad)

    def _pull_graph(self, state: State, first: int, last: int, adjoint: Tensors | None):
        """Hold the graph of all steps from `first` to `last` and send one backward pass through it."""
        start = state = state.leaves()
        leaves: list[tuple[Tensor | None, Tensor]] = []
        seen: list[tuple[State, Tensors]] = []
        objective = torch.zeros_like(self.share)
        for step in range(first, last):
            rows = self.plan.rows(step)
            # A leaf per batch: indexing inside the graph would cost a gradient of length n_noisy at every step.
            leaves.append((rows, self._weights(rows).detach().requires_grad_()))
            with self.problem.seeded(self.plan.step_seed(step)):
                X, y = self.problem.noisy(rows)
                grads, buffers = batch_gradient(self.problem, state, leaves[-1][1], X, y, differentiable=True)
            if step in self.watched:
                grads = tuple(g if g.requires_grad else g.requires_grad_() for g in grads)
                seen.append((state, grads))
            state = update(self.problem, state, grads, buffers, differentiable=True)
            if self.clean_plan.has(step):
                loss = self.problem.clean_loss(state, self.clean_plan.rows(step))
                objective = objective + self.share * loss
                self.clean_losses[step] = loss.detach()

        outputs, cotangents = [*state.tracked], [*(adjoint or map(torch.zeros_like, state.tracked))]
        if objective.requires_grad:
            outputs, cotangents = [*outputs, objective], [*cotangents, torch.ones_like(objective)]
        watched = [g for _, grads in seen for g in grads]
        inputs = [*start.tracked, *(weights for _, weights in leaves), *watched]
        results = iter(torch.autograd.grad(outputs, inputs, cotangents, materialize_grads=True))
        adjoint = tuple(itertools.islice(results, len(start.tracked)))
        for rows, _ in leaves:
            self._leave(rows, next(results))
        found = [
            Snapshot(*before.detach()[::2], tuple(itertools.islice(results, len(before.params)))) for before, _ in seen
        ]
        self.snapshots += reversed(found)
        return state.detach(), adjoint

    def _weights(self, rows: Tensor | None) -> Tensor:
        return self.alpha if rows is None else self.alpha[rows]

    def _leave(self, rows: Tensor | None, share: Tensor) -> None:
        """Add the share of one step to the gradient by alpha."""
        if rows is None:
            self.grad += share
        else:
            self.grad.index_add_(0, rows.to(self.grad.device), share)


class _States:
    """States in one block of memory.

    Stored one by one they would lie between the large blocks that come and go at every step, and no freed block would
    ever be large enough again for the next.
    """

    def __init__(self, first: State, n_states: int):
        self._blocks = State(*(tuple(t.new_empty((n_states, *t.shape)) for t in part) for part in first))
        self[0] = first

    def __setitem__(self, n: int, state: State) -> None:
        with torch.no_grad():
            for block, tensor in zip(itertools.chain(*self._blocks), itertools.chain(*state), strict=True):
                block[n].copy_(tensor)

    def __getitem__(self, n: int) -> State:
        return State(*(tuple(block[n] for block in part) for part in self._blocks))


def segment_length(
    problem: Problem, state: State, alpha: Tensor, plan: BatchPlan, clean_plan: CleanPlan, memory_budget: float
) -> int:
    """Return how many inner steps have a graph that fits in `memory_budget` bytes; at least one."""
    # Half is left to the stored states and to what the backward pass holds at once.
    n_bytes = max(graph_bytes(problem, state, alpha, plan, clean_plan), 1)
    return max(1, min(plan.n_steps, int(0.5 * memory_budget / n_bytes)))


def graph_bytes(problem: Problem, state: State, alpha: Tensor, plan: BatchPlan, clean_plan: CleanPlan) -> int:
    """Build the graph of the first step and its clean loss once, and weigh what it saves."""
    saved: dict[int, Tensor] = {}

    def weigh(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    start, rows, clean_rows = state.leaves(), plan.rows(0), clean_plan.rows(0)
    X, y = problem.noisy(rows)
    weights = (alpha if rows is None else alpha[rows]).detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor), problem.seeded(plan.step_seed(0)):
        after = inner_step(problem, start, weights, X, y, differentiable=True)
        problem.clean_loss(after, clean_rows)
    shared = problem.noisy(None) if rows is None else ()  # a batch is a copy, held with the graph
    shared += problem.clean(None) if clean_rows is None else ()
    for tensor in [*start.tracked, *shared, weights]:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
