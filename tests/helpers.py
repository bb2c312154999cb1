"""What several test files compute."""

from __future__ import annotations

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd._network import Network
from sklearn_cdgd._unroll import CleanPlan, inner_step


def random_alpha(n_rows, seed=1):
    return torch.rand(n_rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.8 + 0.1


def outer_objective(problem, alpha, plan, clean_plan=None):
    """Return the outer objective by plain training, written without the reverse sweep."""
    state, losses, clean_plan = problem.initial_state(plan.seed), [], clean_plan or CleanPlan(plan.n_steps)
    for step in range(plan.n_steps):
        rows = plan.rows(step)
        weights = alpha if rows is None else alpha[rows]
        with problem.seeded(plan.step_seed(step)):
            state = inner_step(problem, state.leaves(), weights, *problem.noisy(rows)).detach()
        if step in clean_plan.steps:
            losses.append(problem.clean_loss(state, clean_plan.rows(step)).item())
    return np.mean(losses)


def finite_differences(problem, alpha, plan, step=1e-5, **kwargs):
    grad = torch.zeros_like(alpha)
    for n in range(len(alpha)):
        shift = torch.zeros_like(alpha)
        shift[n] = step
        above = outer_objective(problem, alpha + shift, plan, **kwargs)
        grad[n] = (above - outer_objective(problem, alpha - shift, plan, **kwargs)) / (2 * step)
    return grad


def relative_error(a, b):
    return ((a - b).norm() / b.norm()).item()


def skorch_problem(module, X, n_clean=5, **optimizer):
    """Pose the training of a skorch net on the first rows of X, with the last as clean set and three random classes."""
    options = dict(criterion=nn.CrossEntropyLoss, train_split=None) | (
        optimizer or {"lr": 0.3, "optimizer__momentum": 0.5}
    )
    codes, n_rows = np.random.RandomState(1).randint(3, size=len(X)), len(X) - n_clean
    network = Network(NeuralNetClassifier(module, **options), X[:n_rows], codes[:n_rows], 3, seed=0)
    return network.problem((X[:n_rows], codes[:n_rows]), (X[n_rows:], codes[n_rows:]))


def brief(cls=CorruptionDetector, **options):
    """Return a detector that is done in a moment, with a network for three columns and two classes."""
    if cls is CorruptionDetector:
        options = {"max_iter": 2, "cv": None} | options
    net = NeuralNetClassifier(
        three_columns, criterion=nn.CrossEntropyLoss, lr=0.5, batch_size=-1, max_epochs=5, verbose=0
    )
    return cls(**({"net": net, "random_state": 0} | options))


def three_columns(hidden=8):
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))
