"""The forms in which rows and targets come, and how they become tensors.

Rows are an ndarray (float32, or int64 where a net may want integers) or a CSR array of float32. Sparse rows are made
dense when a batch is taken, so that the whole never is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_array, issparse, vstack

from ._on_disk import ChosenRows, is_on_disk

# Sparse rows are made dense in blocks of so many numbers at most: 64 MB.
_DENSE_NUMBERS = 2**24

_MISSING = "missing values (None, NaN or NA). Drop their rows, or fill them in."


# --- from what the caller passes to what scikit-learn can check -------------------------------------------------------


def plain_rows(X):
    """Return rows as scikit-learn's checks take them: a frame, an ndarray, or a CSR array of our own.

    Raises
    ------
    ValueError, TypeError
        If they hold what those checks would let pass, or explain badly.
    """
    if isinstance(X, torch.Tensor):
        return _array_of(X)
    if issparse(X):
        X = csr_array(X, copy=True)
        X.sum_duplicates()
        return X
    if not _is_frame(X):
        _refuse_mask(X)
        X = np.asarray(X)
    kinds = _kinds(X)
    if np.asarray(X.isna()).any() if hasattr(X, "iloc") else "O" in kinds and _any_missing(X):
        raise ValueError(_MISSING)
    if kinds & set("mM"):
        raise TypeError("dates and durations are no features. Turn them into numbers, days since the first for one.")
    return X


def plain_targets(y):
    """Return targets as an ndarray, those of pandas' nullable and categorical types in the type of their values.

    Raises
    ------
    ValueError, TypeError
        If they hold what scikit-learn's checks would let pass, or explain badly.
    """
    if isinstance(y, torch.Tensor):
        return _array_of(y)
    if issparse(y):
        return y
    _refuse_mask(y)
    kinds, y = _kinds(y), np.asarray(y)
    if y.dtype.kind == "T":  # NumPy's strings of any length
        return y.astype(object)
    if y.dtype == object:
        if _any_missing(y):
            raise ValueError(_MISSING)
        if kinds and kinds <= set("biuf"):  # pandas gives nullable numbers as objects
            return np.array(y.tolist())
    return y


def rows_dtype(X, *, keep_integers: bool) -> type:
    """Return the type to store plain rows in: int64 if they are integers that are to be kept, or float32."""
    if not keep_integers or issparse(X) or not _kinds(X) <= set("iu"):
        return np.float32
    too_large = getattr(X, "dtype", None) == np.uint64 and X.max(initial=0) > np.iinfo(np.int64).max
    return np.float32 if too_large else np.int64


def _array_of(tensor: torch.Tensor) -> np.ndarray:
    if tensor.layout != torch.strided:
        raise TypeError(f"a torch tensor must be dense; got the layout {tensor.layout}. Pass a SciPy sparse array.")
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _is_frame(data) -> bool:
    return hasattr(data, "columns") and hasattr(data, "dtypes")


def _kinds(data) -> set[str]:
    """Return NumPy's letters for the types of all columns; nullable types of pandas have one too."""
    if hasattr(data, "iloc"):
        return {dtype.kind for dtype in (data.dtypes if _is_frame(data) else [data.dtype])}
    return {np.asarray(data).dtype.kind}


def _refuse_mask(data) -> None:
    if np.ma.is_masked(data):
        raise ValueError(f"a masked array holds {_MISSING}")


def _any_missing(objects) -> bool:
    return any(_is_missing(value) for value in np.asarray(objects, dtype=object).flat)


def _is_missing(value) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # the answer of pandas.NA
        return True
    except ValueError:  # an array
        return False


# --- from checked rows to tensors -------------------------------------------------------------------------------------


def chosen_rows(X, mask: np.ndarray):
    """Return the chosen ones of checked rows; those in a file stay there."""
    return ChosenRows((X, mask)) if is_on_disk(X) else X[mask]


def concatenate_rows(first, mask: np.ndarray, second, second_mask: np.ndarray):
    """Put the chosen ones of two sets of checked rows below one another."""
    if is_on_disk(first):
        return ChosenRows((first, mask), (second, second_mask))
    first, second = first[mask], second[second_mask]
    return csr_array(vstack([first, second])) if issparse(first) else np.concatenate([first, second])


def as_vectors(X):
    """Return checked rows as vectors in memory."""
    return X if issparse(X) else X[:].reshape(len(X), -1)


def rows_at_once(X, limit: int) -> int:
    """Return how many rows may be dense at a time: `limit`, or fewer if they are sparse and wide."""
    return min(limit, max(1, _DENSE_NUMBERS // max(1, X.shape[1]))) if issparse(X) else limit


def tensor_of_rows(X, dtype, device) -> Callable[[torch.Tensor | None], torch.Tensor]:
    """Return the function that takes row numbers, ``None`` for all, and returns these rows as a tensor.

    Parameters
    ----------
    X : ndarray, CSR array or ChosenRows
        What must not be written to is copied batch by batch.
    dtype : NumPy type
        Type of the tensor; that of `X` if it is sparse.
    device : str or torch.device
    """
    if issparse(X):

        def dense(chosen):
            part = X if chosen is None else X[chosen.cpu().numpy()]
            return torch.from_numpy(part.toarray()).to(device)

        return dense
    if isinstance(X, ChosenRows) or not X.flags.writeable:

        def read(chosen):
            part = X[:] if chosen is None else X[chosen.cpu().numpy()]
            return torch.from_numpy(np.array(part, dtype)).to(device)

        return read
    whole = torch.from_numpy(np.ascontiguousarray(X, dtype)).to(device)
    return lambda chosen: whole if chosen is None else whole[chosen]
