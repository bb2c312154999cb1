"""Kernels: against a network that is really wide, and features against the kernel that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from sklearn_cdgd import _kernels
from sklearn_cdgd._kernels import KERNELS, Columns, KernelFeatures, kernel_features, laplace, n_landmarks, wide_network

RNG = np.random.RandomState(0)
X = RNG.randn(40, 5)


def test_the_first_kernel_is_the_limit_of_a_wide_network():
    """Dot products of the gradients of a network of 400,000 hidden units, by all of its weights, at random ones."""
    rng, width, rows = np.random.RandomState(0), 400_000, X[:4]
    hidden = torch.tensor(rng.randn(width, 6), requires_grad=True)
    output = torch.tensor(rng.randn(width), requires_grad=True)
    with_bias = torch.tensor(np.c_[rows, np.ones(4)])
    values = np.sqrt(2 / width) * torch.relu(with_bias @ hidden.T) @ output
    gradients = []
    for value in values:
        parts = torch.autograd.grad(value, [hidden, output], retain_graph=True)
        gradients.append(torch.cat([part.flatten() for part in parts]))
    gradients = torch.stack(gradients)
    np.testing.assert_allclose(wide_network(rows, rows, 1.0), (gradients @ gradients.T).numpy(), rtol=0.03, atol=0.03)


def test_laplace():
    np.testing.assert_allclose(laplace(X[:5], X[5:9], 2.0), np.exp(-cdist(X[:5], X[5:9]) / 2), atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
class TestFeatures:
    def test_with_all_rows_as_landmarks_dot_products_are_the_kernel(self, kernel):
        columns = Columns.of(X, kernel.columns)
        features = KernelFeatures(kernel, columns, columns(X))
        exact = kernel.function(columns(X), columns(X), features.unit)
        np.testing.assert_allclose(features(X) @ features(X).T, exact, atol=1e-4 * np.abs(exact).max())

    def test_blocks_change_nothing(self, kernel, monkeypatch):
        columns = Columns.of(X, kernel.columns)
        features = KernelFeatures(kernel, columns, columns(X[:10]))
        whole = features(X)
        monkeypatch.setattr(_kernels, "_BLOCK", 70)
        np.testing.assert_allclose(features(X), whole, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("factor", [1e-30, 1e30])
    def test_units_do_not_matter(self, kernel, factor):
        columns, others = Columns.of(X, kernel.columns), Columns.of(X * factor, kernel.columns)
        np.testing.assert_allclose(others(X * factor), columns(X), rtol=1e-6, atol=1e-9)

    def test_a_column_that_says_nothing_changes_nothing(self, kernel):
        constant = np.c_[X, np.full(40, 3.7)]
        columns, others = Columns.of(X, kernel.columns), Columns.of(constant, kernel.columns)
        np.testing.assert_allclose(others(constant)[:, 5], 0)
        # The scale is one over the root of the number of columns.
        np.testing.assert_allclose(others(constant)[:, :5] * np.sqrt(6 / 5), columns(X), atol=1e-12)

    @pytest.mark.parametrize("rows", [np.zeros((30, 3)), np.full((30, 3), 7.0), np.repeat(X[:3], 10, axis=0)])
    def test_equal_rows_give_finite_features(self, kernel, rows):
        columns = Columns.of(rows, kernel.columns)
        features = KernelFeatures(kernel, columns, columns(rows))
        assert 1 <= features.n_features <= 3
        assert np.isfinite(features(rows)).all()


class TestColumns:
    def test_filled_columns_are_standardized(self):
        scaled = Columns.of(5 * X + 3, "standardized")(5 * X + 3) * np.sqrt(5)
        np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(scaled.std(axis=0), 1)

    def test_rare_categories_are_not_blown_up(self):
        """A dummy keeps its distance of about 1, whether one row in two or one in fifty has it."""
        dummies = np.stack([np.arange(100) % 2 == 0, np.arange(100) % 50 == 0], axis=1).astype(float)
        spread = np.ptp(Columns.of(dummies, "standardized")(dummies), axis=0) * np.sqrt(2)
        np.testing.assert_allclose(spread, [np.sqrt(2), 1], rtol=0.02)

    @pytest.mark.parametrize("kind", ["standardized", "quantiles"])
    def test_sparse_rows_are_scaled_as_dense_ones(self, kind):
        rows = np.where(RNG.rand(50, 4) < 0.5, 0, RNG.randn(50, 4))
        dense, sparse = Columns.of(rows, kind)(rows), Columns.of(csr_array(rows), kind)(csr_array(rows))
        np.testing.assert_allclose(sparse, dense, atol=1e-12)

    def test_sparse_rows_are_as_far_apart_as_dense_ones(self):
        rows = np.where(RNG.rand(50, 4) < 0.5, 0, RNG.randn(50, 4))
        columns = Columns.of(rows, "standardized")
        apart = columns.apart(csr_array(rows))
        assert apart.nnz == np.count_nonzero(rows)
        np.testing.assert_allclose(
            cdist(apart.toarray(), apart.toarray()), cdist(columns(rows), columns(rows)), atol=1e-9
        )

    def test_many_sparse_columns_stay_sparse(self, monkeypatch):
        monkeypatch.setattr(_kernels, "_WIDE", 3)
        rows = csr_array(np.where(RNG.rand(50, 4) < 0.5, 0, RNG.rand(50, 4)))
        assert Columns.of(rows, "quantiles") is None
        scaled = Columns.of(rows, "standardized")(rows)
        assert scaled.nnz == rows.nnz
        found = kernel_features(rows, rows[:5], seed=0)
        assert [features.kernel.columns for features in found] == ["standardized"] * 2
        for features in found:
            exact = features.kernel.function(scaled.toarray(), scaled.toarray(), features.unit)
            np.testing.assert_allclose(features(rows) @ features(rows).T, exact, atol=1e-4 * np.abs(exact).max())

    def test_heavy_tails_are_bent(self):
        rows = RNG.standard_cauchy(size=(400, 1))
        assert np.abs(Columns.of(rows, "quantiles")(rows)).max() < 4


class TestLandmarks:
    @pytest.mark.parametrize(("n_rows", "expected"), [(30, 30), (1000, 400), (10_000, 1000), (10**6, 1500)])
    def test_number(self, n_rows, expected):
        assert n_landmarks(n_rows) == expected

    @pytest.mark.parametrize(("n_noisy", "n_clean"), [(600, 50), (600, 900), (50, 700), (10, 3)])
    def test_both_sets_give_some(self, n_noisy, n_clean):
        rows = RNG.randn(n_noisy + n_clean, 2)
        for features in kernel_features(rows[:n_noisy], rows[n_noisy:], seed=0):
            assert len(features.landmarks) == min(400, n_noisy + n_clean)

    def test_a_seed_decides(self):
        rows = RNG.randn(700, 2)
        first, same, other = (kernel_features(rows, rows[:9], seed=seed)[0].landmarks for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, same)
        assert (first != other).any()
