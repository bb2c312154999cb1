"""The pure update rules against torch.optim."""

from __future__ import annotations

import functools

import pytest
import torch

from sklearn_cdgd._optimizers import SGD, Adam, Grouped, differentiable


def twenty_steps(reference, rule, dtype):
    """Yield the parameters of `reference` (made from parameters) and of `rule` after each of twenty equal steps."""
    generator = torch.Generator().manual_seed(0)
    ours = tuple(torch.randn(s, generator=generator, dtype=dtype) for s in [(5, 3), (5,), (2, 2)])
    theirs = [p.clone().requires_grad_() for p in ours]
    reference, state = reference(theirs), rule.init(ours)
    for _ in range(20):
        grads = tuple(torch.randn(p.shape, generator=generator, dtype=dtype) for p in ours)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        reference.step()
        ours, state = rule.update(ours, grads, state)
        assert len(state) == rule.state_size(len(ours))
        yield from zip(ours, theirs, strict=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.01},
        {"momentum": 0.8, "weight_decay": 0.01},
        {"momentum": 0.8, "weight_decay": 0.01, "nesterov": True},
    ],
    ids=str,
)
def test_sgd_equals_torch_bit_for_bit(options, dtype):
    for a, b in twenty_steps(lambda params: torch.optim.SGD(params, lr=0.1, **options), SGD(0.1, **options), dtype):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [{}, {"betas": (0.5, 0.9)}, {"betas": (0.0, 0.99)}, {"weight_decay": 0.1}, {"eps": 1e-7}],
    ids=str,
)
@pytest.mark.parametrize(
    ("rule", "reference"),
    [
        (Adam, torch.optim.Adam),
        (functools.partial(Adam, weight_decay=0.01, decoupled_weight_decay=True), torch.optim.AdamW),
    ],
)
def test_adam_agrees_with_torch(rule, reference, options, dtype):
    for a, b in twenty_steps(lambda params: reference(params, lr=0.1, **options), rule(0.1, **options), dtype):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_adam_stands_still_where_gradients_are_zero_and_stays_differentiable():
    for dtype in (torch.float32, torch.float64):
        params, grads = (torch.ones(3, dtype=dtype),), (torch.zeros(3, dtype=dtype).requires_grad_(),)
        after, state = Adam(0.1).update(params, grads, Adam(0.1).init(params))
        assert torch.equal(after[0], params[0])
        (grad,) = torch.autograd.grad(sum(t.sum() for t in (*after, *state[:-1])), grads)
        assert torch.isfinite(grad).all()


def test_groups_equal_those_of_torch():
    """Rules of different kinds, in another order than the parameters; the last parameter is in no group."""
    rule = Grouped((SGD(0.1, momentum=0.9), SGD(0.01)), ((1,), (0,)))

    def reference(params):
        groups = [{"params": [params[1]], "lr": 0.1, "momentum": 0.9}, {"params": [params[0]], "lr": 0.01}]
        return torch.optim.SGD(groups, lr=1.0)

    for a, b in twenty_steps(reference, rule, torch.float64):
        assert torch.equal(a, b)
    mixed = Grouped((Adam(0.1), SGD(0.1, momentum=0.9)), ((0, 2), (1,)))
    params = tuple(torch.full((n,), 1.0) for n in (1, 2, 3))
    state = mixed.init(params)
    assert [t.shape for t in state] == [(1,), (3,), (1,), (3,), (), (2,)]
    after, state = mixed.update(params, params, state)
    torch.testing.assert_close([p[0].item() for p in after], [0.9] * 3)


@pytest.mark.parametrize("reference", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_the_twin_has_the_defaults_of_its_optimizer(reference):
    """Also where the optimiser holds parameters that are not trained."""
    generator = torch.Generator().manual_seed(0)
    ours = (torch.randn(4, generator=generator, dtype=torch.float64),)
    theirs = [ours[0].clone().requires_grad_()]
    optimizer = reference([torch.zeros(2), *theirs], lr=0.1)
    rule = differentiable(optimizer, theirs)
    state = rule.init(ours)
    for _ in range(5):
        grads = (torch.randn(4, generator=generator, dtype=torch.float64),)
        theirs[0].grad = grads[0].clone()
        optimizer.step()
        ours, state = rule.update(ours, grads, state)
    torch.testing.assert_close(ours[0], theirs[0].detach(), rtol=1e-5, atol=1e-5)
