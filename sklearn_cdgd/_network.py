"""From a network of the user's to a pure :class:`~sklearn_cdgd._unroll.Problem`.

The only file that knows skorch. Any net is first turned into a skorch net that nobody else holds; the loss of a row is
whatever its ``get_loss`` says, evaluated at parameters that are passed in.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from skorch.utils import to_tensor
from torch import nn

from ._optimizers import SGD, Optimizer
from ._unroll import BatchPlan, Problem, State

# Rows per forward pass where nothing is differentiated.
_CHUNK = 4096


def trains_networks(method):
    """Let a method differentiate even where its caller has switched gradients off."""

    @functools.wraps(method)
    def with_gradients(*args, **kwargs):
        with torch.inference_mode(False), torch.enable_grad():
            return method(*args, **kwargs)

    return with_gradients


class DefaultNetwork(nn.Module):
    """The network that stands in when the user brings none: robust scaling and one hidden ReLU layer.

    Inputs are centred by the median and divided by the quartile range of the training rows, then bent smoothly into
    (-3, 3), as in RealMLP (arXiv 2407.04491), so that unscaled columns and outliers do no harm.

    Parameters
    ----------
    center, scale : array-like of shape (n_features,)
        What is subtracted from, and then multiplied with, every row.
    n_outputs : int
        Number of classes.
    n_hidden : int, default=200
        Hidden units.
    """

    def __init__(self, center, scale, n_outputs, n_hidden=200):
        super().__init__()
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))
        self.hidden = nn.Linear(len(self.center), n_hidden)
        self.output = nn.Linear(n_hidden, n_outputs)

    def forward(self, X):
        Z = smooth_clip((X.flatten(1) - self.center) * self.scale)
        return self.output(torch.relu(self.hidden(Z)))


def smooth_clip(Z):
    """Bend numbers into (-3, 3); small ones hardly change."""
    return Z / (1 + (Z / 3) ** 2) ** 0.5


def robust_scaling(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the median and the factor of every column; a constant column gets the factor 0."""
    X = X.reshape(len(X), -1).astype(np.float64)
    low, center, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    spread = X.max(axis=0) - X.min(axis=0)
    # A column with most of its mass on one value has no quartile range; half its range stands in.
    spread = np.where(high > low, high - low, spread / 2)
    # Below float32's resolution around the median a spread is rounding.
    known = spread > 1e-6 * np.abs(center)
    return center, np.where(known, 1 / np.where(known, spread, 1), 0.0)


class Network:
    """A user's net, ready to be trained again and again from fresh initialisations.

    Parameters
    ----------
    net : None, skorch.NeuralNet, torch.nn.Module or callable returning one
        Never changed: a clone is used. ``None`` builds a :class:`DefaultNetwork` from the data.
    X : ndarray of shape (n_rows, ...)
        Rows that the net will be trained on; decide the scaling of the default network.
    codes : ndarray of shape (n_rows,)
        Labels as 0 .. n_classes - 1.
    n_classes : int
    seed : int
        Seed of the first initialisation.

    Raises
    ------
    TypeError
        If `net` is none of the above.
    ValueError
        If the net does not fit the data, has no loss per row, or has an optimiser that cannot be differentiated.
    """

    def __init__(self, net, X, codes, n_classes, *, seed):
        self.n_classes = n_classes
        self._spec = _as_skorch(net, X, n_classes)
        with _seeded(seed, self._spec.device):
            self._net = copy.deepcopy(self._spec).initialize()
            # Callbacks that fit the module to the data, such as skorch's InputShapeSetter, act here.
            self._net.notify("on_train_begin", X=X, y=codes)
        self._spec.set_params(**{f"module__{k}": v for k, v in self._net.get_params_for("module").items()})
        self._losses = _RowLosses(self._net)
        self.optimizer = _differentiable(self._net)
        self._params, self._buffers = _names(self._losses)
        self._check_two_rows(X, codes, seed)

    @property
    def device(self):
        return self._net.device

    # --- the pure functions -----------------------------------------------------------------------------------------

    def initialize(self, seed: int):
        """Return fresh parameters and buffers, a function of the seed alone."""
        with _seeded(seed, self._net.device):
            module = _fresh_module(self._net)
        tensors = dict(module.named_parameters(prefix="module")) | dict(module.named_buffers(prefix="module"))
        pick = lambda names: tuple(tensors[name].detach().to(self._net.device).clone() for name in names)  # noqa: E731
        return pick(self._params), pick(self._buffers)

    def train_losses(self, params, buffers, X, y):
        """Return the loss of every row in training mode, and the buffers afterwards."""
        buffers = tuple(b.clone() for b in buffers)
        return self._call(params, buffers, X, y, training=True), buffers

    def eval_losses(self, params, buffers, X, y):
        """Return the loss of every row in evaluation mode."""
        return self._call(params, buffers, X, y, training=False)

    def _call(self, params, buffers, X, y, training):
        if self._losses.training != training:
            self._losses.train(training)
        tensors = dict(zip(self._params + self._buffers, params + buffers, strict=True))
        return torch.func.functional_call(self._losses, tensors, (X, y))

    # --- what the estimators use ------------------------------------------------------------------------------------

    def problem(self, noisy, clean) -> Problem:
        """Pose the inner training on a noisy and a clean set, each a pair of rows and label codes."""
        return Problem(
            self.initialize,
            self.train_losses,
            self.eval_losses,
            self.optimizer,
            self._data_set(*noisy),
            self._data_set(*clean),
            functools.partial(_seeded, device=self.device) if self._stochastic else contextlib.nullcontext,
        )

    def plan(self, n_rows: int, seed: int) -> BatchPlan:
        """Return the net's own schedule for `n_rows` rows."""
        return BatchPlan(n_rows, self._net.batch_size, self._net.max_epochs, seed)

    def row_losses(self, state: State, X, codes) -> np.ndarray:
        """Return the loss of every row under the trained state."""
        rows = self._data_set(X, codes)
        with torch.no_grad():
            parts = [
                self.eval_losses(state.params, state.buffers, *rows(chunk))
                for chunk in torch.arange(len(X)).split(_CHUNK)
            ]
        return torch.cat(parts).cpu().numpy().astype(np.float64)

    def probabilities(self, state: State, X) -> np.ndarray:
        """Return the class probabilities of every row under the trained state, shape (n_rows, n_classes)."""
        with _seeded(0, self._net.device):  # a DataLoader draws from the global generator
            probabilities = self.fitted(state).predict_proba(X).astype(np.float64)
        # A net may have more outputs than there are classes in the data.
        probabilities = probabilities[:, : self.n_classes]
        return probabilities / probabilities.sum(axis=1, keepdims=True).clip(min=np.finfo(float).tiny)

    def fitted(self, state: State) -> NeuralNet:
        """Return a skorch net that holds the trained state and shares nothing with this object."""
        with _seeded(0, self._net.device):
            net = copy.deepcopy(self._spec).initialize()
        tensors = dict(net.module_.named_parameters(prefix="module")) | dict(net.module_.named_buffers(prefix="module"))
        ours = dict(self._net.module_.named_parameters(prefix="module"))
        ours |= dict(self._net.module_.named_buffers(prefix="module"))
        ours |= dict(zip(self._params + self._buffers, state.params + state.buffers, strict=True))
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(ours[name])
        return net

    def _data_set(self, X, codes):
        X, y = to_tensor(X, self._net.device), to_tensor(self._targets(codes), self._net.device)

        def rows(chosen):
            return (X, y) if chosen is None else (X[chosen], y[chosen])

        return rows

    def _targets(self, codes):
        binary = isinstance(self._net, NeuralNetBinaryClassifier)
        return codes.astype(np.float32 if binary else np.int64)

    # --- preflight --------------------------------------------------------------------------------------------------

    def _check_two_rows(self, X, codes, seed) -> None:
        """Run two rows through the net, so that what cannot work fails before any training starts."""
        rows = np.resize(np.arange(len(X)), 2)
        X, y = self._data_set(X[rows], codes[rows])(None)
        params, buffers = self.initialize(seed)
        with _seeded(seed, self.device), _applying_to(X, self.n_classes):
            before = _generator_state(self.device)
            losses, after = self.train_losses(params, buffers, X, y)
            # A net that draws no random number needs no seed per step, a buffer that training leaves alone no copy.
            self._stochastic = not torch.equal(before, _generator_state(self.device))
        if not torch.isfinite(losses).all():
            raise ValueError(
                "The loss of net is not finite at its initialisation. NeuralNetClassifier's default criterion expects "
                "probabilities: for a module that returns logits, pass criterion=torch.nn.CrossEntropyLoss; "
                "else scale X."
            )
        moving = [not torch.equal(a, b) for a, b in zip(buffers, after, strict=True)]
        self._buffers = tuple(name for name, moves in zip(self._buffers, moving, strict=True) if moves)


class _RowLosses(nn.Module):
    """Module and criterion as one module, so that the parameters of the first can be swapped for one call."""

    def __init__(self, net):
        super().__init__()
        self.module = net.module_
        if hasattr(net.criterion_, "reduction"):
            net.criterion_.reduction = "none"
        self.__dict__["net"] = net

    def forward(self, X, y):
        losses = self.net.get_loss(self.net.infer(X), y, X=X, training=self.training)
        if losses.dim() == 0 or len(losses) != len(y):
            raise ValueError(
                f"the criterion gave a loss of shape {tuple(losses.shape)} for {len(y)} rows. One loss per row is "
                "needed: give the criterion a `reduction` attribute that takes 'none'"
            )
        return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _as_skorch(net, X, n_classes) -> NeuralNet:
    """Return an uninitialised skorch net of our own."""
    if net is None:
        center, scale = robust_scaling(X)
        return NeuralNetClassifier(
            DefaultNetwork,
            module__center=center,
            module__scale=scale,
            module__n_outputs=n_classes,
            **(_DEFAULTS | {"lr": _stable_lr(X, center, scale)}),
        )
    if isinstance(net, type) and issubclass(net, NeuralNet):
        raise TypeError(
            f"net must be an instance of a skorch net; got the class {net.__name__}. Call it with a module."
        )
    if isinstance(net, NeuralNet):
        net = clone(net).set_params(verbose=0)
        if isinstance(net, NeuralNetBinaryClassifier) and n_classes > 2:
            raise ValueError(
                f"net is a NeuralNetBinaryClassifier, but y has {n_classes} classes. Use NeuralNetClassifier."
            )
        return net
    if isinstance(net, nn.Module) or (isinstance(net, type) and issubclass(net, nn.Module)) or inspect.isroutine(net):
        return _wrap_module(net, X, n_classes)
    raise TypeError(
        "net must be None, a skorch NeuralNet, or a torch nn.Module (class, instance or a function that returns one); "
        f"got {type(net).__name__}."
    )


def _wrap_module(module, X, n_classes) -> NeuralNet:
    """Choose the criterion that suits what a plain module returns for two rows."""
    net = NeuralNetClassifier(copy.deepcopy(module), **_DEFAULTS)
    with _seeded(0, net.device), torch.no_grad(), _applying_to(X, n_classes):
        output = net.initialize().infer(X[np.resize(np.arange(len(X)), 2)])
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"a plain module must return one tensor; got {type(output).__name__}. Wrap it in a skorch net"
            )
    if output.shape in {(2,), (2, 1)} and n_classes == 2:
        options = _DEFAULTS | {"criterion": nn.BCEWithLogitsLoss}
        return NeuralNetBinaryClassifier(copy.deepcopy(module), **options)
    if output.dim() != 2 or output.shape[1] != n_classes:
        raise ValueError(
            f"net returns an output of shape {tuple(output.shape)} for two rows, but y and y_clean have {n_classes} "
            "classes. "
            f"The module must end in {n_classes} outputs."
        )
    are_probabilities = (output >= 0).all() and torch.allclose(output.sum(1), torch.ones(2).to(output))
    options = _DEFAULTS | ({"criterion": nn.NLLLoss} if are_probabilities else {})
    return NeuralNetClassifier(copy.deepcopy(module), **options)


@contextlib.contextmanager
def _applying_to(X, n_classes):
    """Turn whatever a module or a criterion raises into an error that says what was tried."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ValueError(
            f"net could not be applied to two rows of X, of shape {(2, *X.shape[1:])}, with {n_classes} classes: "
            f"{error}. "
            "Check the inputs and outputs of the module, and that the criterion takes its output."
        ) from error


def _stable_lr(X, center, scale) -> float:
    """Return a learning rate for the default network that leaves its training stable, so that hypergradients are.

    The curvature of the loss in the first layer is bounded by the largest eigenvalue of the second moments of the
    scaled rows; the bias adds 1.
    """
    Z = smooth_clip((X.reshape(len(X), -1) - center) * scale)
    direction = np.ones(Z.shape[1])
    for _ in range(20):  # power iteration; a few per cent are enough
        direction = Z.T @ (Z @ (direction / np.linalg.norm(direction).clip(1e-12))) / len(Z)
    return 0.6 / (1 + 2 * np.linalg.norm(direction))


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


def _fresh_module(net: NeuralNet) -> nn.Module:
    """Return a newly initialised module.

    A class or a function is called again. An instance stands for its architecture: layers that know how to reset
    their parameters do, except frozen ones.
    """
    module = net.module
    if not isinstance(module, nn.Module):
        return net.initialized_instance(module, net.get_params_for("module"))
    module = copy.deepcopy(module)
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if hasattr(layer, "reset_parameters") and any(p.requires_grad for p in own):
            layer.reset_parameters()
    return module


def _names(losses: _RowLosses) -> tuple[tuple[str, ...], tuple[str, ...]]:
    params = tuple(name for name, p in losses.module.named_parameters(prefix="module") if p.requires_grad)
    buffers = tuple(name for name, _ in losses.module.named_buffers(prefix="module"))
    if not params:
        raise ValueError("net has no parameter that requires a gradient, so there is nothing to train.")
    return params, buffers


def _differentiable(net: NeuralNet) -> Optimizer:
    """Return the pure twin of the net's optimiser."""
    optimizer = net.optimizer_
    name = type(optimizer).__name__
    if type(optimizer) is not torch.optim.SGD:
        raise ValueError(
            f"net trains with {name}, which cannot be differentiated through. Use optimizer=torch.optim.SGD."
        )
    if len(optimizer.param_groups) > 1:
        raise ValueError("net has several parameter groups, which are not supported. Use one.")
    group = optimizer.param_groups[0]
    for option in ("dampening", "maximize"):
        if group[option]:
            raise ValueError(f"net trains with {name}({option}={group[option]}), which is not supported. Leave it out.")
    return SGD(group["lr"], group["momentum"], group["weight_decay"], group["nesterov"])


@contextlib.contextmanager
def _seeded(seed: int, device):
    """Seed torch for the block and put the global generators back afterwards."""
    with torch.random.fork_rng(devices=[torch.device(device)] if _is_cuda(device) else []):
        torch.manual_seed(seed)
        yield


def _generator_state(device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if _is_cuda(device) else torch.get_rng_state()


def _is_cuda(device) -> bool:
    return device is not None and torch.device(device).type == "cuda"
