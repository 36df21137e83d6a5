"""Models: `load_model` by name, `wrap` for one that you hold; one file per family.

Names are imported when they are first used, as `import bayestta` comes through here for the repair
of torchvision and must not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayestta.models._vlm import VLM as VLM
    from bayestta.models._wrap import wrap as wrap
    from bayestta.models.base import list_models as list_models
    from bayestta.models.base import load_model as load_model

_HOME = {"VLM": "_vlm", "wrap": "_wrap", "list_models": "base", "load_model": "base"}
__all__ = ["VLM", "list_models", "load_model", "wrap"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bayestta.models' has no attribute {name!r}")
    return getattr(import_module(f"bayestta.models.{_HOME[name]}"), name)
