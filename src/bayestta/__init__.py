"""Test-time adaptation of vision-language models on streams that drift, after BayesTTA.

Five nouns (model, data, stream, adapter, report) and two verbs: `adapt` answers and learns,
`predict` answers and changes nothing. The names below are imported when they are first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayestta.adapter import Adapter as Adapter
    from bayestta.adapter import make_adapter as make_adapter
    from bayestta.adapter import methods as methods
    from bayestta.adapter import register as register
    from bayestta.adapters.bayes_tta import BayesTTA as BayesTTA
    from bayestta.covariance import box_m as box_m
    from bayestta.data import list_data as list_data
    from bayestta.data import load_data as load_data
    from bayestta.data import stream as stream
    from bayestta.gda import log_discriminant as log_discriminant
    from bayestta.model import list_models as list_models
    from bayestta.model import load_model as load_model
    from bayestta.result import Result as Result
    from bayestta.run import evaluate as evaluate
    from bayestta.run import run as run
    from bayestta.stats import GaussianStats as GaussianStats

    __version__: str

_HOME = {
    "Adapter": "bayestta.adapter",
    "BayesTTA": "bayestta.adapters.bayes_tta",
    "GaussianStats": "bayestta.stats",
    "Result": "bayestta.result",
    "box_m": "bayestta.covariance",
    "evaluate": "bayestta.run",
    "list_data": "bayestta.data",
    "list_models": "bayestta.model",
    "load_data": "bayestta.data",
    "load_model": "bayestta.model",
    "log_discriminant": "bayestta.gda",
    "make_adapter": "bayestta.adapter",
    "methods": "bayestta.adapter",
    "register": "bayestta.adapter",
    "run": "bayestta.run",
    "stream": "bayestta.data",
}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'bayestta' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("bayestta")
    except PackageNotFoundError:  # the source on the path, never installed
        return "0+unknown"


class _Package(ModuleType):
    """`run` is a verb and a file: importing the file first must not hide the verb."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "run" and isinstance(value, ModuleType):
            value = value.run
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
