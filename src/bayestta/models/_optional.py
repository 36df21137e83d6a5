"""Packages that only some models need."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, *, package: str, model: str, extra: str) -> Any:
    """Import a module of an optional package, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) or error.name != module:
            raise  # it is there, and something that it needs itself is not
        raise ImportError(
            f"model {model!r} needs the package {package}, which is not installed: "
            f"pip install 'bayestta[{extra}]'."
        ) from error
