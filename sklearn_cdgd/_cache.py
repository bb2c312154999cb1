"""Remember what a fit learnt: joblib's cache, under a key that is the same in every process.

joblib's own hash changes from one torch tensor to an equal one, and knows a class by its name only, so it would miss
what it should find and, after a class in a notebook was edited, find what it should miss.
"""

from __future__ import annotations

import functools
import hashlib
import types

import numpy as np
import torch
from sklearn.utils.validation import check_memory
from torch.nn.parameter import UninitializedTensorMixin

from ._version import __version__
from ._warnings import warn_user

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, type(...),
    torch.dtype, torch.device, np.dtype, np.generic,
)  # fmt: skip
# Of their functions and classes the names are enough: the versions of torch and of this package are part of the key.
_KNOWN_BY_NAME = {"torch", "skorch", "sklearn", "sklearn_cdgd", "numpy", "scipy", "builtins"}
_BOOKKEEPING = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__", "_abc_impl"}


def recall(memory, key, compute, *, keep=lambda result: True):
    """Return what `compute` returns, or what it returned when it was called under the same key.

    Parameters
    ----------
    memory : None, str or joblib.Memory
        ``None`` computes.
    key : object
        Everything that the result depends on; see :func:`fingerprint`.
    compute : callable() -> nested tuples of arrays and tensors
        Tensors come back from the cache on the CPU.
    keep : callable(result) -> bool
        Whether a result is worth remembering; one that was cut short is not.

    Returns
    -------
    result : object

    Warns
    -----
    UserWarning
        If the key holds something that has no fingerprint: then nothing is remembered.
    """
    if memory is None:
        return compute()
    try:
        name = fingerprint((__version__, torch.__version__, key))
    except TypeError as error:
        warn_user(f"memory has no effect: {error}. Nothing was remembered; describe the net by a class or a function.")
        return compute()
    try:
        return check_memory(memory).cache(_computed, ignore=["compute", "keep"])(name, compute, keep)
    except _NotKept as passed:
        return passed.result


class _NotKept(Exception):
    """Carries a result past the cache."""

    def __init__(self, result):
        self.result = result


def _computed(name, compute, keep):
    result = compute()
    if not keep(result):
        raise _NotKept(result)
    return _on_cpu(result)


def _on_cpu(tree):
    """Copy the tensors in nested tuples, so that the file holds no more than they show and opens on any machine."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, tuple):
        parts = [_on_cpu(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def fingerprint(value) -> str:
    """Return a hash of what a value says, not of where it lies in memory.

    Arrays and tensors count by content, objects by class and attributes, estimators by class and parameters, functions
    and classes by name and code, together with what they use of their own module.

    Parameters
    ----------
    value : object

    Returns
    -------
    digest : str

    Raises
    ------
    TypeError
        If a part of the value shows neither content nor attributes.
    """
    return _fingerprint(value, {})


def _fingerprint(value, seen: dict) -> str:
    if isinstance(value, _PLAIN):
        return _digest(type(value).__qualname__, repr(value))
    if isinstance(value, np.ndarray) and value.dtype != object:
        return _digest(value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    # Met again, a value is known by its number: that ends cycles, and tells tied weights from equal ones.
    if not isinstance(value, tuple | list | dict | np.ndarray):
        if id(value) in seen:
            return f"number {seen[id(value)][0]}"
        seen[id(value)] = len(seen), value  # the value is kept, or its id would be given to another
    return _digest(type(value).__qualname__, *[_fingerprint(part, seen) for part in _parts(value)])


def _digest(*parts) -> str:
    digest = hashlib.sha256()
    for part in parts:
        part = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value) -> list:
    """Return what a value is known by, nearer to plain values by one step."""
    match value:
        case tuple() | list():
            return list(value)
        case dict():
            return [part for pair in value.items() for part in pair]
        case set() | frozenset():
            return sorted(fingerprint(part) for part in value)
        case np.ndarray():
            return [value.shape, *value.ravel().tolist()]
        case UninitializedTensorMixin():
            raise TypeError("a lazy layer cannot be told from another")
        case torch.Tensor():
            content = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
            return [value.dtype, tuple(value.shape), value.requires_grad, content]
        case types.ModuleType():
            return [value.__name__]
        case functools.partial():
            return [value.func, value.args, value.keywords]
        case types.MethodType():
            return [value.__func__, value.__self__]
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [value.fget, value.fset]
        case types.CodeType():
            return [value.co_code, value.co_names, value.co_varnames, value.co_consts]
        case type() | types.FunctionType() | types.BuiltinFunctionType():
            return _parts_of_definition(value)
    if callable(getattr(value, "get_params", None)):
        return [type(value), value.get_params(deep=False)]
    if hasattr(value, "__dict__"):
        return [type(value), vars(value)]
    raise TypeError(f"an object of type {type(value).__qualname__} cannot be told from another of its type")


def _parts_of_definition(value) -> list:
    name = [value.__module__, value.__qualname__]
    if isinstance(value, types.BuiltinFunctionType) or (value.__module__ or "").split(".")[0] in _KNOWN_BY_NAME:
        return name
    if isinstance(value, type):
        own = {key: part for key, part in vars(value).items() if key not in _BOOKKEEPING}
        return [*name, value.__bases__, own]
    enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
    used = {name: value.__globals__[name] for name in sorted(_names(value.__code__)) if name in value.__globals__}
    return [*name, value.__code__, value.__defaults__, value.__kwdefaults__, enclosed, used]


def _names(code: types.CodeType) -> set[str]:
    """Return the global names, and the names of attributes, in a function and the functions inside it."""
    return {*code.co_names}.union(*(_names(part) for part in code.co_consts if isinstance(part, types.CodeType)))
