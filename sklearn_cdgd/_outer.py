"""The outer loop: projected Adam on alpha with a plateau rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Keeps 0 / 0 at 0. Hypergradients are tiny (a share 1/N of a loss), so torch's 1e-8 would hold them back.
_TINY = 1e-30


@dataclass
class Trace:
    """What happened in the outer loop.

    Attributes
    ----------
    alpha : Tensor of shape (n_noisy,)
        The inclusion variable after the last outer step.
    mean : Tensor of shape (n_noisy,)
        Its mean over the outer steps.
    values : list of float
        The outer objective before every outer step.
    lrs : list of float
        The outer learning rate of every outer step.
    """

    alpha: Tensor
    mean: Tensor
    values: list[float] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)


def learn_alpha(
    objective: Callable[[Tensor, int], tuple[float, Tensor]],
    alpha: Tensor,
    *,
    lr: float,
    max_iter: int,
    patience: int,
    eps: float = 0.0,
    factor: float = 0.1,
    free: Tensor | None = None,
    on_step: Callable[[Trace], object] | None = None,
) -> Trace:
    """Minimise the outer objective over alpha in [0, 1]^N.

    Parameters
    ----------
    objective : callable(alpha, outer_step) -> (value, gradient)
        Noisy: every outer step trains from a fresh initialisation.
    alpha : Tensor of shape (n_noisy,)
        Where to start.
    lr : float
        Learning rate of Adam.
    max_iter : int
        Number of outer steps.
    patience : int
        After so many outer steps without a better value the learning rate is multiplied by `factor`.
    eps : float, default=0.0
        Added to the root of Adam's second moment, in units of the root of its mean over all rows. 0 is plain Adam, in
        which every row moves at the same speed; a large value is gradient descent with momentum and one common scale.
    factor : float, default=0.1
    free : bool Tensor of shape (n_noisy,) or None, default=None
        Rows whose alpha may move; ``None`` frees all.
    on_step : callable(trace) or None, default=None
        Called after every outer step; a true answer ends the loop.

    Returns
    -------
    Trace
    """
    trace = Trace(alpha.clone(), torch.zeros_like(alpha))
    first, second = torch.zeros_like(alpha), torch.zeros_like(alpha)
    best, waited = float("inf"), 0
    for step in range(max_iter):
        value, grad = objective(trace.alpha, step)
        if free is not None:
            grad = torch.where(free, grad, 0)
        best, waited = (value, 0) if value < best else (best, waited + 1)
        if waited >= patience:
            lr, waited = lr * factor, 0
        first = torch.lerp(grad, first, 0.9)
        second = torch.lerp(grad * grad, second, 0.999)
        mean, square = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        speed = mean / (square.sqrt() + eps * square.mean().sqrt() + _TINY)
        trace.alpha = (trace.alpha - lr * speed).clamp(0, 1)
        trace.mean = trace.mean + (trace.alpha - trace.mean) / (step + 1)
        trace.values.append(value)
        trace.lrs.append(lr)
        if on_step is not None and on_step(trace):
            break
    return trace
