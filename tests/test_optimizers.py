"""The pure update rules against torch.optim."""

from __future__ import annotations

import pytest
import torch

from sklearn_cdgd._optimizers import SGD


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
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(s, generator=generator, dtype=dtype) for s in [(5, 3), (5,)]]
    theirs = [p.clone().requires_grad_() for p in start]
    reference = torch.optim.SGD(theirs, lr=0.1, **options)
    rule = SGD(0.1, **options)
    ours = tuple(start)
    state = rule.init(ours)
    for _ in range(20):
        grads = tuple(torch.randn(p.shape, generator=generator, dtype=dtype) for p in start)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        reference.step()
        ours, state = rule.update(ours, grads, state)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
