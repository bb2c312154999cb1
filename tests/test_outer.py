"""The outer loop on objectives whose minimum is known."""

from __future__ import annotations

import pytest
import torch

from sklearn_cdgd._outer import OuterState, learn_alpha

TARGET = torch.tensor([[-0.5, 0.2, 0.7, 1.5]], dtype=torch.float64)
OPTIONS = {"lr": 0.05, "max_iter": 300, "patience": 1000}


def quadratic(alpha, step):
    return ((alpha - TARGET) ** 2).sum().item(), 2 * (alpha - TARGET), 0.0


def start(n_rows=4):
    return OuterState.start(1, n_rows, dtype=torch.float64)


@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_finds_the_projection_of_the_minimum(eps):
    state = learn_alpha(quadratic, start(), eps=eps, **OPTIONS)
    torch.testing.assert_close(state.alpha, TARGET.clamp(0, 1), rtol=0, atol=0.02)


def test_equals_projected_torch_adam():
    """Plain Adam (eps=0) with a clamp after every step, against torch.optim.Adam."""
    alpha = torch.ones(1, 4, dtype=torch.float64).requires_grad_()
    adam = torch.optim.Adam([alpha], lr=0.05, eps=0)
    for _ in range(30):
        alpha.grad = quadratic(alpha.detach(), 0)[1]
        adam.step()
        with torch.no_grad():
            alpha.clamp_(0, 1)
    ours = learn_alpha(quadratic, start(), lr=0.05, max_iter=30, patience=1000).alpha
    torch.testing.assert_close(ours, alpha.detach(), rtol=1e-12, atol=1e-12)


def test_scale_of_the_objective_does_not_matter():
    for eps in (0.0, 1.0):
        small, large = (
            learn_alpha(
                lambda a, k, c=c: (c * quadratic(a, k)[0], c * quadratic(a, k)[1], 0.0), start(), eps=eps, **OPTIONS
            ).alpha
            for c in (1e-9, 1e3)
        )
        torch.testing.assert_close(small, large)


def test_eps_holds_back_rows_that_hardly_matter():
    slopes = torch.tensor([[1.0, 0.01]], dtype=torch.float64)

    def run(eps):
        return learn_alpha(lambda a, k: (0.0, slopes, 0.0), start(2), lr=0.1, max_iter=5, patience=9, eps=eps)

    plain, damped = 1 - run(0.0).alpha[0], 1 - run(1.0).alpha[0]
    assert plain[1] == pytest.approx(plain[0])
    assert damped[1] < 0.05 * damped[0]


def test_folds_do_not_mix():
    """Each fold moves as if it were alone, whatever the scale of its neighbour."""
    targets = torch.stack([TARGET[0], 1e3 * (1 - TARGET[0])])

    def both(alphas, step):
        return ((alphas - targets) ** 2).sum().item(), 2 * (alphas - targets), 0.0

    options = OPTIONS | {"eps": 1.0, "max_iter": 20}
    together = learn_alpha(both, OuterState.start(2, 4, dtype=torch.float64), **options).alpha
    alone = [learn_alpha(lambda a, k, t=t: (0.0, 2 * (a - t), 0.0), start(), **options).alpha for t in targets.split(1)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_plateau_divides_the_learning_rate():
    state = learn_alpha(
        lambda a, k: (1.0, torch.zeros(1, 4), 0.0), OuterState.start(1, 4), lr=1.0, max_iter=8, patience=3
    )
    assert state.lrs == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_mean_is_that_of_the_iterates():
    iterates = []
    state = learn_alpha(quadratic, start(), on_step=lambda state: iterates.append(state.alpha), **OPTIONS)
    torch.testing.assert_close(state.mean, torch.stack(iterates).mean(0))


def test_callback_can_stop():
    state = learn_alpha(quadratic, start(), on_step=lambda state: len(state.values) == 3, **OPTIONS)
    assert len(state.values) == 3


def test_zero_gradient_moves_nothing():
    state = learn_alpha(
        lambda a, k: (0.0, torch.zeros(1, 4), 0.0), OuterState.start(1, 4), lr=0.1, max_iter=2, patience=1
    )
    assert torch.equal(state.alpha, torch.ones(1, 4))


class TestResume:
    @staticmethod
    def noisy(alpha, step):
        """Another objective at every step, as fresh initialisations are; it stops getting better."""
        value, grad, _ = quadratic(alpha, step)
        return value + step % 7, grad * (1 + step % 5), float(step)

    def test_a_loop_taken_up_again_ends_where_an_uninterrupted_one_does(self):
        options = OPTIONS | {"max_iter": 40, "patience": 4, "eps": 1.0}
        whole = learn_alpha(self.noisy, start(), **options)
        for n_first in (1, 13, 39):
            state = learn_alpha(self.noisy, start(), **options | {"max_iter": n_first})
            resumed = learn_alpha(self.noisy, state.map(torch.clone), **options)
            assert resumed.values == whole.values
            assert resumed.held_out == whole.held_out == tuple(range(40))
            assert resumed.lrs == whole.lrs
            for name in ("alpha", "mean", "first", "second", "count"):
                assert torch.equal(getattr(resumed, name), getattr(whole, name)), name
        assert whole.lr_scale < 1

    def test_an_interrupt_leaves_the_last_complete_step(self):
        def interrupted(alpha, step):
            if step == 7:
                raise KeyboardInterrupt
            return quadratic(alpha, step)

        state = learn_alpha(interrupted, start(), **OPTIONS)
        assert state.interrupted
        assert state.n_steps == 7
        resumed, whole = (learn_alpha(quadratic, s, **OPTIONS) for s in (state, start()))
        assert not resumed.interrupted
        assert torch.equal(resumed.alpha, whole.alpha)

    def test_no_step_is_left(self):
        state = learn_alpha(quadratic, start(), **OPTIONS | {"max_iter": 3})
        assert torch.equal(learn_alpha(quadratic, state, **OPTIONS | {"max_iter": 3}).alpha, state.alpha)

    def test_state_is_not_changed(self):
        state = learn_alpha(quadratic, start(), **OPTIONS | {"max_iter": 3})
        before = state.map(torch.clone)
        learn_alpha(quadratic, state, **OPTIONS)
        assert torch.equal(before.alpha, state.alpha)
        assert torch.equal(before.count, state.count)

    def test_rows_keep_theirs_when_others_come_and_go(self):
        """Rows that do not touch each other move as if alone, whenever each came."""
        options = dict(lr=0.05, patience=1000, eps=0.0)
        grads = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def objective(rows):
            return lambda alpha, step: (float(step), grads[step : step + 1, rows], 0.0)

        first = learn_alpha(objective([0, 1, 2]), start(3), max_iter=10, **options)
        moved = first.placed(torch.tensor([2, -1, 0, -1]))
        both = learn_alpha(objective([2, 3, 0, 4]), moved, max_iter=20, **options)
        stayed = learn_alpha(objective([0, 1, 2]), first, max_iter=20, **options)
        came = learn_alpha(lambda a, k: (0.0, grads[10 + k : 11 + k, [3, 4]], 0.0), start(2), max_iter=10, **options)
        for name in ("alpha", "mean", "first", "second", "count"):
            together = getattr(both, name)
            assert torch.equal(together[:, [2, 0]], getattr(stayed, name)[:, [0, 2]])
            assert torch.equal(together[:, [1, 3]], getattr(came, name))
        assert both.n_steps == 20
