"""The outer loop on objectives whose minimum is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sklearn_cdgd._outer import OuterState, adam_step, learn_alpha

TARGET = torch.tensor([[-0.5, 0.2, 0.7, 1.5]], dtype=torch.float64)
PER_ROW = ("alpha", "mean", "first", "second", "count", "kept")
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
            assert resumed.scales == whole.scales
            for name in PER_ROW:
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
        for name in ("alpha", "mean", "first", "second", "count"):  # what is kept is decided by all rows together
            together = getattr(both, name)
            assert torch.equal(together[:, [2, 0]], getattr(stayed, name)[:, [0, 2]])
            assert torch.equal(together[:, [1, 3]], getattr(came, name))
        assert both.n_steps == 20


def telling(*held_out):
    """Return the quadratic with these held-out losses at its steps; the last ones from then on."""

    def objective(alpha, step):
        value, grad, _ = quadratic(alpha, step)
        return value, grad, torch.tensor(held_out[min(step, len(held_out) - 1)], dtype=torch.float64)

    return objective


class TestEarlyStopping:
    """A loop ends so many outer steps after the last progress on held-out rows, and keeps what it had there."""

    @pytest.mark.parametrize("max_wait", [1, 3])
    def test_the_loop_ends_after_so_many_steps_without_progress(self, max_wait):
        state = learn_alpha(telling([3.0], [2.0], [1.0], [1.0]), start(), max_wait=max_wait, **OPTIONS)
        # Two steps lead to the best alpha; it is told to be no worse than what follows.
        assert state.kept_step == 2
        assert state.kept_losses == (1.0,)
        assert state.n_steps == 2 + max_wait + 1

    def test_what_is_kept_is_the_mean_up_to_there(self):
        means = [start().mean]
        options = OPTIONS | {"max_wait": 2, "on_step": lambda state: means.append(state.mean)}
        state = learn_alpha(telling([3.0], [2.0], [1.0], [1.0]), start(), **options)
        assert torch.equal(state.kept, means[2])
        assert not torch.equal(state.kept, state.mean)

    def test_without_progress_the_start_is_kept(self):
        state = learn_alpha(telling([1.0], [2.0]), start(), max_wait=2, **OPTIONS)
        assert (state.kept_step, state.n_steps) == (0, 3)
        assert torch.equal(state.kept, start().alpha)

    def test_steps_are_limited_all_the_same(self):
        falling = telling(*([float(-n)] for n in range(100)))
        state = learn_alpha(falling, start(), **OPTIONS | {"max_wait": 2, "max_iter": 7})
        assert (state.n_steps, state.kept_step) == (7, 6)

    def test_without_a_limit_all_steps_are_taken_and_the_best_is_kept(self):
        state = learn_alpha(telling([2.0], [1.0], [1.5]), start(), **OPTIONS | {"max_iter": 20})
        assert (state.n_steps, state.kept_step) == (20, 1)

    @pytest.mark.parametrize(("n_errors", "is_progress"), [(0.9, False), (1.1, True)])
    def test_less_than_a_standard_error_is_no_progress(self, n_errors, is_progress):
        """Of the paired difference: what both find hard does not count."""
        generator = torch.Generator().manual_seed(0)
        hard, gain = 10 * torch.rand(50, generator=generator), torch.randn(50, generator=generator)
        gain = (gain - gain.mean()) / gain.std(unbiased=False) + n_errors / math.sqrt(50)
        state = learn_alpha(telling(hard.tolist(), (hard - gain).tolist()), start(), **OPTIONS | {"max_iter": 2})
        assert (state.kept_step == 1) == is_progress

    def test_small_gains_add_up(self):
        """Losses are compared with those that were kept, not with the last ones."""
        generator = torch.Generator().manual_seed(0)
        spread = torch.randn(50, generator=generator).double()
        spread = (spread - spread.mean()) / spread.std(unbiased=False)
        # Each step gains less than a standard error of 0.14 on the one before, two gain more.
        steps = [(-0.1 * n + (-1) ** n * spread / 2).tolist() for n in range(3)]
        steps[2] = (torch.tensor(steps[0]) - 0.2 + spread).tolist()
        state = learn_alpha(telling(*steps), start(), **OPTIONS | {"max_iter": 3})
        assert state.kept_step == 2

    def test_where_nothing_is_held_out_all_steps_are_taken(self):
        means = [start().mean]
        options = OPTIONS | {"max_wait": 2, "max_iter": 9, "on_step": lambda state: means.append(state.mean)}
        state = learn_alpha(telling([math.nan]), start(), **options)
        assert state.n_steps == 9
        assert torch.equal(state.kept, means[state.kept_step])
        assert state.kept_step == 8

    def test_is_done(self):
        state = replace(start(), values=(1.0,) * 6, kept_step=3)
        assert state.is_done(max_iter=6)
        assert not state.is_done(max_iter=7)
        assert state.is_done(max_iter=7, max_wait=2)
        assert not state.is_done(max_iter=7, max_wait=3)

    @staticmethod
    def fluctuating(alpha, step):
        value, grad, _ = quadratic(alpha, step)
        generator = torch.Generator().manual_seed(step)
        losses = 1 / (1 + min(step, 12)) + 0.02 * torch.randn(30, generator=generator, dtype=torch.float64)
        return value, grad, losses

    def test_taken_up_again_it_ends_where_an_uninterrupted_one_does(self):
        options = OPTIONS | {"max_iter": 60, "max_wait": 5}
        whole = learn_alpha(self.fluctuating, start(), **options)
        assert 0 < whole.kept_step < whole.n_steps < 60
        for n_first in (1, whole.kept_step, whole.n_steps - 1):

            def interrupted(alpha, step, n_first=n_first):
                if step == n_first:
                    raise KeyboardInterrupt
                return self.fluctuating(alpha, step)

            state = learn_alpha(interrupted, start(), **options)
            assert state.interrupted
            assert not state.is_done(60, 5)
            resumed = learn_alpha(self.fluctuating, state.map(torch.clone), **options)
            for name in ("values", "held_out", "kept_losses", "kept_step", "scales", "interrupted"):
                assert getattr(resumed, name) == getattr(whole, name), name
            for name in PER_ROW:
                assert torch.equal(getattr(resumed, name), getattr(whole, name)), name

    def test_a_loop_that_is_done_takes_no_further_step(self):
        options = OPTIONS | {"max_wait": 2}
        state = learn_alpha(telling([1.0]), start(), **options)

        def refuse(alpha, step):
            raise AssertionError("there is no step left")

        assert learn_alpha(refuse, state, **options).n_steps == state.n_steps


class TestAdamStep:
    """A step of single rows, as those take it that come later."""

    OPTIONS = {"lr": 0.05, "eps": 0.7}

    @pytest.fixture
    def rows(self):
        """Return alpha, moments, count and gradient of three folds of five rows."""
        generator = torch.Generator().manual_seed(0)
        alpha, first, second, grad = torch.randn(4, 3, 5, generator=generator, dtype=torch.float64)
        return 0.4 + 0.2 * alpha.sigmoid(), 0.1 * first, second**2, torch.full_like(alpha, 4.0), grad

    def test_a_scale_that_is_given_is_used(self, rows):
        """Each row moves as in a set where the mean second moment is that of the given scale: all by hand."""
        alpha, first, second, _, grad = rows
        scale = torch.tensor([[0.1], [1.0], [10.0]], dtype=torch.float64)
        new_alpha, new_first, new_second, returned = adam_step(*rows, scale=scale, **self.OPTIONS)
        assert torch.equal(returned, scale)
        torch.testing.assert_close(new_first, 0.9 * first + 0.1 * grad)
        torch.testing.assert_close(new_second, 0.999 * second + 0.001 * grad**2)
        mean, square = new_first / (1 - 0.9**4), new_second / (1 - 0.999**4)
        torch.testing.assert_close(new_alpha, (alpha - 0.05 * mean / (square.sqrt() + 0.7 * scale)).clamp(0, 1))

    def test_without_one_it_is_that_of_the_rows(self, rows):
        *_, scale = found = adam_step(*rows, **self.OPTIONS)
        again = adam_step(*rows, scale=scale, **self.OPTIONS)
        for one, other in zip(found, again, strict=True):
            assert torch.equal(one, other)
        torch.testing.assert_close(scale[:, 0], (found[2] / (1 - 0.999**4)).mean(dim=1).sqrt())

    def test_some_rows_with_the_scale_of_all_move_as_all_do(self, rows):
        alpha, *_, scale = adam_step(*rows, **self.OPTIONS)
        some = adam_step(*(of[:, [1, 3]] for of in rows), scale=scale, **self.OPTIONS)
        assert torch.equal(some[0], alpha[:, [1, 3]])
        of_their_own = adam_step(*(of[:, [1, 3]] for of in rows), **self.OPTIONS)
        assert not torch.equal(of_their_own[0], some[0])

    def test_the_loop_notes_its_scales(self):
        """A pair that comes later and has the gradients of a row takes the way of that row."""
        options = OPTIONS | {"eps": 1.0, "max_iter": 12}
        state = learn_alpha(quadratic, start(), **options)
        alpha, first, second = torch.ones(1, 1).double(), torch.zeros(1, 1).double(), torch.zeros(1, 1).double()
        for n, (lr, scale) in enumerate(zip(state.lrs, state.scales, strict=True), start=1):
            grad = 2 * (alpha - TARGET[:, [1]])
            alpha, first, second, _ = adam_step(
                alpha,
                first,
                second,
                torch.full_like(alpha, n),
                grad,
                lr=lr,
                eps=1.0,
                scale=torch.tensor([scale], dtype=torch.float64),
            )
        torch.testing.assert_close(alpha, state.alpha[:, [1]])
