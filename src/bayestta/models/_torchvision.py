"""The one place that copes with a torchvision whose compiled operators do not match torch.

The CUDA build of torchvision beside a CPU build of torch imports up to the point where it registers
fake kernels for operators that were never loaded (`operator torchvision::nms does not exist`).
Nothing here or in open_clip, timm or transformers needs those operators: declaring their schemas
lets the import finish. Images are decoded by Pillow.

`import bayestta` installs the repair; it acts when torchvision is imported and fails in exactly
that way. This file imports nothing but the standard library.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FAILURE = "operator torchvision::nms does not exist"
_kept: list[Any] = []  # a Library withdraws its schemas when it is collected


class Repair:
    """A finder that lets the others find torchvision, and watches over its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None
            if find is not None and not isinstance(finder, Repair):
                spec = find(name, path, target)
            if spec is not None:
                loader: Any = spec.loader
                if loader is not None:  # the loader stays what it is, for whoever asks it
                    loader.exec_module = partial(_execute, loader.exec_module)
                return spec
        return None


def install() -> None:
    """Repair torchvision when it is imported, if it needs that; `import bayestta` calls it."""
    if not any(isinstance(finder, Repair) for finder in sys.meta_path):
        sys.meta_path.insert(0, Repair())


def import_torchvision() -> None:
    """Import torchvision, repaired if it needs that; without one installed, do nothing."""
    install()
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run torchvision's own code; after exactly the failure above, declare and run it again."""
    try:
        execute(module)
    except RuntimeError as error:
        if FAILURE not in str(error):
            raise
        for name in [n for n in sys.modules if n.startswith("torchvision.")]:
            del sys.modules[name]
        _declare()
        execute(module)


def _declare() -> None:
    import torch

    library: Any = torch.library.Library  # untyped
    declared = library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(declared)
