"""Sphinx extension: a public name that the reference leaves out is a warning, so it fails the build."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

from sphinx.util import logging

logger = logging.getLogger(__name__)


def public_names(module: ModuleType) -> set[str]:
    """Return the dotted names in ``__all__`` of a module and of the modules in it."""
    names = set()
    for name in module.__all__:
        value = getattr(module, name)
        if name.startswith("__"):  # the version needs no page
            continue
        names |= public_names(value) if inspect.ismodule(value) else {f"{module.__name__}.{name}"}
    return names


def check(app, env):
    """Warn of every public name that no page documents."""
    documented = set(env.get_domain("py").objects)
    for name in sorted(public_names(importlib.import_module(app.config.every_public_name_of)) - documented):
        logger.warning("%s is public, but the API reference leaves it out. Add it to docs/api.rst.", name)


def setup(app):
    app.add_config_value("every_public_name_of", "sklearn_cdgd", "env")
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
