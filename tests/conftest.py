"""Problems that several test files use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_cdgd._optimizers import SGD
from sklearn_cdgd._unroll import Problem
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres


def select(X, y):
    return lambda rows: (X, y) if rows is None else (X[rows], y[rows])


@pytest.fixture
def mlp_problem():
    """Return a maker of small float64 problems: two layers with tanh, cross-entropy."""

    def make(optimizer=None, *, n_rows=12, n_clean=5, n_features=3, n_classes=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        randn = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        randint = lambda n: torch.randint(n_classes, (n,), generator=generator)  # noqa: E731

        def initialize(seed):
            g = torch.Generator().manual_seed(seed)
            shapes = [(4, n_features), (4,), (n_classes, 4), (n_classes,)]
            return tuple(torch.randn(s, generator=g, dtype=torch.float64) / 2 for s in shapes), ()

        def losses(params, buffers, X, y):
            W, b, V, c = params
            return nn.functional.cross_entropy(torch.tanh(X @ W.T + b) @ V.T + c, y, reduction="none")

        return Problem(
            initialize,
            lambda params, buffers, X, y: (losses(params, buffers, X, y), buffers),
            losses,
            optimizer or SGD(0.5, momentum=0.9),
            select(randn(n_rows, n_features), randint(n_rows)),
            select(randn(n_clean, n_features), randint(n_clean)),
        )

    return make


@pytest.fixture
def spheres():
    """Return a maker of small noisy problems: X, y_noisy, X_clean, y_clean, is_corrupted."""

    def make(n_noisy=120, n_clean=40, n_features=3, rate=0.2, seed=0):
        X, y = make_concentric_spheres(n_noisy + n_clean, n_features, random_state=seed)
        y_noisy, is_corrupted = flip_labels(y[:n_noisy], rate, random_state=seed)
        return X[:n_noisy], y_noisy, X[n_noisy:], y[n_noisy:], is_corrupted

    return make


@pytest.fixture
def global_generators_untouched():
    """Fail a test that moves a global random generator."""
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    yield
    assert torch.equal(torch.get_rng_state(), torch_before), "torch's global generator was moved"
    assert (np.random.get_state()[1] == numpy_before).all(), "NumPy's global generator was moved"
