"""The influence of rows that are not in the noisy set, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import finite_differences, random_alpha, relative_error, skorch_problem
from torch import nn

from sklearn_cdgd._hypergradient import hypergradient
from sklearn_cdgd._influence import influence
from sklearn_cdgd._optimizers import SGD, Adam, Grouped
from sklearn_cdgd._recording import Recording
from sklearn_cdgd._unroll import BatchPlan, CleanPlan, stacked

FULL_BATCH = BatchPlan(12, -1, 6, seed=3)
MINIBATCH = BatchPlan(12, 4, 3, seed=3)
OPTIMIZERS = {
    "sgd": SGD(0.5),
    "momentum": SGD(0.5, momentum=0.9),
    "nesterov, weight decay": SGD(0.5, momentum=0.7, weight_decay=0.1, nesterov=True),
    "adam": Adam(0.05, weight_decay=0.1),
    "groups": Grouped((SGD(0.5, momentum=0.9), Adam(0.05)), ((0, 1), (2,))),
}


class Recurrent(nn.Module):
    """Has no forward-mode derivative."""

    def __init__(self):
        super().__init__()
        self.lstm, self.output = nn.LSTM(2, 3, batch_first=True), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        self.double()

    def forward(self, X):
        return self.output(self.lstm(X)[0][:, -1])


def options(way, problem, alpha, plan, clean_plan=None):
    if way == "recorded":
        clean_rows = None if clean_plan is None else clean_plan.rows(0)
        return {"recording": Recording(problem, plan, alpha, clean_rows=clean_rows)}
    return {"graph": {}, "segments": {"segment": 2}}[way]


def hypergradient_again(problem, way, **rest):
    """Return the hypergradient, and the influence of every training row from snapshots of all steps."""
    alpha = random_alpha(12)
    rest = rest | options(way, problem, alpha, FULL_BATCH, rest.get("clean_plan"))
    result = hypergradient(problem, alpha, FULL_BATCH, watched=range(6), **rest)
    return result.grad, influence(problem.eval_losses, result.snapshots, *problem.noisy(None), n_rows=12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("way", ["graph", "segments", "recorded"])
def test_of_a_training_row_is_its_hypergradient(mlp_problem, optimizer, way):
    grad, again = hypergradient_again(mlp_problem(optimizer), way)
    assert relative_error(again, grad) < 1e-12


@pytest.mark.parametrize("way", ["graph", "segments", "recorded"])
@pytest.mark.parametrize(
    "rest",
    [{"clean_plan": CleanPlan(6, 4)}, {"clean_plan": CleanPlan(6, 1, 2, n_rows=5)}, {"truncation": 4}],
    ids=["few", "small", "truncated"],
)
def test_with_fewer_clean_losses_and_truncation(mlp_problem, way, rest):
    grad, again = hypergradient_again(mlp_problem(), way, **rest)
    assert relative_error(again, grad) < 1e-12


def test_of_a_new_row_is_the_slope_of_the_objective(mlp_problem):
    """A row of weight zero changes nothing, so snapshots taken without its weight serve it."""
    problem, alpha = mlp_problem(), random_alpha(12)
    alpha[3] = 0
    snapshots = hypergradient(problem, alpha, FULL_BATCH, watched=range(6)).snapshots
    slope = influence(problem.eval_losses, snapshots, *problem.noisy(torch.tensor([3])), n_rows=12)
    expected = finite_differences(problem, alpha, FULL_BATCH)[3]
    assert slope.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("way", ["graph", "recorded"])
def test_with_mini_batches_it_is_the_mean_over_the_batches_of_an_epoch(mlp_problem, way):
    problem, alpha = mlp_problem(), random_alpha(12)
    result = hypergradient(problem, alpha, MINIBATCH, watched=range(9), **options(way, problem, alpha, MINIBATCH))
    per_step = [
        influence(problem.eval_losses, [snapshot], *problem.noisy(None), n_rows=12)
        for snapshot in reversed(result.snapshots)
    ]
    # A training row was in one batch of three: three times the share of that batch in what a new row gets.
    own = torch.zeros(12, dtype=torch.float64)
    for step, share in enumerate(per_step):
        own[MINIBATCH.rows(step)] += 3 * share[MINIBATCH.rows(step)]
    assert relative_error(own, result.grad) < 1e-12
    new = influence(problem.eval_losses, result.snapshots, *problem.noisy(None), n_rows=12)
    torch.testing.assert_close(new, sum(per_step))


def test_layers_without_forward_mode():
    grad, again = hypergradient_again(skorch_problem(Recurrent, np.random.RandomState(0).randn(17, 4, 2)), "graph")
    assert relative_error(again, grad) < 1e-10


def test_of_networks_trained_at_once(mlp_problem):
    problem, alpha = stacked(mlp_problem(), 3), random_alpha(12)
    result = hypergradient(problem, alpha, FULL_BATCH, watched=range(6))

    def summed(params, buffers, X, y):
        return problem.train_losses(params, buffers, X, y)[0]

    again = influence(summed, result.snapshots, *problem.noisy(None), n_rows=12)
    assert relative_error(again, result.grad) < 1e-12


def test_watching_changes_nothing(mlp_problem):
    problem, alpha = mlp_problem(), random_alpha(12)
    for way in ("graph", "segments", "recorded"):
        rest = options(way, problem, alpha, FULL_BATCH)
        plain = hypergradient(problem, alpha, FULL_BATCH, **rest)
        watched = hypergradient(problem, alpha, FULL_BATCH, watched={1, 4}, **rest)
        assert plain.snapshots == []
        assert len(watched.snapshots) == 2
        assert relative_error(watched.grad, plain.grad) < 1e-14
        assert watched.value == pytest.approx(plain.value, rel=1e-14)


def test_rows_do_not_depend_on_each_other(mlp_problem):
    problem, alpha = mlp_problem(), random_alpha(12)
    snapshots = hypergradient(problem, alpha, FULL_BATCH, watched=[0, 3]).snapshots
    together = influence(problem.eval_losses, snapshots, *problem.noisy(None), n_rows=12)
    alone = influence(problem.eval_losses, snapshots, *problem.noisy(torch.tensor([7])), n_rows=12)
    assert alone.item() == pytest.approx(together[7].item(), rel=1e-12)
