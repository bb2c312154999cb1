"""The hypergradient through every kind of layer and optimiser against finite differences, in float64."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers import finite_differences, outer_objective, random_alpha, relative_error, skorch_problem
from torch import nn

from sklearn_cdgd._hypergradient import hypergradient
from sklearn_cdgd._recording import record
from sklearn_cdgd._unroll import BatchPlan, advance

RNG = np.random.RandomState(0)
ROWS, IMAGES, SERIES = RNG.randn(13, 3), RNG.randn(13, 2, 5, 5), RNG.randn(13, 4, 3)
TOKENS = RNG.randint(7, size=(13, 4))
PLAN = BatchPlan(8, -1, 5, seed=3)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.recurrent, self.output = kind(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, X):
        return self.output(self.recurrent(X)[0][:, -1])


class Attention(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.need_weights = need_weights
        self.inner, self.attention = nn.Linear(3, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.output = nn.Linear(4, 3)

    def forward(self, X):
        Z = self.inner(X)
        return self.output(self.attention(Z, Z, Z, need_weights=self.need_weights)[0].mean(1))


class Tied(nn.Module):
    """Encodes and decodes with the same weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.output = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, X):
        return self.output(torch.tanh(self.second(torch.tanh(self.first(X)))))


class HalfFrozen(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        self[0].weight.requires_grad_(False)


def batch_norm(**options):
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, **options), nn.Tanh(), nn.Linear(5, 3))


def between(*layers, width=5):
    return nn.Sequential(nn.Linear(3, width), *layers, nn.Linear(width, 3))


LAYERS = {
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)),
        IMAGES,
    ),
    # Evaluation uses running statistics, which are carried as data. So finite differences, which see them move, agree
    # only where there are none (batch statistics in evaluation too) or where they stand still.
    "batch norm": (lambda: batch_norm(track_running_stats=False), ROWS),
    "batch norm, still statistics": (lambda: batch_norm(momentum=0.0), ROWS),
    "layer norm": (lambda: between(nn.LayerNorm(5), nn.Tanh()), ROWS),
    "max pooling": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)), IMAGES),
    "LSTM": (lambda: Recurrent(nn.LSTM), SERIES),
    "GRU": (lambda: Recurrent(nn.GRU), SERIES),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Tanh(), nn.Linear(12, 3)), TOKENS),
    "attention": (lambda: Attention(need_weights=False), SERIES),
    "attention, weights needed": (lambda: Attention(need_weights=True), SERIES),
    "transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(3, 1, 4, 0.0, batch_first=True), nn.Flatten(), nn.Linear(12, 3)
        ),
        SERIES,
    ),
    "tied weights": (Tied, ROWS),
    "frozen layer": (HalfFrozen, ROWS),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 5)), nn.Tanh(), nn.Linear(5, 3)),
        ROWS,
    ),
    "weight norm of columns": (
        lambda: between(nn.utils.parametrizations.weight_norm(nn.Linear(5, 5), dim=1), nn.Tanh()),
        ROWS,
    ),
    "PReLU": (lambda: between(nn.PReLU()), ROWS),
    "GELU": (lambda: between(nn.GELU()), ROWS),
    "dropout": (lambda: between(nn.Tanh(), nn.Dropout(0.3)), ROWS),
}

OPTIMIZERS = {
    "SGD": dict(lr=0.3, optimizer__momentum=0.5),
    "Adam": dict(optimizer=torch.optim.Adam, lr=0.05),
    "Adam, weight decay": dict(optimizer=torch.optim.Adam, lr=0.05, optimizer__weight_decay=0.1),
    "AdamW": dict(optimizer=torch.optim.AdamW, lr=0.05, optimizer__betas=(0.5, 0.9)),
    "groups of SGD": dict(lr=0.3, optimizer__param_groups=[("*bias", {"lr": 0.1, "momentum": 0.9})]),
    "groups of Adam": dict(
        optimizer=torch.optim.AdamW, lr=0.05, optimizer__param_groups=[("*bias", {"lr": 0.1, "weight_decay": 0.0})]
    ),
}


def double(module):
    return module().double()


def problem_of(module, X, **options):
    return skorch_problem(functools.partial(double, module), X, **options)


def check(problem, plan, must_record=True):
    alpha = random_alpha(8)
    expected = finite_differences(problem, alpha, plan)
    assert relative_error(hypergradient(problem, alpha, plan).grad, expected) < 1e-6
    recording = record(problem, plan, alpha)
    assert (recording is not None) == must_record
    if recording is not None:
        assert relative_error(hypergradient(problem, alpha, plan, recording=recording).grad, expected) < 1e-6


@pytest.mark.parametrize("layer", LAYERS)
def test_layer(layer):
    module, X = LAYERS[layer]
    check(problem_of(module, X), PLAN)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("plan", [PLAN, BatchPlan(8, 3, 2, seed=3)], ids=["full batch", "minibatch"])
def test_optimizer(optimizer, plan):
    check(problem_of(lambda: between(nn.Tanh()), ROWS, **OPTIMIZERS[optimizer]), plan)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_where_gradients_are_zero(optimizer):
    """Dead units and a column of zeros."""

    def dead():
        module = between(nn.ReLU())
        with torch.no_grad():
            module[0].bias[:2] = -100.0
        return module

    X = ROWS * np.array([1.0, 1.0, 0.0])
    check(problem_of(dead, X, optimizer=optimizer, lr=0.05), PLAN)


def test_running_statistics_are_carried_as_data():
    """With moving statistics the hypergradient is that of a training whose statistics come from elsewhere."""
    problem, alpha = problem_of(batch_norm, ROWS), random_alpha(8)
    states = [problem.initial_state(PLAN.seed)]
    for step in range(PLAN.n_steps):
        states.append(advance(problem, states[-1], alpha, PLAN, step, step + 1))
    statistics = iter(())

    def replayed(params, buffers, X, y):
        return problem.eval_losses(params, next(statistics), X, y)

    def objective(alpha):
        nonlocal statistics
        statistics = iter([state.buffers for state in states[1:]])
        return outer_objective(dataclasses.replace(problem, eval_losses=replayed), alpha, PLAN)

    for grad in (
        hypergradient(problem, alpha, PLAN).grad,
        hypergradient(problem, alpha, PLAN, recording=record(problem, PLAN, alpha)).grad,
    ):
        for n, unit in enumerate(torch.eye(8, dtype=torch.float64)[:3]):
            slope = (objective(alpha + 1e-5 * unit) - objective(alpha - 1e-5 * unit)) / 2e-5
            assert grad[n].item() == pytest.approx(slope, rel=1e-6)


class Branching(nn.Module):
    """Takes another way for other values, so that it cannot be recorded."""

    def __init__(self):
        super().__init__()
        self.layers = between(nn.Tanh())

    def forward(self, X):
        Z = self.layers(X)
        return Z if Z.sum() > 1e6 else 2 * Z


def test_what_cannot_be_recorded_has_a_graph():
    check(problem_of(Branching, ROWS), PLAN, must_record=False)
