"""The one place that copes with a torchvision whose compiled operators do not match torch.

The CUDA build of torchvision beside a CPU build of torch imports up to the point where it registers
fake kernels for operators that were never loaded (`operator torchvision::nms does not exist`).
Nothing here or in open_clip, timm or transformers needs those operators: declaring their schemas
lets the import finish. Images are decoded by Pillow.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_kept: list[Any] = []  # a Library withdraws its schemas when it is collected


def import_torchvision() -> None:
    """Import torchvision, repairing exactly the failure above; a matching pair is left as it is.

    Call it before anything that imports torchvision itself. Where there is none, nothing is done:
    transformers works without, and open_clip says that it does not.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        import torch

        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        declare: Any = torch.library.Library  # untyped
        library = declare("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
        importlib.import_module("torchvision")
