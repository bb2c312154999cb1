"""The outer loop on objectives whose minimum is known."""

from __future__ import annotations

import pytest
import torch

from sklearn_cdgd._outer import learn_alpha

TARGET = torch.tensor([-0.5, 0.2, 0.7, 1.5], dtype=torch.float64)
OPTIONS = {"lr": 0.05, "max_iter": 300, "patience": 1000}


def quadratic(alpha, step):
    return ((alpha - TARGET) ** 2).sum().item(), 2 * (alpha - TARGET)


def ones():
    return torch.ones(4, dtype=torch.float64)


@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_finds_the_projection_of_the_minimum(eps):
    trace = learn_alpha(quadratic, ones(), eps=eps, **OPTIONS)
    torch.testing.assert_close(trace.alpha, TARGET.clamp(0, 1), rtol=0, atol=0.02)


def test_equals_projected_torch_adam():
    """Plain Adam (eps=0) with a clamp after every step, against torch.optim.Adam."""
    alpha = ones().requires_grad_()
    adam = torch.optim.Adam([alpha], lr=0.05, eps=0)
    for _ in range(30):
        alpha.grad = quadratic(alpha.detach(), 0)[1]
        adam.step()
        with torch.no_grad():
            alpha.clamp_(0, 1)
    ours = learn_alpha(quadratic, ones(), lr=0.05, max_iter=30, patience=1000).alpha
    torch.testing.assert_close(ours, alpha.detach(), rtol=1e-12, atol=1e-12)


def test_scale_of_the_objective_does_not_matter():
    for eps in (0.0, 1.0):
        small, large = (
            learn_alpha(
                lambda a, k, c=c: (c * quadratic(a, k)[0], c * quadratic(a, k)[1]), ones(), eps=eps, **OPTIONS
            ).alpha
            for c in (1e-9, 1e3)
        )
        torch.testing.assert_close(small, large)


def test_eps_holds_back_rows_that_hardly_matter():
    slopes = torch.tensor([1.0, 0.01], dtype=torch.float64)

    def run(eps):
        start = torch.ones(2, dtype=torch.float64)
        return learn_alpha(lambda a, k: (0.0, slopes), start, lr=0.1, max_iter=5, patience=9, eps=eps)

    plain, damped = 1 - run(0.0).alpha, 1 - run(1.0).alpha
    assert plain[1] == pytest.approx(plain[0])
    assert damped[1] < 0.05 * damped[0]


def test_rows_that_are_not_free_stay():
    free = torch.tensor([True, False, True, False])
    trace = learn_alpha(quadratic, ones(), free=free, **OPTIONS)
    assert (trace.alpha[~free] == 1).all()
    assert (trace.alpha[free] < 1).all()


def test_plateau_divides_the_learning_rate():
    trace = learn_alpha(lambda a, k: (1.0, torch.zeros(4)), torch.ones(4), lr=1.0, max_iter=8, patience=3)
    assert trace.lrs == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_mean_is_that_of_the_iterates():
    iterates = []
    trace = learn_alpha(quadratic, ones(), on_step=lambda trace: iterates.append(trace.alpha), **OPTIONS)
    torch.testing.assert_close(trace.mean, torch.stack(iterates).mean(0))


def test_callback_can_stop():
    trace = learn_alpha(quadratic, ones(), on_step=lambda trace: len(trace.values) == 3, **OPTIONS)
    assert len(trace.values) == 3


def test_zero_gradient_moves_nothing():
    trace = learn_alpha(lambda a, k: (0.0, torch.zeros(4)), ones().float(), lr=0.1, max_iter=2, patience=1)
    assert torch.equal(trace.alpha, torch.ones(4))
