"""What torch modules need before they can be trained again and again, and differentiated twice."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

# --- random numbers ---------------------------------------------------------------------------------------------------


# All threads of a process draw from the same generator.
_GENERATOR = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int, device):
    """Seed torch for the block and put the global generators back afterwards; one thread at a time."""
    with _GENERATOR, torch.random.fork_rng(devices=[torch.device(device)] if _is_cuda(device) else []):
        torch.manual_seed(seed)
        yield


def generator_state(device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if _is_cuda(device) else torch.get_rng_state()


def _is_cuda(device) -> bool:
    return device is not None and torch.device(device).type == "cuda"


# --- fresh parameters -------------------------------------------------------------------------------------------------


def reset(module: nn.Module) -> None:
    """Draw the parameters of all layers anew that know how to, except frozen ones."""
    for layer in module.modules():
        # torch's attention spells it with an underscore.
        method = "reset_parameters" if hasattr(layer, "reset_parameters") else "_reset_parameters"
        if not hasattr(layer, method):
            continue
        if parametrize.is_parametrized(layer) and any(p.requires_grad for p in layer.parameters()):
            _reset_parametrized(layer, method)
        elif any(p.requires_grad for p in layer.parameters(recurse=False)):
            getattr(layer, method)()


def _reset_parametrized(layer: nn.Module, method: str) -> None:
    """Reset a layer whose weights are computed from others: a bare twin is reset, its weights are assigned."""
    bare = copy.deepcopy(layer)
    # torch's remove_parametrizations would change the class, which the copy shares with the layer.
    bare.__class__ = type(layer).__bases__[0]
    del bare.parametrizations
    for name in layer.parametrizations:
        setattr(bare, name, nn.Parameter(getattr(layer, name).detach().clone()))
    getattr(bare, method)()
    with torch.no_grad():
        for name, tensor in bare.named_parameters(recurse=False):
            if name in layer.parametrizations:
                setattr(layer, name, tensor.detach())
            else:
                getattr(layer, name).copy_(tensor)


def lazy_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers whose shape is not known yet."""
    return [t for t in (*module.parameters(), *module.buffers()) if is_lazy(t)]


class LazyModule:
    """Makes modules whose lazy layers have got their parameters from a first pass of two rows.

    Parameters
    ----------
    module : torch.nn.Module or callable returning one
        An instance stands for its architecture.
    rows : Tensor of shape (2, ...)
        Two rows of the data.
    """

    def __init__(self, module: nn.Module | Callable[..., nn.Module], rows: torch.Tensor):
        self.module, self.rows = module, rows

    def __deepcopy__(self, memo):
        return self  # never changed; and torch refuses to copy lazy tensors

    def build(self, **options) -> nn.Module:
        """Return a newly initialised module."""
        is_instance = isinstance(self.module, nn.Module)
        if is_instance and not options:
            module = copy.deepcopy(self.module, copies_of_lazy_tensors(self.module))
        else:
            module = (type(self.module) if is_instance else self.module)(**options)
        with torch.no_grad():
            module.eval()(self.rows.clone())  # eval leaves the statistics of batch norm alone
        if is_instance:
            reset(module)
        return module.train()


def copies_of_lazy_tensors(module: nn.Module) -> dict[int, torch.Tensor]:
    """Return a memo for `copy.deepcopy`, which fails on a lazy buffer."""
    memo = {}
    for t in lazy_tensors(module):
        kind = UninitializedParameter if isinstance(t, UninitializedParameter) else UninitializedBuffer
        memo[id(t)] = kind(t.requires_grad, device=t.device, dtype=t.dtype)
    return memo


# --- second derivatives -----------------------------------------------------------------------------------------------


class Called(TorchFunctionMode):
    """Within it, the functions of torch that are called are noted in the set `functions`."""

    def __init__(self):
        super().__init__()
        self.functions = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.functions.add(func)
        return func(*args, **(kwargs or {}))


def twice_differentiable(module: nn.Module, functions: set) -> list[Callable[[], AbstractContextManager]]:
    """Return makers of contexts within which torch takes kernels that have a right second derivative.

    Parameters
    ----------
    module : torch.nn.Module
    functions : set
        The functions of torch that it calls. Contexts cost time, so only what is needed is returned.
    """
    contexts = []
    if functions & {nn.functional.scaled_dot_product_attention, nn.functional.multi_head_attention_forward}:
        contexts.append(functools.partial(sdpa_kernel, SDPBackend.MATH))
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        contexts.append(functools.partial(torch.backends.cudnn.flags, enabled=False))
    if torch._weight_norm in functions:
        contexts.append(_ExactWeightNorm)
    return contexts


class _ExactWeightNorm(TorchFunctionMode):
    """Within it, weight norm is made of simple operations.

    The second derivative of torch's fused kernel is wrong (2.13, CPU): it takes the norm for a constant.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (_weight_norm if func is torch._weight_norm else func)(*args, **(kwargs or {}))


def _weight_norm(v, g, dim=0):
    return v * (g / torch.norm_except_dim(v, 2, dim))


# What to write instead, by a word in torch's message.
_REMEDIES = {
    "embedding_bag": "Use torch.nn.Embedding, followed by a mean or a sum over the tokens.",
    "hardsigmoid": "Use torch.nn.Sigmoid.",
    "cdist": "Write the distances out: (a[:, None] - b).square().sum(-1).",
    "pdist": "Write the distances out: (a[:, None] - a).square().sum(-1).",
    "margin_loss": "Use torch.nn.CrossEntropyLoss, or write the margins out with torch.relu.",
    "scaled_dot_product": "Do not choose the kernel of attention inside the module.",
    "compile": "Pass the module as it was before torch.compile.",
}
_OTHERWISE = "Replace it by operations that torch can differentiate twice."


def second_derivative_error(
    error: RuntimeError, modules: list[tuple[str, nn.Module]], forward: Callable[[], object]
) -> ValueError:
    """Return the error that names what cannot be differentiated twice, and a replacement.

    Parameters
    ----------
    error : RuntimeError
        What torch raised.
    modules : list of (str, Module)
        What each module is called, such as "layer 'hidden'".
    forward : callable
        Runs all of `modules`.
    """
    message, found = str(error), []

    def probe(words, module, inputs, output):
        try:
            _differentiate_twice(output, [*module.parameters(), *inputs])
        except RuntimeError as raised:
            if str(raised) == message:
                found.append(words)

    hooks = [
        module.register_forward_hook(functools.partial(probe, f"its {what} ({type(module).__name__})"))
        for what, module in modules
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    # Hooks run when a forward pass ends: the innermost module comes first.
    culprit = found[0] if found else "one of its operations"
    remedy = next((remedy for word, remedy in _REMEDIES.items() if word in message), _OTHERWISE)
    return ValueError(
        f"net cannot be differentiated twice, as a hypergradient must: {culprit} has no second derivative in torch "
        f"({message.rstrip('.')}). {remedy}"
    )


def refuse_once_differentiable(grads: Iterable[torch.Tensor]) -> None:
    """Raise if gradients were computed by a function that is marked as `once_differentiable`.

    torch raises only where the path to the mark is followed, and `torch.autograd.grad` does not follow it: the second
    derivative would be zero without a word.
    """
    seen, rest = set(), [g.grad_fn for g in grads]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        if node.name() == "torch::autograd::Error":
            raise RuntimeError("a function marked as once_differentiable")
        seen.add(node)
        rest += [before for before, _ in node.next_functions]


def _differentiate_twice(output: object, inputs: list) -> None:
    """Take the first and the second derivative of what a module returned; raises as torch does."""
    outputs = output if isinstance(output, tuple | list) else [output]
    outputs, inputs = ([t for t in ts if isinstance(t, torch.Tensor) and t.requires_grad] for ts in (outputs, inputs))
    if outputs and inputs:
        loss = sum(t.square().sum() for t in outputs)
        grads = torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
        refuse_once_differentiable(grads)
        size = sum(g.square().sum() for g in grads)
        if size.requires_grad:
            torch.autograd.grad(size, inputs, retain_graph=True, allow_unused=True)
