"""From a network of the user's to a pure :class:`~sklearn_cdgd._unroll.Problem`.

Any net is first turned into a skorch net that nobody else holds (``_nets``); the loss of a row is whatever its
``get_loss`` says, evaluated at parameters that are passed in.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterable

import numpy as np
import torch
from scipy.sparse import issparse
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetRegressor
from skorch.utils import to_tensor
from torch import nn

from ._callbacks import fit_to_data, schedule_of, warn_of_what_is_lost
from ._default_network import DefaultNetwork
from ._inputs import as_vectors, rows_at_once, tensor_of_rows
from ._modules import (
    Called,
    LazyModule,
    generator_state,
    lazy_tensors,
    refuse_once_differentiable,
    second_derivative_error,
    seeded,
    twice_differentiable,
)
from ._nets import NotApplicableError, applying_to, as_skorch, copyable, default_epochs, fresh_module
from ._optimizers import Optimizer, differentiable
from ._unroll import BatchPlan, Problem, State, inner_step

# Rows per forward pass where nothing is differentiated.
_CHUNK = 4096
# So many targets tell what a criterion wants.
_TRIED_TARGETS = 100


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
        self.n_classes, self._says_how = n_classes, isinstance(net, NeuralNet)
        # Embeddings take integers and most other layers do not: only a trial can tell.
        try:
            self._set_up(net, X, X.dtype, targets, seed)
        except NotApplicableError as error:
            if X.dtype != np.int64:
                raise
            try:
                self._set_up(net, X, np.float32, targets, seed)
            except NotApplicableError as other:
                raise NotApplicableError(f"{error} (X holds integers. As float32: {other.__cause__})") from other
        warn_of_what_is_lost(self._net, self._schedule)

    def _set_up(self, net, X, dtype, targets, seed) -> None:
        """Initialise the net, and let it show on two rows that it can be trained on X in this type."""
        self._dtype = dtype
        picked = np.resize(np.arange(len(targets)), 2)
        two_rows = X[picked], targets[picked]
        sample = tensor_of_rows(two_rows[0], dtype, "cpu")(None)
        self._spec = as_skorch(copyable(net, sample), X, sample, targets, self.n_classes)
        with seeded(seed, self._spec.device):
            self._net = copy.deepcopy(self._spec).initialize()
            if lazy_tensors(self._net.module_):
                self._spec.set_params(module=LazyModule(self._spec.module, sample).build)
                with applying_to(sample, self.n_classes):
                    self._net = copy.deepcopy(self._spec).initialize()
            fit_to_data(self._net, X, targets)
        self._spec.set_params(**{f"module__{k}": v for k, v in self._net.get_params_for("module").items()})
        self._losses = _RowLosses(self._net)
        self.optimizer = differentiable(self._net.optimizer_, self._trained())
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

    def __getstate__(self):
        # skorch takes its modules apart when it is pickled, and `_losses` has to hold the one that `_net` has.
        losses = {"kernels": self._losses.kernels, "writes_to_input": self._losses.writes_to_input}
        return vars(self) | {"_losses": losses}

    def __setstate__(self, state):
        vars(self).update(state)
        self._losses = _RowLosses(self._net)
        vars(self._losses).update(state["_losses"])

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
        with seeded(seed, self._net.device):
            module = fresh_module(self._net)
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
            functools.partial(seeded, device=self.device) if self._stochastic else contextlib.nullcontext,
        )

    def plan(self, n_rows: int, seed: int) -> BatchPlan:
        """Return the net's own schedule for `n_rows` rows."""
        options = self._net.get_params_for("iterator_train")
        batch_size = options.get("batch_size", self._net.batch_size)
        n_epochs = self._net.max_epochs if self._says_how else default_epochs(n_rows)
        return BatchPlan(n_rows, batch_size, n_epochs, seed, shuffle=bool(options.get("shuffle", True)))

    def _trained(self) -> Iterable[torch.Tensor]:
        return (p for p in self._net.module_.parameters() if p.requires_grad)

    def _optimizer_of(self, n_rows: int) -> Optimizer:
        """Return the update rule of a training on `n_rows` rows, with its learning rate for every step."""
        if self._schedule is None:
            return self.optimizer
        plan = self.plan(n_rows, 0)
        # A schedule made for the steps of the noisy set may end there; judges may have the clean rows too.
        lrs = self._schedule.learning_rates(plan.n_epochs, plan.steps_per_epoch, self._n_scheduled)
        return differentiable(self._net.optimizer_, self._trained(), lrs.to(self.device))

    def row_losses(self, state: State, X, targets) -> np.ndarray:
        """Return the loss of every row under the trained state."""
        rows = self._data_set(X, targets)
        with torch.no_grad():
            parts = [self.eval_losses(state.params, state.buffers, *rows(chunk)) for chunk in _chunks(X)]
        return torch.cat(parts).cpu().numpy().astype(np.float64)

    @property
    def compares_rows(self) -> bool:
        """Whether rows can be compared by their distance; tokens cannot."""
        return self._dtype == np.float32

    def features(self, X):
        """Return rows as vectors whose distances mean something: as the default network scales them, or as they are."""
        module = self._net.module_
        if issparse(X) or not isinstance(module, DefaultNetwork):
            return as_vectors(X)
        rows = tensor_of_rows(X, self._dtype, self.device)
        with torch.no_grad():
            return torch.cat([module.scaled(rows(chunk)) for chunk in _chunks(X)]).cpu().numpy()

    def can_score_predictions(self, targets: np.ndarray) -> bool:
        """Return whether predictions of other models can be held against targets.

        Of labels they always can. Of numbers they can by a regressor's criterion, if that is least where the prediction
        is the target: others may want the logarithm of it, or a mean and a variance.
        """
        if self.n_classes is not None:
            return True
        if not isinstance(self._net, NeuralNetRegressor) or type(self._net).get_loss is not NeuralNetRegressor.get_loss:
            return False
        some = targets[:_TRIED_TARGETS]
        of_own, *of_others = (self.prediction_losses(given, some) for given in (some, np.roll(some, 1), some[::-1]))
        return all((of_own <= of_other).all() for of_other in of_others)

    def prediction_losses(self, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the loss of every row by the criterion of the net, had it predicted this."""
        predictions, targets = (to_tensor(self._for_net(values), self.device) for values in (predictions, targets))
        with torch.no_grad():
            return self._net.criterion_(predictions, targets).flatten(1).mean(1).cpu().numpy().astype(np.float64)

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
        with seeded(0, self._net.device):  # a DataLoader draws from the global generator
            probabilities = np.concatenate([net.predict_proba(part.cpu()) for part in parts]).astype(np.float64)
        # A net may have more outputs than there are classes in the data.
        probabilities = probabilities[:, : self.n_classes]
        return probabilities / probabilities.sum(axis=1, keepdims=True).clip(min=np.finfo(float).tiny)

    def fitted(self, state: State) -> NeuralNet:
        """Return a skorch net that holds the trained state and shares nothing with this object."""
        with seeded(0, self._net.device):
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
        with seeded(seed, self.device), torch.no_grad(), applying_to(X, self.n_classes):
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
        with seeded(seed, self.device), applying_to(X, self.n_classes), Called() as called:
            before, trial = generator_state(self.device), X.clone()
            losses, after = self.train_losses(params, buffers, trial, y)
            # A net that draws no random number needs no seed per step, a buffer that training leaves alone no copy.
            self._stochastic = not torch.equal(before, generator_state(self.device))
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


def _chunks(X) -> Iterable[torch.Tensor]:
    """Split all row numbers into parts for one forward pass each."""
    return torch.arange(X.shape[0]).split(rows_at_once(X, _CHUNK))


def _names(losses: _RowLosses) -> tuple[tuple[str, ...], tuple[str, ...]]:
    params = tuple(name for name, p in losses.module.named_parameters(prefix="module") if p.requires_grad)
    buffers = tuple(name for name, _ in losses.module.named_buffers(prefix="module"))
    if not params:
        raise ValueError("net has no parameter that requires a gradient, so there is nothing to train.")
    return params, buffers
