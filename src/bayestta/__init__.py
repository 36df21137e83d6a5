"""Test-time adaptation of vision-language models on streams that drift, after BayesTTA.

Five nouns (model, data, stream, adapter, report) and two verbs: `adapt` answers and learns,
`predict` answers and changes nothing. The names below are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayestta import checks as checks
    from bayestta.adapter import Adapter as Adapter
    from bayestta.data import list_data as list_data
    from bayestta.data import load_data as load_data
    from bayestta.data import stream as stream
    from bayestta.evaluation.result import Result as Result
    from bayestta.evaluation.steps import evaluate as evaluate
    from bayestta.evaluation.steps import steps as steps
    from bayestta.maths.box_m import box_m as box_m
    from bayestta.maths.discriminant import log_discriminant as log_discriminant
    from bayestta.maths.stats import GaussianStats as GaussianStats
    from bayestta.methods import make_adapter as make_adapter
    from bayestta.methods import methods as methods
    from bayestta.methods import register as register
    from bayestta.methods import settings_of as settings_of
    from bayestta.methods.bayestta.method import BayesTTA as BayesTTA
    from bayestta.methods.guarded import Guarded as Guarded
    from bayestta.models.base import list_models as list_models
    from bayestta.models.base import load_model as load_model

    __version__: str

_HOME = {
    "Adapter": "bayestta.adapter",
    "BayesTTA": "bayestta.methods.bayestta.method",
    "Guarded": "bayestta.methods.guarded",
    "GaussianStats": "bayestta.maths.stats",
    "Result": "bayestta.evaluation.result",
    "box_m": "bayestta.maths.box_m",
    "evaluate": "bayestta.evaluation.steps",
    "list_data": "bayestta.data",
    "list_models": "bayestta.models.base",
    "load_data": "bayestta.data",
    "load_model": "bayestta.models.base",
    "log_discriminant": "bayestta.maths.discriminant",
    "make_adapter": "bayestta.methods",
    "methods": "bayestta.methods",
    "register": "bayestta.methods",
    "settings_of": "bayestta.methods",
    "steps": "bayestta.evaluation.steps",
    "stream": "bayestta.data",
}

__all__ = [*sorted(_HOME), "__version__", "checks"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name == "checks":
        value = import_module("bayestta.checks")
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
