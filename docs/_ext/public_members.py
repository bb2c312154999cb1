"""Sphinx extension: the reference shows our own methods, not what scikit-learn adds to every estimator."""

from __future__ import annotations


def skip(app, what, name, obj, skip, options):
    theirs = not (getattr(obj, "__module__", None) or "sklearn_cdgd").startswith("sklearn_cdgd")
    return True if theirs or (name.startswith("set_") and name.endswith("_request")) else None


def setup(app):
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
