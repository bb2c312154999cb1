"""What a skorch net does in its own training beside taking steps: what is carried over, and what is not."""

from __future__ import annotations

import functools

from skorch import NeuralNet, callbacks
from skorch.dataset import Dataset
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from ._schedule import Schedule, Scheduler
from ._warnings import warn_user

# They watch, print and save, or do something at the end.
_WATCHERS = (
    callbacks.BatchScoring,
    callbacks.Checkpoint,
    callbacks.EpochScoring,
    callbacks.EpochTimer,
    callbacks.MlflowLogger,
    callbacks.NeptuneLogger,
    callbacks.PassthroughScoring,
    callbacks.PrintLog,
    callbacks.ProgressBar,
    callbacks.SacredLogger,
    callbacks.TensorBoard,
    callbacks.TrainEndCheckpoint,
    callbacks.WandbLogger,
)
_IN_TRAINING = ("on_epoch_begin", "on_batch_begin", "on_grad_computed", "on_batch_end", "on_epoch_end")
_LOOP = ("fit_loop", "run_single_epoch", "train_step", "train_step_single", *_IN_TRAINING)


def fit_to_data(net: NeuralNet, X, y) -> None:
    """Call the callbacks that may fit the module to the data, such as skorch's InputShapeSetter."""
    net.on_train_begin(net, X=X, y=y)
    for _, callback in net.callbacks_:
        if not isinstance(callback, (*_WATCHERS, callbacks.LRScheduler, callbacks.LoadInitState)):
            callback.on_train_begin(net, X=X, y=y)


def schedule_of(net: NeuralNet) -> Schedule | None:
    """Return the schedule that the LRScheduler callbacks of an initialised net follow, ``None`` for a constant one."""
    schedulers = [_scheduler(callback) for _, callback in net.callbacks_ if _is_schedule(callback)]
    return Schedule(net.optimizer_, schedulers) if schedulers else None


def warn_of_what_is_lost(net: NeuralNet, schedule: Schedule | None) -> None:
    """Say in one warning what skorch would do in a training of the initialised net and nobody does here."""
    lost = [_name(callback) for _, callback in net.callbacks_ if _acts(callback)]
    if schedule is not None:
        lost += [f"the {option} that its learning-rate schedule sets" for option in schedule.changes_besides_lr()]
    options = net.get_params_for("iterator_train")
    lost += [
        f"iterator_train__{option}"
        for option in ("sampler", "batch_sampler", "collate_fn", "drop_last")
        if options.get(option)
    ]
    lost += [
        name
        for name, usual in (("iterator_train", DataLoader), ("dataset", Dataset))
        if getattr(net, name) is not usual
    ]
    lost += [f"its own {name}" for name in _LOOP if getattr(type(net), name) is not getattr(NeuralNet, name)]
    if lost:
        warn_user(
            f"net is not trained by skorch, and these are not carried over: {', '.join(lost)}. Take them out to "
            "silence this warning."
        )


def _is_schedule(callback) -> bool:
    return type(callback) is callbacks.LRScheduler and not _is_plateau(callback.policy_)


def _is_plateau(policy) -> bool:
    return isinstance(policy, type) and issubclass(policy, ReduceLROnPlateau)


def _scheduler(callback: callbacks.LRScheduler) -> Scheduler:
    make = functools.partial(callback.policy_, **{"last_epoch": -1} | callback.kwargs)
    return Scheduler(make, _policy_name(callback), every_batch=callback.step_every == "batch")


def _acts(callback) -> bool:
    """Whether a callback would change the training, as far as can be known."""
    if isinstance(callback, _WATCHERS) or _is_schedule(callback):
        return False
    if isinstance(callback, callbacks.LoadInitState):
        return True
    return any(getattr(type(callback), name) is not getattr(callbacks.Callback, name) for name in _IN_TRAINING)


def _name(callback) -> str:
    name = type(callback).__name__
    return f"{name}({_policy_name(callback)})" if isinstance(callback, callbacks.LRScheduler) else name


def _policy_name(callback: callbacks.LRScheduler) -> str:
    return getattr(callback.policy_, "__name__", type(callback.policy_).__name__)
