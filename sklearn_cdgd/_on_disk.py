"""Rows that are too many for the memory: they stay in a file, and are read batch by batch."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Iterator

import numpy as np

# Rows are looked at, and copied, in blocks of so many numbers: 16 MB in float32.
_BLOCK = 2**22


def is_on_disk(X) -> bool:
    """Tell whether rows lie in a file, or are computed piece by piece.

    These are NumPy's memory maps, and arrays in chunks: of dask, h5py and zarr.
    """
    return isinstance(X, np.memmap) or (hasattr(X, "chunks") and hasattr(X, "dtype") and hasattr(X, "shape"))


def on_disk(X, dtype) -> np.memmap:
    """Return checked rows in a file: the one that they are in if it holds them in this type, or else a new one.

    Parameters
    ----------
    X : np.memmap, or an array in chunks
    dtype : NumPy type
        float32 or int64.

    Returns
    -------
    rows : np.memmap of the shape of `X`
        Not to be written to. A new file lies in the folder for temporary files, and goes when the array goes.

    Raises
    ------
    ValueError, TypeError
        If there is a value that is no finite number, or if the number of rows is not known.
    """
    if not all(float(length).is_integer() for length in X.shape):
        raise ValueError(
            "the number of rows is not known before they are computed. Call X.compute_chunk_sizes() first."
        )
    if np.dtype(X.dtype).kind not in "biuf":
        raise TypeError(f"rows in a file must be numbers; got the type {X.dtype}.")
    if 0 in X.shape:
        return np.empty(tuple(map(int, X.shape)), dtype)  # what is wrong with it is for others to say
    if isinstance(X, np.memmap) and X.dtype == dtype and X.flags.c_contiguous:
        for block in _blocks(X):
            _refuse_what_is_not_finite(X[block])
        rows = X.view()
    else:
        rows = _new_file(X.shape, dtype)
        for block in _blocks(X):
            part = np.asarray(X[block])
            with np.errstate(over="ignore", invalid="ignore"):
                cast = part.astype(dtype)
            _refuse_what_is_not_finite(cast)
            rows[block] = cast
        rows.flush()
    rows.flags.writeable = False
    return rows


def _blocks(X) -> Iterator[slice]:
    """Return slices of rows: the chunks of dask, or what makes a block."""
    chunks = getattr(X, "chunks", None)
    lengths = chunks[0] if chunks is not None and isinstance(chunks[0], tuple) else None
    if lengths is None:
        n_at_once = max(1, _BLOCK // max(1, int(np.prod(X.shape[1:]))))
        lengths = [n_at_once] * (X.shape[0] // n_at_once) + [X.shape[0] % n_at_once]
    first = 0
    for length in lengths:
        if length:
            yield slice(first, first + length)
        first += length


def _refuse_what_is_not_finite(block: np.ndarray) -> None:
    # One sum finds it in one pass; only a sum that overflows needs a second look.
    with np.errstate(over="ignore", invalid="ignore"):
        if block.dtype.kind == "f" and not np.isfinite(block.sum()) and not np.isfinite(block).all():
            raise ValueError(
                "Input contains NaN, infinity or a value too large for float32. Drop these rows, or fill them in."
            )


def _new_file(shape, dtype) -> np.memmap:
    handle, name = tempfile.mkstemp(prefix="sklearn_cdgd-", suffix=".rows")
    os.close(handle)
    rows = np.memmap(name, dtype=dtype, mode="w+", shape=tuple(map(int, shape)))
    weakref.finalize(rows, _remove, name)
    return rows


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)


class ChosenRows:
    """Rows of one set, and of another below them, which are read when they are asked for.

    Parameters
    ----------
    *parts : pair of (rows, mask)
        Sets of rows of one type, and which of them are chosen.
    """

    def __init__(self, *parts):
        self._parts = [(X, np.flatnonzero(mask)) for X, mask in parts]
        self._starts = np.cumsum([0, *(len(rows) for _, rows in self._parts)])
        first = self._parts[0][0]
        self.dtype, self.shape = first.dtype, (int(self._starts[-1]), *first.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, numbers) -> np.ndarray:
        """Return rows, given their numbers, a mask or a slice."""
        numbers = np.arange(len(self))[numbers]
        out = np.empty((len(numbers), *self.shape[1:]), dtype=self.dtype)
        for (X, rows), start, stop in zip(self._parts, self._starts[:-1], self._starts[1:], strict=True):
            here = (numbers >= start) & (numbers < stop)
            out[here] = X[rows[numbers[here] - start]]
        return out
