"""Inner update rules as pure ``init`` / ``update`` pairs.

``torch.optim`` changes parameters in place, which cuts them off from what they were computed from. The
rules here return new tensors instead, so that a whole training stays differentiable. A rule is a frozen
set of hyperparameters; everything that changes during training is in the state that it returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


class Optimizer(Protocol):
    """What the engine asks of an inner update rule.

    The state is a flat tuple of floating-point tensors; each tensor of a new state must be computed from the old one,
    so that derivatives can be taken by all of them.
    """

    def state_size(self, n_params: int) -> int:
        """Return how many tensors the state of `n_params` parameters has."""

    def init(self, params: Tensors) -> Tensors:
        """Return the state before the first step."""

    def update(self, params: Tensors, grads: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        """Return the parameters and the state after one step."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, equal to `torch.optim.SGD` bit for bit.

    Parameters
    ----------
    lr : float or Tensor of shape ()
        Learning rate.
    momentum, weight_decay : float, default=0
        As in `torch.optim.SGD`.
    nesterov : bool, default=False
        Use Nesterov momentum; needs ``momentum > 0``.
    """

    lr: float | Tensor
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def state_size(self, n_params: int) -> int:
        return n_params if self.momentum else 0

    def init(self, params: Tensors) -> Tensors:
        return tuple(torch.zeros_like(p) for p in params) if self.momentum else ()

    def update(self, params: Tensors, grads: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        # The alpha= forms round exactly like the in-place ones of torch.optim.SGD.
        if self.weight_decay:
            grads = tuple(torch.add(g, p, alpha=self.weight_decay) for g, p in zip(grads, params, strict=True))
        if self.momentum:
            state = tuple(torch.add(g, b * self.momentum) for g, b in zip(grads, state, strict=True))
            if self.nesterov:
                grads = tuple(torch.add(g, b, alpha=self.momentum) for g, b in zip(grads, state, strict=True))
            else:
                grads = state
        return tuple(_minus(p, self.lr, g) for p, g in zip(params, grads, strict=True)), state


@dataclass(frozen=True)
class Adam:
    """Adam, with `eps` inside the root.

    A parameter moves by ``lr * m / sqrt(v + eps**2)``, where m and v are the bias-corrected moments, and not by
    ``lr * m / (sqrt(v) + eps)`` as in `torch.optim.Adam`. The two agree where gradients are well above `eps` and both
    stand still where they are zero, but the derivative of ``sqrt(v)`` is infinite at zero: with `eps` outside, one dead
    ReLU or one column of zeros would make the whole hypergradient NaN.

    Parameters
    ----------
    lr : float or Tensor of shape ()
        Learning rate.
    betas : tuple of two floats, default=(0.9, 0.999)
        Decay of the first and the second moment per step.
    eps : float, default=1e-8
        Gradients below it count as small; must be positive.
    weight_decay : float, default=0
        As in `torch.optim.Adam`.
    decoupled_weight_decay : bool, default=False
        Shrink the parameters directly instead of adding to the gradient.
    """

    lr: float | Tensor
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False

    def state_size(self, n_params: int) -> int:
        return 2 * n_params + 1

    def init(self, params: Tensors) -> Tensors:
        zeros = tuple(torch.zeros_like(p) for p in params)
        return (*zeros, *(z.clone() for z in zeros), params[0].new_zeros(()))

    def update(self, params: Tensors, grads: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        n, (beta1, beta2) = len(params), self.betas
        count = state[-1] + 1
        if self.weight_decay and self.decoupled_weight_decay:
            params = tuple(p * (1 - self.lr * self.weight_decay) for p in params)
        elif self.weight_decay:
            grads = tuple(torch.add(g, p, alpha=self.weight_decay) for g, p in zip(grads, params, strict=True))
        first = tuple(torch.lerp(m, g, 1 - beta1) for m, g in zip(state[:n], grads, strict=True))
        second = tuple(
            torch.addcmul(v * beta2, g, g, value=1 - beta2) for v, g in zip(state[n : 2 * n], grads, strict=True)
        )
        # The number of steps depends on nothing, so nothing is differentiated by it.
        correction1, correction2 = (one_minus_power(beta, count.detach()) for beta in self.betas)
        params = tuple(
            _minus_ratio(p, self.lr, m / correction1, (v / correction2 + self.eps**2).sqrt())
            for p, m, v in zip(params, first, second, strict=True)
        )
        return params, (*first, *second, count)


def _minus(p: Tensor, lr: float | Tensor, step: Tensor) -> Tensor:
    """Return ``p - lr * step``, rounded as torch's own optimisers do."""
    if isinstance(lr, Tensor):
        return torch.addcmul(p, lr.to(p), step, value=-1)
    return torch.add(p, step, alpha=-lr)


def _minus_ratio(p: Tensor, lr: float | Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return ``p - lr * a / b``."""
    if isinstance(lr, Tensor):
        return torch.addcdiv(p, lr.to(p) * a, b, value=-1)
    return torch.addcdiv(p, a, b, value=-lr)


def one_minus_power(beta: float, count: Tensor) -> Tensor:
    """Return ``1 - beta**count`` without cancellation."""
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))


@dataclass(frozen=True)
class Grouped:
    """A rule of its own for each group of parameters.

    Parameters
    ----------
    rules : tuple of Optimizer
        One rule per group.
    members : tuple of tuples of int
        Which parameters belong to each group, by their place among all. A parameter in no group is not trained.
    """

    rules: tuple[Optimizer, ...]
    members: tuple[tuple[int, ...], ...]

    def state_size(self, n_params: int) -> int:
        return sum(rule.state_size(len(own)) for rule, own in zip(self.rules, self.members, strict=True))

    def init(self, params: Tensors) -> Tensors:
        parts = (rule.init(_pick(params, own)) for rule, own in zip(self.rules, self.members, strict=True))
        return tuple(t for part in parts for t in part)

    def update(self, params: Tensors, grads: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        new_params, new_state = list(params), []
        for rule, own in zip(self.rules, self.members, strict=True):
            before, state = state[: rule.state_size(len(own))], state[rule.state_size(len(own)) :]
            updated, after = rule.update(_pick(params, own), _pick(grads, own), before)
            for n, param in zip(own, updated, strict=True):
                new_params[n] = param
            new_state += after
        return tuple(new_params), tuple(new_state)


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A rule with a learning rate of its own at every step.

    Parameters
    ----------
    rule : SGD or Adam
        Its `lr` is not used.
    lrs : Tensor of shape (n_steps,)
        The learning rates, on the device of the parameters. After the last step the last one stays.
    """

    rule: SGD | Adam
    lrs: Tensor

    def state_size(self, n_params: int) -> int:
        return self.rule.state_size(n_params) + 1

    def init(self, params: Tensors) -> Tensors:
        return (*self.rule.init(params), params[0].new_zeros(()))

    def update(self, params: Tensors, grads: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        *state, count = state
        # Indexing by a tensor without dimensions would read its value, which a recording would take for a constant.
        step = count.detach().long().clamp(max=len(self.lrs) - 1).reshape(1)
        rule = replace(self.rule, lr=self.lrs.index_select(0, step).reshape(()))
        params, state = rule.update(params, grads, tuple(state))
        return params, (*state, count + 1)


def _pick(tensors: Tensors, places: tuple[int, ...]) -> Tensors:
    return tuple(tensors[n] for n in places)


def differentiable(optimizer: torch.optim.Optimizer, params: Iterable[Tensor], lrs: Tensor | None = None) -> Optimizer:
    """Return the pure twin of an optimiser of torch's.

    Parameters
    ----------
    optimizer : torch.optim.SGD, Adam or AdamW
    params : iterable of Tensor
        The parameters that are trained. The optimiser may hold others too.
    lrs : Tensor of shape (n_groups, n_steps) or None, default=None
        The learning rate of every parameter group at every step; ``None`` keeps those of the optimiser.

    Returns
    -------
    Optimizer

    Raises
    ------
    ValueError
        If there is no twin.
    """
    places = {id(p): n for n, p in enumerate(params)}
    rules, members = [], []
    for n, group in enumerate(optimizer.param_groups):
        own = tuple(sorted(places[id(p)] for p in group["params"] if id(p) in places))
        rule = _rule(type(optimizer), group)
        if own:
            rules.append(rule if lrs is None else Scheduled(rule, lrs[n]))
            members.append(own)
    if members == [tuple(range(len(places)))]:
        return rules[0]
    return Grouped(tuple(rules), tuple(members))


def _rule(optimizer: type, group: dict) -> Optimizer:
    """Return the pure twin of an optimiser's treatment of one parameter group."""
    if optimizer not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise ValueError(
            f"net trains with {optimizer.__name__}, which cannot be differentiated through. Use "
            "optimizer=torch.optim.SGD, torch.optim.Adam or torch.optim.AdamW."
        )
    for option in ("dampening", "maximize", "amsgrad"):
        if group.get(option):
            raise ValueError(
                f"net trains with {optimizer.__name__}({option}={group[option]}), which is not supported. Leave it out."
            )
    lr, weight_decay = float(group["lr"]), float(group["weight_decay"])
    if optimizer is torch.optim.SGD:
        return SGD(lr, group["momentum"], weight_decay, group["nesterov"])
    if group["eps"] < 1e-15:  # its square must not vanish in float32
        raise ValueError(
            f"net trains with {optimizer.__name__}(eps={group['eps']}), which cannot be differentiated through where a "
            "gradient is zero. Use eps=1e-8."
        )
    beta1, beta2 = group["betas"]
    return Adam(lr, (float(beta1), float(beta2)), group["eps"], weight_decay, group["decoupled_weight_decay"])
