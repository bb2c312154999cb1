"""Warnings that point at the line of the user's that led to them, however many wrappers lie in between."""

from __future__ import annotations

import sys
import warnings

_INSIDE = ("sklearn_cdgd", "sklearn", "imblearn", "joblib", "contextlib", "functools")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, with the first caller outside of this package and scikit-learn as the place."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
