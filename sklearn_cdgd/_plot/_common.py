"""What the displays share: checking numbers, and axes to draw on."""

from __future__ import annotations

import numpy as np
from sklearn.utils import column_or_1d

# Two colours that colour-blind readers can tell apart.
RIGHT, WRONG = "#0072b2", "#d55e00"


def check_scores(values, name="alpha"):
    values = column_or_1d(np.asarray(values, dtype=float))
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"{name} must lie in [0, 1]; got {values.min()} to {values.max()}.")
    return values


def check_mask(values, n_rows, name="is_corrupted"):
    values = column_or_1d(values)
    if len(values) != n_rows:
        raise ValueError(f"{name} has {len(values)} entries for {n_rows} rows.")
    if not np.isin(values, [False, True]).all():
        raise ValueError(f"{name} must hold True (wrong row) or False; got {np.unique(values)[:5].tolist()}.")
    return values.astype(bool)


def _pyplot(display):
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f"{type(display).__name__} needs matplotlib to draw. Install it with: pip install matplotlib"
        ) from error
    return plt


def one_axes(display, ax):
    """Let a display draw on `ax`, or on a new figure."""
    plt = _pyplot(display)
    display.ax_ = plt.subplots(layout="constrained")[1] if ax is None else ax
    display.figure_ = display.ax_.figure
    return display.ax_


def several_axes(display, ax, n_needed, *, nrows=1, ncols=2, **options):
    """Let a display draw on the Axes in `ax`, or on a new figure."""
    plt = _pyplot(display)
    if ax is None:
        ax = plt.subplots(nrows, ncols, squeeze=False, layout="constrained", **options)[1]
    display.axes_ = np.asarray(ax, dtype=object).ravel()
    if len(display.axes_) < n_needed:
        raise ValueError(f"ax must hold {n_needed} Axes; got {len(display.axes_)}.")
    display.figure_ = display.axes_[0].figure
