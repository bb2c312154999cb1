"""The hypergradient against finite differences, a closed form and its own other modes; float64 throughout."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from helpers import finite_differences, outer_objective, random_alpha, relative_error, skorch_problem
from torch import nn

from sklearn_cdgd._hypergradient import forecast, hypergradient, segment_length
from sklearn_cdgd._optimizers import SGD
from sklearn_cdgd._recording import Recording, RecordingError
from sklearn_cdgd._unroll import BatchPlan, CleanPlan, DivergenceError, Problem, inner_step, stacked

FULL_BATCH = BatchPlan(12, -1, 5, seed=3)
MINIBATCH = BatchPlan(12, 5, 3, seed=3)


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3))
        self.double()

    def forward(self, X):
        return self.layers(X)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 3, stride=2, padding=1),
            nn.Softplus(),
            nn.Conv2d(3, 3, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.double()

    def forward(self, X):
        return self.layers(X)


class BatchNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        self.double()

    def forward(self, X):
        return self.layers(X)


class Undecided(nn.Module):
    """Takes another way for other values."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.double()

    def forward(self, X):
        Z = self.layer(X)
        return Z if Z.sum() > 0 else 2 * Z


@pytest.mark.parametrize("plan", [FULL_BATCH, MINIBATCH], ids=["full batch", "minibatch, shuffled"])
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.5),
        SGD(0.5, momentum=0.9),
        SGD(0.5, momentum=0.9, nesterov=True),
        SGD(0.5, weight_decay=0.1),
        SGD(0.5, momentum=0.7, weight_decay=0.1, nesterov=True),
    ],
    ids=["sgd", "momentum", "nesterov", "weight decay", "all"],
)
@pytest.mark.parametrize("recorded", [False, True], ids=["graph", "recorded"])
def test_equals_finite_differences(mlp_problem, optimizer, plan, recorded):
    problem, alpha = mlp_problem(optimizer), random_alpha(12)
    result = hypergradient(problem, alpha, plan, recording=Recording(problem, plan, alpha) if recorded else None)
    assert relative_error(result.grad, finite_differences(problem, alpha, plan)) < 1e-6
    assert result.value == pytest.approx(outer_objective(problem, alpha, plan), rel=1e-12)


@pytest.mark.parametrize(("module", "shape"), [(Dropped, (3,)), (Convolution, (1, 6, 6))])
@pytest.mark.parametrize("plan", [FULL_BATCH, MINIBATCH], ids=["full batch", "minibatch"])
@pytest.mark.parametrize("way", ["whole graph", "segments", "recorded"])
def test_equals_finite_differences_through_skorch(module, shape, plan, way):
    problem, alpha = skorch_problem(module, np.random.RandomState(0).randn(17, *shape)), random_alpha(12)
    options = {"whole graph": {}, "segments": {"segment": 2}}.get(way)
    if options is None:
        options = {"recording": Recording(problem, plan, alpha)}
    grad = hypergradient(problem, alpha, plan, **options).grad
    assert relative_error(grad, finite_differences(problem, alpha, plan)) < 1e-6


def test_dropout_draws_anew_at_every_step_and_replays():
    problem = skorch_problem(Dropped, np.random.RandomState(0).randn(17, 3))
    params, buffers = problem.initialize(0)

    def losses(seed):
        with problem.seeded(seed):
            return problem.train_losses(params, buffers, *problem.noisy(None))[0]

    first, again, second = (losses(seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("way", ["graph", "segments", "recorded"])
@pytest.mark.parametrize(("every", "batch_size"), [(2, None), (3, None), (100, None), (1, 2), (2, 3), (4, 1), (1, 9)])
def test_clean_loss_at_chosen_steps_on_chosen_rows(mlp_problem, every, batch_size, way):
    problem, alpha = mlp_problem(), random_alpha(12)
    clean_plan = CleanPlan(MINIBATCH.n_steps, every, batch_size, n_rows=5, seed=1)
    options = {} if way == "graph" else {"segment": 2}
    if way == "recorded":
        options = {"recording": Recording(problem, MINIBATCH, alpha, clean_rows=clean_plan.rows(0))}
    result = hypergradient(problem, alpha, MINIBATCH, clean_plan=clean_plan, **options)
    assert relative_error(result.grad, finite_differences(problem, alpha, MINIBATCH, clean_plan=clean_plan)) < 1e-6
    assert result.value == pytest.approx(outer_objective(problem, alpha, MINIBATCH, clean_plan), rel=1e-12)


@pytest.mark.parametrize("plan", [FULL_BATCH, MINIBATCH], ids=["full batch", "minibatch"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("truncation", [None, 1, 4])
def test_a_recording_agrees_with_the_graph(mlp_problem, plan, every, truncation):
    problem, alpha = mlp_problem(), random_alpha(12)
    options = dict(clean_plan=CleanPlan(plan.n_steps, every), truncation=truncation)
    graph = hypergradient(problem, alpha, plan, **options)
    recording = Recording(problem, plan, alpha)
    for memory_budget in (1e9, 1.0):
        recorded = hypergradient(problem, alpha, plan, recording=recording, memory_budget=memory_budget, **options)
        assert relative_error(recorded.grad, graph.grad) < 1e-12
        assert recorded.value == pytest.approx(graph.value, rel=1e-13)
        for a, b in zip(recorded.state.params, graph.state.params, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


@pytest.mark.parametrize("plan", [FULL_BATCH, MINIBATCH], ids=["full batch", "minibatch"])
@pytest.mark.parametrize("segment", [1, 2, 3, 4])
@pytest.mark.parametrize("memory_budget", [1e9, 1.0], ids=["ample", "states nested"])
def test_segments_agree_with_whole_graph(mlp_problem, plan, segment, memory_budget):
    problem, alpha = mlp_problem(), random_alpha(12)
    whole = hypergradient(problem, alpha, plan, segment=plan.n_steps)
    cut = hypergradient(problem, alpha, plan, segment=segment, memory_budget=memory_budget)
    assert relative_error(cut.grad, whole.grad) < 1e-12
    assert cut.value == pytest.approx(whole.value, rel=1e-13)
    for a, b in zip(cut.state.params, whole.state.params, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


def test_one_truncation_window_is_exact(mlp_problem):
    problem, alpha = mlp_problem(), random_alpha(12)
    exact = hypergradient(problem, alpha, MINIBATCH).grad
    for truncation in (MINIBATCH.n_steps, MINIBATCH.n_steps + 7):
        assert torch.equal(hypergradient(problem, alpha, MINIBATCH, truncation=truncation).grad, exact)


def test_truncation_is_the_sum_over_windows_that_start_afresh(mlp_problem):
    """Algorithm 2: each window is differentiated as if its first state did not depend on alpha."""
    problem, alpha = mlp_problem(), random_alpha(12)
    start = problem.initial_state(FULL_BATCH.seed)
    expected = torch.zeros_like(alpha)
    for first, last in [(0, 2), (2, 4), (4, 5)]:
        weights, state, losses = alpha.clone().requires_grad_(), start.leaves(), []
        for _ in range(first, last):
            state = inner_step(problem, state, weights, *problem.noisy(None), differentiable=True)
            losses.append(problem.clean_loss(state))
        expected += torch.autograd.grad(sum(losses) / 5, weights)[0]
        start = state.detach()
    grad = hypergradient(problem, alpha, FULL_BATCH, truncation=2).grad
    assert relative_error(grad, expected) < 1e-12
    assert relative_error(grad, hypergradient(problem, alpha, FULL_BATCH).grad) > 1e-3


def test_one_step_of_least_squares_has_a_closed_form():
    """theta_1 = theta_0 - lr/N sum alpha_n (x_n.theta_0 - y_n) x_n; L_c = 1/2 mean (x.theta_1 - y)^2."""
    g = torch.Generator().manual_seed(0)
    X, y, Xc, yc = (torch.randn(s, generator=g, dtype=torch.float64) for s in [(8, 3), (8,), (4, 3), (4,)])
    theta = torch.randn(3, generator=g, dtype=torch.float64)

    def losses(params, buffers, X, y):
        return 0.5 * (X @ params[0] - y) ** 2

    problem = Problem(
        lambda seed: ((theta,), ()),
        lambda params, buffers, X, y: (losses(params, buffers, X, y), buffers),
        losses,
        SGD(0.3),
        lambda rows: (X, y),
        lambda rows: (Xc, yc),
    )
    alpha = random_alpha(8)
    residual = X @ theta - y
    theta_1 = theta - 0.3 / 8 * X.T @ (alpha * residual)
    clean_grad = Xc.T @ (Xc @ theta_1 - yc) / 4
    expected = -0.3 / 8 * residual * (X @ clean_grad)
    torch.testing.assert_close(
        hypergradient(problem, alpha, BatchPlan(8, -1, 1, seed=0)).grad, expected, rtol=1e-12, atol=0
    )


def test_segment_length_follows_the_budget(mlp_problem):
    problem, alpha, plan = mlp_problem(n_rows=1000), random_alpha(1000), BatchPlan(1000, -1, 50, seed=0)
    state = problem.initial_state(0)
    every_step = CleanPlan(plan.n_steps)
    lengths = [segment_length(problem, state, alpha, plan, every_step, budget) for budget in (1.0, 1e6, 2e6, 1e12)]
    assert lengths[0] == 1
    assert lengths[-1] == 50
    assert lengths[2] == pytest.approx(2 * lengths[1], abs=1)


@pytest.mark.parametrize("plan", [FULL_BATCH, MINIBATCH], ids=["full batch", "minibatch"])
def test_networks_trained_at_once(mlp_problem, plan):
    """Three at once are the mean of three, but for the order of the rows, which they share."""
    problem, alpha = mlp_problem(), random_alpha(12)
    together = hypergradient(stacked(problem, 3), alpha, plan)
    alone = []
    for n in range(3):
        own = dataclasses.replace(problem, initialize=lambda seed, n=n: problem.initialize(seed + n))
        alone.append(hypergradient(own, alpha, plan))
    assert relative_error(together.grad, sum(r.grad for r in alone) / 3) < 1e-12
    assert together.value == pytest.approx(np.mean([r.value for r in alone]), rel=1e-12)


def test_forecast(mlp_problem):
    problem, alpha, plan = mlp_problem(n_rows=1000), random_alpha(1000), BatchPlan(1000, -1, 50, seed=0)
    options = dict(memory_budget=1e9, truncation=None, clean_plan=CleanPlan(plan.n_steps))
    state_bytes = problem.initial_state(0).n_bytes
    graph = forecast(problem, alpha, plan, recording=None, **options)
    recorded = forecast(problem, alpha, plan, recording=Recording(problem, plan, alpha), **options)
    assert 0 < recorded.seconds < 10
    assert 50 * state_bytes < recorded.n_bytes < graph.n_bytes


class TestRecording:
    def test_batch_norm_statistics_are_carried(self):
        problem, alpha = skorch_problem(BatchNormed, np.random.RandomState(0).randn(17, 3)), random_alpha(12)
        graph = hypergradient(problem, alpha, MINIBATCH)
        recorded = hypergradient(problem, alpha, MINIBATCH, recording=Recording(problem, MINIBATCH, alpha))
        assert relative_error(recorded.grad, graph.grad) < 1e-10
        for a, b in zip(recorded.state.buffers, graph.state.buffers, strict=True):
            torch.testing.assert_close(a, b)
        assert graph.state.buffers[-1] == MINIBATCH.n_steps

    def test_what_depends_on_values_is_refused(self):
        problem, alpha = skorch_problem(Undecided, np.random.RandomState(0).randn(17, 3)), random_alpha(12)
        with pytest.raises(RecordingError):
            Recording(problem, FULL_BATCH, alpha)

    def test_a_value_that_was_baked_in_is_noticed(self, mlp_problem):
        """A loss that reads a number of its own cannot be replayed."""
        problem = mlp_problem()
        calls = []

        def changing(params, buffers, X, y):
            calls.append(None)
            losses, buffers = problem.train_losses(params, buffers, X, y)
            return len(calls) * losses, buffers

        with pytest.raises(RecordingError, match="does not give what the step itself gives"):
            Recording(dataclasses.replace(problem, train_losses=changing), FULL_BATCH, random_alpha(12))

    @pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
    def test_compiled(self, mlp_problem):
        problem, alpha = mlp_problem(n_rows=40), random_alpha(40)
        plan = BatchPlan(40, -1, 5, seed=3)
        clean_plan = CleanPlan(5, batch_size=3, n_rows=5)
        recording = Recording(problem, plan, alpha, clean_rows=clean_plan.rows(0), compile=True)
        compiled = hypergradient(problem, alpha, plan, recording=recording, clean_plan=clean_plan)
        expected = hypergradient(problem, alpha, plan, clean_plan=clean_plan)
        assert relative_error(compiled.grad, expected.grad) < 1e-10


def test_divergence_is_reported_with_its_step(mlp_problem):
    problem = mlp_problem(SGD(1e100, weight_decay=1e100))
    with pytest.raises(DivergenceError, match=r"not finite at inner step \d+\. Lower the learning rate"):
        hypergradient(problem, random_alpha(12), FULL_BATCH)
    with pytest.raises(DivergenceError, match=r"not finite at inner step \d+\. Lower the learning rate"):
        hypergradient(problem, random_alpha(12), FULL_BATCH, segment=1)


class TestCleanPlan:
    @pytest.mark.parametrize(("n_rows", "batch_size", "every"), [(10, 3, 1), (10, 4, 2), (7, 6, 3), (9, 1, 1)])
    def test_every_row_is_used_equally_often(self, n_rows, batch_size, every):
        plan = CleanPlan(100, every, batch_size, n_rows, seed=0)
        used = torch.cat([plan.rows(step) for step in plan.steps])
        counts = torch.bincount(used, minlength=n_rows)
        assert counts.max() - counts.min() <= 1
        assert all(len(plan.rows(step).unique()) == batch_size for step in plan.steps)

    def test_the_order_is_a_matter_of_the_seed(self):
        one, same, other = (CleanPlan(9, batch_size=3, n_rows=50, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(one.rows(4), same.rows(4))
        assert not torch.equal(one.rows(4), other.rows(4))

    @pytest.mark.parametrize("batch_size", [None, 10, 11])
    def test_all_rows(self, batch_size):
        assert CleanPlan(9, batch_size=batch_size, n_rows=10).rows(3) is None

    def test_steps(self):
        assert CleanPlan(8, 3).steps == [2, 5, 7]
        assert CleanPlan(2, 3).steps == [1]


class TestBatchPlan:
    def test_every_epoch_sees_every_row_once(self):
        plan = BatchPlan(10, 4, 3, seed=0)
        assert (plan.steps_per_epoch, plan.n_steps) == (3, 9)
        epochs = [torch.cat([plan.rows(3 * e + b) for b in range(3)]) for e in range(3)]
        for order in epochs:
            assert sorted(order.tolist()) == list(range(10))
        assert not torch.equal(epochs[0], epochs[1])

    def test_can_be_asked_in_any_order(self):
        forwards, backwards = BatchPlan(10, 4, 3, seed=5), BatchPlan(10, 4, 3, seed=5)
        expected = [forwards.rows(step) for step in range(9)]
        for step in reversed(range(9)):
            assert torch.equal(backwards.rows(step), expected[step])

    @pytest.mark.parametrize("batch_size", [-1, 10, 11])
    def test_full_batch(self, batch_size):
        plan = BatchPlan(10, batch_size, 4, seed=0)
        assert plan.n_steps == 4
        assert plan.rows(2) is None
