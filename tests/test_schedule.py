"""Learning-rate schedules of skorch nets are carried over; what is not is said."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from helpers import finite_differences, random_alpha, relative_error, skorch_problem
from skorch import NeuralNetClassifier, callbacks
from skorch.callbacks import LRScheduler
from torch import nn
from torch.optim import lr_scheduler

from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd._hypergradient import hypergradient
from sklearn_cdgd._network import Network
from sklearn_cdgd._optimizers import SGD, Adam, Scheduled
from sklearn_cdgd._recording import Recording
from sklearn_cdgd._unroll import BatchPlan, stacked, train

RNG = np.random.RandomState(0)
X = RNG.randn(20, 4).astype(np.float32)
CODES = RNG.randint(3, size=20)


class Small(nn.Module):
    def __init__(self, n_inputs=4, n_hidden=5):
        super().__init__()
        self.hidden, self.output = nn.Linear(n_inputs, n_hidden), nn.Linear(n_hidden, 3)

    def forward(self, X):
        return self.output(torch.tanh(self.hidden(X)))


def net(*schedulers, **options):
    defaults = dict(criterion=nn.CrossEntropyLoss, train_split=None, verbose=0, batch_size=-1, max_epochs=6, lr=0.2)
    defaults |= {"optimizer__momentum": 0.9} if "optimizer" not in options else {}
    return NeuralNetClassifier(Small, callbacks=list(schedulers), **(defaults | options))


def quietly(policy, **options):
    """Return a callback that does not write a history."""
    return LRScheduler(policy, event_name=None, **options)


SCHEDULES = {
    "StepLR": quietly(lr_scheduler.StepLR, step_size=2, gamma=0.5),
    "MultiStepLR": quietly(lr_scheduler.MultiStepLR, milestones=[1, 4]),
    "ExponentialLR": quietly("ExponentialLR", gamma=0.8),
    "CosineAnnealingLR": quietly(lr_scheduler.CosineAnnealingLR, T_max=5),
    "CosineAnnealingWarmRestarts": quietly(lr_scheduler.CosineAnnealingWarmRestarts, T_0=2),
    "LinearLR": quietly(lr_scheduler.LinearLR, start_factor=0.1, total_iters=3),
    "PolynomialLR": quietly(lr_scheduler.PolynomialLR, total_iters=4, power=2),
    "OneCycleLR": quietly(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=6, cycle_momentum=False),
    "LambdaLR": quietly(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch)),
    "CyclicLR": quietly(
        lr_scheduler.CyclicLR, base_lr=0.05, max_lr=0.4, step_size_up=2, cycle_momentum=False, step_every="batch"
    ),
    "WarmRestartLR": LRScheduler(),
}


def trained_by_skorch(network, plan):
    """Return what skorch makes of the same initial parameters."""
    reference = network.fitted(network.problem((X, CODES), (X, CODES)).initial_state(plan.seed))
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, for schedulers that skorch makes before the first step
        reference.partial_fit(X, CODES)
    return [p.detach() for p in reference.module_.parameters()]


def assert_trains_as_skorch_does(net, exactly=True):
    network = Network(net, X, CODES, 3, seed=0)
    plan = network.plan(20, seed=0)
    ours = train(network.problem((X, CODES), (X, CODES)), torch.ones(20), plan).params
    theirs = trained_by_skorch(network, plan)
    tolerance = dict(rtol=1e-6, atol=1e-6) if exactly else dict(rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([*ours], theirs, **tolerance)
    constant = Network(net.set_params(callbacks=[]), X, CODES, 3, seed=0)
    without = train(constant.problem((X, CODES), (X, CODES)), torch.ones(20), plan).params
    assert (ours[0] - without[0]).abs().max() > 1e-3, "the schedule changed nothing"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_trains_as_skorch_does(schedule):
    assert_trains_as_skorch_does(net(SCHEDULES[schedule]))


GROUPS = [("*bias", {"lr": 0.5}), ("output*", {"lr": 0.05})]


@pytest.mark.parametrize("step_every", ["batch", "epoch"])
@pytest.mark.parametrize(
    ("options", "exactly"),
    [
        ({"optimizer__nesterov": True, "optimizer__weight_decay": 0.1}, True),
        ({"optimizer__param_groups": GROUPS}, True),
        ({"optimizer": torch.optim.Adam, "lr": 0.05}, False),
        ({"optimizer": torch.optim.AdamW, "lr": 0.05, "optimizer__weight_decay": 0.2}, False),
    ],
    ids=["nesterov and weight decay", "groups", "Adam", "AdamW"],
)
def test_trains_as_skorch_does_in_batches(step_every, options, exactly):
    schedule = quietly(lr_scheduler.StepLR, step_size=2, gamma=0.7, step_every=step_every)
    ours = net(schedule, batch_size=7, max_epochs=4, iterator_train__shuffle=False, **options)
    assert_trains_as_skorch_does(ours, exactly)


def test_schedules_act_together():
    """A warm-up over batches and a decay over epochs."""
    warm_up = quietly(lr_scheduler.LinearLR, start_factor=0.1, total_iters=5, step_every="batch")
    decay = quietly(lr_scheduler.ExponentialLR, gamma=0.8)
    assert_trains_as_skorch_does(net(warm_up, decay, batch_size=7, max_epochs=4, iterator_train__shuffle=False))


def test_after_its_end_the_last_learning_rate_stays():
    """Judges train on the clean rows too, and so take more steps than the schedule was made for."""
    schedule = quietly(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=9, cycle_momentum=False, step_every="batch")
    network = Network(net(schedule, batch_size=7, max_epochs=3), X, CODES, 3, seed=0)
    more = np.concatenate([X, X]), np.concatenate([CODES, CODES])
    lrs = network.problem(more, more).optimizer.lrs
    assert len(lrs) == 9
    rule = Scheduled(SGD(1.0), torch.tensor([1.0, 0.5]))
    params, state = (torch.zeros(2),), rule.init((torch.zeros(2),))
    for expected in (-1, -1.5, -2, -2.5):
        params, state = rule.update(params, (torch.ones(2),), state)
        assert params[0].tolist() == [expected] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [SGD(0.0, momentum=0.9, nesterov=True, weight_decay=0.1), Adam(0.0, weight_decay=0.1)])
def test_a_constant_table_is_a_constant_learning_rate(rule, dtype):
    constant = rule.__class__(**vars(rule) | {"lr": 0.3})
    scheduled = Scheduled(rule, torch.full((3,), 0.3, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    ours = theirs = (torch.randn(5, 3, generator=generator, dtype=dtype), torch.ones((), dtype=dtype))
    our_state, their_state = scheduled.init(ours), constant.init(theirs)
    assert len(our_state) == scheduled.state_size(2)
    for _ in range(5):
        grads = tuple(torch.randn(p.shape, generator=generator, dtype=dtype) for p in ours)
        ours, our_state = scheduled.update(ours, grads, our_state)
        theirs, their_state = constant.update(theirs, grads, their_state)
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def double():
    return Small().double()


@pytest.mark.parametrize(
    "options",
    [
        dict(lr=0.3, optimizer__momentum=0.5, optimizer__param_groups=[("*bias", {"lr": 0.1})]),
        dict(optimizer=torch.optim.AdamW, lr=0.05),
    ],
    ids=["SGD, groups", "AdamW"],
)
@pytest.mark.parametrize("plan", [BatchPlan(8, -1, 5, seed=3), BatchPlan(8, 3, 2, seed=3)], ids=["full", "minibatch"])
def test_hypergradient_equals_finite_differences(options, plan):
    schedule = quietly(lr_scheduler.ExponentialLR, gamma=0.6, step_every="batch")
    problem, alpha = skorch_problem(double, RNG.randn(13, 4), callbacks=[schedule], **options), random_alpha(8)
    expected = finite_differences(problem, alpha, plan)
    assert relative_error(hypergradient(problem, alpha, plan).grad, expected) < 1e-6
    recording = Recording(problem, plan, alpha)
    for memory_budget in (1e9, 1.0):
        recorded = hypergradient(problem, alpha, plan, recording=recording, memory_budget=memory_budget)
        assert relative_error(recorded.grad, expected) < 1e-6
    at_once = hypergradient(stacked(problem, 2), alpha, plan)
    assert relative_error(at_once.grad, expected) > 1e-3  # of other initialisations, with the same schedule
    assert at_once.state.optimizer[-1] == plan.n_steps


def test_in_a_detector(spheres):
    arrays = spheres(n_noisy=40, n_clean=20)[:4]

    def alpha(*schedulers):
        ours = net(*schedulers, max_epochs=3, module__n_inputs=3)
        return CorruptionDetector(ours, max_iter=1, n_judges=1, n_inits=1, cv=None, random_state=0).fit(*arrays).alpha_

    constant, halved = alpha(), alpha(quietly(lr_scheduler.StepLR, step_size=1, gamma=0.5))
    assert (constant != halved).any()
    one = alpha(quietly(lr_scheduler.StepLR, step_size=1, gamma=1.0))
    np.testing.assert_allclose(one, constant, atol=1e-5)


def test_callers_callback_is_left_alone():
    schedule = quietly(lr_scheduler.StepLR, step_size=1)
    before = vars(schedule).copy()
    Network(net(schedule), X, CODES, 3, seed=0)
    assert vars(schedule) == before


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (
            LRScheduler(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=3, cycle_momentum=False),
            "schedule OneCycleLR of net failed after step 4 of 6 inner steps: Tried to step.* has to cover them all",
        ),
        (
            LRScheduler(lr_scheduler.LambdaLR, lr_lambda=[0.1, 0.2, 0.3].__getitem__),
            "schedule LambdaLR of net failed after step 3 of 6",
        ),
        (LRScheduler(lr_scheduler.StepLR), "schedule StepLR of net cannot be made: .*step_size"),
    ],
    ids=["too short", "its function fails", "an option is missing"],
)
def test_a_schedule_that_fails_is_named_before_training(schedule, words):
    with pytest.raises(ValueError, match=words):
        Network(net(schedule), X, CODES, 3, seed=0)


# --- what is not carried over -----------------------------------------------------------------------------------------


class Custom(callbacks.Callback):
    def on_epoch_end(self, net, **kwargs):
        pass


class Prepares(callbacks.Callback):
    """Acts before the training only, as skorch's InputShapeSetter does, and so does what it would do."""

    def on_train_begin(self, net, **kwargs):
        net.set_params(module__n_hidden=7)


class OwnSchedule(LRScheduler):
    pass


class OwnLoop(NeuralNetClassifier):
    def train_step_single(self, batch, **kwargs):
        return super().train_step_single(batch, **kwargs)


class OwnDataset(torch.utils.data.Dataset):
    pass


LOST = {
    "early stopping": (net(callbacks.EarlyStopping()), "EarlyStopping"),
    "plateau": (net(LRScheduler(lr_scheduler.ReduceLROnPlateau)), r"LRScheduler\(ReduceLROnPlateau\)"),
    "plateau by name": (net(LRScheduler("ReduceLROnPlateau")), r"LRScheduler\(ReduceLROnPlateau\)"),
    "own scheduler": (net(OwnSchedule("StepLR", step_size=1)), r"OwnSchedule\(StepLR\)"),
    "clipping": (net(callbacks.GradientNormClipping(1.0)), "GradientNormClipping"),
    "freezer": (net(callbacks.Freezer("hidden*")), "Freezer"),
    "initial parameters": (net(callbacks.Initializer("*bias", fn=nn.init.zeros_)), "Initializer"),
    "initial state": (net(callbacks.LoadInitState(callbacks.Checkpoint(dirname="nowhere"))), "LoadInitState"),
    "custom": (net(("mine", Custom())), "Custom"),
    "momentum": (
        net(LRScheduler(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=6)),
        "the momentum that its learning-rate schedule sets",
    ),
    "betas": (
        net(LRScheduler(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=6), optimizer=torch.optim.Adam),
        "the betas that its learning-rate schedule sets",
    ),
    "drop last": (net(iterator_train__drop_last=True), "iterator_train__drop_last"),
    "data set": (net(dataset=OwnDataset), "dataset"),
    "loop": (OwnLoop(Small, criterion=nn.CrossEntropyLoss), "its own train_step_single"),
    "several": (
        net(callbacks.EarlyStopping(), callbacks.GradientNormClipping(1.0)),
        "EarlyStopping, GradientNormClipping",
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_what_is_not_carried_over_is_said_once(case):
    net, words = LOST[case]
    with pytest.warns(UserWarning, match=f"these are not carried over: {words}. Take them out to") as caught:
        Network(net, X, CODES, 3, seed=0)
    assert len(caught) == 1


def test_the_warning_points_to_the_call_of_fit(spheres):
    arrays = spheres(n_noisy=40, n_clean=20)[:4]
    ours = net(callbacks.EarlyStopping(), module__n_inputs=3)
    with pytest.warns(UserWarning, match="not carried over: EarlyStopping") as caught:
        CorruptionDetector(ours, max_iter=1, cv=None, random_state=0).fit(*arrays)
    assert [w.filename for w in caught] == [__file__]


HARMLESS = {
    "none": net(train_split=True),
    "default": NeuralNetClassifier(Small, criterion=nn.CrossEntropyLoss),
    "disabled": net().set_params(callbacks="disable"),
    "watching": net(
        callbacks.EpochScoring("accuracy"),
        callbacks.BatchScoring("accuracy"),
        callbacks.PrintLog(),
        callbacks.ProgressBar(),
        callbacks.Checkpoint(dirname="nowhere"),
        callbacks.TrainEndCheckpoint(dirname="nowhere"),
        ("loss", callbacks.PassthroughScoring("train_loss")),
    ),
    "scheduled": net(LRScheduler("StepLR", step_size=1)),
    "preparing": net(Prepares()),
    "loading": net(iterator_train__num_workers=0, iterator_train__shuffle=True),
    "validation": net(iterator_valid__batch_size=3),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_changes_nothing_is_passed_over(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = Network(HARMLESS[case], X, CODES, 3, seed=0)
    if case == "preparing":
        assert network.initialize(0)[0][0].shape == (7, 4)


def test_batch_size_and_order_of_the_iterator():
    plan = Network(net(iterator_train__batch_size=6, iterator_train__shuffle=False), X, CODES, 3, seed=0).plan(20, 1)
    assert plan.batch_size == 6
    assert plan.rows(1).tolist() == [6, 7, 8, 9, 10, 11]
    assert Network(net(batch_size=6), X, CODES, 3, seed=0).plan(20, 1).shuffle
