"""Inner update rules as pure ``init`` / ``update`` pairs.

``torch.optim`` changes parameters in place, which cuts them off from what they were computed from. The
rules here return new tensors instead, so that a whole training stays differentiable. A rule is a frozen
set of hyperparameters; everything that changes during training is in the state that it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


class Optimizer(Protocol):
    """What the engine asks of an inner update rule."""

    def init(self, params: Tensors) -> Tensors:
        """Return the state before the first step."""

    def update(self, params: Tensors, grads: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        """Return the parameters and the state after one step."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, equal to `torch.optim.SGD` bit for bit.

    Parameters
    ----------
    lr : float
        Learning rate.
    momentum, weight_decay : float, default=0
        As in `torch.optim.SGD`.
    nesterov : bool, default=False
        Use Nesterov momentum; needs ``momentum > 0``.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

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
        return tuple(torch.add(p, g, alpha=-self.lr) for p, g in zip(params, grads, strict=True)), state
