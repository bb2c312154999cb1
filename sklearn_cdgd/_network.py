"""From a network of the user's to a pure :class:`~sklearn_cdgd._unroll.Problem`.

The only file that knows skorch. Any net is first turned into a skorch net that nobody else holds; the loss of a row is
whatever its ``get_loss`` says, evaluated at parameters that are passed in.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterable

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.utils import to_tensor
from torch import nn

from ._callbacks import fit_to_data, schedule_of, warn_of_what_is_lost
from ._default_network import DefaultNetwork, ScaledHuberLoss, robust_scaling, stable_lr, target_units
from ._inputs import rows_at_once, tensor_of_rows
from ._modules import (
    Called,
    LazyModule,
    copies_of_lazy_tensors,
    lazy_tensors,
    refuse_once_differentiable,
    reset,
    second_derivative_error,
    twice_differentiable,
)
from ._optimizers import SGD, Adam, Grouped, Optimizer, Scheduled
from ._unroll import BatchPlan, Problem, State, inner_step

# Rows per forward pass where nothing is differentiated.
_CHUNK = 4096


def trains_networks(method):
    """Let a method differentiate even where its caller has switched gradients off."""

    @functools.wraps(method)
    def with_gradients(*args, **kwargs):
        with torch.inference_mode(False), torch.enable_grad():
            return method(*args, **kwargs)

    return with_gradients


class Network:
    """A user's net, ready to be trained again and again from fresh initialisations.

    Parameters
    ----------
    net : None, skorch.NeuralNet, torch.nn.Module or callable returning one
        Never changed: a clone is used. ``None`` builds a :class:`DefaultNetwork` from the data.
    X : ndarray of shape (n_rows, ...) or CSR array
        Rows that the net will be trained on; decide the scaling of the default network. Integers are handed on as they
        are if the net takes them, or else as float32.
    targets : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Labels as 0 .. n_classes - 1, or numbers.
    n_classes : int or None
        ``None`` if the targets are numbers.
    seed : int
        Seed of the first initialisation.

    Raises
    ------
    TypeError
        If `net` is none of the above.
    ValueError
        If the net does not fit the data, has no loss per row, or has an optimiser that cannot be differentiated.
    """

    def __init__(self, net, X, targets, n_classes, *, seed):
        self.n_classes = n_classes
        # Embeddings take integers and most other layers do not: only a trial can tell.
        try:
            self._set_up(net, X, X.dtype, targets, seed)
        except _NotApplicableError as error:
            if X.dtype != np.int64:
                raise
            try:
                self._set_up(net, X, np.float32, targets, seed)
            except _NotApplicableError as other:
                raise _NotApplicableError(f"{error} (X holds integers. As float32: {other.__cause__})") from other
        warn_of_what_is_lost(self._net, self._schedule)

    def _set_up(self, net, X, dtype, targets, seed) -> None:
        """Initialise the net, and let it show on two rows that it can be trained on X in this type."""
        self._dtype = dtype
        picked = np.resize(np.arange(len(targets)), 2)
        two_rows = X[picked], targets[picked]
        sample = tensor_of_rows(two_rows[0], dtype, "cpu")(None)
        self._spec = _as_skorch(_copyable(net, sample), X, sample, targets, self.n_classes)
        with _seeded(seed, self._spec.device):
            self._net = copy.deepcopy(self._spec).initialize()
            if lazy_tensors(self._net.module_):
                self._spec.set_params(module=LazyModule(self._spec.module, sample).build)
                with _applying_to(sample, self.n_classes):
                    self._net = copy.deepcopy(self._spec).initialize()
            fit_to_data(self._net, X, targets)
        self._spec.set_params(**{f"module__{k}": v for k, v in self._net.get_params_for("module").items()})
        self._losses = _RowLosses(self._net)
        self.optimizer = _differentiable(self._net)
        self._schedule, self._n_scheduled = schedule_of(self._net), self.plan(len(targets), seed).n_steps
        self._optimizer_of(len(targets))  # a schedule that fails does so here
        self._params, self._buffers = _names(self._losses)
        self._check_output(*two_rows, seed)
        self._check_two_rows(two_rows, seed)

    @classmethod
    def of_fitted(cls, net: NeuralNet, X, targets, n_classes) -> Network:
        """Return the network that :meth:`fitted` made `net` of; `X` and `targets` are two rows or more of the fit."""
        network = cls(net, X, targets, n_classes, seed=0)
        network._net.module_.load_state_dict(net.module_.state_dict())
        return network

    @property
    def device(self):
        return self._net.device

    @property
    def state(self) -> State:
        """The parameters that the network holds by itself, and no state of an optimiser."""
        module = self._net.module_
        tensors = dict(module.named_parameters(prefix="module")) | dict(module.named_buffers(prefix="module"))
        params, buffers = (tuple(tensors[n].detach() for n in names) for names in (self._params, self._buffers))
        return State(params, (), buffers)

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
        if self._losses.writes_to_input:
            X = X.clone()
        with contextlib.ExitStack() as stack:
            for kernels in self._losses.kernels:
                stack.enter_context(kernels())
            return torch.func.functional_call(self._losses, tensors, (X, y))

    # --- what the estimators use ------------------------------------------------------------------------------------

    def problem(self, noisy, clean) -> Problem:
        """Pose the inner training on a noisy and a clean set, each a pair of rows and label codes."""
        return Problem(
            self.initialize,
            self.train_losses,
            self.eval_losses,
            self._optimizer_of(len(noisy[1])),
            self._data_set(*noisy),
            self._data_set(*clean),
            functools.partial(_seeded, device=self.device) if self._stochastic else contextlib.nullcontext,
        )

    def plan(self, n_rows: int, seed: int) -> BatchPlan:
        """Return the net's own schedule for `n_rows` rows."""
        options = self._net.get_params_for("iterator_train")
        batch_size = options.get("batch_size", self._net.batch_size)
        return BatchPlan(n_rows, batch_size, self._net.max_epochs, seed, shuffle=bool(options.get("shuffle", True)))

    def _optimizer_of(self, n_rows: int) -> Optimizer:
        """Return the update rule of a training on `n_rows` rows, with its learning rate for every step."""
        if self._schedule is None:
            return self.optimizer
        plan = self.plan(n_rows, 0)
        # A schedule made for the steps of the noisy set may end there; judges may have the clean rows too.
        lrs = self._schedule.learning_rates(plan.n_epochs, plan.steps_per_epoch, self._n_scheduled)
        return _differentiable(self._net, lrs.to(self.device))

    def row_losses(self, state: State, X, targets) -> np.ndarray:
        """Return the loss of every row under the trained state."""
        rows = self._data_set(X, targets)
        with torch.no_grad():
            parts = [self.eval_losses(state.params, state.buffers, *rows(chunk)) for chunk in _chunks(X)]
        return torch.cat(parts).cpu().numpy().astype(np.float64)

    def answers(self, state: State, X) -> np.ndarray:
        """Return what the trained state says of every row: class probabilities, or predictions."""
        net, rows = self.fitted(state), tensor_of_rows(X, self._dtype, self.device)
        parts = map(rows, _chunks(X))
        return self._predictions(net, parts) if self.n_classes is None else self._probabilities(net, parts)

    def _predictions(self, net: NeuralNet, parts: Iterable[torch.Tensor]) -> np.ndarray:
        net.module_.eval()
        with torch.no_grad():
            parts = [net.infer(part) for part in parts]
        outputs = torch.cat([part[0] if isinstance(part, tuple) else part for part in parts])
        outputs = outputs.cpu().numpy().astype(np.float64)
        return outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs

    def _probabilities(self, net: NeuralNet, parts: Iterable[torch.Tensor]) -> np.ndarray:
        with _seeded(0, self._net.device):  # a DataLoader draws from the global generator
            probabilities = np.concatenate([net.predict_proba(part.cpu()) for part in parts]).astype(np.float64)
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
        # skorch trains an instance in place. A copy stays on the CPU: of what is pickled, only `module_` and
        # `criterion_` are moved from a GPU to the CPU where there is none.
        for part in ("module", "criterion"):
            if isinstance(getattr(self._spec, part), nn.Module):
                vars(net)[part] = copy.deepcopy(getattr(self._spec, part))
        return net

    def _data_set(self, X, targets):
        take, y = tensor_of_rows(X, self._dtype, self.device), to_tensor(self._for_net(targets), self.device)

        def rows(chosen):
            return take(chosen), y if chosen is None else y[chosen]

        return rows

    def _for_net(self, targets: np.ndarray) -> np.ndarray:
        """Return targets as the net takes them."""
        if self.n_classes is not None:
            return targets.astype(np.float32 if isinstance(self._net, NeuralNetBinaryClassifier) else np.int64)
        # A column against a row would be broadcast to a square.
        if isinstance(self._net, NeuralNetRegressor) and targets.ndim == 1:
            targets = targets[:, None]
        return targets.astype(np.float32)

    def _check_output(self, X, targets, seed) -> None:
        """See that a regressor returns what it is compared with: other shapes would be broadcast to a square."""
        if not isinstance(self._net, NeuralNetRegressor):
            return
        X, y = self._data_set(X, targets)(None)
        with _seeded(seed, self.device), torch.no_grad(), _applying_to(X, self.n_classes):
            output = self._net.infer(X.clone())
        if output.shape != y.shape:
            raise ValueError(
                f"net returns an output of shape {tuple(output.shape)} for two rows with targets of shape "
                f"{tuple(y.shape)}. The module must end in {y.shape[1]} output{'s' * (y.shape[1] > 1)}."
            )

    # --- preflight --------------------------------------------------------------------------------------------------

    def _check_two_rows(self, two_rows, seed) -> None:
        """Run two rows through the net, so that what cannot work fails before any training starts."""
        X, y = self._data_set(*two_rows)(None)
        params, buffers = self.initialize(seed)
        with _seeded(seed, self.device), _applying_to(X, self.n_classes), Called() as called:
            before, trial = _generator_state(self.device), X.clone()
            losses, after = self.train_losses(params, buffers, trial, y)
            # A net that draws no random number needs no seed per step, a buffer that training leaves alone no copy.
            self._stochastic = not torch.equal(before, _generator_state(self.device))
        self._losses.writes_to_input = trial._version > 0
        self._losses.kernels = twice_differentiable(self._net.module_, called.functions)
        if not torch.isfinite(losses).all():
            raise ValueError(
                "The loss of net is not finite at its initialisation. NeuralNetClassifier's default criterion expects "
                "probabilities: for a module that returns logits, pass criterion=torch.nn.CrossEntropyLoss; "
                "else scale X."
            )
        moving = [not torch.equal(a, b) for a, b in zip(buffers, after, strict=True)]
        self._buffers = tuple(name for name, moves in zip(self._buffers, moving, strict=True) if moves)
        self._check_second_derivative(self.problem(two_rows, two_rows), torch.ones_like(losses), seed)

    def _check_second_derivative(self, problem, weights, seed) -> None:
        """Differentiate one inner step, so that an operation without a second derivative is named."""
        start, (X, y) = problem.initial_state(seed).leaves(), problem.noisy(None)
        weights = weights.detach().requires_grad_()
        try:
            with problem.seeded(seed):
                after = inner_step(problem, start, weights, X, y, differentiable=True)
            refuse_once_differentiable(after.tracked)
            inputs, cotangents = [*start.tracked, weights], [torch.ones_like(t) for t in after.tracked]
            torch.autograd.grad(after.tracked, inputs, cotangents, materialize_grads=True)
        except RuntimeError as error:
            modules = [(f"layer {n!r}" if n else "module", m) for n, m in self._net.module_.named_modules()]
            if isinstance(self._net.criterion_, nn.Module):
                modules.append(("criterion", self._net.criterion_))
            with problem.seeded(seed):
                forward = functools.partial(self.train_losses, start.params, start.buffers, X, y)
                raise second_derivative_error(error, modules, forward) from error


class _RowLosses(nn.Module):
    """Module and criterion as one module, so that the parameters of the first can be swapped for one call."""

    def __init__(self, net):
        super().__init__()
        self.module = net.module_
        self.kernels = []  # contexts of a call
        self.writes_to_input = False
        if hasattr(net.criterion_, "reduction"):
            net.criterion_.reduction = "none"
        self.__dict__["net"] = net
        self.train()  # layers may come in another mode than the rest

    def forward(self, X, y):
        losses = self.net.get_loss(self.net.infer(X), y, X=X, training=self.training)
        if losses.dim() == 0 or len(losses) != len(y):
            raise ValueError(
                f"the criterion gave a loss of shape {tuple(losses.shape)} for {len(y)} rows. One loss per row is "
                "needed: give the criterion a `reduction` attribute that takes 'none'"
            )
        return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def task_of_net(net) -> str | None:
    """Return what a skorch net is for, ``None`` if that is for its targets to say."""
    if isinstance(net, NeuralNetRegressor):
        return "regression"
    return "classification" if isinstance(net, NeuralNetClassifier | NeuralNetBinaryClassifier) else None


def _as_skorch(net, X, sample, targets, n_classes) -> NeuralNet:
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
    center, scale = robust_scaling(X)
    options = _DEFAULTS | _batch_size(X)
    options |= {"lr": stable_lr(X, center, scale), "module__center": center, "module__scale": scale}
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
    with _seeded(0, net.device), torch.no_grad(), _applying_to(sample, n_classes):
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


def _chunks(X) -> Iterable[torch.Tensor]:
    """Split all row numbers into parts for one forward pass each."""
    return torch.arange(X.shape[0]).split(rows_at_once(X, _CHUNK))


class _NotApplicableError(ValueError):
    """A net cannot be applied to rows of this form."""


def _what(n_classes: int | None) -> str:
    return "numbers as targets" if n_classes is None else f"{n_classes} classes"


@contextlib.contextmanager
def _applying_to(X, n_classes):
    """Turn whatever a module or a criterion raises into an error that says what was tried."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise _NotApplicableError(
            f"net could not be applied to two rows of X, of shape {(2, *X.shape[1:])}, with {_what(n_classes)}: "
            f"{error}. "
            "Check the inputs and outputs of the module, and that the criterion takes its output."
        ) from error


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
    reset(module)
    return module


def _copyable(net, sample):
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


def _names(losses: _RowLosses) -> tuple[tuple[str, ...], tuple[str, ...]]:
    params = tuple(name for name, p in losses.module.named_parameters(prefix="module") if p.requires_grad)
    buffers = tuple(name for name, _ in losses.module.named_buffers(prefix="module"))
    if not params:
        raise ValueError("net has no parameter that requires a gradient, so there is nothing to train.")
    return params, buffers


def _differentiable(net: NeuralNet, lrs: torch.Tensor | None = None) -> Optimizer:
    """Return the pure twin of the net's optimiser; `lrs` has a row per parameter group and a column per step."""
    places = {id(p): n for n, p in enumerate(p for p in net.module_.parameters() if p.requires_grad)}
    rules, members = [], []
    for n, group in enumerate(net.optimizer_.param_groups):
        # The optimiser may hold parameters of the criterion and frozen ones too; neither are trained.
        own = tuple(sorted(places[id(p)] for p in group["params"] if id(p) in places))
        rule = _rule(type(net.optimizer_), group)
        if own:
            rules.append(rule if lrs is None else Scheduled(rule, lrs[n]))
            members.append(own)
    if members == [tuple(range(len(places)))]:
        return rules[0]
    return Grouped(tuple(rules), tuple(members))


def _rule(optimizer: type, group: dict) -> Optimizer:
    """Return the pure twin of an optimiser's treatment of one parameter group."""
    if optimizer not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise ValueError(
            f"net trains with {optimizer.__name__}, which cannot be differentiated through. Use "
            "optimizer=torch.optim.SGD, torch.optim.Adam or torch.optim.AdamW."
        )
    for option in ("dampening", "maximize", "amsgrad"):
        if group.get(option):
            raise ValueError(
                f"net trains with {optimizer.__name__}({option}={group[option]}), which is not supported. Leave it out."
            )
    lr, weight_decay = float(group["lr"]), float(group["weight_decay"])
    if optimizer is torch.optim.SGD:
        return SGD(lr, group["momentum"], weight_decay, group["nesterov"])
    if group["eps"] < 1e-15:  # its square must not vanish in float32
        raise ValueError(
            f"net trains with {optimizer.__name__}(eps={group['eps']}), which cannot be differentiated through where a "
            "gradient is zero. Use eps=1e-8."
        )
    beta1, beta2 = group["betas"]
    return Adam(lr, (float(beta1), float(beta2)), group["eps"], weight_decay, group["decoupled_weight_decay"])


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
