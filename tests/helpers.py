"""What several test files compute."""

from __future__ import annotations

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd._network import Network
from sklearn_cdgd._unroll import CleanPlan, inner_step

# What is learnt of labels.
RESULTS = (
    "alpha_",
    "loss_",
    "probabilities_",
    "p_values_",
    "flag_frequency_",
    "clean_loss_curve_",
    "validation_loss_curve_",
)


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


def three_columns(hidden=8):
    """Return a network for three columns and two classes."""
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def skorch_net(module=three_columns, kind=NeuralNetClassifier, **options):
    """Return a skorch net that is trained in a moment, in full batches."""
    defaults = dict(lr=0.3, batch_size=-1, max_epochs=5, train_split=None, verbose=0)
    if kind is NeuralNetClassifier:
        defaults["criterion"] = nn.CrossEntropyLoss
    return kind(module, **(defaults | options))


def quick_detector(cls=CorruptionDetector, **options):
    """Return a detector that trains a small network, twice and without cross-fitting if it learns alpha."""
    if cls is CorruptionDetector:
        options = {"max_iter": 2, "cv": None} | options
    return cls(**({"net": skorch_net(), "random_state": 0} | options))


def closed_form_detector(**options):
    """Return a detector with the default learner, without forests: they take most of the time of a small fit."""
    return CorruptionDetector(**({"witnesses": "networks", "random_state": 0} | options))


def assert_same_result(found, expected, names=RESULTS):
    """Fail unless two detectors have learnt the same, to the last bit."""
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
