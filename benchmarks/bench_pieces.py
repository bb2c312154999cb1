"""The small pieces of the engine, timed one by one: ``make bench-pieces``.

The problem is that of a default fit: 1,000 rows of 15 features, 200 hidden units.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.benchmark import Timer

from sklearn_cdgd._hypergradient import hypergradient
from sklearn_cdgd._network import Network
from sklearn_cdgd._outer import learn_alpha
from sklearn_cdgd._recording import Recording
from sklearn_cdgd._unroll import inner_step
from sklearn_cdgd.datasets import make_concentric_spheres


def pieces():
    """Return a function of no arguments for every piece."""
    X, y = make_concentric_spheres(1100, 15, random_state=0)
    X = X.astype(np.float32)
    network = Network(None, X[:1000], y[:1000], 2, seed=0)
    problem = network.problem((X[:1000], y[:1000]), (X[1000:], y[1000:]))
    alpha, plan, share = torch.full((1000,), 0.7), network.plan(1000, seed=0), torch.tensor(0.01)
    recording, state = Recording(problem, plan, alpha), problem.initial_state(0)
    adjoint = tuple(torch.ones_like(t) for t in state.tracked)
    grad = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    return {
        "inner step": lambda: inner_step(problem, state.leaves(), alpha, *problem.noisy(None)),
        "recorded step": lambda: recording.step(state, alpha, None, 0),
        "recorded reverse of a step": lambda: recording.pull(state, alpha, None, 0, adjoint),
        "recorded clean gradient": lambda: recording.clean(state, None, share, adjoint),
        "recording": lambda: Recording(problem, plan, alpha),
        "hypergradient, 150 steps, recorded": lambda: hypergradient(problem, alpha, plan, recording=recording),
        "hypergradient, 150 steps, graph": lambda: hypergradient(problem, alpha, plan),
        "outer step on 100,000 rows": lambda: learn_alpha(
            lambda alpha, step: (0.0, grad), torch.ones(100_000), lr=0.1, max_iter=1, patience=9
        ),
    }


if __name__ == "__main__":
    for name, piece in pieces().items():
        timer = Timer("piece()", globals={"piece": piece}, num_threads=torch.get_num_threads())
        print(f"{name:<36}{1000 * timer.blocked_autorange(min_run_time=1).median:>10.3f} ms", flush=True)
