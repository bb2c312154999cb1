"""From nets of every kind to pure functions; the caller's net is never touched."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from sklearn_cdgd._default_network import DefaultNetwork, robust_scaling
from sklearn_cdgd._network import Network
from sklearn_cdgd._optimizers import SGD, Grouped
from sklearn_cdgd._unroll import train

RNG = np.random.RandomState(0)
X = RNG.randn(20, 4).astype(np.float32)
CODES = RNG.randint(3, size=20)
BINARY = CODES % 2


def linear(n_outputs=3):
    return nn.Linear(4, n_outputs)


def skorch_net(module=linear, **options):
    defaults = dict(criterion=nn.CrossEntropyLoss, max_epochs=3, batch_size=7, train_split=None, verbose=0)
    return NeuralNetClassifier(module, **(defaults | options))


class BatchNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, X):
        return self.layers(X)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.output = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, X):
        return self.output(torch.tanh(self.hidden(X)))


class HalfFrozen(Named):
    def __init__(self):
        super().__init__()
        self.hidden.weight.requires_grad_(False)


class Tempered(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, output, y):
        return super().forward(output / self.temperature, y)


@pytest.mark.usefixtures("global_generators_untouched")
@pytest.mark.parametrize(
    "net",
    [
        None,
        skorch_net(),
        skorch_net(linear()),
        linear,
        linear(),
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)),
        BatchNormed,
    ],
    ids=["default", "skorch", "skorch instance", "function", "instance", "softmax", "class"],
)
class TestEveryKindOfNet:
    def test_initialisation_is_a_function_of_the_seed(self, net):
        network = Network(net, X, CODES, 3, seed=0)
        first, again, second = (network.initialize(seed)[0] for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def test_fitted_net_repeats_the_losses_and_probabilities(self, net):
        network = Network(net, X, CODES, 3, seed=0)
        problem = network.problem((X, CODES), (X, CODES))
        state = train(problem, torch.ones(20), network.plan(20, seed=1))
        probabilities = network.answers(state, X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        own = probabilities[np.arange(20), CODES]
        np.testing.assert_allclose(network.row_losses(state, X, CODES), -np.log(own), rtol=1e-3, atol=1e-5)
        fitted = network.fitted(state)
        assert isinstance(fitted, NeuralNet)
        with torch.random.fork_rng():
            np.testing.assert_array_equal(fitted.predict(X), probabilities.argmax(axis=1))


def test_losses_equal_those_of_plain_torch():
    network = Network(skorch_net(), X, CODES, 3, seed=0)
    (weight, bias), buffers = network.initialize(4)
    ours = network.eval_losses((weight, bias), buffers, torch.as_tensor(X), torch.as_tensor(CODES))
    logits = nn.functional.linear(torch.as_tensor(X), weight, bias)
    torch.testing.assert_close(ours, nn.functional.cross_entropy(logits, torch.as_tensor(CODES), reduction="none"))


def test_binary_net_with_one_output():
    for net in (NeuralNetBinaryClassifier(linear(1), verbose=0), linear(1), nn.Sequential(linear(1), nn.Flatten(0))):
        network = Network(net, X, BINARY, 2, seed=0)
        state = train(network.problem((X, BINARY), (X, BINARY)), torch.ones(20), network.plan(20, seed=0))
        probabilities = network.answers(state, X)
        assert probabilities.shape == (20, 2)
        np.testing.assert_allclose(
            network.row_losses(state, X, BINARY), -np.log(probabilities[np.arange(20), BINARY]), rtol=1e-4, atol=1e-6
        )


def test_schedule_is_the_nets_own():
    plan = Network(skorch_net(batch_size=7, max_epochs=3), X, CODES, 3, seed=0).plan(20, seed=5)
    assert (plan.batch_size, plan.n_epochs, plan.n_steps) == (7, 3, 9)
    assert Network(skorch_net(batch_size=-1), X, CODES, 3, seed=0).plan(20, seed=5).full_batch


def test_batch_norm_statistics_are_carried():
    network = Network(BatchNormed, X, CODES, 3, seed=0)
    problem = network.problem((X, CODES), (X, CODES))
    start = problem.initial_state(0)
    trained = train(problem, torch.ones(20), network.plan(20, seed=0))
    assert len(start.buffers) == 3
    assert not torch.equal(start.buffers[0], trained.buffers[0])
    running_mean = network.fitted(trained).module_.layers[1].running_mean
    assert torch.equal(running_mean, trained.buffers[0])


def test_frozen_layers_of_an_instance_keep_their_weights():
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    module[0].requires_grad_(False)
    network = Network(module, X, CODES, 3, seed=0)
    state = train(network.problem((X, CODES), (X, CODES)), torch.ones(20), network.plan(20, seed=0))
    fitted = network.fitted(state).module_
    assert torch.equal(fitted[0].weight, module[0].weight)
    assert not torch.equal(fitted[2].weight, module[2].weight)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_trains_as_skorch_does(optimizer):
    """The same parameters as skorch's own training of the same net, several parameter groups included."""
    for groups in ([], [("*bias", {"lr": 0.5}), ("output*", {"weight_decay": 0.1})]):
        options = dict(optimizer=optimizer, optimizer__param_groups=groups, lr=0.1, batch_size=-1, max_epochs=4)
        network = Network(skorch_net(Named, **options), X, CODES, 3, seed=0)
        problem = network.problem((X, CODES), (X, CODES))
        plan = network.plan(20, seed=0)
        reference = network.fitted(problem.initial_state(plan.seed))
        with torch.random.fork_rng():
            reference.partial_fit(X, CODES)
        theirs = [p.detach() for p in reference.module_.parameters()]
        torch.testing.assert_close([*train(problem, torch.ones(20), plan).params], theirs, rtol=1e-4, atol=1e-5)


def test_what_the_optimiser_holds_beside_the_module_is_not_trained():
    """A frozen layer in a group of its own, and a criterion with a parameter."""
    options = dict(criterion=Tempered, optimizer__param_groups=[("*bias", {"lr": 0.5}), ("output*", {"lr": 0.1})])
    network = Network(skorch_net(HalfFrozen, **options), X, CODES, 3, seed=0)
    assert [p.shape for p in network.initialize(0)[0]] == [(5,), (3, 5), (3,)]
    assert network.optimizer == Grouped((SGD(0.5), SGD(0.1)), ((0, 2), (1,)))


def test_callers_net_is_left_alone():
    module = linear()
    net = skorch_net(module)
    before = {name: p.clone() for name, p in module.named_parameters()}
    network = Network(net, X, CODES, 3, seed=0)
    train(network.problem((X, CODES), (X, CODES)), torch.ones(20), network.plan(20, seed=0))
    assert all(torch.equal(before[name], p) for name, p in module.named_parameters())
    assert net.module is module
    assert not net.initialized_


class TestDefaultNetwork:
    def test_scaling_is_robust(self):
        column = np.r_[np.arange(99.0), 1e9]
        data = np.c_[column, 1000 + 0.001 * column, np.full(100, 7.0), np.r_[np.zeros(90), np.ones(10)]]
        center, scale = robust_scaling(data)
        Z = (data - center) * scale
        np.testing.assert_allclose(np.ptp(Z[:99, :2], axis=0), 2, rtol=0.02)
        assert (Z[:, 2] == 0).all()
        assert np.ptp(Z[:, 3]) == 2

    def test_output_is_bounded_by_smooth_clipping(self):
        module = DefaultNetwork([0.0], [1.0], n_outputs=2)
        far, further = module(torch.tensor([[1e6], [1e12]]))
        torch.testing.assert_close(far, further)

    def test_does_not_mind_units(self):
        networks = [Network(None, X * factor, CODES, 3, seed=0) for factor in (np.float32(1e-6), np.float32(1e6))]
        small, large = (
            train(n.problem((X * f, CODES), (X * f, CODES)), torch.ones(20), n.plan(20, seed=0)).params
            for n, f in zip(networks, (np.float32(1e-6), np.float32(1e6)), strict=True)
        )
        for a, b in zip(small, large, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


class NoReduction(nn.Module):
    def forward(self, output, y):
        return nn.functional.cross_entropy(output, y)


def frozen():
    return nn.Linear(4, 3).requires_grad_(False)


class Opaque(torch.optim.Rprop):
    pass


@pytest.mark.parametrize(
    ("net", "error", "words"),
    [
        ("mlp", TypeError, "net must be None, a skorch NeuralNet, or a torch nn.Module .* got str"),
        (NeuralNetClassifier, TypeError, "must be an instance of a skorch net; got the class NeuralNetClassifier"),
        (
            skorch_net(optimizer=Opaque),
            ValueError,
            "trains with Opaque, which cannot be differentiated .* optimizer=torch.optim.SGD, .*Adam or .*AdamW",
        ),
        (skorch_net(optimizer__momentum=0.9, optimizer__dampening=0.5), ValueError, r"SGD\(dampening=0.5\)"),
        (skorch_net(optimizer__maximize=True), ValueError, r"SGD\(maximize=True\)"),
        (
            skorch_net(optimizer=torch.optim.Adam, optimizer__amsgrad=True),
            ValueError,
            r"Adam\(amsgrad=True\).*Leave it",
        ),
        (skorch_net(optimizer=torch.optim.AdamW, optimizer__maximize=True), ValueError, r"AdamW\(maximize=True\)"),
        (skorch_net(optimizer=torch.optim.Adam, optimizer__eps=0.0), ValueError, r"Adam\(eps=0.0\).* Use eps=1e-8"),
        (
            NeuralNetBinaryClassifier(linear(1)),
            ValueError,
            "NeuralNetBinaryClassifier, but y has 3 classes. Use NeuralNetCl",
        ),
        (skorch_net(criterion=NoReduction), ValueError, r"loss of shape \(\) for 2 rows. One loss per row"),
        (nn.Linear(5, 3), ValueError, r"could not be applied to two rows of X, of shape \(2, 4\)"),
        (nn.Linear(4, 2), ValueError, r"output of shape \(2, 2\) for two rows, but .* 3 classes"),
        (skorch_net(linear(2)), ValueError, "could not be applied to two rows.*with 3 classes"),
        (nn.Sequential(nn.Flatten()), ValueError, "empty parameter list"),
        (skorch_net(frozen), ValueError, "no parameter that requires a gradient, so there is nothing to train"),
        (skorch_net(linear, criterion=nn.NLLLoss), ValueError, "pass criterion=torch.nn.CrossEntropyLoss"),
    ],
    ids=lambda value: None if not isinstance(value, str) else value[:20],
)
def test_what_cannot_work_is_said_before_training(net, error, words):
    codes = np.r_[2, 2, CODES[2:]]
    with pytest.raises(error, match=words):
        Network(net, X, codes, 3, seed=0)


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers, self.output = nn.Parameter(torch.randn(5, 4)), nn.Linear(5, 3)

    def forward(self, X):
        return self.output(torch.cdist(X, self.centers))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.output = nn.EmbeddingBag(9, 4), nn.Linear(4, 3)

    def forward(self, X):
        return self.output(torch.tanh(self.bag(X)))


class MarginLoss(nn.MultiMarginLoss):
    pass


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X):
        return X.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad.clone()


class OnceDifferentiable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, X):
        return Once.apply(self.layer(X))


TOKENS = RNG.randint(9, size=(20, 4))


@pytest.mark.usefixtures("global_generators_untouched")
@pytest.mark.parametrize(
    ("net", "data", "words"),
    [
        (Bag, TOKENS, r"its layer 'bag' \(EmbeddingBag\) has no second derivative .* Use torch.nn.Embedding, followed"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Hardsigmoid(), nn.Linear(4, 3))),
            X,
            r"its layer '1.0' \(Hardsigmoid\) has no second .* Use torch.nn.Sigmoid.",
        ),
        (Distances, X, r"its module \(Distances\) has no second .*Write the distances out"),
        (nn.Sequential(Distances()), X, r"its layer '0' \(Distances\) has no second"),
        (
            skorch_net(Named, criterion=MarginLoss),
            X,
            r"its criterion \(MarginLoss\) has no second .*CrossEntropyLoss",
        ),
        (
            OnceDifferentiable,
            X,
            r"its module \(OnceDifferentiable\) has no second .*once_differentiable.* Replace it by",
        ),
    ],
    ids=["embedding bag", "hardsigmoid", "cdist", "cdist inside", "criterion", "once"],
)
def test_what_has_no_second_derivative_is_named_before_training(net, data, words):
    with pytest.raises(ValueError, match=words):
        Network(net, data, CODES, 3, seed=0)


def lazy():
    return nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Linear(5, 3))


class Lazy(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(width), nn.Tanh(), nn.LazyLinear(3))

    def forward(self, X):
        return self.layers(X)


@pytest.mark.usefixtures("global_generators_untouched")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(
    "kind", ["function", "class", "instance", "skorch function", "skorch class", "skorch instance"]
)
def test_lazy_modules(kind):
    with torch.random.fork_rng():
        module = {"function": lazy, "class": Lazy, "instance": lazy()}[kind.split()[-1]]
    options = {"module__width": 6} if kind == "skorch class" else {}
    network = Network(skorch_net(module, **options) if "skorch" in kind else module, X, CODES, 3, seed=0)
    first, again, second = (network.initialize(seed)[0] for seed in (1, 1, 2))
    assert first[0].shape == (options.get("module__width", 5), 4)
    for a, b, c in zip(first, again, second, strict=True):
        assert torch.equal(a, b)
        if a.dim() == 2:
            assert not torch.equal(a, c)
    state = train(network.problem((X, CODES), (X, CODES)), torch.ones(20), network.plan(20, seed=0))
    fitted = pickle.loads(pickle.dumps(network.fitted(state)))
    assert all(torch.equal(a, b) for a, b in zip(fitted.module_.parameters(), state.params, strict=True))
    if isinstance(module, nn.Module):
        assert isinstance(module[0], nn.LazyLinear), "the caller's module was touched"


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 4),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    ],
    ids=["plain", "weight norm", "spectral norm"],
)
def test_an_instance_is_initialised_anew(layer):
    network = Network(nn.Sequential(layer, nn.Linear(4, 3)), X, CODES, 3, seed=0)
    first, again, second = (network.initialize(seed)[0] for seed in (1, 1, 2))
    for a, b, c in zip(first, again, second, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_attention_is_initialised_anew():
    """torch spells its reset with an underscore."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.output = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, X):
            return self.output(self.attention(X[:, None], X[:, None], X[:, None])[0][:, 0])

    network = Network(Attention(), X, CODES, 3, seed=0)
    assert not torch.equal(network.initialize(1)[0][0], network.initialize(2)[0][0])
