"""From whatever a user passes as `net` to a skorch net of our own."""

from __future__ import annotations

import contextlib
import copy
import inspect

import torch
from sklearn.base import clone
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from ._default_network import DefaultNetwork, ScaledHuberLoss, robust_scaling, stable_lr, target_units
from ._inputs import rows_at_once
from ._modules import LazyModule, copies_of_lazy_tensors, lazy_tensors, reset, seeded

# What a net that does not say how it wants to be trained gets.
_DEFAULTS = dict(
    criterion=nn.CrossEntropyLoss,
    lr=0.4,
    optimizer=torch.optim.SGD,
    optimizer__momentum=0.9,
    batch_size=1000,
    max_epochs=150,
    train_split=None,
    verbose=0,
)


# Rows that decide the scaling of the default network; more would say the same.
_SCALING_ROWS = 100_000


def default_epochs(n_rows: int) -> int:
    """Return how often a net that does not say how it wants to be trained sees so many rows.

    From 10,000 rows on fewer epochs make enough steps.
    """
    return round(min(_DEFAULTS["max_epochs"], max(15, 1.5e6 / n_rows)))


class NotApplicableError(ValueError):
    """A net cannot be applied to rows of this form."""


def task_of_net(net) -> str | None:
    """Return what a skorch net is for, ``None`` if that is for its targets to say."""
    if isinstance(net, NeuralNetRegressor):
        return "regression"
    return "classification" if isinstance(net, NeuralNetClassifier | NeuralNetBinaryClassifier) else None


def as_skorch(net, X, sample, targets, n_classes) -> NeuralNet:
    """Return an uninitialised skorch net of our own; `sample` is a tensor of two rows of X."""
    if net is None:
        return _default_net(X, targets, n_classes)
    if isinstance(net, type) and issubclass(net, NeuralNet):
        raise TypeError(
            f"net must be an instance of a skorch net; got the class {net.__name__}. Call it with a module."
        )
    if isinstance(net, NeuralNet):
        net = clone(net).set_params(verbose=0)
        if isinstance(net, NeuralNetBinaryClassifier) and n_classes is not None and n_classes > 2:
            raise ValueError(
                f"net is a NeuralNetBinaryClassifier, but y has {n_classes} classes. Use NeuralNetClassifier."
            )
        return net
    if isinstance(net, nn.Module) or (isinstance(net, type) and issubclass(net, nn.Module)) or inspect.isroutine(net):
        return _wrap_module(net, sample, targets, n_classes, _DEFAULTS | _batch_size(X))
    raise TypeError(
        "net must be None, a skorch NeuralNet, or a torch nn.Module (class, instance or a function that returns one); "
        f"got {type(net).__name__}."
    )


def _default_net(X, targets, n_classes) -> NeuralNet:
    """Return a net with one hidden layer and a learning rate that suits the data."""
    some = X[:: -(-X.shape[0] // _SCALING_ROWS)]
    center, scale = robust_scaling(some)
    options = _DEFAULTS | _batch_size(X)
    options |= {"lr": stable_lr(some, center, scale), "module__center": center, "module__scale": scale}
    if n_classes is not None:
        return NeuralNetClassifier(DefaultNetwork, module__n_outputs=n_classes, **options)
    target_center, target_scale = target_units(targets)
    options |= {
        # The curvature of a squared error is four times that of a cross-entropy with two classes.
        "lr": options["lr"] / 4,
        "criterion": ScaledHuberLoss,
        "criterion__scale": target_scale,
        "module__target_center": target_center,
        "module__target_scale": target_scale,
    }
    return NeuralNetRegressor(DefaultNetwork, module__n_outputs=len(target_scale), **options)


def _wrap_module(module, sample, targets, n_classes, options) -> NeuralNet:
    """Choose the criterion that suits what a plain module returns for two rows."""
    if n_classes is None:
        options |= {"criterion": ScaledHuberLoss, "criterion__scale": target_units(targets)[1]}
        return NeuralNetRegressor(copy.deepcopy(module), **options)
    net = NeuralNetClassifier(copy.deepcopy(module), **options)
    with seeded(0, net.device), torch.no_grad(), applying_to(sample, n_classes):
        output = net.initialize().infer(sample.clone())
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"a plain module must return one tensor; got {type(output).__name__}. Wrap it in a skorch net"
            )
    if output.shape in {(2,), (2, 1)} and n_classes == 2:
        options |= {"criterion": nn.BCEWithLogitsLoss}
        return NeuralNetBinaryClassifier(copy.deepcopy(module), **options)
    if output.dim() != 2 or output.shape[1] != n_classes:
        raise ValueError(
            f"net returns an output of shape {tuple(output.shape)} for two rows, but y and y_clean have {n_classes} "
            "classes. "
            f"The module must end in {n_classes} outputs."
        )
    are_probabilities = (output >= 0).all() and torch.allclose(output.sum(1), torch.ones(2).to(output))
    options |= {"criterion": nn.NLLLoss} if are_probabilities else {}
    return NeuralNetClassifier(copy.deepcopy(module), **options)


def _batch_size(X) -> dict[str, int]:
    """Return the batch size of a net that does not say how it wants to be trained: what sparse rows it holds dense."""
    return {"batch_size": rows_at_once(X, _DEFAULTS["batch_size"])}


def _what(n_classes: int | None) -> str:
    return "numbers as targets" if n_classes is None else f"{n_classes} classes"


@contextlib.contextmanager
def applying_to(X, n_classes):
    """Turn whatever a module or a criterion raises into an error that says what was tried."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise NotApplicableError(
            f"net could not be applied to two rows of X, of shape {(2, *X.shape[1:])}, with {_what(n_classes)}: "
            f"{error}. "
            "Check the inputs and outputs of the module, and that the criterion takes its output."
        ) from error


def fresh_module(net: NeuralNet) -> nn.Module:
    """Return a newly initialised module.

    A class or a function is called again. An instance stands for its architecture: layers that know how to reset
    their parameters do, except frozen ones.
    """
    module = net.module
    if not isinstance(module, nn.Module):
        return net.initialized_instance(module, net.get_params_for("module"))
    module = copy.deepcopy(module)
    reset(module)
    return module


def copyable(net, sample):
    """Return a net in which an instance with lazy layers, which torch cannot copy, is a function."""
    if isinstance(net, NeuralNet) and isinstance(net.module, nn.Module) and lazy_tensors(net.module):
        return type(net)(**net.get_params(deep=False) | {"module": LazyModule(net.module, sample).build})
    if isinstance(net, nn.Module) and lazy_tensors(net):
        return LazyModule(net, sample).build
    return net


def memo_of(net) -> dict:
    """Return the memo without which `copy.deepcopy` fails on a net that holds an instance with lazy layers."""
    module = _module_of(net)
    return copies_of_lazy_tensors(module) if isinstance(module, nn.Module) else {}


def cloned(net):
    """Return scikit-learn's clone of what may be a net, also where it holds an instance with lazy layers."""
    memo = memo_of(net)
    if not memo:
        return clone(net, safe=False)
    module = copy.deepcopy(_module_of(net), memo)
    if not isinstance(net, NeuralNet):
        return module
    options = {k: clone(v, safe=False) for k, v in net.get_params(deep=False).items() if k != "module"}
    return type(net)(module=module, **options)


def _module_of(net):
    return net.module if isinstance(net, NeuralNet) else net
