"""Record the operations of one inner step once, replay them at every step.

Autograd builds a graph of Python objects at every step and throws it away again. Here a step, its reverse and the
gradient of the clean loss are each traced once into a flat list of tensor operations (`make_fx`), from which everything
that does not lead to a result is cut: the reverse of a step, for one, needs no second weight gradient. A replay is the
same arithmetic at a fraction of the overhead, in memory that does not grow, and `torch.compile` takes it as it is.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ._optimizers import Tensors
from ._unroll import BatchPlan, Problem, State, inner_step
from ._warnings import warn_user

# The tracer patches torch for the whole process while it is at work.
_TRACER = threading.Lock()


class RecordingError(RuntimeError):
    """A problem cannot be recorded: what it computes depends on more than its tensors."""


class Recording:
    """The three operations of a reverse sweep over one problem, recorded.

    Parameters
    ----------
    problem : Problem
    plan : BatchPlan
        The operations are recorded for every batch size in it; any plan with the same sizes can be replayed.
    alpha : Tensor of shape (n_noisy,)
    clean_rows : Tensor or None, default=None
        Rows of the clean set, as many as every clean loss is taken on; ``None`` for all.
    compile : bool, default=False
        Hand the recorded operations to `torch.compile`; takes some 10 to 40 seconds and a C++ compiler.

    Raises
    ------
    RecordingError
        If the problem cannot be traced, or if a replay does not give what the problem gives.
    """

    def __init__(
        self,
        problem: Problem,
        plan: BatchPlan,
        alpha: Tensor,
        *,
        clean_rows: Tensor | None = None,
        compile: bool = False,
    ):
        self.problem, self._compile = problem, compile
        _keep_freed_memory()
        state, other = (problem.initial_state(plan.seed + n).detach() for n in (0, 1))
        self._ends = tuple(torch.tensor([len(part) for part in state]).cumsum(0).tolist())
        self._clean_data = problem.clean(None) if clean_rows is None else None
        adjoint = [torch.ones_like(t) for t in state.tracked]

        self._steps: dict[int, Callable] = {}
        self._pulls: dict[int, Callable] = {}
        for step in sorted({0, plan.steps_per_epoch - 1}):
            rows = plan.rows(step)
            weights = alpha if rows is None else alpha[rows]
            X, y = problem.noisy(rows)
            seen, unseen = [*_flat(state), weights, X, y], [*_flat(other), weights / 2, X, y]
            self._steps[len(y)] = self._record(self._step, seen, unseen)
            self._pulls[len(y)] = self._record(self._pull, [*seen, *adjoint], [*unseen, *adjoint])
        share = torch.ones((), dtype=alpha.dtype, device=alpha.device)
        rest = [*self._clean(clean_rows), share, *adjoint[: len(state.params)]]
        self._cleans = self._record(self._clean_pull, [*_flat(state), *rest], [*_flat(other), *rest])

    # --- replay -----------------------------------------------------------------------------------------------------

    def step(self, state: State, weights: Tensor, rows: Tensor | None, seed: int) -> State:
        """Replay :func:`~sklearn_cdgd._unroll.inner_step`."""
        X, y = self.problem.noisy(rows)
        with torch.no_grad(), self.problem.seeded(seed):
            return self._state(self._steps[len(y)](*_flat(state), weights, X, y))

    def pull(self, state: State, weights: Tensor, rows: Tensor | None, seed: int, adjoint: Tensors):
        """Pull the adjoint of the state after a step back to the state before it.

        Returns
        -------
        adjoint : tuple of Tensor
        share : Tensor of shape (n_batch,)
            The derivative by `weights`.
        """
        X, y = self.problem.noisy(rows)
        with torch.no_grad(), self.problem.seeded(seed):
            *adjoint, share = self._pulls[len(y)](*_flat(state), weights, X, y, *adjoint)
        return tuple(adjoint), share

    def clean(self, state: State, rows: Tensor | None, share: Tensor, adjoint: Tensors) -> tuple[Tensor, Tensors]:
        """Return the loss of a state on clean rows, and the adjoint with `share` times its gradient added."""
        n = len(state.params)
        with torch.no_grad():
            loss, *params = self._cleans(*_flat(state), *self._clean(rows), share, *adjoint[:n])
        return loss, (*params, *adjoint[n:])

    def _clean(self, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._clean_data if rows is None else self.problem.clean(rows)

    # --- what is recorded: plain functions of tensors ---------------------------------------------------------------

    def _state(self, tensors) -> State:
        a, b, c = self._ends
        return State(tuple(tensors[:a]), tuple(tensors[a:b]), tuple(tensors[b:c]))

    def _step(self, *tensors: Tensor) -> list[Tensor]:
        state, (weights, X, y) = self._state(tensors).leaves(), tensors[self._ends[-1] :]
        return _flat(inner_step(self.problem, state, weights, X, y).detach())

    def _pull(self, *tensors: Tensor) -> list[Tensor]:
        state, (weights, X, y, *adjoint) = self._state(tensors).leaves(), tensors[self._ends[-1] :]
        weights = weights.detach().requires_grad_()
        after = inner_step(self.problem, state, weights, X, y, differentiable=True)
        return list(torch.autograd.grad(after.tracked, [*state.tracked, weights], adjoint, materialize_grads=True))

    def _clean_pull(self, *tensors: Tensor) -> list[Tensor]:
        state, (X, y, share, *adjoint) = self._state(tensors).leaves(), tensors[self._ends[-1] :]
        loss = self.problem.eval_losses(state.params, state.buffers, X, y).mean()
        grads = torch.autograd.grad(loss, state.params, materialize_grads=True)
        return [loss.detach(), *(t + share * g for t, g in zip(adjoint, grads, strict=True))]

    def _record(self, function: Callable, seen: list[Tensor], unseen: list[Tensor]) -> Callable:
        """Trace `function` on the tensors `seen`, and check the replay on others."""
        # Anything may go wrong in a tracer or a compiler; all of it means the same to the caller.
        try:
            with self.problem.seeded(0), _TRACER:
                # The tracer tells tensors apart by identity, so no two may be the same.
                graph = make_fx(function)(*[t.detach().clone() for t in seen])
            _tidy(graph)
            with self.problem.seeded(1):
                expected = function(*unseen)
            with self.problem.seeded(1), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch's compiler uses what torch deprecates
                replay = _compiled(graph) if self._compile else graph
                replayed = replay(*unseen)
        except Exception as error:
            raise RecordingError(f"{type(error).__name__}: {error}") from error
        for a, b in zip(replayed, expected, strict=True):
            if (a - b).double().norm() > 1e-3 * b.double().norm() + 1e-7:
                raise RecordingError("a replay does not give what the step itself gives")
        return replay


def record(
    problem: Problem, plan: BatchPlan, alpha: Tensor, *, clean_rows: Tensor | None = None, compile: bool = False
) -> Recording | None:
    """Return the best recording that can be had of a problem, ``None`` if it cannot be recorded.

    Warns if compilation was asked for and is not possible.
    """
    if compile:
        try:
            return Recording(problem, plan, alpha, clean_rows=clean_rows, compile=True)
        except RecordingError as error:
            warn_user(f"The inner steps could not be compiled and run uncompiled: {error}")
    try:
        return Recording(problem, plan, alpha, clean_rows=clean_rows)
    except RecordingError:
        return None


def _flat(state: State) -> list[Tensor]:
    return [*state.params, *state.optimizer, *state.buffers]


def _compiled(graph: torch.fx.GraphModule) -> Callable:
    # Inductor's pattern matcher rewrites a product with one row wrongly (torch 2.13, CPU).
    return torch.compile(graph, dynamic=False, options={"pattern_matcher": False})


def _tidy(graph: torch.fx.GraphModule) -> None:
    """Cut what leads to no result and what changes nothing.

    Detachments mean nothing where nothing is differentiated. The double backward of a ReLU and of a log-softmax adds a
    zero of full size.
    """
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        same = None
        if node.target is aten.detach.default:
            same = node.args[0]
        elif node.target is aten.add.Tensor and not node.kwargs:
            zeros = [a for a in node.args if getattr(a, "target", None) is aten.zeros_like.default]
            others = [a for a in node.args if a not in zeros]
            if len(zeros) == len(others) == 1 and _shape(others[0]) == _shape(node):
                same = others[0]
        if same is not None:
            node.replace_all_uses_with(same)
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _shape(node: torch.fx.Node) -> torch.Size | None:
    return getattr(node.meta.get("tensor_meta"), "shape", None)


def _keep_freed_memory() -> None:
    """Have the C library keep freed blocks of up to 32 MB for the next step.

    glibc gives large blocks back to the system at once and asks for them again, page by page, at every step, until a
    block of their size has been freed once. Elsewhere this does nothing.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
