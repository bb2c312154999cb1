"""The small pieces of the engine, timed one by one: ``make bench-pieces`` (needs pytest-benchmark).

The problem is that of a default fit: 1,000 rows of 15 features, 200 hidden units.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sklearn_cdgd._hypergradient import hypergradient
from sklearn_cdgd._network import Network
from sklearn_cdgd._outer import learn_alpha
from sklearn_cdgd._recording import Recording
from sklearn_cdgd._unroll import inner_step
from sklearn_cdgd.datasets import make_concentric_spheres


@pytest.fixture(scope="module")
def pieces():
    X, y = make_concentric_spheres(1100, 15, random_state=0)
    X = X.astype(np.float32)
    network = Network(None, X[:1000], y[:1000], 2, seed=0)
    problem = network.problem((X[:1000], y[:1000]), (X[1000:], y[1000:]))
    alpha, plan = torch.full((1000,), 0.7), network.plan(1000, seed=0)
    recording = Recording(problem, plan, alpha)
    state = problem.initial_state(0)
    adjoint = tuple(torch.ones_like(t) for t in state.tracked)
    return problem, alpha, plan, recording, state, adjoint


def test_inner_step(benchmark, pieces):
    problem, alpha, _, _, state, _ = pieces
    benchmark(lambda: inner_step(problem, state.leaves(), alpha, *problem.noisy(None)))


def test_recorded_step(benchmark, pieces):
    _, alpha, _, recording, state, _ = pieces
    benchmark(lambda: recording.step(state, alpha, None, 0))


def test_recorded_pull(benchmark, pieces):
    _, alpha, _, recording, state, adjoint = pieces
    benchmark(lambda: recording.pull(state, alpha, None, 0, adjoint))


def test_recorded_clean_gradient(benchmark, pieces):
    _, _, _, recording, state, adjoint = pieces
    benchmark(lambda: recording.clean(state, torch.tensor(0.01), adjoint))


def test_recording_itself(benchmark, pieces):
    problem, alpha, plan, *_ = pieces
    benchmark.pedantic(lambda: Recording(problem, plan, alpha), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "graph"])
def test_hypergradient(benchmark, pieces, recorded):
    problem, alpha, plan, recording, *_ = pieces
    options = {"recording": recording if recorded else None}
    benchmark.pedantic(lambda: hypergradient(problem, alpha, plan, **options), rounds=5, warmup_rounds=1)


def test_outer_step(benchmark):
    grad = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    benchmark(lambda: learn_alpha(lambda a, k: (0.0, grad), torch.ones(100_000), lr=0.1, max_iter=1, patience=9))
