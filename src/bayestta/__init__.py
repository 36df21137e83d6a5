"""Test-time adaptation of vision-language models on streams that drift, after BayesTTA.

Five nouns (model, data, stream, adapter, report) and two verbs: `adapt` answers and learns,
`predict` answers and changes nothing. The names below are imported when they are first used.

Importing bayestta before open_clip, timm or transformers also lets these import where torchvision
was built for another torch (`operator torchvision::nms does not exist`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bayestta.models._torchvision import install

if TYPE_CHECKING:
    from bayestta import checks as checks
    from bayestta._pipeline import Pipeline as Pipeline
    from bayestta._pipeline import pipeline as pipeline
    from bayestta.adapter import Adapter as Adapter
    from bayestta.data import Batch as Batch
    from bayestta.data import Data as Data
    from bayestta.data import list_data as list_data
    from bayestta.data import load_data as load_data
    from bayestta.data import register_data as register_data
    from bayestta.data import stream as stream
    from bayestta.evaluation.result import Result as Result
    from bayestta.evaluation.steps import evaluate as evaluate
    from bayestta.evaluation.steps import steps as steps
    from bayestta.maths.box_m import box_m as box_m
    from bayestta.maths.discriminant import log_discriminant as log_discriminant
    from bayestta.maths.stats import GaussianStats as GaussianStats
    from bayestta.methods import make_adapter as make_adapter
    from bayestta.methods import register as register
    from bayestta.methods import settings_of as settings_of
    from bayestta.methods.bayestta.method import BayesTTA as BayesTTA
    from bayestta.methods.guarded import Guarded as Guarded
    from bayestta.models import VLM as VLM
    from bayestta.models import list_models as list_models
    from bayestta.models import load_model as load_model
    from bayestta.models import wrap as wrap
    from bayestta.serve.client import Client as Client

    __version__: str

_HOME = {
    "Adapter": "bayestta.adapter",
    "Batch": "bayestta.data",
    "BayesTTA": "bayestta.methods.bayestta.method",
    "Client": "bayestta.serve.client",
    "Data": "bayestta.data",
    "GaussianStats": "bayestta.maths.stats",
    "Guarded": "bayestta.methods.guarded",
    "Pipeline": "bayestta._pipeline",
    "Result": "bayestta.evaluation.result",
    "VLM": "bayestta.models",
    "box_m": "bayestta.maths.box_m",
    "evaluate": "bayestta.evaluation.steps",
    "list_data": "bayestta.data",
    "list_models": "bayestta.models",
    "load_data": "bayestta.data",
    "load_model": "bayestta.models",
    "log_discriminant": "bayestta.maths.discriminant",
    "make_adapter": "bayestta.methods",
    "pipeline": "bayestta._pipeline",
    "register": "bayestta.methods",
    "register_data": "bayestta.data",
    "settings_of": "bayestta.methods",
    "steps": "bayestta.evaluation.steps",
    "stream": "bayestta.data",
    "wrap": "bayestta.models",
}

__all__ = [*sorted(_HOME), "__version__", "checks"]

install()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name == "checks":
        value = import_module("bayestta.checks")
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
