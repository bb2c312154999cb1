"""The outer loop: projected Adam on alpha with a plateau rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ._optimizers import one_minus_power

# Keeps 0 / 0 at 0. Hypergradients are tiny (a share 1/N of a loss), so torch's 1e-8 would hold them back.
_TINY = 1e-30


@dataclass(frozen=True)
class OuterState:
    """Everything that one outer step hands to the next; where a loop stopped, it can be taken up again.

    The first six have one row per fold of the clean set, and one column per noisy row. The folds do not mix.

    Attributes
    ----------
    alpha : Tensor of shape (n_folds, n_noisy)
        The inclusion variable.
    mean : Tensor of shape (n_folds, n_noisy)
        Its mean over the outer steps.
    first, second : Tensor of shape (n_folds, n_noisy)
        The moments of Adam.
    count : Tensor of shape (n_folds, n_noisy)
        The outer steps that every row has seen; a row that came later has seen fewer.
    kept : Tensor of shape (n_folds, n_noisy)
        The mean over the outer steps up to the one after which held-out clean rows told of no further progress.
    kept_losses : tuple of float
        The losses of held-out clean rows there; empty before the first outer step.
    kept_step : int
        The number of outer steps up to there.
    best : float
        The least value so far.
    waited : int
        Outer steps since then, or since the last drop of the learning rate.
    lr_scale : float
        What the drops have left of the learning rate.
    values : tuple of float
        The outer objective before every outer step.
    held_out : tuple of float
        The loss of held-out clean rows at every outer step, NaN where there are none.
    lrs : tuple of float
        The learning rate of every outer step.
    scales : tuple of tuple of float
        For every outer step and fold, the root of the mean second moment, which `eps` is in units of.
    interrupted : bool
        Whether a `KeyboardInterrupt` ended the loop.
    """

    alpha: Tensor
    mean: Tensor
    first: Tensor
    second: Tensor
    count: Tensor
    kept: Tensor
    kept_losses: tuple[float, ...] = ()
    kept_step: int = 0
    best: float = math.inf
    waited: int = 0
    lr_scale: float = 1.0
    values: tuple[float, ...] = ()
    held_out: tuple[float, ...] = ()
    lrs: tuple[float, ...] = ()
    scales: tuple[tuple[float, ...], ...] = ()
    interrupted: bool = False

    @classmethod
    def start(cls, n_folds: int, n_rows: int, **options) -> OuterState:
        """Return the state before the first step: every row is included. `options` are those of `torch.zeros`."""
        zeros = torch.zeros(n_folds, n_rows, **options)
        ones = torch.ones_like(zeros)
        return cls(alpha=ones, mean=ones, first=zeros, second=zeros, count=zeros, kept=ones)

    @property
    def n_steps(self) -> int:
        return len(self.values)

    def is_done(self, max_iter: int, max_wait: int | None = None) -> bool:
        """Tell whether no outer step is left to take; see :func:`learn_alpha`."""
        return self.n_steps >= max_iter or (max_wait is not None and self.n_steps - self.kept_step > max_wait)

    def map(self, function: Callable) -> OuterState:
        """Return the state with `function` applied to what has one entry per row: to store it as arrays, say."""
        return replace(self, **{name: function(getattr(self, name)) for name in _PER_ROW})

    def placed(self, rows: Tensor) -> OuterState:
        """Return the state of other rows: row n was ``rows[n]`` and keeps what it had, or is new where that is -1."""
        fresh = OuterState.start(len(self.alpha), len(rows), dtype=self.alpha.dtype, device=self.alpha.device)
        # Not by indexing, which may lay the result out in another order: sums over it would round differently.
        old = {n: getattr(self, n).index_select(1, rows.clamp(min=0)) for n in _PER_ROW}
        per_row = {n: torch.where(rows >= 0, old[n], getattr(fresh, n)) for n in _PER_ROW}
        return replace(self, **per_row)


_PER_ROW = ("alpha", "mean", "first", "second", "count", "kept")


def learn_alpha(
    objective: Callable[[Tensor, int], tuple[float, Tensor, Tensor]],
    state: OuterState,
    *,
    lr: float,
    max_iter: int,
    patience: int,
    eps: float = 0.0,
    factor: float = 0.1,
    max_wait: int | None = None,
    on_step: Callable[[OuterState], object] | None = None,
) -> OuterState:
    """Minimise the outer objective over alpha in [0, 1]^N, for every fold of the clean set.

    A loop that is stopped and taken up again from the state that it returned ends where an uninterrupted one does.

    Parameters
    ----------
    objective : callable(alpha, outer_step) -> (value, gradient, held_out)
        The value is the mean over the folds, the gradient has a row for each. It may be noisy, where every outer step
        trains from fresh initialisations. `held_out` are losses of clean rows that alpha is learnt without, one or
        several; the mean is noted in the state.
    state : OuterState
        Where to start.
    lr : float
        Learning rate of Adam.
    max_iter : int
        Number of outer steps, those that `state` has behind it among them.
    patience : int
        After so many outer steps without a better value the learning rate is multiplied by `factor`.
    eps : float, default=0.0
        Added to the root of Adam's second moment, in units of the root of its mean over all rows. 0 is plain Adam, in
        which every row moves at the same speed; a large value is gradient descent with momentum and one common scale.
    factor : float, default=0.1
    max_wait : int or None, default=None
        The loop ends so many outer steps after the last one that made the held-out losses smaller by more than a
        standard error of the paired difference. ``None`` takes all steps.
    on_step : callable(state) or None, default=None
        Called after every outer step; a true answer ends the loop.

    Returns
    -------
    OuterState
        After the last outer step that was completed. A `KeyboardInterrupt` ends the loop at once and is noted in it.
    """
    state = replace(state, interrupted=False)
    try:
        while not state.is_done(max_iter, max_wait):
            value, grad, held_out = objective(state.alpha, state.n_steps)
            state = _stepped(state, value, grad, held_out, lr=lr, patience=patience, eps=eps, factor=factor)
            if on_step is not None and on_step(state):
                break
    except KeyboardInterrupt:
        # States are never changed, so this is the last complete one wherever the interrupt came.
        state = replace(state, interrupted=True)
    return state


def _stepped(
    state: OuterState, value: float, grad: Tensor, held_out: Tensor, *, lr, patience, eps, factor
) -> OuterState:
    """Note what is known of the present alpha, take one step of Adam along `grad`, and project."""
    best, waited = (value, 0) if value < state.best else (state.best, state.waited + 1)
    lr_scale = state.lr_scale
    if waited >= patience:
        lr_scale, waited = lr_scale * factor, 0
    lr = lr * lr_scale

    losses = torch.as_tensor(held_out, dtype=torch.float64).reshape(-1)
    if _is_progress(state.kept_losses, losses):
        state = replace(state, kept=state.mean, kept_losses=tuple(losses.tolist()), kept_step=state.n_steps)

    count = state.count + 1
    alpha, first, second, scale = adam_step(state.alpha, state.first, state.second, count, grad, lr=lr, eps=eps)
    return replace(
        state,
        alpha=alpha,
        mean=state.mean + (alpha - state.mean) / count,
        first=first,
        second=second,
        count=count,
        best=best,
        waited=waited,
        lr_scale=lr_scale,
        values=(*state.values, value),
        held_out=(*state.held_out, losses.mean().item()),
        lrs=(*state.lrs, lr),
        scales=(*state.scales, tuple(scale[:, 0].tolist())),
    )


def adam_step(alpha, first, second, count, grad, *, lr, eps, scale=None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return alpha and the two moments after a projected step of Adam, and what `eps` was in units of.

    Parameters
    ----------
    alpha, first, second, count, grad : Tensor of shape (n_folds, n_rows)
        `count` has this step in it.
    lr, eps : float
    scale : Tensor of shape (n_folds, 1) or None, default=None
        The root of the mean second moment of another set of rows; ``None`` takes that of these rows.
    """
    first = torch.lerp(grad, first, 0.9)
    second = torch.lerp(grad * grad, second, 0.999)
    mean, square = first / one_minus_power(0.9, count), second / one_minus_power(0.999, count)
    if scale is None:
        scale = square.mean(dim=-1, keepdim=True).sqrt()
    speed = mean / (square.sqrt() + eps * scale + _TINY)
    return (alpha - lr * speed).clamp(0, 1), first, second, scale


def _is_progress(before: tuple[float, ...], losses: Tensor) -> bool:
    """Tell whether held-out losses are smaller by more than a standard error of the paired difference.

    Where nothing is held out, losses are NaN, and every step counts as progress.
    """
    if not before:
        return True
    gains = torch.tensor(before, dtype=torch.float64) - losses
    if gains.isnan().any():
        return True
    return bool(gains.mean() > gains.std(unbiased=False) / math.sqrt(len(gains)))
